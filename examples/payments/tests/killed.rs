//! A day of payments while every process of the platform is killed again and again, without warning: the
//! orchestrator with its relay, and the worker of each context. Whoever dies is started again at once.
//!
//! Prints its seed; `DIPMO_SEED` replays the order of the victims and how far the day is at each kill, but not
//! what a process is doing at that moment.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use dipmo::store::postgres::Db;
use payments::bank::{self, Bank};
use payments::books::{Check, Facts};
use payments::demo::{Fate, Payment, Plan, is_quiet, start_day};
use payments::setup;
use payments::wiring::Platform;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::process::{Child, Command};
use uuid::Uuid;

const PAYMENTS: usize = 1_000;
const PARTS: [&str; 5] = ["core", "accounts", "limits", "fx", "payments"];
/// Of each part.
const KILLS_EACH: usize = 10;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Many times what the day takes on a quiet machine.
const END_MAX: Duration = Duration::from_secs(400);

struct Scene {
    url: String,
    suffix: String,
    platform: Platform,
    plan: Plan,
    bank: Bank,
    core: Db,
}

/// Who is killed, and after how many commands were answered.
struct Kill {
    answered: i64,
    part: usize,
}

impl Scene {
    async fn new() -> Self {
        let url = std::env::var("DIPMO_TEST_POSTGRES")
            .expect("run the tests by `cargo xtask test`, which starts the servers");
        let suffix = format!("_{}", &Uuid::now_v7().simple().to_string()[8..]);
        let mut platform = Platform::shared(&url, &suffix).unwrap();
        platform.connections_max = 3;
        setup::prepare(&platform).await.unwrap();
        let mut plan = Plan::new(PAYMENTS + 1);
        // Its attempts end by its own fault, which other tests are about.
        plan.payments.retain(|payment| payment.fate != Fate::Poison);
        plan.fill(&platform).await.unwrap();
        let core = platform.db(&platform.core, "test").unwrap();
        Self { url, suffix, platform, plan, bank: Bank::open(bank::flaky).await.unwrap(), core }
    }

    fn start(&self, part: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_payments-node"))
            .args([part, "--suffix", &self.suffix, "--bank", &self.bank.address()])
            .args(["--lease-ms", "1000", "--batch-max", "50", "--payments", &(PAYMENTS + 1).to_string()])
            .env("DIPMO_DATABASE_URL", &self.url)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// How many commands were answered for good, by all contexts.
    async fn answered(&self) -> i64 {
        self.number("select count(*) from dipmo.command_ledger").await
    }

    async fn has_ended(&self) -> bool {
        let open = "select count(*) filter (where completed_at is null) - count(*) from dipmo.batch_run";
        self.number(open).await < 0 && is_quiet(&self.core).await.unwrap()
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = sql.replace("dipmo.", &format!("{}.", self.core.schema()));
        self.core.client().await.unwrap().query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// What is said when the day does not end.
    async fn stuck(&self) -> String {
        let sql = "select status, state, count(*)::text from dipmo.process group by 1, 2 order by 1, 2";
        let sql = sql.replace("dipmo.", &format!("{}.", self.core.schema()));
        let rows = self.core.client().await.unwrap().query(&sql, &[]).await.unwrap();
        let line = |row: &tokio_postgres::Row| (0..3).map(|n| row.get::<_, String>(n)).collect::<Vec<_>>().join(" ");
        rows.iter().map(line).collect::<Vec<_>>().join(", ")
    }
}

/// No fewer commands are answered in the day, so that there is work until the last kill.
fn answers(plan: &Plan) -> i64 {
    let of = |payment: &Payment| match payment.fate {
        Fate::Paid => 4 + i64::from(payment.pay_currency != "USD"),
        _ => 1,
    };
    plan.payments.iter().map(of).sum()
}

/// Every part equally often, in any order, spread over the work of the day.
fn kills(rng: &mut StdRng, plan: &Plan) -> Vec<Kill> {
    let mut parts: Vec<usize> = (0..PARTS.len()).cycle().take(PARTS.len() * KILLS_EACH).collect();
    parts.shuffle(rng);
    let work = answers(plan);
    let mut moments: Vec<i64> = parts.iter().map(|_| rng.random_range(0..work)).collect();
    moments.sort_unstable();
    moments.into_iter().zip(parts).map(|(answered, part)| Kill { answered, part }).rev().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_payments_survives_the_death_of_every_process_at_any_moment() {
    let seed: u64 = std::env::var("DIPMO_SEED").map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let scene = Scene::new().await;
    let mut left = kills(&mut StdRng::seed_from_u64(seed), &scene.plan);
    let mut nodes = PARTS.map(|part| scene.start(part));
    start_day(&scene.core, Uuid::now_v7()).await.unwrap();
    let begun = Instant::now();
    let mut tick = tokio::time::interval(LOOK_EVERY);
    while !scene.has_ended().await {
        tick.tick().await;
        let answered = scene.answered().await;
        if let Some(kill) = left.pop_if(|kill| kill.answered <= answered) {
            let part = PARTS[kill.part];
            let ended = nodes[kill.part].try_wait().unwrap();
            assert_eq!(ended, None, "seed {seed}: {part} has ended by itself");
            nodes[kill.part].kill().await.unwrap();
            nodes[kill.part] = scene.start(part);
            println!("{:5.1} s: {answered} commands answered, {part} killed", begun.elapsed().as_secs_f64());
        }
        assert!(begun.elapsed() < END_MAX, "seed {seed}: the day does not end: {}", scene.stuck().await);
    }
    println!("{:5.1} s: the day is over", begun.elapsed().as_secs_f64());
    assert_eq!(left.len(), 0, "seed {seed}: kills were left when the day was over");
    check_the_books(&scene, seed).await;
}

async fn check_the_books(scene: &Scene, seed: u64) {
    let facts = Facts::read(&scene.platform, &scene.bank).await.unwrap();
    assert_eq!(facts.scheduled.len(), PAYMENTS);
    let wrong: Vec<Check> = facts.checks(0).into_iter().filter(|check| !check.passed()).collect();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}\n{:#?}", facts.tally());
    // A worker that is dead for longer than a step may take is a timeout, and a timeout is an outcome.
    let unexpected = |line: &String| !line.contains("TIMED_OUT");
    let surprises: Vec<String> = scene.plan.surprises(&facts.items).into_iter().filter(unexpected).collect();
    assert_eq!(surprises, Vec::<String>::new(), "seed {seed}");
    let tally = facts.tally();
    println!("{tally:?}");
    for fate in [Fate::Poor, Fate::Capped, Fate::NoMarket, Fate::Rejected] {
        assert!(tally.contains_key(fate.outcome()), "seed {seed}: {fate:?} is missing in {tally:?}");
    }
    let paid = scene.plan.with_fate(Fate::Paid);
    assert!(tally["SUCCEEDED"] > paid / 4, "seed {seed}: too few of {paid} got through: {tally:?}");
}
