//! One contestant's turn: a new database, its processes, a warm-up, all sagas at once, then at a slow rate.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use testbed::Restate;

use super::drive::{Answer, Request};
use super::results::{Contestant, Figures};
use super::{Args, payment, peers};
use crate::child::Node;
use crate::meter::{self, Meter};
use crate::servers::{Servers, connect};

const DATABASE: &str = "bench_saga";

/// The slowest peer would take a fifth of this for the default number of sagas.
const ANSWER_MAX: Duration = Duration::from_secs(600);

pub(super) struct Session<'a> {
    pub(super) servers: &'a Servers,
    pub(super) args: &'a Args,
}

/// The processes of a contestant. Each is measured as what it is; the starters' own, where they have one, is
/// not.
pub(super) struct Running {
    pub(super) server: Option<u32>,
    pub(super) worker: Option<u32>,
    /// Takes the requests.
    pub(super) driver: Node,
    /// Ended after the driver, in this order.
    pub(super) nodes: Vec<Node>,
    pub(super) restate: Option<Restate>,
}

/// Processor seconds so far.
struct Spent {
    server: f64,
    worker: f64,
    postgres: f64,
    wal_bytes: f64,
}

/// Payments before those that are counted.
pub(super) fn warm_up(sagas: usize) -> usize {
    sagas / 4
}

impl Session<'_> {
    pub(super) async fn turn(&self, who: Contestant) -> Result<Figures> {
        eprintln!("  {}", who.name());
        let meter = self.database(who).await?;
        let url = self.servers.url(DATABASE);
        let mut running = start(who, &url).await?;
        let measured = self.measured(&meter, &mut running).await;
        // Ended in any case, so that the next contestant has the machine for itself.
        let stopped = running.stop().await;
        let figures = measured?;
        stopped?;
        eprintln!(
            "    {:.0} sagas/s, p50 {:.1} ms, p99 {:.1} ms, {:.2} CPU-s per 1 000",
            figures.rate,
            figures.p50,
            figures.p99,
            figures.cpu()
        );
        Ok(figures)
    }

    async fn database(&self, who: Contestant) -> Result<Meter> {
        if who == Contestant::Dipmo {
            self.servers.fresh_database(DATABASE).await?;
        } else {
            self.servers.empty_database(DATABASE).await?;
        }
        connect(&self.servers.url(DATABASE)).await?.batch_execute(payment::TABLE).await?;
        self.servers.meter(DATABASE).await
    }

    async fn measured(&self, meter: &Meter, running: &mut Running) -> Result<Figures> {
        let Args { sagas, starters, rate, latency_seconds, .. } = *self.args;
        let warm = warm_up(sagas);
        let drain = |first, count| Request::Drain { first, count, starters };
        seconds(running.ask(&drain(0, warm)).await?)?;
        let before = running.spent(meter).await?;
        let took = seconds(running.ask(&drain(warm, sagas)).await?)?;
        let after = running.spent(meter).await?;
        let slow = rate as usize * latency_seconds as usize;
        let pace = Request::Pace { first: warm + sagas, count: slow, rate };
        let Answer::Milliseconds(mut latencies) = running.ask(&pace).await? else { bail!("not what was asked for") };
        latencies.sort_by(f64::total_cmp);
        payment::check(meter, 0..warm + sagas + slow).await?;
        let each = sagas as f64;
        Ok(Figures {
            rate: each / took,
            server_cpu: (after.server - before.server) / each,
            worker_cpu: (after.worker - before.worker) / each,
            postgres_cpu: (after.postgres - before.postgres) / each,
            wal_bytes: (after.wal_bytes - before.wal_bytes) / each,
            p50: at(&latencies, 0.5)?,
            p99: at(&latencies, 0.99)?,
            most: at(&latencies, 1.0)?,
            server_mb: running.server.map(meter::usage).transpose()?.map(|usage| usage.rss_peak_mb),
            worker_mb: running.worker.map(meter::usage).transpose()?.map(|usage| usage.rss_peak_mb),
        })
    }
}

async fn start(who: Contestant, url: &str) -> Result<Running> {
    match who {
        Contestant::Inserts => {
            let driver = Node::start(&["inserts", url]).await?;
            Ok(Running { server: None, worker: Some(driver.pid()), driver, nodes: Vec::new(), restate: None })
        }
        Contestant::Dipmo => {
            let node = Node::start(&["sagas", url]).await?;
            let driver = Node::start(&["start-sagas", url]).await?;
            Ok(Running { server: Some(node.pid()), worker: None, driver, nodes: vec![node], restate: None })
        }
        Contestant::RestateCalls => peers::restate(url, "calls").await,
        Contestant::RestateInside => peers::restate(url, "inside").await,
        Contestant::Dbos => peers::dbos(url).await,
    }
}

impl Running {
    async fn ask(&mut self, request: &Request) -> Result<Answer> {
        let answer = self.driver.ask(&serde_json::to_value(request)?, ANSWER_MAX).await?;
        Ok(serde_json::from_value(answer)?)
    }

    async fn spent(&self, meter: &Meter) -> Result<Spent> {
        let cpu = |pid: Option<u32>| pid.map_or(Ok(0.0), |pid| meter::usage(pid).map(|usage| usage.cpu));
        let sample = meter.sample(None).await?;
        Ok(Spent {
            server: cpu(self.server)?,
            worker: cpu(self.worker)?,
            postgres: sample.postgres,
            wal_bytes: sample.wal_bytes,
        })
    }

    async fn stop(self) -> Result<()> {
        let mut stopped = self.driver.stop().await;
        for node in self.nodes {
            stopped = stopped.and(node.stop().await);
        }
        if let Some(mut restate) = self.restate {
            stopped = stopped.and(tokio::task::spawn_blocking(move || restate.stop()).await?);
        }
        stopped
    }
}

fn seconds(answer: Answer) -> Result<f64> {
    match answer {
        Answer::Seconds(seconds) => Ok(seconds),
        Answer::Milliseconds(_) => bail!("not what was asked for"),
    }
}

fn at(sorted: &[f64], share: f64) -> Result<f64> {
    let last = sorted.len().checked_sub(1).context("no saga was started")?;
    Ok(sorted[(last as f64 * share) as usize])
}
