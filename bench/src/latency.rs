//! From a writer's commit to the broker and to a consumer, at a fixed rate that does not wait for answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::child::Node;
use crate::load;
use crate::meter::Meter;
use crate::relay::{APPEND, Args, DATABASE, PARTITIONS, start};
use crate::servers::{Servers, connect};

/// Connections that write in turn, so that a slow commit does not hold up the next row.
const WRITERS: usize = 8;
/// The first seconds warm up sessions and the producer and are not counted.
const WARM_UP: Duration = Duration::from_secs(3);
const SETTLE: Duration = Duration::from_secs(3);

/// Milliseconds from the commit; shares of a core.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
    pub(crate) append_p50: f64,
    pub(crate) append_p90: f64,
    pub(crate) append_p99: f64,
    pub(crate) append_most: f64,
    pub(crate) node_cpu: f64,
    pub(crate) postgres_cpu: f64,
}

/// When a row was committed, and when it arrived; in microseconds of the wall clock of this machine.
type Moments = HashMap<usize, i64>;

/// One round with a relay of its own. The second answer is the idle cost of node and PostgreSQL.
pub(crate) async fn run(servers: &Servers, args: &Args, topic: &str) -> Result<(Latency, (f64, f64))> {
    servers.create_topic(topic, PARTITIONS, &[("message.timestamp.type", "LogAppendTime")]).await?;
    let meter = servers.meter(DATABASE).await?;
    let node = start(servers, args).await?;
    let last = meter.number("select max(id) from dipmo.outbox").await?;
    let behind = "select min(cursor) from dipmo.relay_shard where lane = 'KAFKA' and owner is not null";
    while meter.number(behind).await? < last {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let consumer = consumer(servers, topic)?;
    let stopping = Arc::clone(&stop);
    let reading = tokio::task::spawn_blocking(move || read(&consumer, &stopping));
    write(servers, args, topic, 0..count(args, WARM_UP)).await?;
    let (began, before) = (Instant::now(), meter.sample(Some(node.pid())).await?);
    let numbers = count(args, WARM_UP)..count(args, WARM_UP + Duration::from_secs(args.latency_seconds.into()));
    let committed = write(servers, args, topic, numbers).await?;
    let (elapsed, cost) = (began.elapsed().as_secs_f64(), meter.sample(Some(node.pid())).await? - before);
    tokio::time::sleep(SETTLE).await;
    stop.store(true, Ordering::Relaxed);
    let (arrived, appended) = reading.await??;
    let mut latency =
        Latency { node_cpu: cost.node / elapsed, postgres_cpu: cost.postgres / elapsed, ..<_>::default() };
    [latency.p50, latency.p90, latency.p99, latency.most] = percentiles(&committed, &arrived)?;
    [latency.append_p50, latency.append_p90, latency.append_p99, latency.append_most] =
        percentiles(&committed, &appended)?;
    let idle = idle(&meter, &node, args).await?;
    node.stop().await?;
    Ok((latency, idle))
}

fn count(args: &Args, time: Duration) -> usize {
    (time.as_secs_f64() * f64::from(args.latency_rate)) as usize
}

async fn idle(meter: &Meter, node: &Node, args: &Args) -> Result<(f64, f64)> {
    let (began, before) = (Instant::now(), meter.sample(Some(node.pid())).await?);
    tokio::time::sleep(Duration::from_secs(args.idle_seconds.into())).await;
    let cost = meter.sample(Some(node.pid())).await? - before;
    let elapsed = began.elapsed().as_secs_f64();
    Ok((cost.node / elapsed, cost.postgres / elapsed))
}

/// Row n is due n intervals after the start, whatever became of those before it.
async fn write(servers: &Servers, args: &Args, topic: &str, numbers: std::ops::Range<usize>) -> Result<Moments> {
    let interval = Duration::from_secs(1) / args.latency_rate;
    let first = numbers.start;
    let began = tokio::time::Instant::now() + Duration::from_millis(50);
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let own: Vec<usize> = numbers.clone().filter(|n| n % WRITERS == writer).collect();
        let (url, destination) = (servers.url(DATABASE), format!("KAFKA:{topic}"));
        writers.push(tokio::spawn(async move {
            let client = connect(&url).await?;
            let append = client.prepare(APPEND).await?;
            let mut committed = Moments::new();
            for n in own {
                let key = load::key(n, 5_000);
                let payload = load::payload(n, &key, 500);
                tokio::time::sleep_until(began + interval * u32::try_from(n - first)?).await;
                client.query_one(&append, &[&destination, &key, &payload]).await?;
                committed.insert(n, now());
            }
            anyhow::Ok(committed)
        }));
    }
    let mut committed = Moments::new();
    for writer in writers {
        committed.extend(writer.await??);
    }
    Ok(committed)
}

fn consumer(servers: &Servers, topic: &str) -> Result<BaseConsumer> {
    let mut config = servers.kafka_client();
    config.set("group.id", topic).set("enable.auto.commit", "false").set("fetch.wait.max.ms", "500");
    let consumer: BaseConsumer = config.create()?;
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    Ok(consumer)
}

/// When each row got here, and when the broker says it wrote it.
fn read(consumer: &BaseConsumer, stop: &AtomicBool) -> Result<(Moments, Moments)> {
    let (mut arrived, mut appended) = (Moments::new(), Moments::new());
    while !stop.load(Ordering::Relaxed) {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let at = now();
        let message = message.context("consuming")?;
        let body: serde_json::Value = serde_json::from_slice(message.payload().unwrap_or_default())?;
        let n = usize::try_from(body["n"].as_u64().context("a payload without its number")?)?;
        ensure!(arrived.insert(n, at).is_none(), "row {n} came twice");
        appended.insert(n, message.timestamp().to_millis().unwrap_or(0) * 1_000);
    }
    Ok((arrived, appended))
}

fn percentiles(from: &Moments, to: &Moments) -> Result<[f64; 4]> {
    let mut times = Vec::with_capacity(from.len());
    for (n, committed) in from {
        let arrived = to.get(n).with_context(|| format!("row {n} never came"))?;
        // The writer may hear of its commit after the relay did.
        times.push((arrived - committed).max(0) as f64 / 1e3);
    }
    times.sort_by(f64::total_cmp);
    ensure!(!times.is_empty(), "nothing was written");
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok([at(0.5), at(0.9), at(0.99), at(1.0)])
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
