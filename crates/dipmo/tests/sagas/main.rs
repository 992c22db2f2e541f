//! Sagas on a real PostgreSQL, from the request to the end: orchestrator, workers and relay as a node runs
//! them, with time that the test moves.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/relay.rs"]
mod support;

mod operators;
mod rows;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::backoff::RetryPolicy;
use dipmo::command::accept::{Acceptance, Request, accept};
use dipmo::command::{Answer, CommandError, CommandHandler, CommandWorker, Envelope};
use dipmo::consumer::{Consumer, Grouping};
use dipmo::handler::Enlisted;
use dipmo::node::LocalRunners;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::{Runner, Worker};
use dipmo::saga::{Compensation, Definition, OnFailure, Orchestrator, REPLY_QUEUE, Registry, START_QUEUE, Step};
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::wake::Wake;
use serde_json::{Value, json};
use support::{World, drain, eager};
use uuid::Uuid;

const TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 3;

fn retry() -> RetryPolicy {
    RetryPolicy { attempts_max: ATTEMPTS, jitter_max: Duration::ZERO, ..RetryPolicy::default() }
}

/// Reserve, which can be undone, then pay; a payment that fails waits for an operator.
fn definition() -> Definition {
    let to = |command: &str| format!("INTERNAL:APP.CMD.SHOP.{command}.Q").parse().unwrap();
    let release = Compensation::new("STEP_RELEASE", "Release", to("Release")).timeout(TIMEOUT).retry(retry());
    Definition::new("Purchase")
        .step(
            Step::new("STEP_RESERVE", "Reserve", to("Reserve"))
                .timeout(TIMEOUT)
                .retry(retry())
                .payload(json!({ "item": "input.item" }))
                .compensation(release),
        )
        .step(
            Step::new("STEP_PAY", "Pay", to("Pay")).timeout(TIMEOUT).retry(retry()).on_failure(OnFailure::Pause).park(),
        )
        .output(json!({ "receipt": "steps.STEP_PAY.result.receipt" }))
}

/// Answers as it is told, else well; keeps what it did by idempotency key.
#[derive(Default)]
pub struct Shop {
    failing: Mutex<HashMap<String, CommandError>>,
    done: Mutex<Vec<String>>,
}

impl Shop {
    pub fn fails(&self, command: &str, error: Option<CommandError>) {
        let mut failing = self.failing.lock().unwrap();
        match error {
            Some(error) => drop(failing.insert(command.to_owned(), error)),
            None => drop(failing.remove(command)),
        }
    }

    pub fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

struct Counter(Arc<Shop>);

#[async_trait]
impl CommandHandler for Counter {
    async fn handle(&self, _: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        if let Some(error) = self.0.failing.lock().unwrap().get(&command.name) {
            return Err(error.clone());
        }
        let (_, step) = command.header("idempotencyKey").unwrap().split_once(':').unwrap();
        self.0.done.lock().unwrap().push(step.to_owned());
        Ok(json!({ "receipt": format!("R-{}", command.key) }))
    }
}

pub struct Scene {
    pub world: World,
    pub shop: Arc<Shop>,
    pub registry: Registry,
    pub orchestrator: Arc<Orchestrator>,
    workers: tokio::sync::Mutex<Vec<Worker>>,
    relay: Relay,
}

impl Scene {
    /// With a shop that answers, or one that nobody has opened.
    async fn new(open: bool) -> Self {
        let world = World::new().await;
        let shop = Arc::new(Shop::default());
        let mut registry = Registry::new();
        registry.register(definition()).unwrap();
        let orchestrator = Arc::new(Orchestrator::new(registry.clone()));
        let handlers = ["Reserve", "Release", "Pay"]
            .map(|name| (name, Arc::new(Counter(shop.clone())) as Arc<dyn CommandHandler>));
        let queues = ["APP.CMD.SHOP.Reserve.Q", "APP.CMD.SHOP.Release.Q", "APP.CMD.SHOP.Pay.Q"];
        let mut consumers = vec![
            Consumer::new("orchestrator", dipmo::consumer::Handler::Process(orchestrator.clone()))
                .from_internal_queues(&[START_QUEUE, REPLY_QUEUE]),
        ];
        if open {
            consumers.push(
                Consumer::enlisted("shop", CommandWorker::new(handlers))
                    .grouped(Grouping::Batch)
                    .from_internal_queues(&queues),
            );
        }
        let mut runners = Vec::new();
        for consumer in consumers {
            let store = Arc::new(PgInbox::register(world.db.clone(), &consumer).await.unwrap());
            runners.push(Runner::new(store, Arc::new(consumer), world.clock.clone()));
        }
        let worker = |(n, runner): (usize, &Runner)| Worker::with(runner.clone(), format!("w{n}"), &Wake::default());
        let workers = tokio::sync::Mutex::new(runners.iter().enumerate().map(worker).collect());
        let local = Arc::new(LocalRunners::new(runners, Wake::default()));
        let relay = world.relay(RelayOptions { local: Some(local), ..eager("r1") });
        Self { world, shop, registry, orchestrator, workers, relay }
    }

    /// Asks for a purchase and lets everything run that can run now.
    pub async fn purchase(&self, key: &str) -> Uuid {
        let request = Request {
            name: "Purchase".into(),
            business_key: key.into(),
            payload: json!({ "item": "book" }),
            ..Request::default()
        };
        let Acceptance::Accepted(accepted) = accept(&self.world.db, &request).await.unwrap() else {
            panic!("it was refused");
        };
        self.run().await;
        accepted.command_id
    }

    /// Relay and workers, timers included, until nothing moves.
    pub async fn run(&self) {
        loop {
            let mut moved = drain(&self.relay).await.handed_over;
            for worker in self.workers.lock().await.iter_mut() {
                while !worker.run_once().await.unwrap().is_idle() {
                    moved += 1;
                }
            }
            if moved == 0 {
                return;
            }
        }
    }

    pub async fn after(&self, seconds: u64) {
        self.world.advance(seconds);
        self.run().await;
    }

    pub async fn status(&self, id: Uuid) -> String {
        let sql = format!("select status || ' ' || state from dipmo.process where id = '{id}'");
        self.world.texts(&sql).await.pop().unwrap_or_else(|| "none".into())
    }

    /// The commands of a saga by name, status and attempts, in order of their request.
    pub async fn commands(&self, id: Uuid) -> Vec<String> {
        let sql = format!(
            "select name || ' ' || status || ' ' || attempts from dipmo.command
             where process_id = '{id}' order by step <> '', name desc"
        );
        self.world.texts(&sql).await
    }

    pub async fn dead_letters(&self) -> Vec<String> {
        let sql = "select c.name || ' ' || d.attempts || ' ' || d.error
                   from dipmo.command_dlq d join dipmo.command c on c.id = d.command_id order by c.name";
        self.world.texts(sql).await
    }
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
