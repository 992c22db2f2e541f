//! The outbox to Kafka: a backlog drained, beside COPY and a bare producer; then latency and idle cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::Node;
use crate::ingest::{PATIENCE, limit};
use crate::latency::{self, Latency};
use crate::load;
use crate::meter::Meter;
use crate::report::{Report, Run, Target, median, runs_of, spread};
use crate::servers::{Servers, connect};

pub(crate) const DATABASE: &str = "bench_relay";
pub(crate) const PARTITIONS: i32 = 4;
const TOPIC: &str = "bench-out";
const TOPIC_BARE: &str = "bench-bare";
/// Connections that fill the outbox, one row a transaction.
const WRITERS: usize = 4;
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows that wait in the outbox
    #[arg(long, default_value_t = 200_000)]
    rows: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 500)]
    size: usize,
    #[arg(long, default_value_t = 5_000)]
    keys: usize,
    /// How often every contestant runs
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// How long the relay's producer waits for company
    #[arg(long, default_value_t = 0)]
    pub(crate) linger_ms: u64,
    /// A setting of librdkafka for the relay's producer, name=value; may be repeated
    #[arg(long)]
    kafka: Vec<String>,
    /// Rows a second while latency is measured
    #[arg(long, default_value_t = 200)]
    pub(crate) latency_rate: u32,
    /// Seconds of the latency run
    #[arg(long, default_value_t = 30)]
    pub(crate) latency_seconds: u32,
    /// Seconds of quiet over which the idle cost is measured
    #[arg(long, default_value_t = 20)]
    pub(crate) idle_seconds: u32,
}

const RELAY: &str = "relay";
const COPY: &str = "limit: COPY out";
const PRODUCE: &str = "limit: bare producer";

/// `bench relay`
pub(crate) async fn run(args: &Args) -> Result<()> {
    let servers = Servers::start()?;
    servers.age().await?;
    servers.create_topic(TOPIC, PARTITIONS, &[]).await?;
    servers.create_topic(TOPIC_BARE, PARTITIONS, &[]).await?;
    servers.fresh_database(DATABASE).await?;
    fill(&servers, args).await?;
    servers.checkpoint().await?;
    let mut report = Report::new(
        "relay",
        &format!(
            "{} rows of {} B written by dipmo.outbox_append one a transaction, {} keys, {PARTITIONS} partitions, \
             linger {} ms; {} repetitions, interleaved, after one that is not counted",
            args.rows, args.size, args.keys, args.linger_ms, args.repetitions
        ),
    );
    let mut results: Vec<(String, Vec<Run>)> = [RELAY, COPY, PRODUCE].map(|name| (name.to_owned(), Vec::new())).into();
    // The first round warms the broker's compiler and the caches.
    for round in 0..=args.repetitions {
        for (name, runs) in &mut results {
            eprintln!("round {round} of {}: {name}", args.repetitions);
            let run = match name.as_str() {
                RELAY => drain(&servers, args).await,
                COPY => copy(&servers, args).await,
                _ => produce(&servers, args).await,
            };
            let run = run.with_context(|| name.clone())?;
            if round > 0 {
                runs.push(run);
            }
        }
    }
    report.table(&results, PRODUCE);
    let mut idle = Vec::new();
    let mut latencies = Vec::new();
    for round in 0..args.repetitions {
        eprintln!("latency and idle, round {} of {}", round + 1, args.repetitions);
        let (latency, quiet) = latency::run(&servers, args, &format!("bench-latency-{round}")).await?;
        latencies.push(latency);
        idle.push(quiet);
    }
    latency_table(&mut report, args, &latencies, &idle);
    report.targets(&targets(&results, &latencies));
    report.every_run(&results);
    report.save()
}

fn latency_table(report: &mut Report, args: &Args, latencies: &[Latency], idle: &[(f64, f64)]) {
    let of = |value: fn(&Latency) -> f64| spread(&latencies.iter().map(value).collect::<Vec<f64>>(), 2);
    report.line(&format!(
        "Latency at {}/s, open loop, {} s a round, one row a transaction, in ms:\n",
        args.latency_rate, args.latency_seconds
    ));
    report.line("| from the commit to | p50 | p90 | p99 | most |");
    report.line("|---|---|---|---|---|");
    report.line(&format!(
        "| a consumer's hands | {} | {} | {} | {} |",
        of(|l| l.p50),
        of(|l| l.p90),
        of(|l| l.p99),
        of(|l| l.most)
    ));
    report.line(&format!(
        "| the broker's log (whole ms) | {} | {} | {} | {} |",
        of(|l| l.append_p50),
        of(|l| l.append_p90),
        of(|l| l.append_p99),
        of(|l| l.append_most)
    ));
    let percent =
        |value: fn(&(f64, f64)) -> f64| spread(&idle.iter().map(|i| value(i) * 100.0).collect::<Vec<f64>>(), 2);
    report.line(&format!(
        "\nDuring that run: node {} %, PostgreSQL {} % of a core, writers included.",
        of(|l| l.node_cpu * 100.0),
        of(|l| l.postgres_cpu * 100.0)
    ));
    report.line(&format!(
        "Idle for {} s: node {} %, PostgreSQL {} % of a core.\n",
        args.idle_seconds,
        percent(|i| i.0),
        percent(|i| i.1)
    ));
}

