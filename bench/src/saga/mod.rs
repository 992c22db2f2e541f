//! Payment sagas: how many a second, how long one takes, what it costs; beside the inserts alone and peers.
//!
//! All contestants do the same payments in one run on one machine, in turns. Each turn has a database of its
//! own, and every step that was to be done is counted in it at the end.

pub(crate) mod dipmo;
pub(crate) mod drive;
pub(crate) mod limits;
mod payment;
mod peers;
mod results;
mod session;

use anyhow::{Context, Result};

use self::results::{Contestant, Results};
use self::session::Session;
use crate::report::Report;
use crate::servers::Servers;

/// Tells when a row was committed, by the clock of the database.
const SETTINGS: &[(&str, &str)] = &[("track_commit_timestamp", "on")];

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Sagas that are started at once
    #[arg(long, default_value_t = 6_000)]
    sagas: usize,
    /// Starters that each start the next saga when the last has begun
    #[arg(long, default_value_t = drive::STARTERS_MAX, value_parser = starters)]
    starters: usize,
    /// Sagas a second while latency is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Seconds of a latency run
    #[arg(long, default_value_t = 15)]
    latency_seconds: u32,
    /// How often every contestant runs
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Engines to measure beside dipmo
    #[arg(long, value_delimiter = ',')]
    peer: Vec<Peer>,
    /// Few sagas and seconds, one repetition: only to see that it works
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Restate,
    Dbos,
    Temporal,
}

impl Args {
    fn quickly(self) -> Self {
        if !self.quick {
            return self;
        }
        Self { sagas: self.sagas.min(200), repetitions: 1, latency_seconds: 3, ..self }
    }

    fn contestants(&self) -> Vec<Contestant> {
        use Contestant::{Dbos, Dipmo, Inserts, RestateCalls, RestateInside};
        let peers = self.peer.iter().flat_map(|peer| match peer {
            Peer::Restate => vec![RestateCalls, RestateInside],
            Peer::Dbos => vec![Dbos],
            Peer::Temporal => vec![],
        });
        [Inserts, Dipmo].into_iter().chain(peers).collect()
    }
}

fn starters(text: &str) -> Result<usize, String> {
    let starters = text.parse().map_err(|_| "not a number".to_owned())?;
    match starters {
        1..=drive::STARTERS_MAX => Ok(starters),
        _ => Err(format!("must be 1 to {}", drive::STARTERS_MAX)),
    }
}

/// `bench saga`
pub(crate) async fn run(args: Args) -> Result<()> {
    let args = args.quickly();
    let servers = Servers::postgres_only(SETTINGS)?;
    servers.age().await?;
    let mut results = Results::default();
    for repetition in 1..=args.repetitions {
        eprintln!("repetition {repetition} of {}", args.repetitions);
        for who in args.contestants() {
            let turn = Session { servers: &servers, args: &args }.turn(who).await;
            match turn {
                Ok(figures) => results.add(who, figures),
                // A peer that cannot be had, or that fails, says so in the table; the others go on.
                Err(error) if who.is_peer() => results.miss(who, &error),
                Err(error) => return Err(error).context(who.name()),
            }
        }
    }
    let mut report = Report::about(if args.quick { "saga-quick" } else { "saga" }, SETTINGS, &facts(&args));
    results.table(&mut report, args.rate);
    results.durability(&mut report);
    if args.peer.contains(&Peer::Temporal) {
        report.line("Temporal: not run: no registry has its server, and its build takes half an hour.\n");
    }
    report.targets(&results.targets(args.rate));
    results.every_run(&mut report);
    report.save()
}

fn facts(args: &Args) -> Vec<String> {
    let Args { sagas, starters, rate, latency_seconds, repetitions, .. } = args;
    let quick = if args.quick { "a QUICK try; " } else { "" };
    vec![
        format!(
            "dataset: {quick}{sagas} payments of 3.25 steps (every fourth has 4), each step one idempotent insert; \
             {starters} starters; latency open loop at {rate}/s, {latency_seconds} s; {repetitions} repetitions, \
             interleaved, each in a new database after {} payments that are not counted",
            session::warm_up(*sagas)
        ),
        format!("peers: {}", peers::VERSIONS),
        "figures: median (least-most); CPU in processor seconds per 1 000 sagas".to_owned(),
    ]
}
