//! From a real Kafka into a real PostgreSQL, through restarts of everything.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod flow;
mod outages;
mod rebalance;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipmo::OutMessage;
use dipmo::consumer::Consumer;
use dipmo::ingress::KafkaIngress;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::runner::Worker;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::Db;
use dipmo::wake::Wake;
use support::World;
use support::kafka::Topic;
use time::OffsetDateTime;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(90);

/// Keeps the numbers of a key in order and says each on; refuses what it is told to.
#[derive(Clone, Default)]
pub struct Numbers {
    pub refused: Arc<Mutex<Option<String>>>,
}

impl Process for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        let mut numbers: Vec<i64> = current.map(Instance::data).transpose()?.unwrap_or_default();
        if self.refused.lock().unwrap().as_deref() == Some(message.key.as_str()) {
            return Err(Failure::transient("REFUSED", "told to"));
        }
        numbers.push(message.json()?);
        let said = OutMessage::internal(("Numbers", &message.key), "Counted").json(numbers.last().unwrap());
        Ok(Decision::go("COUNTING").data(&numbers).emit(said))
    }
}

pub fn consumer(topic: &Topic) -> Consumer {
    let name = format!("numbers-{}", Uuid::now_v7());
    Consumer::process(name, Numbers::default()).from_kafka(&[&topic.name])
}

/// The ingress and the worker of one node, running.
pub struct Running {
    trigger: ShutdownTrigger,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    pub async fn start(db: Db, consumer: &Arc<Consumer>, topic: &Topic) -> Self {
        let (trigger, shutdown) = ShutdownTrigger::new();
        let wake = Wake::default();
        let owner = format!("node-{}", Uuid::now_v7());
        let ingress = KafkaIngress::new(db.clone(), consumer.clone(), topic.options(), owner.clone(), wake.clone());
        let ingress = ingress.await.unwrap();
        let worker = Worker::new(db, consumer.clone(), owner, &wake).await.unwrap();
        let tasks = vec![tokio::spawn(ingress.run(shutdown.clone())), tokio::spawn(worker.run(shutdown))];
        Self { trigger, tasks }
    }

    /// Drains and waits for the end, as SIGTERM does.
    pub async fn stop(self) {
        self.trigger.stop();
        for task in self.tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
    }

    /// Ends at once, wherever it is, as a crash does.
    pub async fn crash(self) {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
    }
}

/// Waits until a count is reached, asking the database.
pub async fn until(world: &World, what: &str, sql: &str, wanted: i64) {
    let reached = async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tick.tick().await;
            if world.try_count(sql).await.is_some_and(|count| count >= wanted) {
                return;
            }
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("{what}: {:?} of {wanted}", world.try_count(sql).await);
    }
}

/// Every key has every number of its own exactly once and in order.
pub async fn check_numbers(world: &World, keys: i64, each: i64) {
    let expected: Vec<String> = (0..each).map(|n| n.to_string()).collect();
    let expected = format!("[{}]", expected.join(","));
    let data = world.texts("select data::text from dipmo.process order by business_key").await;
    assert_eq!(data.len() as i64, keys);
    assert!(data.iter().all(|numbers| *numbers == expected), "{data:?}");
    assert_eq!(world.count("dipmo.outbox").await, keys * each);
    assert_eq!(world.count("dipmo.inbox_work").await, 0);
}

/// `each` numbers for each of `keys` keys, interleaved.
pub fn numbers(keys: i64, each: std::ops::Range<i64>) -> Vec<(String, String)> {
    each.flat_map(|n| (0..keys).map(move |key| (format!("key-{key}"), n.to_string()))).collect()
}
