//! What the tests of the relay need: a world, writers, and a publisher that follows a script.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

mod world;

pub use world::*;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dipmo::backoff::RetryPolicy;
use dipmo::relay::{HorizonOptions, Relay, RelayOptions, RelayStep};
use dipmo::transport::{Outcome, Outgoing, Publisher, Refusal};
use tokio::sync::Notify;

impl World {
    /// A connection of a writer, outside any pool.
    pub async fn writer(&self) -> tokio_postgres::Client {
        self.another_session("writer").await
    }

    /// Appends messages `key:1`, `key:2` and so on, each in a transaction of its own.
    pub async fn append(&self, destination: &str, key: &str, bodies: &[&str]) -> Vec<i64> {
        let client = self.db.client().await.unwrap();
        let sql = self.sql("select dipmo.outbox_append($1, 'order', $2, 'Placed', $3)");
        let mut ids = Vec::new();
        for body in bodies {
            ids.push(client.query_one(&sql, &[&destination, &key, body]).await.unwrap().get(0));
        }
        ids
    }

    pub async fn subscribe(&self, consumer: &str, event_type: &str) {
        self.execute(&format!(
            "insert into dipmo.consumer (name) values ('{consumer}') on conflict do nothing;
             insert into dipmo.subscription select id, '{event_type}' from dipmo.consumer where name = '{consumer}'"
        ))
        .await;
    }

    pub fn relay(&self, options: RelayOptions) -> Relay {
        Relay::new(self.another_db(), options).unwrap()
    }

    /// The states of the outbox rows of a key, in order.
    pub async fn states(&self, key: &str) -> Vec<String> {
        self.texts(&format!("select state from dipmo.outbox_status where key = '{key}' order by id")).await
    }
}

/// Options under which every step looks after everything, so that a test needs no waiting.
pub fn eager(node: &str) -> RelayOptions {
    RelayOptions {
        tend_every: Some(Duration::ZERO),
        exceptions_refresh: Duration::ZERO,
        probe_after: Duration::ZERO,
        probe_after_max: Duration::ZERO,
        retry: RetryPolicy { attempts_max: 3, jitter_max: Duration::ZERO, ..RetryPolicy::default() },
        horizon: HorizonOptions {
            locks_after: Duration::ZERO,
            stall_after: Duration::ZERO,
            name_after: Duration::ZERO,
            ..HorizonOptions::default()
        },
        ..RelayOptions::new(node)
    }
}

/// Steps until a step moves nothing and nothing is left over.
pub async fn drain(relay: &Relay) -> RelayStep {
    let mut sum = RelayStep::default();
    let mut calm = 0;
    while calm < 2 {
        let step = relay.run_once().await.unwrap();
        sum.handed_over += step.handed_over;
        sum.published += step.published;
        sum.excepted += step.excepted;
        calm = if step.handed_over + step.published + step.excepted == 0 && !step.more { calm + 1 } else { 0 };
    }
    sum
}

/// What a publisher was given, when and by which key.
#[derive(Debug, Clone)]
pub struct Sent {
    pub id: i64,
    pub key: String,
    pub body: String,
    pub at: Instant,
    /// Which relay sent it.
    pub by: String,
}

/// What the next batches meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    Fine,
    /// Nothing arrives, nobody answers.
    Silent,
    /// Everything arrives, nobody hears of it.
    ArrivesUnheard,
    /// Waits until the test lets it go on, then is fine.
    Stop,
    /// Everything arrives, and the relay never comes to know: the test ends it there.
    ArrivesAndHangs,
}

/// An in-memory broker that does what its script says, then what its rules say.
#[derive(Default)]
pub struct Scripted {
    pub sent: Mutex<Vec<Sent>>,
    script: Mutex<VecDeque<Turn>>,
    /// Bodies that fail, and how.
    poison: Mutex<HashMap<String, Outcome>>,
    pub reached: Notify,
    pub go_on: Notify,
}

impl Scripted {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn then(&self, turns: &[Turn]) {
        self.script.lock().unwrap().extend(turns.iter().cloned());
    }

    pub fn poison(&self, body: &str, outcome: Outcome) {
        self.poison.lock().unwrap().insert(body.to_owned(), outcome);
    }

    pub fn heal(&self) {
        self.poison.lock().unwrap().clear();
    }

    pub fn bodies(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|sent| sent.body.clone()).collect()
    }

    pub fn bodies_of(&self, key: &str) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|sent| sent.key == key).map(|sent| sent.body.clone()).collect()
    }

    pub fn options(self: &Arc<Self>, node: &str) -> RelayOptions {
        RelayOptions { kafka: Some(Arc::clone(self) as Arc<dyn Publisher>), ..eager(node) }
    }
}

pub fn refused(code: &str) -> Refusal {
    Refusal::new(code, "as scripted")
}

/// One relay's way to a broker that several share.
pub struct Named(pub Arc<Scripted>, pub String);

#[async_trait]
impl Publisher for Named {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        self.0.take(rows, &self.1).await
    }
}

#[async_trait]
impl Publisher for Scripted {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        self.take(rows, "").await
    }
}

impl Scripted {
    async fn take(&self, rows: &[Outgoing<'_>], by: &str) -> Vec<Outcome> {
        let turn = self.script.lock().unwrap().pop_front().unwrap_or(Turn::Fine);
        if turn == Turn::Stop {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        if turn == Turn::Silent {
            return rows.iter().map(|_| Outcome::Unknown(refused("SILENT"))).collect();
        }
        let mut failed: Vec<(String, String)> = Vec::new();
        let mut outcomes = Vec::new();
        for row in rows {
            let key = (row.topic.to_owned(), row.key.to_owned());
            let body = String::from_utf8_lossy(row.payload.unwrap_or_default()).into_owned();
            let outcome = match self.poison.lock().unwrap().get(&body) {
                _ if failed.contains(&key) => Outcome::Held,
                Some(outcome) => outcome.clone(),
                None => Outcome::Done,
            };
            if outcome == Outcome::Done {
                let sent = Sent { id: row.id, key: row.key.to_owned(), body, at: Instant::now(), by: by.to_owned() };
                self.sent.lock().unwrap().push(sent);
            } else {
                failed.push(key);
            }
            outcomes.push(outcome);
        }
        if turn == Turn::ArrivesAndHangs {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
        if turn == Turn::ArrivesUnheard {
            return rows.iter().map(|_| Outcome::Unknown(refused("UNHEARD"))).collect();
        }
        outcomes
    }
}
