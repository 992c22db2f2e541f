//! What the tests of the inbox need: a world, records as a broker delivers them, and nodes to take them.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod hooked;
pub mod kafka;
mod world;

pub use world::*;

use std::sync::Arc;

use dipmo::consumer::Consumer;
use dipmo::inbox::{Fault, Fence};
use dipmo::ingress::decode;
use dipmo::runner::{Delivery, Runner, Worker};
use dipmo::store::InboxStore;
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::transport::Record;
use dipmo::wake::Wake;
use uuid::Uuid;

pub const TOPIC: &str = "orders";

impl World {
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

    /// The states of the messages of a key, in order of arrival.
    pub async fn states(&self, key: &str) -> Vec<String> {
        self.texts(&format!("select state from dipmo.inbox_status where key = '{key}' order by id")).await
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
