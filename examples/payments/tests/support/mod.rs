//! A platform of its own for each test, on the server that `cargo xtask test` started: a clock that the test
//! drives, and every loop of every node as single steps.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::batch::BatchWatcher;
use dipmo::clock::Clock;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::Worker;
use dipmo::store::postgres::Db;
use dipmo::wake::Wake;
use payments::bank::{Bank, Script};
use payments::books::{Check, Facts};
use payments::context::Context;
use payments::demo::{Fate, Plan, is_quiet};
use payments::fx::{BankClient, BreakerOptions, ClientOptions};
use payments::setup;
use payments::wiring::{Outside, Platform};
use time::macros::datetime;
use uuid::Uuid;

/// Longer than any retry delay and any timeout of a step.
const A_WHILE: Duration = Duration::from_secs(120);
/// No day here takes so long, even on a machine that does much else.
const END_MAX: Duration = Duration::from_secs(180);

pub(crate) struct World {
    pub(crate) platform: Platform,
    pub(crate) plan: Arc<Plan>,
    pub(crate) bank: Bank,
    pub(crate) core: Db,
    workers: Vec<Worker>,
    relay: Relay,
    watcher: BatchWatcher,
    clock: Clock,
}

impl World {
    pub(crate) async fn new(payments: usize, script: Script) -> Self {
        let platform = platform().await;
        let plan = Arc::new(Plan::new(payments));
        plan.fill(&platform).await.unwrap();
        let bank = Bank::open(script).await.unwrap();
        let options = ClientOptions {
            timeout: Duration::from_millis(250),
            breaker: BreakerOptions { failures_max: 20, ..BreakerOptions::default() },
            ..ClientOptions::new(bank.address())
        };
        let outside = Outside { bank: Arc::new(BankClient::new(options)), rail: plan.clone() };
        let core = platform.db(&platform.core, "test").unwrap();
        let mut workers = Vec::new();
        for consumer in platform.core_consumers().unwrap() {
            workers.push(worker(&core, consumer).await);
        }
        for context in Context::ALL {
            let db = platform.db(&platform.contexts[&context], context.name()).unwrap();
            workers.push(worker(&db, platform.context_consumer(context, &outside).unwrap()).await);
        }
        let relay = Relay::new(core.clone(), RelayOptions::new("test")).unwrap();
        let (watcher, clock) = (BatchWatcher::new(core.clone()), platform.clock.clone());
        Self { platform, plan, bank, core, workers, relay, watcher, clock }
    }

    /// One step of every loop; whether any of them found something.
    pub(crate) async fn round(&mut self) -> bool {
        let relayed = self.relay.run_once().await.unwrap();
        let mut moved = relayed.handed_over + relayed.published + relayed.excepted > 0;
        for worker in &mut self.workers {
            moved |= !worker.run_once().await.unwrap().is_idle();
        }
        self.watcher.run_once().await.unwrap();
        moved
    }

    /// Until every batch has ended and nothing moves by itself any more; `meanwhile` is done in each round.
    pub(crate) async fn run_to_the_end(&mut self, mut meanwhile: impl AsyncFnMut(&Db)) {
        let begun = Instant::now();
        while !(self.has_ended().await && is_quiet(&self.core).await.unwrap()) {
            meanwhile(&self.core).await;
            // A round that finds nothing may only mean that the relay waits for a transaction of another test.
            if !self.round().await && self.waits_for_time().await {
                self.clock.advance(A_WHILE);
            }
            assert!(begun.elapsed() < END_MAX, "the day does not end");
        }
    }

    async fn waits_for_time(&self) -> bool {
        let under_way = "dipmo.inbox_work where state = 'RECEIVED'";
        let unsent = "dipmo.outbox_status where state = 'PENDING'";
        self.count(under_way).await + self.count(unsent).await == 0
    }

    async fn has_ended(&self) -> bool {
        let ended = "select count(*) > 0 and bool_and(completed_at is not null) from dipmo.batch_run";
        self.core.client().await.unwrap().query_one(&self.sql(ended), &[]).await.unwrap().get(0)
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("dipmo.", &format!("{}.", self.core.schema()))
    }

    pub(crate) async fn count(&self, from: &str) -> i64 {
        let sql = self.sql(&format!("select count(*) from {from}"));
        self.core.client().await.unwrap().query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// The books must add up, and every payment must have come to what it was bound to.
    pub(crate) async fn check_the_books(&self, dead: i64) -> Facts {
        let facts = Facts::read(&self.platform, &self.bank).await.unwrap();
        let wrong: Vec<Check> = facts.checks(dead).into_iter().filter(|check| !check.passed()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}\n{:#?}", facts.tally());
        assert_eq!(self.plan.surprises(&facts.items), Vec::<String>::new());
        facts
    }

    pub(crate) fn poison(&self) -> i64 {
        self.plan.with_fate(Fate::Poison) as i64
    }
}

/// A prepared platform without anything running on it.
pub(crate) async fn platform() -> Platform {
    let url =
        std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`, which starts the servers");
    let suffix = format!("_{}", &Uuid::now_v7().simple().to_string()[8..]);
    let mut platform = Platform::shared(&url, &suffix).unwrap();
    platform.clock = Clock::manual(datetime!(2026-11-16 06:00 UTC));
    platform.connections_max = 5;
    setup::prepare(&platform).await.unwrap();
    platform
}

async fn worker(db: &Db, consumer: dipmo::consumer::Consumer) -> Worker {
    Worker::new(db.clone(), Arc::new(consumer), "test".into(), &Wake::default()).await.unwrap()
}
