//! Ingest as its own history grows.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Args, Moment, Slice, Window, hold_open};
use crate::ingest::{self, Progress, TOPIC};
use crate::meter::Meter;
use crate::node::Work;
use crate::servers::Servers;

/// A window is measured in this many slices, for the spread.
pub(super) const SLICES: usize = 5;
pub(super) const SLICE: usize = 10_000;
const DATABASE: &str = "bench_growth";
const POLL: Duration = Duration::from_millis(4);
/// Nothing came in for so long: it is stuck.
const STUCK: Duration = Duration::from_secs(120);
/// WAL, and the records in Kafka beside the database.
const WAL_BYTES: u64 = 5 << 30;
const RECORD_BYTES: u64 = 300;

/// A run without, then a run with a transaction held open.
pub(super) async fn measure(
    servers: &Servers,
    args: &Args,
    work: Work,
    notes: &mut Vec<String>,
) -> Result<Vec<Window>> {
    // One slice more than is measured: each begins a little after it was due.
    let records = args.histories().last().unwrap_or(0) + (SLICES + 1) * SLICE;
    let args_of_ingest = ingest::Args::for_growth(records, args.size, args.keys);
    if !servers.has_topic(TOPIC)? {
        ingest::fill(servers, &args_of_ingest, records).await?;
    }
    let mut windows = Vec::new();
    for held in [false, true] {
        servers.fresh_database(DATABASE).await?;
        let meter = servers.meter(DATABASE).await?;
        let open = if held { Some(hold_open(servers, DATABASE).await?) } else { None };
        let progress = Progress::of(work);
        let node = ingest::start(servers, &args_of_ingest, DATABASE, work).await?;
        for history in args.histories() {
            if !fits(&meter, &progress, history, args.disk_max_gb).await? {
                notes.push(format!(
                    "ingest {work:?}, {history} rows: left out, it may need over {} GB",
                    args.disk_max_gb
                ));
                continue;
            }
            let slices = slices(&meter, &progress, node.pid(), history).await?;
            eprintln!("  ingest {work:?} with {history} rows, transaction held open: {held}: measured");
            windows.push(Window { history, held, slices });
        }
        node.stop().await?;
        drop((meter, open));
        servers.drop_database(DATABASE).await?;
    }
    Ok(windows)
}

async fn slices(meter: &Meter, progress: &Progress, node: u32, history: usize) -> Result<Vec<Slice>> {
    let mut slices = Vec::new();
    let mut last = moment(meter, progress, node, history).await?;
    for _ in 0..SLICES {
        let next = moment(meter, progress, node, last.0 + SLICE).await?;
        slices.push(Slice::between(&last, &next));
        last = next;
    }
    Ok(slices)
}

/// Whether so much history will fit, going by the rows that are there.
async fn fits(meter: &Meter, progress: &Progress, history: usize, disk_max_gb: u64) -> Result<bool> {
    let rows = progress.now(meter).await? as u64;
    let bytes = u64::try_from(meter.number("select pg_database_size(current_database())").await?)?;
    let row_bytes = if rows < 10_000 { 0 } else { bytes / rows };
    Ok(history as u64 * (row_bytes + RECORD_BYTES) + WAL_BYTES < disk_max_gb << 30)
}

/// The figures at the moment when `count` messages are in, or a few more.
async fn moment(meter: &Meter, progress: &Progress, node: u32, count: usize) -> Result<Moment> {
    let mut moved = (0, Instant::now());
    loop {
        let now = progress.now(meter).await?;
        if now >= count {
            return Ok((now, Instant::now(), meter.sample(Some(node)).await?));
        }
        if now > moved.0 {
            moved = (now, Instant::now());
        } else if moved.1.elapsed() > STUCK {
            bail!("{now} of {count}, and nothing came for {} s", STUCK.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}
