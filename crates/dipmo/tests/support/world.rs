//! The world of a test: a database schema of its own on the server that `cargo xtask test` started.
//!
//! mod.rs, relay.rs and operator.rs beside it add the verbs of their part of the system. Schemas are left
//! to the end of the server, so that one can look at what a failed test left behind.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

use std::time::Duration;

use dipmo::clock::Clock;
use dipmo::store::postgres::{Db, DbOptions, schema};
use time::OffsetDateTime;
use tokio::sync::OnceCell;
use tokio_postgres::Client;
use uuid::Uuid;

/// The private PostgreSQL of this test run.
pub fn postgres_url() -> String {
    std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`, which starts the servers")
}

/// A freshly migrated schema.
pub struct World {
    pub db: Db,
    pub clock: Clock,
    pub url: String,
    session: OnceCell<Client>,
}

impl World {
    /// A world whose time stands still until the test moves it.
    pub async fn new() -> Self {
        Self::on(&postgres_url(), Clock::manual(OffsetDateTime::now_utc())).await
    }

    /// For tests in which real loops run by real time.
    pub async fn real_time() -> Self {
        Self::on(&postgres_url(), Clock::database()).await
    }

    pub async fn on(url: &str, clock: Clock) -> Self {
        let db = open(url, &format!("t{}", Uuid::now_v7().simple()), &clock);
        schema::migrate(&db).await.unwrap();
        Self { db, clock, url: url.to_owned(), session: OnceCell::new() }
    }

    /// Another process on the same schema.
    pub fn another_db(&self) -> Db {
        open(&self.url, self.db.schema(), &self.clock)
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// The statement for this world: `dipmo.` stands for its schema.
    pub fn sql(&self, sql: &str) -> String {
        sql.replace("dipmo.", &format!("{}.", self.db.schema()))
    }

    pub async fn execute(&self, sql: &str) {
        let done = self.db.client().await.unwrap().batch_execute(&self.sql(sql)).await;
        done.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// One column of a query, as text.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.db.client().await.unwrap().query(&self.sql(sql), &[]).await;
        let rows = rows.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "-".into())).collect()
    }

    pub async fn count(&self, from: &str) -> i64 {
        self.texts(&format!("select count(*)::text from {from}")).await[0].parse().unwrap()
    }

    /// The same, while the server may be away.
    pub async fn try_count(&self, from: &str) -> Option<i64> {
        let client = self.db.client().await.ok()?;
        let sql = self.sql(&format!("select count(*) from {from}"));
        client.query_one(&sql, &[]).await.ok().map(|row| row.get(0))
    }

    /// The test's own connection, outside any pool, which finds this world's tables without their schema.
    pub async fn session(&self) -> &Client {
        self.session.get_or_init(|| self.another_session("test")).await
    }

    /// One more of them, for transactions that are left open.
    pub async fn another_session(&self, name: &str) -> Client {
        let client = connect(&self.url, name).await.expect("the test database is reachable");
        client.batch_execute(&format!("set search_path = {}", self.db.schema())).await.unwrap();
        client
    }
}

fn open(url: &str, schema: &str, clock: &Clock) -> Db {
    let (schema, clock) = (schema.to_owned(), clock.clone());
    Db::open(DbOptions { schema, connections_max: 8, clock, ..DbOptions::new(url) }).unwrap()
}

pub async fn connect(url: &str, name: &str) -> Result<Client, tokio_postgres::Error> {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    config.application_name(name);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}
