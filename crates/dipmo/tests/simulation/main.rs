//! Runner and relay on a random schedule drawn from one seed: steps of two nodes in any order, crashes,
//! redeliveries, failures of user code and of the broker, and a clock that jumps. The database is real,
//! everything else is scripted. A failure prints its seed; DIPMO_SEED runs it again.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::OutMessage;
use dipmo::consumer::{Consumer, VersionPolicy};
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::Delivery;
use dipmo::transport::{Outcome, Outgoing, Publisher, Refusal};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use support::{Node, World, delivery, record, with_header};
use time::OffsetDateTime;
use uuid::Uuid;

const KEYS: i64 = 5;
const EACH: i64 = 12;
const STEPS: usize = 250;

type Dice = Arc<Mutex<StdRng>>;

fn chance(dice: &Dice, of_hundred: u32) -> bool {
    dice.lock().unwrap().random_range(0..100) < of_hundred
}

fn pick(dice: &Dice, below: usize) -> usize {
    dice.lock().unwrap().random_range(0..below)
}

/// Collects the numbers of a key and passes each on; fails for a while now and then.
struct Passes {
    name: &'static str,
    dice: Dice,
    trouble: Arc<Mutex<bool>>,
}

impl Process for Passes {
    fn name(&self) -> &str {
        self.name
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        if *self.trouble.lock().unwrap() && chance(&self.dice, 15) {
            return Err(Failure::transient("TROUBLE", "by chance"));
        }
        let mut seen: Vec<i64> = current.map(Instance::data).transpose()?.unwrap_or_default();
        let number: i64 = message.json()?;
        seen.push(number);
        let aggregate = ("Number", message.key.as_str());
        let on = match self.name {
            "first" => OutMessage::internal(aggregate, "Passed"),
            _ => OutMessage::kafka("numbers", aggregate, "Arrived"),
        };
        Ok(Decision::go("PASSING").data(&seen).emit(on.json(&number)))
    }
}

/// A broker that loses answers, refuses rows, and remembers what it has.
struct Broker {
    dice: Dice,
    trouble: Arc<Mutex<bool>>,
    log: Mutex<Vec<(String, i64, Uuid)>>,
}

#[async_trait]
impl Publisher for Broker {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        let mut failed: HashSet<&str> = HashSet::new();
        let trouble = *self.trouble.lock().unwrap();
        let refusal = || Refusal::new("TROUBLE", "by chance");
        rows.iter()
            .map(|row| {
                if failed.contains(row.key) {
                    return Outcome::Held;
                }
                let roll = if trouble { pick(&self.dice, 100) } else { 99 };
                if roll >= 10 || (5..8).contains(&roll) {
                    let number = serde_json::from_slice(row.payload.unwrap()).unwrap();
                    self.log.lock().unwrap().push((row.key.to_owned(), number, row.message_id));
                }
                match roll {
                    0..5 => {
                        failed.insert(row.key);
                        Outcome::Retry(refusal())
                    }
                    // It arrived (below 8) or not, and nobody knows.
                    5..10 => {
                        failed.insert(row.key);
                        Outcome::Unknown(refusal())
                    }
                    _ => Outcome::Done,
                }
            })
            .collect()
    }
}

struct Simulation {
    world: World,
    dice: Dice,
    trouble: Arc<Mutex<bool>>,
    broker: Arc<Broker>,
    versions: VersionPolicy,
    nodes: Vec<(Node, Node)>,
    relays: Vec<Relay>,
    /// What the topic holds, and how far the group has committed.
    topic: Vec<Delivery>,
    committed: usize,
}

impl Simulation {
    async fn new(seed: u64) -> Self {
        let dice: Dice = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let trouble = Arc::new(Mutex::new(true));
        let broker = Arc::new(Broker { dice: dice.clone(), trouble: trouble.clone(), log: Mutex::default() });
        let numbers = (0..EACH).flat_map(|n| (0..KEYS).map(move |key| (key, n)));
        let mut numbers: Vec<(i64, i64)> = numbers.collect();
        // Every other world checks versions, and gets its messages out of order.
        let versions = if seed.is_multiple_of(2) { VersionPolicy::Unchecked } else { VersionPolicy::ParkOnGap };
        if versions != VersionPolicy::Unchecked {
            numbers.chunks_mut(23).for_each(|part| part.shuffle(&mut *dice.lock().unwrap()));
        }
        let message = |((key, n), offset): ((i64, i64), i64)| {
            let record = record(offset, &format!("k{key}"), &n.to_string());
            delivery(with_header(record, "aggregate-version", &(n + 1).to_string()))
        };
        let topic = numbers.into_iter().zip(0..).map(message).collect();
        let world = World::new().await;
        let mut simulation =
            Self { world, dice, trouble, broker, versions, nodes: Vec::new(), relays: Vec::new(), topic, committed: 0 };
        for _ in 0..2 {
            let node = simulation.node().await;
            simulation.nodes.push(node);
            simulation.relays.push(simulation.relay());
        }
        simulation
    }

