//! Kafka to the inbox in each mode, interleaved with the raw limits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::Node;
use crate::load;
use crate::meter::Meter;
use crate::node::{LEAN_TABLE, Work};
use crate::report::{Goal, Report, Run, Target, runs_of, total_cpu};
use crate::servers::Servers;

pub(crate) const TOPIC: &str = "bench-in";
/// Nothing takes longer than this, or it is stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1_200);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records a run takes in
    #[arg(long, default_value_t = 100_000)]
    pub(crate) records: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 456)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 16)]
    pub(crate) partitions: i32,
    #[arg(long, default_value_t = 5_000)]
    pub(crate) keys: usize,
    /// How often every contestant runs
    #[arg(long, default_value_t = 3)]
    pub(crate) repetitions: usize,
    /// Only contestants whose name contains this
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// A setting of librdkafka for dipmo's consumer, name=value; may be repeated
    #[arg(long)]
    pub(crate) kafka: Vec<String>,
}

impl Args {
    /// For a run that goes on until its history is long enough.
    pub(crate) fn for_growth(records: usize, size: usize, keys: usize) -> Self {
        Self { records, size, partitions: 16, keys, repetitions: 1, only: None, kafka: Vec::new() }
    }
}

const STORE: &str = "store";
const WORKER: &str = "worker, from the table";
const PROCESS: &str = "inline, process step";
const ENLISTED: &str = "inline, enlisted per key";
const LEAN: &str = "limit: lean insert";
const COUNT: &str = "limit: bare consumer";

/// `bench ingest`
pub(crate) async fn run(args: &Args) -> Result<()> {
    let servers = Servers::start()?;
    servers.age().await?;
    fill(&servers, args, args.records).await?;
    // A commit for each key and batch: a tenth is enough to measure and takes as long as all the others.
    let enlisted = (args.records / 10).max(1);
    let mut report = Report::new(
        "ingest",
        &format!(
            "{} records of {} B, {} partitions, {} keys, five headers; enlisted: {enlisted} records; {} repetitions, interleaved",
            args.records, args.size, args.partitions, args.keys, args.repetitions
        ),
    );
    let mut results: Vec<(String, Vec<Run>)> = Vec::new();
    for repetition in 0..args.repetitions {
        for name in [LEAN, COUNT, STORE, WORKER, PROCESS, ENLISTED] {
            if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
                continue;
            }
            eprintln!("repetition {} of {}: {name}", repetition + 1, args.repetitions);
            let run = match name {
                LEAN => lean(&servers, args).await,
                COUNT => count(&servers, args).await,
                STORE => ingress(&servers, args, Work::Store, args.records).await,
                WORKER => ingress(&servers, args, Work::Worker, args.records).await,
                PROCESS => ingress(&servers, args, Work::Process, args.records).await,
                _ => ingress(&servers, args, Work::Enlisted, enlisted).await,
            };
            let run = run.with_context(|| name.to_owned())?;
            match results.iter_mut().find(|(known, _)| known == name) {
                Some((_, runs)) => runs.push(run),
                None => results.push((name.to_owned(), vec![run])),
            }
        }
    }
    report.table(&results, LEAN);
    report.targets(&targets(&results));
    report.every_run(&results);
    report.save()
}

