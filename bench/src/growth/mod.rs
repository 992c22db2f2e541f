//! Whether a message costs the same with ten thousand rows of history as with millions, and while somebody
//! holds a transaction open.

mod ingest;
mod relay;

use std::time::Instant;

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use crate::meter::Sample;
use crate::node::Work;
use crate::relay::process::Reader;
use crate::report::{Goal, Report, Target, median, spread};
use crate::servers::{Servers, connect};

/// Rows of history at which the cost is measured.
const HISTORIES: [usize; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
const FLAT: Goal = Goal::Under(1.25);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The longest history; 10000000 is the most, and takes long and much disk
    #[arg(long, default_value_t = 1_000_000)]
    rows_max: usize,
    /// Only what has this in its name: relay, poll, wal, store, process
    #[arg(long)]
    only: Option<String>,
    /// Rows that a relay drains in a slice
    #[arg(long, default_value_t = 100_000)]
    backlog: usize,
    /// How often a relay drains at each length of history
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 456)]
    size: usize,
    #[arg(long, default_value_t = 5_000)]
    keys: usize,
    /// A history that would need more disk than this is left out
    #[arg(long, default_value_t = 30)]
    disk_max_gb: u64,
}

/// What takes or sends messages.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Relay(Reader),
    Ingest(Work),
}

const SUBJECTS: [(Subject, &str); 4] = [
    (Subject::Relay(Reader::Poll), "relay, poll"),
    (Subject::Relay(Reader::Wal), "relay, wal"),
    (Subject::Ingest(Work::Store), "ingest, store"),
    (Subject::Ingest(Work::Process), "ingest, process step"),
];

/// What a message cost in a slice of a run.
struct Slice {
    node: f64,
    postgres: f64,
    wal_bytes: f64,
    rate: f64,
}

/// The slices at one length of history.
struct Window {
    history: usize,
    held: bool,
    slices: Vec<Slice>,
}

/// How many messages were done at a moment, and the figures then.
type Moment = (usize, Instant, Sample);

/// `bench growth`
pub(crate) async fn run(args: &Args) -> Result<()> {
    let servers = Servers::start()?;
    servers.age().await?;
    let mut report = Report::new("growth", &dataset(args));
    report.line("| what | history | transaction held open | CPU of both | against 10 k | node | PostgreSQL | WAL B/row | rows/s |");
    report.line("|---|---|---|---|---|---|---|---|---|");
    let mut targets = Vec::new();
    let (mut notes, mut failed) = (Vec::new(), Vec::new());
    for (subject, name) in SUBJECTS {
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let measured = match subject {
            Subject::Relay(reader) => relay::measure(&servers, args, reader, &mut notes).await,
            Subject::Ingest(work) => ingest::measure(&servers, args, work, &mut notes).await,
        };
        // What others took many minutes to measure is not lost with it.
        match measured {
            Ok(windows) => {
                lines(&mut report, name, &windows);
                targets.extend(targets_of(name, &windows, args.histories().last().unwrap_or(0)));
            }
            Err(error) => {
                notes.push(format!("{name}: not measured: {error:#}"));
                failed.push(name);
            }
        }
    }
    report.line("");
    for note in &notes {
        report.line(note);
    }
    report.line("");
    report.targets(&targets);
    report.save()?;
    ensure!(failed.is_empty(), "not measured: {}", failed.join("; "));
    Ok(())
}

fn dataset(args: &Args) -> String {
    format!(
        "messages of {} B, {} keys. relay: history inserted and its cursors moved past it, then {} drains of {} rows \
         written one a transaction, measured from when the first have arrived. ingest: one run, measured in {} slices \
         of {} messages as its history grows. The transaction held open has written to the outbox and has a snapshot",
        args.size,
        args.keys,
        args.repetitions,
        args.backlog,
        ingest::SLICES,
        ingest::SLICE
    )
}

fn lines(report: &mut Report, name: &str, windows: &[Window]) {
    for window in windows {
        let of = |value: fn(&Slice) -> f64| window.slices.iter().map(value).collect::<Vec<f64>>();
        let first = windows.iter().find(|first| first.held == window.held).map_or(f64::NAN, Window::cpu);
        report.line(&format!(
            "| {name} | {} | {} | {} | {:.2} | {} | {} | {} | {} |",
            window.history,
            if window.held { "yes" } else { "no" },
            spread(&of(|s| s.node + s.postgres), 2),
            window.cpu() / first,
            spread(&of(|s| s.node), 2),
            spread(&of(|s| s.postgres), 2),
            spread(&of(|s| s.wal_bytes), 0),
            spread(&of(|s| s.rate), 0)
        ));
    }
}

/// The longest history against the shortest, and with the transaction against without, at the longest.
fn targets_of(name: &str, windows: &[Window], wanted: usize) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |what: String, ratio: Option<f64>| {
        targets.push(Target { what, values: ratio.into_iter().collect(), goal: FLAT, unit: "times the CPU" });
    };
    let free: Vec<&Window> = windows.iter().filter(|window| !window.held).collect();
    let held: Vec<&Window> = windows.iter().filter(|window| window.held).collect();
    for (some, how) in [(&free, ""), (&held, ", transaction held open")] {
        let longest = some.last().map_or(wanted, |last| last.history);
        let ratio = some.first().zip(some.last()).map(|(first, last)| last.cpu() / first.cpu());
        add(format!("{name}{how}: {longest} rows of history against 10 k"), ratio);
    }
    let ratio = free.last().zip(held.last()).map(|(free, held)| held.cpu() / free.cpu());
    add(format!("{name}: transaction held open against none, longest history"), ratio);
    targets
}

impl Window {
    /// Node and PostgreSQL, the median of the slices.
    fn cpu(&self) -> f64 {
        median(&self.slices.iter().map(|slice| slice.node + slice.postgres).collect::<Vec<f64>>())
    }
}

impl Slice {
    fn between(first: &Moment, last: &Moment) -> Self {
        let messages = (last.0 - first.0) as f64;
        let cost = last.2 - first.2;
        Self {
            node: cost.node / messages * 1e5,
            postgres: cost.postgres / messages * 1e5,
            wal_bytes: cost.wal_bytes / messages,
            rate: messages / last.1.duration_since(first.1).as_secs_f64(),
        }
    }
}

impl Args {
    fn histories(&self) -> impl Iterator<Item = usize> {
        HISTORIES.into_iter().filter(|history| *history <= self.rows_max)
    }
}

/// A session that has written to the outbox, has a snapshot, and does not end until it is dropped.
async fn hold_open(servers: &Servers, database: &str) -> Result<Client> {
    let client = connect(&servers.url(database)).await?;
    client.batch_execute("begin isolation level repeatable read").await?;
    // To a destination that exists, although it never gets there.
    client.batch_execute("select dipmo.outbox_append('INTERNAL', 'Account', 'held', 'Held', '{}')").await?;
    Ok(client)
}
