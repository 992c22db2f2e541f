//! A schema of its own with rows put there by SQL, a configuration file, and the built binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod api;
pub(crate) mod daemon;
pub(crate) mod silence;
pub(crate) mod worker;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use dipmo::store::postgres::{Db, DbOptions, schema};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

pub(crate) struct World {
    pub(crate) sql: Client,
    pub(crate) schema: String,
    pub(crate) dir: PathBuf,
    url: String,
}

/// How the program ended and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32, with: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains("error: ") && self.err.contains(with), "{self:?}");
    }
}

impl World {
    /// A migrated schema with the consumer `billing`.
    pub(crate) async fn new() -> Self {
        let world = Self::bare().await;
        let options =
            DbOptions { schema: world.schema.clone(), connections_max: 2, ..DbOptions::new(world.url.clone()) };
        schema::migrate(&Db::open(options).unwrap()).await.unwrap();
        world
            .run_sql(&format!("set search_path = {}; insert into consumer (name) values ('billing')", world.schema))
            .await;
        world
    }

    /// A name for a schema that is not there yet.
    pub(crate) async fn bare() -> Self {
        let url = std::env::var("DIPMO_TEST_POSTGRES")
            .expect("DIPMO_TEST_POSTGRES is not set: run the tests with `cargo xtask test`");
        let schema = format!("t_srv_{}", uuid::Uuid::new_v4().simple());
        let dir = std::env::temp_dir().join(&schema);
        std::fs::create_dir_all(&dir).unwrap();
        let world = Self { sql: connect(&url).await, schema, dir, url };
        world.configure("");
        world
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Writes the configuration: the database of the test, and what is given.
    pub(crate) fn configure(&self, more: &str) {
        let text = format!("[database]\nurl = \"{}\"\nschema = \"{}\"\n{more}", self.url, self.schema);
        self.write("dipmo.toml", &text);
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dipmo"));
        command.current_dir(&self.dir).env_remove("DIPMO_CONFIG").env_remove("DIPMO_ACTOR").env("USER", "shell-user");
        command.env_remove("DIPMO_DATABASE_URL").stdin(Stdio::null());
        command
    }

    /// Runs the program in the directory of the configuration.
    pub(crate) fn dipmo(&self, args: &[&str]) -> Ran {
        ran(self.command().args(args).output().unwrap())
    }

    pub(crate) async fn run_sql(&self, statement: &str) {
        self.sql.batch_execute(statement).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }

    /// The rows of a query as text, one a line.
    pub(crate) async fn text(&self, query: &str) -> String {
        let rows = self.sql.query(&format!("select (x.*)::text from ({query}) x"), &[]).await;
        let rows = rows.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        self.sql.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
    }

    /// An open message of `billing`.
    pub(crate) async fn message(&self, key: &str, state: &str, payload: &[u8]) -> i64 {
        let insert = "
            with m as (
                insert into inbox (consumer_id, source, message_id, topic, partition_no, offset_no, key, payload)
                select 1, 'orders', 'm-' || gen_random_uuid(), 'orders', 0, 7, $1, $3 returning id)
            insert into inbox_work (id, consumer_id, bucket, key, state, attempts, error_stage, error_code, error_message)
            select id, 1, (hashtextextended($1, 0) & 15)::smallint, $1, $2, 3, 'BUSINESS',
                   case when $2 in ('DEAD', 'SERDE_ERROR') then 'NO_STOCK' end, 'out of stock'
            from m returning id";
        self.sql.query_one(insert, &[&key, &state, &payload]).await.unwrap().get(0)
    }

    /// A DEAD head with one message parked behind it.
    pub(crate) async fn parked_key(&self, key: &str) -> (i64, i64) {
        let head = self.message(key, "DEAD", b"{}").await;
        let park = "insert into parked_key (consumer_id, key, bucket, head_id, state)
                    values (1, $1, (hashtextextended($1, 0) & 15)::smallint, $2, 'WAITING')";
        self.sql.execute(park, &[&key, &head]).await.unwrap();
        (head, self.message(key, "PARKED", b"{}").await)
    }

    /// A message of the outbox that could not be sent.
    pub(crate) async fn unsent(&self, key: &str, state: &str) -> i64 {
        let append = "select outbox_append('KAFKA:orders', 'Order', $1, 'OrderPlaced', '{\"amount\": 1}')";
        let id: i64 = self.sql.query_one(append, &[&key]).await.unwrap().get(0);
        let insert = "insert into outbox_exception (id, shard, destination, key, state, attempts, error_code)
                      select id, shard, destination, key, $2, 5, 'BROKER' from outbox where id = $1";
        self.sql.execute(insert, &[&id, &state]).await.unwrap();
        id
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let (url, schema) = (self.url.clone(), self.schema.clone());
        let _ = std::fs::remove_dir_all(&self.dir);
        // A runtime of its own: a drop cannot wait, and the test's runtime may be ending.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // What a test opened under the name of its schema may still have to roll back.
                let end = format!(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{schema}'"
                );
                let drop = format!("set lock_timeout = '5s'; {end}; drop schema if exists {schema} cascade");
                let client = connect(&url).await;
                let _ = client.batch_execute(&drop).await;
                let _ = client.batch_execute(&format!("drop publication if exists {schema}_outbox")).await;
                let slots = format!("from pg_replication_slots where slot_name like 'dipmo_{schema}_%'");
                // The walsender of a daemon that was killed may not have noticed yet.
                let end = format!("select pg_terminate_backend(active_pid, 5000) {slots} and active");
                let _ = client.batch_execute(&end).await;
                let _ = client.batch_execute(&format!("select pg_drop_replication_slot(slot_name) {slots}")).await;
            });
        });
        let _ = cleaner.join();
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test database is reachable");
    tokio::spawn(connection);
    client
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