fn targets(results: &[(String, Vec<Run>)]) -> Vec<Target> {
    let of = |wanted: &str, value: fn(&Run) -> f64| {
        let found = results.iter().find(|(name, _)| name == wanted);
        found.map_or(Vec::new(), |(_, runs)| runs_of(runs, value))
    };
    let unit = "CPU-s per 100 k";
    let all = vec![
        Target {
            what: "store, node and PostgreSQL".into(),
            values: of(STORE, total_cpu),
            goal: Goal::Under(3.0),
            unit,
        },
        Target {
            what: "inline process step, node and PostgreSQL".into(),
            values: of(PROCESS, total_cpu),
            goal: Goal::Under(8.0),
            unit,
        },
        Target {
            what: "node memory, store".into(),
            values: of(STORE, |r| r.rss_mb),
            goal: Goal::Under(60.0),
            unit: "MB",
        },
        Target {
            what: "node memory, process".into(),
            values: of(PROCESS, |r| r.rss_mb),
            goal: Goal::Under(60.0),
            unit: "MB",
        },
        Target {
            what: "node memory, enlisted".into(),
            values: of(ENLISTED, |r| r.rss_mb),
            goal: Goal::Under(60.0),
            unit: "MB",
        },
    ];
    all.into_iter().filter(|target| !target.values.is_empty()).collect()
}

pub(crate) async fn fill(servers: &Servers, args: &Args, records: usize) -> Result<()> {
    servers.create_topic(TOPIC, args.partitions, &[]).await?;
    eprintln!("producing {records} records");
    let (brokers, keys, payloads) = (servers.brokers(), args.keys, load::Payloads::new(args.keys, args.size));
    tokio::task::spawn_blocking(move || load::produce(&brokers, TOPIC, 0..records, keys, &payloads)).await?
}

/// One run of dipmo, in a database of its own.
async fn ingress(servers: &Servers, args: &Args, work: Work, records: usize) -> Result<Run> {
    let database = "bench_ingest";
    servers.fresh_database(database).await?;
    let meter = servers.meter(database).await?;
    if work == Work::Enlisted {
        meter.client.batch_execute("create table bench_account (key text primary key, seen bigint not null)").await?;
    }
    if work == Work::Worker {
        let node = start(servers, args, database, Work::Store).await?;
        Progress::of(Work::Store).reach(&meter, records).await?;
        node.stop().await?;
        servers.checkpoint().await?;
    }
    let mut run = measured(servers, args, database, &meter, work, records).await?;
    let dead = meter.dead_rows().await?;
    run.dead_made = dead.made as f64 / records as f64;
    run.dead_left = dead.left as f64 / records as f64;
    eprintln!("  dead rows made: {:?}", dead.tables);
    drop(meter);
    servers.drop_database(database).await?;
    Ok(run)
}

async fn measured(
    servers: &Servers,
    args: &Args,
    database: &str,
    meter: &Meter,
    work: Work,
    records: usize,
) -> Result<Run> {
    let progress = Progress::of(work);
    let before = meter.sample(None).await?;
    let node = start(servers, args, database, work).await?;
    let rate = progress.reach(meter, records).await?;
    let after = meter.sample(Some(node.pid())).await?;
    let usage = node.usage()?;
    node.stop().await?;
    let cost = after - before;
    // What an enlisted run took in beyond its share costs too, and is counted.
    let rows = usize::try_from(meter.number(progress.count).await?)?;
    let taken = rows.max(records) as f64;
    Ok(Run {
        rows,
        rate,
        node_cpu: cost.node / taken,
        postgres_cpu: cost.postgres / taken,
        broker_cpu: cost.broker / taken,
        wal_bytes: cost.wal_bytes / taken,
        rss_mb: usage.rss_peak_mb,
        ..Run::default()
    })
}

pub(crate) async fn start(servers: &Servers, args: &Args, database: &str, work: Work) -> Result<Node> {
    let name = match work {
        Work::Store => "store",
        Work::Worker => "worker",
        Work::Process => "process",
        Work::Enlisted => "enlisted",
    };
    // The name is the group: each database is filled by a group that has read nothing yet. A worker goes on
    // with what the group before it has stored.
    static GROUPS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let more = usize::from(work != Work::Worker);
    let group = format!("bench-{}", GROUPS.fetch_add(more, std::sync::atomic::Ordering::Relaxed) + more);
    let (url, brokers) = (servers.url(database), servers.brokers());
    let mut words = vec!["ingress", &url, &brokers, TOPIC, &group, name];
    words.extend(args.kafka.iter().map(String::as_str));
    Node::start(&words).await
}

