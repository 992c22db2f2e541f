//! The node that is killed: ingress, worker and relay, with a fuse at one point.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::backoff::RetryPolicy;
use dipmo::consumer::Consumer;
use dipmo::ingress::KafkaIngress;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::{Runner, Worker};
use dipmo::shutdown::{Shutdown, ShutdownTrigger};
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::store::postgres::{Db, DbOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use dipmo::transport::{Outcome, Outgoing, Publisher};
use dipmo::wake::Wake;
use dipmo::{OutMessage, Result};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::hooked::{Call, Hook, Hooked};
use crate::support::{kafka, postgres_url};

pub const KILLER_KEY: &str = "key-3";
pub const KILLER_NUMBER: i64 = 5;
/// Short, so that the next process need not wait long for the buckets of a dead one.
const LEASE: Duration = Duration::from_secs(1);

/// Where the process ends, as by a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    BeforeInboxCommit,
    AfterInboxCommit,
    InsideDecide,
    BeforeTheBroker,
    AfterTheBrokersAck,
    WheneverItSeesTheKiller,
}

impl Death {
    pub const AT_A_POINT: [Death; 5] = [
        Death::BeforeInboxCommit,
        Death::AfterInboxCommit,
        Death::InsideDecide,
        Death::BeforeTheBroker,
        Death::AfterTheBrokersAck,
    ];

    fn from_env() -> Option<Self> {
        let name = std::env::var("DIPMO_CHILD").ok()?;
        let all = Self::AT_A_POINT.into_iter().chain([Death::WheneverItSeesTheKiller]);
        all.into_iter().find(|death| format!("{death:?}") == name)
    }
}

/// Blows the second time it is passed: something has been done by then.
struct Fuse {
    point: Death,
    passed: AtomicUsize,
}

impl Fuse {
    fn at(point: Death) -> Self {
        Self { point, passed: AtomicUsize::new(0) }
    }

    fn pass(&self) {
        if Death::from_env() == Some(self.point) && self.passed.fetch_add(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    }
}

/// Not a test of its own: the other tests start this binary again with this name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_only_as_a_child_process() {
    if std::env::var_os("DIPMO_CHILD").is_some() {
        run().await;
    }
}

async fn run() {
    let var = |name: &str| std::env::var(format!("DIPMO_CHILD_{name}")).unwrap();
    let db = Db::open(DbOptions { schema: var("SCHEMA"), ..DbOptions::new(postgres_url()) }).unwrap();
    let (_trigger, shutdown) = ShutdownTrigger::new();
    run_here(db, &kafka::bootstrap(), &var("INPUT"), &var("OUTPUT"), shutdown).await;
}

/// Ingress, worker and relay from one topic to another, until the shutdown.
pub async fn run_here(db: Db, bootstrap: &str, input: &str, output: &str, shutdown: Shutdown) {
    let process = Numbers { output: output.to_owned(), fuse: Fuse::at(Death::InsideDecide) };
    let retry = RetryPolicy { attempts_max: 3, ..RetryPolicy::default() };
    let consumer = Consumer::process("numbers", process).from_kafka(&[input]);
    let consumer = Arc::new(Consumer { batch_max: 10, lease: LEASE, retry, ..consumer });
    let inner = PgInbox::register(db.clone(), &consumer).await.unwrap();
    let fused = Fused { before: Fuse::at(Death::BeforeInboxCommit), after: Fuse::at(Death::AfterInboxCommit) };
    let store = Arc::new(Hooked::new(inner, fused));
    let (name, wake) = (format!("node-{}", Uuid::now_v7()), Wake::default());
    let runner = Runner::new(store, consumer, db.clock().clone());
    let mut kafka = KafkaOptions::new(bootstrap);
    // The next process gets the partitions of a dead one when its session has ended.
    kafka.settings.insert("session.timeout.ms".into(), "2000".into());
    kafka.settings.insert("heartbeat.interval.ms".into(), "300".into());
    let ingress = KafkaIngress::with(runner.clone(), kafka.clone(), name.clone(), wake.clone()).unwrap();
    let worker = Worker::with(runner, name.clone(), &wake);
    let mut options = RelayOptions::new(name);
    options.lease = LEASE;
    options.batch_rows = 3;
    options.kafka = Some(Arc::new(FusedPublisher {
        inner: KafkaPublisher::new(kafka).unwrap(),
        before: Fuse::at(Death::BeforeTheBroker),
        after: Fuse::at(Death::AfterTheBrokersAck),
    }));
    let relay = Relay::new(db, options).unwrap();
    tokio::join!(ingress.run(shutdown.clone()), worker.run(shutdown.clone()), relay.run(shutdown));
}

struct Numbers {
    output: String,
    fuse: Fuse,
}

impl Process for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }

    fn decide(
        &self,
        current: Option<&Instance>,
        input: Input<'_>,
        _: OffsetDateTime,
    ) -> std::result::Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        let number: i64 = message.json()?;
        self.fuse.pass();
        let killer = message.key == KILLER_KEY && number == KILLER_NUMBER;
        if killer && Death::from_env() == Some(Death::WheneverItSeesTheKiller) {
            std::process::abort();
        }
        let mut numbers: Vec<i64> = current.map(Instance::data).transpose()?.unwrap_or_default();
        numbers.push(number);
        let on = OutMessage::kafka(&self.output, ("Numbers", &message.key), "Counted").json(&number);
        Ok(Decision::go("COUNTING").data(&numbers).emit(on))
    }
}

/// Around the commit of a batch.
struct Fused {
    before: Fuse,
    after: Fuse,
}

impl Hook for Fused {
    fn before(&self, call: Call) -> Result<()> {
        if call.name == "settle" {
            self.before.pass();
        }
        Ok(())
    }

    fn after(&self, call: Call) -> Result<()> {
        if call.name == "settle" {
            self.after.pass();
        }
        Ok(())
    }
}

struct FusedPublisher {
    inner: KafkaPublisher,
    before: Fuse,
    after: Fuse,
}

#[async_trait]
impl Publisher for FusedPublisher {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        self.before.pass();
        let outcomes = self.inner.publish(rows).await;
        self.after.pass();
        outcomes
    }
}
