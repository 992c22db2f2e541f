//! The demo: load, kills, and the proof that nothing was lost, doubled or reordered.
//!
//! `kyc-demo` runs it against servers that are there; `cargo xtask demo` starts those.

mod body;
mod checks;
mod facts;
mod feed;
mod kafka;
mod ledger;
mod plan;
mod progress;
mod victim;

pub use checks::{Check, all};
pub use facts::{EffectRow, Facts, OpenMessage};
pub use kafka::Published;
pub use plan::{Case, Fate, Flow, Input, Plan};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dipmo::store::postgres::{Db, DbOptions, schema};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use crate::tables::Tables;
use feed::Feed;
use progress::{Look, Progress};
use victim::Victim;

const POLL: Duration = Duration::from_millis(50);
/// Quiet for as long as this is the end.
const QUIET: Duration = Duration::from_millis(300);
/// When nothing moves for this long, the checks say what is missing.
const STALLED: Duration = Duration::from_secs(45);
/// Where in the run, by the share of effects that have happened, the kills fall.
const KILLS: [(f64, f64); 3] = [(0.05, 0.30), (0.35, 0.60), (0.65, 0.95)];
/// A kill comes up to this much after its share is reached, to hit any point of a step.
const KILL_DELAY_MAX_MS: u64 = 40;

/// What to run against.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    pub postgres: String,
    pub kafka: Option<String>,
    pub messages: usize,
    pub seed: u64,
    /// The program that is killed.
    pub node: PathBuf,
    /// Where that program writes its log.
    pub node_log: PathBuf,
    /// Leave the node running and wait for Ctrl-C at the end.
    pub keep: bool,
}

/// Runs it all; true if every check passed.
pub async fn run(options: &DemoOptions) -> Result<bool> {
    let db = Db::open(DbOptions { application_name: "kyc-demo".into(), ..DbOptions::new(&options.postgres) })?;
    let plan = Plan::new(options.seed, options.messages);
    println!("{}", ledger::introduction(&plan, options.kafka.is_some()));
    let feed = prepare(&db, options).await?;
    let mut victim =
        Victim::new(options.node.clone(), &options.postgres, options.kafka.as_deref(), options.node_log.clone());
    let mut progress = Progress::new(plan.distinct(), plan.effects());
    let inputs = plan.inputs.clone();
    let feeding = tokio::spawn(async move { feed.send(&inputs).await });
    drive(&db, &plan, &mut victim, feeding, &mut progress).await?;
    let took = progress.elapsed();
    if !options.keep {
        victim.stop().await?;
    }
    let facts = facts(&db, options.kafka.clone()).await?;
    let checks = checks::all(&plan, &facts);
    println!("\n{}", ledger::ledger(&plan, &facts, victim.kills, took));
    println!("{}", ledger::verdict(&checks, victim.kills));
    if options.keep {
        println!("{}", ledger::look_around(&options.postgres, options.kafka.as_deref()));
        // Whoever started the servers heard it as well: there is nothing left to drain into.
        tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")?;
    }
    Ok(checks.iter().all(Check::passed))
}

async fn prepare(db: &Db, options: &DemoOptions) -> Result<Feed> {
    schema::migrate(db).await.context("migrating")?;
    Tables::default().create(db).await.context("creating the tables of the example")?;
    match &options.kafka {
        None => Ok(Feed::Internal(db.clone())),
        Some(brokers) => {
            kafka::create_topics(brokers).await?;
            Feed::kafka(brokers)
        }
    }
}

/// Lets the node work, kills it where the seed says, and returns when nothing moves any more.
async fn drive(
    db: &Db,
    plan: &Plan,
    victim: &mut Victim,
    mut feeding: JoinHandle<Result<()>>,
    progress: &mut Progress,
) -> Result<()> {
    let mut kills = kills(plan).into_iter().peekable();
    let mut fed = false;
    let mut moved = (Look::default(), Instant::now());
    victim.start()?;
    loop {
        tokio::time::sleep(POLL).await;
        victim.check_alive()?;
        if !fed && feeding.is_finished() {
            (&mut feeding).await.context("the feed panicked")??;
            fed = true;
        }
        let look = Look::take(db).await?;
        progress.show(&look, victim.kills);
        if look != moved.0 {
            moved = (look, Instant::now());
        }
        if let Some((_, delay)) = kills.next_if(|(at, _)| look.effects >= *at) {
            tokio::time::sleep(delay).await;
            victim.kill().await?;
            let done = Look::take(db).await?.effects;
            progress.say(&format!("SIGKILL at effect {done} of {}, and a new start", plan.effects()));
            victim.start()?;
            moved.1 = Instant::now();
            continue;
        }
        let all_in = fed && usize::try_from(look.received).is_ok_and(|received| received >= plan.distinct());
        let over = kills.peek().is_none() && all_in && moved.1.elapsed() > QUIET;
        if (over && look.is_quiet(db).await?) || moved.1.elapsed() > STALLED {
            progress.say("quiet");
            return Ok(());
        }
    }
}

/// At how many effects, and how long after: twice or three times, by the seed.
fn kills(plan: &Plan) -> Vec<(i64, Duration)> {
    let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x006b_696c_6c73);
    let count = rng.random_range(2..=KILLS.len());
    let mut kill = |(from, to): (f64, f64)| {
        let at = plan.effects() as f64 * rng.random_range(from..to);
        (at as i64, Duration::from_millis(rng.random_range(0..=KILL_DELAY_MAX_MS)))
    };
    KILLS[..count].iter().map(|share| kill(*share)).collect()
}

async fn facts(db: &Db, kafka: Option<String>) -> Result<Facts> {
    let facts = Facts::read(db).await?;
    let Some(brokers) = kafka else { return Ok(facts) };
    let published = tokio::task::spawn_blocking(move || kafka::read_back(&brokers)).await??;
    facts.with_kafka(db, published).await
}