/// How far a node is: a cheap look first, an exact one at the end.
pub(crate) struct Progress {
    cheap: &'static str,
    count: &'static str,
}

impl Progress {
    pub(crate) fn of(work: Work) -> Self {
        if work == Work::Worker {
            // Rows that leave are journaled, and ids of the journal are given one by one.
            let cheap =
                "select coalesce((pg_sequence_last_value('dipmo.journal_seq') & ((1::bigint << 36) - 1)) + 1, 0)";
            return Self { cheap, count: "select count(*) from dipmo.inbox_done" };
        }
        let cheap = "select coalesce((pg_sequence_last_value('dipmo.inbox_seq') & ((1::bigint << 36) - 1)) + 1, 0)";
        Self { cheap, count: "select count(*) from dipmo.inbox" }
    }

    /// The sequence as it stands in a database where nothing was taken in yet reads as all ones.
    pub(crate) async fn now(&self, meter: &Meter) -> Result<usize> {
        let count = meter.number(self.cheap).await?;
        Ok(if count == 1 << 36 { 0 } else { usize::try_from(count)? })
    }

    /// Waits until `records` are committed; answers with the rate since the first were seen.
    pub(crate) async fn reach(&self, meter: &Meter, records: usize) -> Result<f64> {
        let began = Instant::now();
        let mut first = None;
        loop {
            let now = self.now(meter).await?;
            if now > 0 && first.is_none() {
                first = Some((now, Instant::now()));
            }
            if now >= records && usize::try_from(meter.number(self.count).await?)? >= records {
                let (count, at) = first.unwrap_or((0, began));
                return Ok((records.saturating_sub(count)) as f64 / at.elapsed().as_secs_f64());
            }
            if began.elapsed() > PATIENCE {
                bail!("{now} of {records} after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn lean(servers: &Servers, args: &Args) -> Result<Run> {
    let database = "bench_lean";
    servers.fresh_database(database).await?;
    let meter = servers.meter(database).await?;
    meter.client.batch_execute(LEAN_TABLE).await?;
    let (records, keys, size) = (args.records.to_string(), args.keys.to_string(), args.size.to_string());
    let node = Node::start(&["lean", &servers.url(database), &records, &keys, &size]).await?;
    let run = limit(&meter, node, args.records, None).await?;
    let stored = meter.number("select count(*) from lean").await?;
    anyhow::ensure!(usize::try_from(stored)? == args.records, "{stored} rows were stored");
    drop(meter);
    servers.drop_database(database).await?;
    Ok(run)
}

async fn count(servers: &Servers, args: &Args) -> Result<Run> {
    let meter = servers.meter("postgres").await?;
    let node = Node::start(&["count", &servers.brokers(), TOPIC, &args.records.to_string()]).await?;
    limit(&meter, node, args.records, Some("first")).await
}

/// Measures a child that ends by itself, from `go`; its rate from the word `first` where it says one.
pub(crate) async fn limit(meter: &Meter, mut node: Node, rows: usize, first: Option<&str>) -> Result<Run> {
    let before = meter.sample(Some(node.pid())).await?;
    node.go().await?;
    let mut began = Instant::now();
    if let Some(word) = first {
        node.wait_for(word, PATIENCE).await?;
        began = Instant::now();
    }
    node.wait_for("done", PATIENCE).await?;
    let rate = rows as f64 / began.elapsed().as_secs_f64();
    let cost = meter.sample(Some(node.pid())).await? - before;
    let usage = node.usage()?;
    node.stop().await?;
    let each = rows as f64;
    Ok(Run {
        rows,
        rate,
        node_cpu: cost.node / each,
        postgres_cpu: cost.postgres / each,
        broker_cpu: cost.broker / each,
        wal_bytes: cost.wal_bytes / each,
        rss_mb: usage.rss_peak_mb,
        ..Run::default()
    })
}