    fn consumer(&self, name: &'static str) -> Consumer {
        let process = Passes { name, dice: self.dice.clone(), trouble: self.trouble.clone() };
        let consumer = Consumer::process(name, process);
        let consumer = match name {
            "first" => Consumer { versions: self.versions, ..consumer.from_kafka(&["orders"]) },
            _ => consumer.from_internal(&["Passed"]),
        };
        // Trouble lasts for as long as the dice want: attempts must not run out meanwhile.
        let retry = dipmo::backoff::RetryPolicy { attempts_max: 1_000, ..Default::default() };
        Consumer { batch_max: 7, retry, ..consumer }
    }

    async fn node(&self) -> (Node, Node) {
        (self.world.node(self.consumer("first")).await, self.world.node(self.consumer("second")).await)
    }

    fn relay(&self) -> Relay {
        let mut options = RelayOptions::new(format!("relay-{}", Uuid::now_v7()));
        options.batch_rows = 5;
        options.tend_every = Some(Duration::ZERO);
        options.exceptions_refresh = Duration::ZERO;
        options.probe_after = Duration::ZERO;
        options.probe_after_max = Duration::ZERO;
        options.retry.attempts_max = 1_000;
        options.kafka = Some(self.broker.clone());
        Relay::new(self.world.another_db(), options).unwrap()
    }

    async fn step(&mut self) {
        let who = pick(&self.dice, 2);
        match pick(&self.dice, 20) {
            0..5 => self.poll(who).await,
            5..8 => drop(self.nodes[who].0.worker.run_once().await),
            8..12 => drop(self.nodes[who].1.worker.run_once().await),
            12..16 => drop(self.relays[who].run_once().await),
            16 | 17 => self.world.advance(1 + pick(&self.dice, 40) as u64),
            // A crash: whatever was in memory is gone, the leases stay until they end.
            18 => self.nodes[who] = self.node().await,
            _ => self.relays[who] = self.relay(),
        }
    }

    /// The first consumer's ingress on one node. Both poll, as if they fought over the partition.
    async fn poll(&mut self, who: usize) {
        let behind = pick(&self.dice, 4).min(self.committed);
        let from = self.committed - behind;
        let to = (from + 1 + pick(&self.dice, 8)).min(self.topic.len());
        if self.nodes[who].0.receive(&self.topic[from..to]).await.is_ok() && !chance(&self.dice, 20) {
            self.committed = self.committed.max(to);
        }
    }

    /// The trouble is over: everything must come to rest.
    async fn drain(&mut self, seed: u64) {
        *self.trouble.lock().unwrap() = false;
        for _ in 0..400 {
            self.world.advance(60);
            for who in 0..2 {
                self.nodes[who] = self.node().await;
                let (first, second) = &mut self.nodes[who];
                let rest = &self.topic[self.committed..];
                if first.receive(rest).await.is_ok() {
                    self.committed = self.topic.len();
                }
                let _ = (first.worker.run_once().await, self.relays[who].run_once().await);
                let _ = (second.worker.run_once().await, self.relays[who].run_once().await);
            }
            let arrived: HashSet<Uuid> = self.broker.log.lock().unwrap().iter().map(|(_, _, id)| *id).collect();
            let open = self.world.count("dipmo.inbox_work").await + self.world.count("dipmo.parked_key").await;
            if arrived.len() as i64 == KEYS * EACH && open == 0 {
                return;
            }
        }
        panic!("seed {seed}: it does not come to rest");
    }

    async fn check(&self, seed: u64) {
        let expected: Vec<i64> = (0..EACH).collect();
        for name in ["first", "second"] {
            let data = self.world.texts(&format!("select data::text from dipmo.process where type = '{name}'")).await;
            assert_eq!(data.len() as i64, KEYS, "seed {seed}");
            for numbers in data {
                assert_eq!(serde_json::from_str::<Vec<i64>>(&numbers).unwrap(), expected, "seed {seed}, {name}");
            }
        }
        let mut first_seen: HashSet<Uuid> = HashSet::new();
        let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (key, number, id) in self.broker.log.lock().unwrap().iter() {
            if first_seen.insert(*id) {
                by_key.entry(key.clone()).or_default().push(*number);
            }
        }
        for (key, numbers) in by_key {
            assert_eq!(numbers, expected, "seed {seed}, {key}: out of order, lost or doubled on the way out");
        }
    }
}

#[tokio::test]
async fn no_schedule_loses_doubles_or_reorders_anything() {
    let given = std::env::var("DIPMO_SEED").ok().map(|seed| seed.parse().unwrap());
    let rounds = if given.is_some() { 1 } else { 8 };
    for _ in 0..rounds {
        let seed: u64 = given.unwrap_or_else(|| rand::rng().random());
        println!("seed {seed}");
        let mut simulation = Simulation::new(seed).await;
        for _ in 0..STEPS {
            simulation.step().await;
        }
        simulation.drain(seed).await;
        simulation.check(seed).await;
    }
}