fn targets(results: &[(String, Vec<Run>)], latencies: &[Latency]) -> Vec<Target> {
    let relay = &results[0].1;
    let producer = median(&runs_of(&results[2].1, |r| r.node_cpu * 1e5));
    eprintln!("a bare producer takes {producer:.2} CPU-s per 100 k by itself");
    let unit = "CPU-s per 100 k";
    vec![
        Target { what: "relay, node", values: runs_of(relay, |r| r.node_cpu * 1e5), under: 0.8, unit },
        Target { what: "relay, node memory", values: runs_of(relay, |r| r.rss_mb), under: 60.0, unit: "MB" },
        Target {
            what: "commit to consumer, p50",
            values: latencies.iter().map(|l| l.p50).collect(),
            under: 5.0,
            unit: "ms",
        },
        Target { what: "dead rows per row", values: runs_of(relay, |r| r.dead_made), under: 0.01, unit: "" },
    ]
}

/// Writes the backlog as any client would: `dipmo.outbox_append`, a transaction a row.
async fn fill(servers: &Servers, args: &Args) -> Result<()> {
    eprintln!("writing {} rows, one a transaction", args.rows);
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (url, next) = (servers.url(DATABASE), Arc::clone(&next));
        let (rows, keys, size) = (args.rows, args.keys, args.size);
        writers.push(tokio::spawn(async move {
            let client = connect(&url).await?;
            // Only for the filling: what is measured begins afterwards.
            client.batch_execute("set synchronous_commit = off").await?;
            let append = client.prepare(APPEND).await?;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= rows {
                    return anyhow::Ok(());
                }
                let key = load::key(n, keys);
                let destination = format!("KAFKA:{TOPIC}");
                client.query_one(&append, &[&destination, &key, &load::payload(n, &key, size)]).await?;
            }
        }));
    }
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

pub(crate) const APPEND: &str = "select dipmo.outbox_append($1, 'Account', $2, 'Moved', $3)";

/// All rows once more: the cursors go back, and a relay drains them.
async fn drain(servers: &Servers, args: &Args) -> Result<Run> {
    let meter = servers.meter(DATABASE).await?;
    for statement in [
        "update dipmo.relay_shard set cursor = (select min(id) - 1 from dipmo.outbox), gaps = '{}'",
        "truncate dipmo.relay_batch",
        "vacuum analyze dipmo.outbox",
        "vacuum dipmo.relay_shard",
    ] {
        meter.client.batch_execute(statement).await?;
    }
    servers.checkpoint().await?;
    let dead_before = meter.dead_rows().await?;
    let published = servers.records_in(TOPIC, PARTITIONS)?;
    let before = meter.sample(None).await?;
    let node = start(servers, args).await?;
    let rate = drained(&meter, args.rows).await?;
    let cost = meter.sample(Some(node.pid())).await? - before;
    let usage = node.usage()?;
    node.stop().await?;
    let published = servers.records_in(TOPIC, PARTITIONS)? - published;
    anyhow::ensure!(usize::try_from(published)? == args.rows, "{published} of {} rows were published", args.rows);
    let dead = meter.dead_rows().await?;
    eprintln!("  dead rows made so far: {:?}", dead.tables);
    let each = args.rows as f64;
    Ok(Run {
        rows: args.rows,
        rate,
        node_cpu: cost.node / each,
        postgres_cpu: cost.postgres / each,
        broker_cpu: cost.broker / each,
        wal_bytes: cost.wal_bytes / each,
        dead_made: (dead.made - dead_before.made) as f64 / each,
        dead_left: dead.left as f64 / each,
        rss_mb: usage.rss_peak_mb,
    })
}

/// A relay in a process of its own.
pub(crate) async fn start(servers: &Servers, args: &Args) -> Result<Node> {
    let (url, brokers, linger) = (servers.url(DATABASE), servers.brokers(), args.linger_ms.to_string());
    let mut words = vec!["relay", &url, &brokers, &linger];
    words.extend(args.kafka.iter().map(String::as_str));
    Node::start(&words).await
}

/// Waits until every cursor is at the end; the rate counts from when the first had moved.
async fn drained(meter: &Meter, rows: usize) -> Result<f64> {
    let start = "select min(cursor) from dipmo.relay_shard where lane = 'KAFKA'";
    let moved = "select count(*) from dipmo.relay_batch";
    let last = meter.number("select max(id) from dipmo.outbox").await?;
    let began = Instant::now();
    let mut first = None;
    loop {
        if first.is_none() && meter.number(moved).await? > 0 {
            let done = meter.number("select sum(sent) from dipmo.relay_batch").await?;
            first = Some((Instant::now(), usize::try_from(done)?));
        }
        if meter.number(start).await? >= last {
            let (at, done) = first.unwrap_or((began, 0));
            return Ok((rows - done) as f64 / at.elapsed().as_secs_f64());
        }
        if began.elapsed() > PATIENCE {
            bail!("not drained after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn copy(servers: &Servers, args: &Args) -> Result<Run> {
    let meter = servers.meter(DATABASE).await?;
    let node = Node::start(&["copy", &servers.url(DATABASE)]).await?;
    limit(&meter, node, args.rows, None).await
}

async fn produce(servers: &Servers, args: &Args) -> Result<Run> {
    let meter = servers.meter(DATABASE).await?;
    let (rows, keys, size) = (args.rows.to_string(), args.keys.to_string(), args.size.to_string());
    let node = Node::start(&["produce", &servers.brokers(), TOPIC_BARE, &rows, &keys, &size]).await?;
    limit(&meter, node, args.rows, None).await
}
