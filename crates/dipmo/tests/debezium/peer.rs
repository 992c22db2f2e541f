//! The real Debezium on a PostgreSQL of its own, configured by the text of docs/debezium.md.
//!
//! Of its own, because a replication slot cannot be made before every transaction that is open on the server
//! has ended, and other tests leave some open on purpose.

use std::time::Duration;

use dipmo::transport::Record;
use testbed::{Debezium, DebeziumOptions, Postgres, PostgresOptions};
use tokio_postgres::Client;

use crate::records::{Topics, bootstrap};

/// How long a slot may take to change.
const SLOT_PATIENCE: Duration = Duration::from_secs(60);

const PAGE: &str = include_str!("../../../../docs/debezium.md");

/// The first block of a language below a heading of the page.
pub fn documented(heading: &str, language: &str) -> String {
    let section = PAGE.split_once(&format!("# {heading}\n")).expect("the page has the heading").1;
    let block = section.split_once(&format!("\n```{language}\n")).expect("the section has the block").1;
    block.split("\n```").next().unwrap_or_default().to_owned()
}

/// Lines of a properties file; one that ends in a backslash goes on in the next.
fn properties(text: &str) -> Vec<(String, String)> {
    let text = text.replace("\\\n    ", "");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| line.split_once('=').expect("name=value"))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// A PostgreSQL server and, once started, Debezium on it.
pub struct Peer {
    postgres: Postgres,
    debezium: Option<Debezium>,
}

impl Peer {
    pub fn new() -> Self {
        let options = PostgresOptions { fsync: false, shared_buffers: "64MB".into(), ..PostgresOptions::default() };
        Self { postgres: Postgres::start(options).unwrap(), debezium: None }
    }

    pub fn url(&self) -> String {
        self.postgres.url()
    }

    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Starts Debezium as the page says and waits until it streams. `changes` are what differs from the page,
    /// beside the address of the database.
    pub async fn start(&mut self, heading: &str, changes: &[(&str, &str)]) {
        let port = self.postgres.port().to_string();
        let address = [
            ("database.hostname", "127.0.0.1"),
            ("database.port", &port),
            ("database.dbname", "postgres"),
            // What a test need not wait for, here and below.
            ("poll.interval.ms", "10"),
        ];
        let mut connector = properties(&documented(heading, "properties"));
        connector.extend(address.iter().chain(changes).map(|(name, value)| (name.to_string(), value.to_string())));
        let worker = vec![("offset.flush.interval.ms".to_owned(), "500".to_owned())];
        let options = DebeziumOptions { connector, worker, ..DebeziumOptions::default() };
        let start = move || {
            let mut debezium = Debezium::start(&bootstrap(), &options).unwrap();
            debezium.wait_running().unwrap();
            debezium
        };
        self.debezium = Some(tokio::task::spawn_blocking(start).await.unwrap());
    }

    /// The next records of the topics; if they do not come, Debezium's log says why.
    pub async fn next(&self, topics: &Topics, count: usize) -> Vec<Record> {
        topics.next(count).await.unwrap_or_else(|received| {
            let log = self.debezium.as_ref().map(|debezium| std::fs::read_to_string(debezium.log()));
            panic!("{} of {count} records came: {received:?}\n{log:?}", received.len())
        })
    }

    /// Orderly, so that what was sent is confirmed to the slot.
    pub async fn stop(&mut self) {
        let mut debezium = self.debezium.take().expect("Debezium was started");
        tokio::task::spawn_blocking(move || debezium.stop().unwrap()).await.unwrap();
    }
}

/// Waits until a condition holds for the slot. The server tells nobody of changes, so it is asked again and again.
async fn until(client: &Client, slot: &str, condition: &str) {
    let sql = format!("select {condition} from pg_replication_slots where slot_name = $1");
    let holds = async { while !client.query_one(&sql, &[&slot]).await.unwrap().get::<_, bool>(0) {} };
    tokio::time::timeout(SLOT_PATIENCE, holds).await.unwrap_or_else(|_| panic!("slot {slot}: never {condition}"));
}

/// Waits until nobody reads the slot: the server hears of the end of a reader, and of what it has confirmed last,
/// a moment after it.
pub async fn released(client: &Client, slot: &str) {
    until(client, slot, "not active").await;
}

/// Waits until the reader of the slot has confirmed everything that is in the WAL now.
pub async fn caught_up(client: &Client, slot: &str) {
    let now: String = client.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    until(client, slot, &format!("confirmed_flush_lsn >= '{now}'")).await;
}

/// Replication slots keep the WAL for ever, so whoever made one drops it.
pub async fn drop_slot(client: &Client, slot: &str) {
    released(client, slot).await;
    client.execute("select pg_drop_replication_slot($1)", &[&slot]).await.unwrap();
}
