//! From a writer's commit to the broker and to a consumer, at a fixed rate that does not wait for answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rdkafka::Message as _;
use rdkafka::consumer::BaseConsumer;
use tokio_postgres::{Client, Statement};

use super::outbox::{Load, Outbox, message};
use super::topic::Topic;
use super::{Args, DATABASE};
use crate::meter::Meter;
use crate::servers::{Servers, connect};

/// Connections that write in turn, so that a slow commit does not hold up the next row.
const WRITERS: usize = 16;
/// The first seconds warm up sessions and the producer and are not counted.
const WARM_UP: Duration = Duration::from_secs(3);
/// What has not arrived so long after the last commit is lost.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Milliseconds from the commit; shares of a core.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latency {
    /// Rows a second that were asked for, and those written.
    pub(crate) rate: u32,
    pub(crate) written_rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
    pub(crate) append_p50: f64,
    pub(crate) append_p99: f64,
    pub(crate) node_cpu: f64,
    pub(crate) postgres_cpu: f64,
}

/// Shares of a core while nothing is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idle {
    pub(crate) node: f64,
    pub(crate) postgres: f64,
}

/// When a row was committed, or when it arrived; in microseconds of the wall clock of this machine.
type Moments = HashMap<usize, i64>;

/// What is measured: the process of a relay, by the table it reads.
pub(crate) struct Measured<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) meter: &'a Meter,
    pub(crate) args: &'a Args,
    pub(crate) outbox: Outbox,
    pub(crate) pid: u32,
}

impl Measured<'_> {
    /// A topic of its own, whose records carry the broker's time.
    pub(crate) async fn latency(&self, rate: u32) -> Result<Latency> {
        static TOPICS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("bench-latency-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        let topic = Topic::create(self.servers, &name, &[("message.timestamp.type", "LogAppendTime")]).await?;
        let consumer = topic.read_from(&topic.ends().await?)?;
        let reading = Reading::start(consumer);
        let seconds = |time: Duration| (time.as_secs_f64() * f64::from(rate)) as usize;
        let warm = seconds(WARM_UP);
        let last = warm + seconds(Duration::from_secs(self.args.latency_seconds.into()));
        let load = |numbers| Load { topic: name.clone(), numbers, keys: self.args.keys, size: self.args.size };
        self.write(rate, load(0..warm)).await?;
        let (began, before) = (Instant::now(), self.meter.sample(Some(self.pid)).await?);
        let committed = self.write(rate, load(warm..last)).await?;
        let (elapsed, cost) = (began.elapsed().as_secs_f64(), self.meter.sample(Some(self.pid)).await? - before);
        let (arrived, appended) = reading.finish(last).await?;
        let [p50, p99, most] = percentiles(&committed, &arrived)?;
        let [append_p50, append_p99, _] = percentiles(&committed, &appended)?;
        let written_rate = committed.len() as f64 / elapsed;
        let (node_cpu, postgres_cpu) = (cost.node / elapsed, cost.postgres / elapsed);
        Ok(Latency { rate, written_rate, p50, p99, most, append_p50, append_p99, node_cpu, postgres_cpu })
    }

    pub(crate) async fn idle(&self) -> Result<Idle> {
        // What the writers left behind is written before, and not during the quiet.
        self.servers.checkpoint().await?;
        let (began, before) = (Instant::now(), self.meter.sample(Some(self.pid)).await?);
        tokio::time::sleep(Duration::from_secs(self.args.idle_seconds.into())).await;
        let cost = self.meter.sample(Some(self.pid)).await? - before;
        let elapsed = began.elapsed().as_secs_f64();
        Ok(Idle { node: cost.node / elapsed, postgres: cost.postgres / elapsed })
    }

    /// Row n is due n intervals after the start, whatever became of those before it.
    async fn write(&self, rate: u32, load: Load) -> Result<Moments> {
        let interval = Duration::from_secs(1) / rate;
        let mut sessions = Vec::new();
        for _ in 0..WRITERS {
            let client = connect(&self.servers.url(DATABASE)).await?;
            let append = client.prepare(self.outbox.append()).await?;
            sessions.push((client, append));
        }
        let began = tokio::time::Instant::now() + Duration::from_millis(50);
        let writers = sessions.into_iter().enumerate().map(|(writer, session)| {
            let load = load.clone();
            tokio::spawn(async move { write_own(&session, writer, &load, began, interval).await })
        });
        // All are started before the first is waited for.
        let writers: Vec<_> = writers.collect();
        let mut committed = Moments::new();
        for writer in writers {
            committed.extend(writer.await??);
        }
        Ok(committed)
    }
}

async fn write_own(
    (client, append): &(Client, Statement),
    writer: usize,
    load: &Load,
    began: tokio::time::Instant,
    interval: Duration,
) -> Result<Moments> {
    let mut committed = Moments::new();
    for n in load.numbers.clone().filter(|n| n % WRITERS == writer) {
        let (key, payload) = message(n, load);
        tokio::time::sleep_until(began + interval * u32::try_from(n - load.numbers.start)?).await;
        client.execute(append, &[&load.topic, &key, &payload]).await?;
        committed.insert(n, now());
    }
    Ok(committed)
}

/// A consumer that writes down when what came.
struct Reading {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Result<(Moments, Moments)>>,
}

impl Reading {
    fn start(consumer: Arc<BaseConsumer>) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopping, counting) = (Arc::clone(&stop), Arc::clone(&count));
        let task = tokio::task::spawn_blocking(move || read(&consumer, &stopping, &counting));
        Self { stop, count, task }
    }

    async fn finish(self, records: usize) -> Result<(Moments, Moments)> {
        let began = Instant::now();
        while self.count.load(Ordering::Relaxed) < records && began.elapsed() < ARRIVAL_MAX && !self.task.is_finished()
        {
            tokio::time::sleep(POLL).await;
        }
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

/// When each row got here, and when the broker says it wrote it.
fn read(consumer: &BaseConsumer, stop: &AtomicBool, count: &AtomicUsize) -> Result<(Moments, Moments)> {
    let (mut arrived, mut appended) = (Moments::new(), Moments::new());
    while !stop.load(Ordering::Relaxed) {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let at = now();
        let message = message.context("consuming")?;
        let body: serde_json::Value = serde_json::from_slice(message.payload().unwrap_or_default())?;
        let n = usize::try_from(body["n"].as_u64().context("a payload without its number")?)?;
        ensure!(arrived.insert(n, at).is_none(), "row {n} came twice");
        appended.insert(n, message.timestamp().to_millis().unwrap_or(0) * 1_000);
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok((arrived, appended))
}

fn percentiles(from: &Moments, to: &Moments) -> Result<[f64; 3]> {
    let mut times = Vec::with_capacity(from.len());
    for (n, committed) in from {
        let arrived = to.get(n).with_context(|| format!("row {n} never came"))?;
        // The writer may hear of its commit after the relay did.
        times.push((arrived - committed).max(0) as f64 / 1e3);
    }
    times.sort_by(f64::total_cmp);
    ensure!(!times.is_empty(), "nothing was written");
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok([at(0.5), at(0.99), at(1.0)])
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
