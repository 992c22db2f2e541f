//! Whether a message costs the same with ten thousand rows of history as with a million.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::ingest::{Args, PATIENCE, Progress, fill, start};
use crate::meter::{Meter, Sample};
use crate::node::Work;
use crate::report::{Report, Target, median, spread};
use crate::servers::Servers;

/// Where the windows begin, in rows of history.
const HISTORIES: [usize; 3] = [10_000, 100_000, 1_000_000];
/// A window is measured in this many slices, for the spread.
const SLICES: usize = 5;
const SLICE: usize = 10_000;
const POLL: Duration = Duration::from_millis(4);

/// What a message cost in a slice.
struct Slice {
    cpu: f64,
    node: f64,
    postgres: f64,
    wal_bytes: f64,
    rate: f64,
}

/// `bench ingest --growth`
pub(crate) async fn run(args: &Args) -> Result<()> {
    let servers = Servers::start()?;
    servers.age().await?;
    let records = HISTORIES[HISTORIES.len() - 1] + SLICES * SLICE;
    fill(&servers, args, records).await?;
    let mut report = Report::new(
        "ingest-growth",
        &format!(
            "{records} records of {} B, {} partitions, {} keys; one run a mode, measured in {SLICES} slices of {SLICE} \
             messages from 10 k, 100 k and 1 M rows of history",
            args.size, args.partitions, args.keys
        ),
    );
    report.line("| what | history | CPU | node CPU | PostgreSQL CPU | WAL B/row | rows/s |");
    report.line("|---|---|---|---|---|---|---|");
    let mut targets = Vec::new();
    for (work, name, what) in [
        (Work::Store, "store", "store: 1 M against 10 k"),
        (Work::Process, "inline, process step", "process: 1 M against 10 k"),
    ] {
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut medians = Vec::new();
        for (history, slices) in measure(&servers, args, work).await? {
            let of = |value: fn(&Slice) -> f64| slices.iter().map(value).collect::<Vec<f64>>();
            report.line(&format!(
                "| {name} | {history} | {} | {} | {} | {} | {} |",
                spread(&of(|s| s.cpu), 2),
                spread(&of(|s| s.node), 2),
                spread(&of(|s| s.postgres), 2),
                spread(&of(|s| s.wal_bytes), 0),
                spread(&of(|s| s.rate), 0)
            ));
            medians.push(median(&of(|s| s.cpu)));
        }
        let ratio = medians[medians.len() - 1] / medians[0];
        targets.push(Target { what, values: vec![ratio], under: 1.25, unit: "times the CPU" });
    }
    report.line("");
    report.targets(&targets);
    report.save()
}

async fn measure(servers: &Servers, args: &Args, work: Work) -> Result<Vec<(usize, Vec<Slice>)>> {
    let database = "bench_growth";
    servers.fresh_database(database).await?;
    let meter = servers.meter(database).await?;
    let progress = Progress::of(work);
    let node = start(servers, args, database, work).await?;
    let mut windows = Vec::new();
    for history in HISTORIES {
        let mut slices = Vec::new();
        let mut last = moment(&meter, &progress, node.pid(), history).await?;
        for _ in 0..SLICES {
            let next = moment(&meter, &progress, node.pid(), last.0 + SLICE).await?;
            slices.push(Slice::between(&last, &next));
            last = next;
        }
        eprintln!("  {work:?} with {history} rows: measured");
        windows.push((history, slices));
    }
    node.stop().await?;
    drop(meter);
    servers.drop_database(database).await?;
    Ok(windows)
}

type Moment = (usize, Instant, Sample);

/// The figures at the moment when `count` messages are in, or a few more.
async fn moment(meter: &Meter, progress: &Progress, node: u32, count: usize) -> Result<Moment> {
    let began = Instant::now();
    loop {
        let now = progress.now(meter).await?;
        if now >= count {
            return Ok((now, Instant::now(), meter.sample(Some(node)).await?));
        }
        if began.elapsed() > PATIENCE {
            bail!("{now} of {count} after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

impl Slice {
    fn between(first: &Moment, last: &Moment) -> Self {
        let messages = (last.0 - first.0) as f64;
        let cost = last.2 - first.2;
        Self {
            cpu: (cost.node + cost.postgres) / messages * 1e5,
            node: cost.node / messages * 1e5,
            postgres: cost.postgres / messages * 1e5,
            wal_bytes: cost.wal_bytes / messages,
            rate: messages / last.1.duration_since(first.1).as_secs_f64(),
        }
    }
}
