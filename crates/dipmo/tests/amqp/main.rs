//! Queues of a real AMQP 1.0 broker, in both directions, through restarts of everything.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/hooked.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod hooked;
#[path = "../support/relay.rs"]
mod support;

mod client;
mod contract;
mod outages;
mod peer;
mod received;
mod sent;
mod strict;

use std::sync::Arc;
use std::time::Duration;

use dipmo::Message;
use dipmo::consumer::Consumer;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::ingress::AmqpIngress;
use dipmo::process::Failure;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::shutdown::ShutdownTrigger;
use dipmo::transport::amqp::{AmqpOptions, AmqpPublisher};
use dipmo::wake::Wake;
use support::{World, eager};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue of its own for every test.
pub fn queue(name: &str) -> String {
    format!("{name}.{}", Uuid::now_v7().simple())
}

/// A handler that no test lets run: only what is stored is looked at.
struct Idle;

#[async_trait::async_trait]
impl EnlistedHandler for Idle {
    async fn handle(&self, _: &mut Enlisted<'_>, _: &Message) -> Result<(), Failure> {
        Err(Failure::permanent("IDLE", "no worker runs"))
    }
}

pub fn reader(queue: &str) -> Consumer {
    Consumer::enlisted("reader", Idle).from_amqp(&[queue])
}

/// The relay of a world that sends to this broker.
pub fn relay(world: &World, options: &AmqpOptions) -> Relay {
    let publisher = Arc::new(AmqpPublisher::new(options.clone()).unwrap());
    world.relay(RelayOptions { amqp: Some(publisher), ..eager("r1") })
}

/// An ingress that runs.
pub struct Reading {
    trigger: ShutdownTrigger,
    task: JoinHandle<()>,
}

impl Reading {
    pub async fn start(world: &World, options: &AmqpOptions, queue: &str) -> Self {
        let consumer = Arc::new(reader(queue));
        let made = AmqpIngress::new(world.db.clone(), consumer, options.clone(), queue, Wake::default()).await;
        Self::of(made.unwrap())
    }

    pub fn of(ingress: AmqpIngress) -> Self {
        let (trigger, shutdown) = ShutdownTrigger::new();
        Self { trigger, task: tokio::spawn(ingress.run(shutdown)) }
    }

    /// Finishes what is in hand, as SIGTERM does.
    pub async fn stop(self) {
        self.trigger.stop();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }

    /// Ends at once, wherever it is, as a crash does.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Waits until a count is reached, asking the database.
pub async fn until(world: &World, what: &str, wanted: i64) {
    let reached = async {
        let mut tick = tokio::time::interval(Duration::from_millis(30));
        while world.try_count(what).await.is_none_or(|count| count < wanted) {
            tick.tick().await;
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("{what}: {:?} of {wanted}", world.try_count(what).await);
    }
}
