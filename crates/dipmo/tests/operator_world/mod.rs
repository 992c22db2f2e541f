//! A fresh schema with rows put there by SQL, for the tests of what operators see and do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "every test file uses another part of it")]

use dipmo::operator::Change;
use dipmo::store::postgres::{Db, DbOptions, schema};
use tokio_postgres::{Client, NoTls};

pub(crate) struct World {
    pub(crate) db: Db,
    pub(crate) sql: Client,
    schema: String,
    url: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        let url = std::env::var("DIPMO_TEST_POSTGRES")
            .expect("DIPMO_TEST_POSTGRES is not set: run the tests with `cargo xtask test`");
        let schema = format!("t_op_{}", uuid::Uuid::new_v4().simple());
        let options = DbOptions {
            schema: schema.clone(),
            connections_max: 4,
            application_name: schema.clone(),
            ..DbOptions::new(url.clone())
        };
        let db = Db::open(options).unwrap();
        schema::migrate(&db).await.unwrap();
        let sql = connect(&url).await;
        sql.batch_execute(&format!("set search_path = {schema}")).await.unwrap();
        sql.execute("insert into consumer (name) values ('billing')", &[]).await.unwrap();
        Self { db, sql, schema, url }
    }

    /// Another connection with the same search path, for transactions that are left open.
    pub(crate) async fn other_session(&self) -> Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("set search_path = {}", self.schema)).await.unwrap();
        client
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) async fn run(&self, statement: &str) {
        self.sql.batch_execute(statement).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }

    /// The first column of the first row as text; `null` when it is.
    pub(crate) async fn text(&self, query: &str) -> String {
        let rows = self.sql.query(&format!("select (x.*)::text from ({query}) x"), &[]).await;
        let rows = rows.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        let lines: Vec<String> = rows.iter().map(|r| r.get::<_, Option<String>>(0).unwrap_or("null".into())).collect();
        lines.join("\n")
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        self.sql.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
    }

    /// An open message of `billing`.
    pub(crate) async fn message(&self, key: &str, state: &str) -> i64 {
        self.message_with(key, state, b"{}").await
    }

    pub(crate) async fn message_with(&self, key: &str, state: &str, payload: &[u8]) -> i64 {
        let insert = "
            with m as (
                insert into inbox (consumer_id, source, message_id, topic, partition_no, offset_no, key, payload, headers)
                select 1, 'orders', 'm-' || gen_random_uuid(), 'orders', 0, 7, $1, $3, '{\"event-type\": \"OrderPlaced\"}'
                returning id)
            insert into inbox_work (id, consumer_id, bucket, key, state, attempts, next_attempt_at, error_stage,
                                    error_code, error_message)
            select id, 1, (hashtextextended($1, 0) & 15)::smallint, $1, $2, 3,
                   case when $2 = 'RETRY' then now() + interval '1 hour' end, 'BUSINESS',
                   case when $2 in ('DEAD', 'SERDE_ERROR', 'RETRY') then 'NO_STOCK' end,
                   case when $2 in ('DEAD', 'SERDE_ERROR', 'RETRY') then 'out of stock' end
            from m returning id";
        self.sql.query_one(insert, &[&key, &state, &payload]).await.unwrap().get(0)
    }

    /// A DEAD head with messages parked behind it; the head's id comes first.
    pub(crate) async fn parked_key(&self, key: &str, waiting: usize) -> Vec<i64> {
        let head = self.message(key, "DEAD").await;
        let park = "insert into parked_key (consumer_id, key, bucket, head_id, state)
                    values (1, $1, (hashtextextended($1, 0) & 15)::smallint, $2, 'WAITING')";
        self.sql.execute(park, &[&key, &head]).await.unwrap();
        let mut ids = vec![head];
        for _ in 0..waiting {
            ids.push(self.message(key, "PARKED").await);
        }
        ids
    }

    /// A message of the outbox, with an exception in the state given.
    pub(crate) async fn outbox(&self, destination: &str, key: &str, exception: Option<&str>) -> i64 {
        let append = "select outbox_append($1, 'Order', $2, 'OrderPlaced', '{\"amount\": 1}')";
        let id: i64 = self.sql.query_one(append, &[&destination, &key]).await.unwrap().get(0);
        if let Some(state) = exception {
            let insert = "
                insert into outbox_exception (id, shard, destination, key, state, attempts, next_attempt_at, error_code)
                select id, shard, destination, key, $2, 5, case when $2 = 'RETRY' then now() + interval '1 hour' end,
                       'BROKER'
                from outbox where id = $1";
            self.sql.execute(insert, &[&id, &state]).await.unwrap();
        }
        id
    }

    /// The relays have read everything so far.
    pub(crate) async fn relays_caught_up(&self) {
        self.run("update relay_shard set cursor = pg_sequence_last_value('outbox_seq'::regclass)").await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let (url, schema) = (self.url.clone(), self.schema.clone());
        // A runtime of its own: a drop cannot wait, and the test's runtime may be ending.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // A refusal rolls back on drop, but this thread's runtime, which would tell the server, is
                // blocked by us.
                let end = format!(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{schema}'"
                );
                let drop = format!("set lock_timeout = '5s'; {end}; drop schema {schema} cascade");
                let _ = connect(&url).await.batch_execute(&drop).await;
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

pub(crate) fn ann() -> Change {
    Change::new("ann", "checked with the shop").unwrap()
}
