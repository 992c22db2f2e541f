//! What every test needs: a database schema of its own on the server that `cargo xtask test` started.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod faulty;
pub mod kafka;

use std::sync::Arc;
use std::time::Duration;

use dipmo::clock::Clock;
use dipmo::consumer::Consumer;
use dipmo::inbox::{Fault, Fence};
use dipmo::ingress::decode;
use dipmo::runner::{Delivery, Runner, Worker};
use dipmo::store::InboxStore;
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::store::postgres::{Db, DbOptions, schema};
use dipmo::transport::Record;
use dipmo::wake::Wake;
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

pub const TOPIC: &str = "orders";

/// The private PostgreSQL of this test run.
pub fn postgres_url() -> String {
    std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`, which starts the servers")
}

/// A freshly migrated schema and a clock that the test drives.
pub struct World {
    pub db: Db,
    pub clock: Clock,
}

impl World {
    pub async fn new() -> Self {
        Self::on(&postgres_url(), Clock::manual(start())).await
    }

    /// For tests in which real loops run by real time.
    pub async fn real_time() -> Self {
        Self::on(&postgres_url(), Clock::database()).await
    }

    pub async fn on(url: &str, clock: Clock) -> Self {
        let db = Db::open(options(url, &format!("t{}", Uuid::now_v7().simple()), clock.clone())).unwrap();
        schema::migrate(&db).await.unwrap();
        Self { db, clock }
    }

    /// Another node on the same schema.
    pub fn another_db(&self) -> Db {
        Db::open(options(&postgres_url(), self.db.schema(), self.clock.clone())).unwrap()
    }

    pub async fn node(&self, consumer: Consumer) -> Node {
        let store = Arc::new(PgInbox::register(self.db.clone(), &consumer).await.unwrap());
        self.node_over(store, Arc::new(consumer)).await
    }

    pub async fn node_over(&self, store: Arc<dyn InboxStore>, consumer: Arc<Consumer>) -> Node {
        let fence = vec![store.take_partition(TOPIC, 0, "node").await.unwrap().held];
        let runner = Runner::new(store, consumer, self.clock.clone());
        let worker = Worker::with(runner.clone(), format!("w{}", Uuid::now_v7()), &Wake::default());
        Node { runner, worker, fence }
    }

    /// One column of a query, as text; `dipmo.` stands for this world's schema.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let client = self.db.client().await.unwrap();
        let sql = sql.replace("dipmo.", &format!("{}.", self.db.schema()));
        let rows = client.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "-".into())).collect()
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.texts(&format!("select count(*)::text from {sql}")).await[0].parse().unwrap()
    }

    /// The same, while the server may be away.
    pub async fn try_count(&self, sql: &str) -> Option<i64> {
        let client = self.db.client().await.ok()?;
        let sql = format!("select count(*) from {}", sql.replace("dipmo.", &format!("{}.", self.db.schema())));
        client.query_one(&sql, &[]).await.ok().map(|row| row.get(0))
    }

    pub async fn execute(&self, sql: &str) {
        let client = self.db.client().await.unwrap();
        client.batch_execute(&sql.replace("dipmo.", &format!("{}.", self.db.schema()))).await.unwrap();
    }

    /// The states of the messages of a key, in order of arrival.
    pub async fn states(&self, key: &str) -> Vec<String> {
        self.texts(&format!("select state from dipmo.inbox_status where key = '{key}' order by id")).await
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

/// One node's share of a consumer: the inline path and the worker.
pub struct Node {
    pub runner: Runner,
    pub worker: Worker,
    pub fence: Fence,
}

impl Node {
    pub async fn receive(&self, deliveries: &[Delivery]) -> dipmo::Result<dipmo::runner::Report> {
        self.runner.handle(&self.fence, deliveries).await
    }

    /// Lets the worker go on until it finds nothing more.
    pub async fn work_off(&mut self) -> dipmo::runner::Report {
        let mut sum = dipmo::runner::Report::default();
        loop {
            let step = self.worker.run_once().await.unwrap();
            sum += step.report;
            if step.is_idle() {
                return sum;
            }
        }
    }
}

fn options(url: &str, schema: &str, clock: Clock) -> DbOptions {
    DbOptions { schema: schema.to_owned(), connections_max: 6, clock, ..DbOptions::new(url) }
}

/// Where manual clocks begin.
pub fn start() -> OffsetDateTime {
    datetime!(2026-03-01 12:00 UTC)
}

pub fn record(offset: i64, key: &str, body: &str) -> Record {
    Record {
        topic: TOPIC.into(),
        partition: 0,
        offset,
        key: Some(key.to_owned().into()),
        payload: Some(body.to_owned().into()),
        ..Record::default()
    }
}

pub fn with_header(mut record: Record, name: &str, value: &str) -> Record {
    record.headers.push((name.to_owned(), Some(value.to_owned().into())));
    record
}

/// A record as the ingress of a default consumer delivers it.
pub fn delivery(record: Record) -> Delivery {
    let (message, fault): (_, Option<Fault>) = decode(&record, None, &dipmo::consumer::Envelope::default());
    Delivery::Fresh { message: Arc::new(message), fault }
}

pub fn fresh(offset: i64, key: &str, body: &str) -> Delivery {
    delivery(record(offset, key, body))
}

pub fn versioned(offset: i64, key: &str, version: i64) -> Delivery {
    delivery(with_header(record(offset, key, &format!("{version}")), "aggregate-version", &version.to_string()))
}
