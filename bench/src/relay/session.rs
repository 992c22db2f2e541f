//! One relay's turn: a new database, a backlog, the drain of it, then latency and quiet.

use anyhow::{Context, Result};
use testbed::Debezium;

use super::latency::Measured;
use super::limits::{self, SLOT};
use super::outbox::{Load, Outbox};
use super::process::{self, PEER_SLOT, Reader, Settings};
use super::results::{Contestant, Results};
use super::topic::{Ends, Topic};
use super::{Args, DATABASE, TOPIC};
use crate::meter::{self, Meter, Sample};
use crate::report::Run;
use crate::servers::Servers;

pub(super) struct Session<'a> {
    pub(super) servers: &'a Servers,
    pub(super) args: &'a Args,
    pub(super) topic: &'a Topic,
    /// Latency and idle cost are measured too.
    pub(super) full: bool,
}

/// Rows that wait for a relay, and where the topic ends before them.
struct Backlog {
    outbox: Outbox,
    load: Load,
    start: Ends,
}

impl Session<'_> {
    /// dipmo by one of its readers. The raw limits take the rows of the table reader before it does.
    pub(super) async fn dipmo(&self, who: Contestant, results: &mut Results) -> Result<()> {
        let reader = if who == Contestant::Poll { Reader::Poll } else { Reader::Wal };
        let outbox = if who == Contestant::WalForeign { Outbox::Debezium } else { Outbox::Dipmo };
        let meter = self.database(outbox).await?;
        let settings = Settings { foreign: outbox == Outbox::Debezium, ..self.args.settings() };
        reader.choose(&meter, self.servers, &settings).await?;
        let backlog = self.fill(outbox, 0).await?;
        if reader == Reader::Poll {
            self.limits(&meter, results).await?;
        }
        say(who, "draining");
        let dead_before = meter.dead_rows().await?;
        let before = meter.sample(None).await?;
        let node = process::start(self.servers, &settings).await?;
        let mut run = self.drained(&meter, &backlog, before, node.pid()).await?;
        node.stop().await?;
        let dead = meter.dead_rows().await?;
        run.dead_made = (dead.made - dead_before.made) as f64 / self.args.rows as f64;
        run.dead_left = dead.left as f64 / self.args.rows as f64;
        self.audited(who, run, &meter, &backlog, results).await?;
        if self.full {
            let node = process::start(self.servers, &settings).await?;
            self.slowly(who, outbox, &meter, node.pid(), results).await?;
            node.stop().await?;
        }
        Ok(())
    }

    /// A fresh JVM, then the same JVM with as many rows again.
    pub(super) async fn debezium(&self, results: &mut Results) -> Result<()> {
        let meter = self.database(Outbox::Debezium).await?;
        limits::create_slot(&meter, PEER_SLOT).await?;
        let backlog = self.fill(Outbox::Debezium, 0).await?;
        say(Contestant::ReceivePeer, "receiving");
        results.of(Contestant::ReceivePeer).runs.push(limits::receive(self.servers, &meter, self.args).await?);
        say(Contestant::DebeziumCold, "draining");
        let before = meter.sample(None).await?;
        let worker = process::start_debezium(self.servers, &self.args.peer_kafka).await?;
        let worker = process::streams(worker).await?;
        let run = self.drained(&meter, &backlog, before, worker.pid()).await?;
        self.audited(Contestant::DebeziumCold, run, &meter, &backlog, results).await?;
        self.debezium_warm(&meter, &worker, results).await?;
        if self.full {
            self.slowly(Contestant::DebeziumWarm, Outbox::Debezium, &meter, worker.pid(), results).await?;
        }
        let mut worker = worker;
        tokio::task::spawn_blocking(move || worker.stop()).await?.context("stopping Debezium")
    }

    async fn debezium_warm(&self, meter: &Meter, worker: &Debezium, results: &mut Results) -> Result<()> {
        let who = Contestant::DebeziumWarm;
        process::pause(worker.pid())?;
        let filled = self.fill(Outbox::Debezium, self.args.rows).await;
        say(who, "draining");
        let before = meter.sample(Some(worker.pid())).await?;
        process::resume(worker.pid())?;
        let backlog = filled?;
        let run = self.drained(meter, &backlog, before, worker.pid()).await?;
        self.audited(who, run, meter, &backlog, results).await
    }

    async fn limits(&self, meter: &Meter, results: &mut Results) -> Result<()> {
        say(Contestant::Receive, "receiving");
        results.of(Contestant::Receive).runs.push(limits::receive(self.servers, meter, self.args).await?);
        say(Contestant::CopyOut, "copying");
        results.of(Contestant::CopyOut).runs.push(limits::copy(self.servers, meter, self.args).await?);
        say(Contestant::Produce, "producing");
        results.of(Contestant::Produce).runs.push(limits::produce(self.servers, meter, self.args).await?);
        Ok(())
    }

    async fn database(&self, outbox: Outbox) -> Result<Meter> {
        self.servers.fresh_database(DATABASE).await?;
        let meter = self.servers.meter(DATABASE).await?;
        outbox.create(&meter.client).await?;
        limits::create_slot(&meter, SLOT).await?;
        Ok(meter)
    }

    async fn fill(&self, outbox: Outbox, first: usize) -> Result<Backlog> {
        let Args { rows, keys, size, .. } = *self.args;
        eprintln!("  writing {rows} rows into the outbox of {outbox:?}, one a transaction");
        let load = Load { topic: TOPIC.into(), numbers: first..first + rows, keys, size };
        outbox.fill(self.servers, DATABASE, &load).await?;
        Ok(Backlog { outbox, load, start: self.topic.ends().await? })
    }

    /// The rate counts from when the first records had arrived, the cost from `before`.
    async fn drained(&self, meter: &Meter, backlog: &Backlog, before: Sample, pid: u32) -> Result<Run> {
        let rows = self.args.rows;
        let first = self.topic.reach(&backlog.start, 1).await?;
        let last = self.topic.reach(&backlog.start, rows).await?;
        let cost = meter.sample(Some(pid)).await? - before;
        let usage = meter::usage(pid)?;
        let each = rows as f64;
        Ok(Run {
            rows,
            rate: (rows - first.records) as f64 / last.at.duration_since(first.at).as_secs_f64(),
            node_cpu: cost.node / each,
            postgres_cpu: cost.postgres / each,
            broker_cpu: cost.broker / each,
            wal_bytes: cost.wal_bytes / each,
            rss_mb: usage.rss_peak_mb,
            ..Run::default()
        })
    }

    async fn audited(
        &self,
        who: Contestant,
        run: Run,
        meter: &Meter,
        backlog: &Backlog,
        results: &mut Results,
    ) -> Result<()> {
        let Backlog { outbox, load, start } = backlog;
        let ids = outbox.ids(meter, load).await?;
        let faults = self.topic.audit(start, *outbox, load, ids).await?;
        eprintln!("  {:.0} rows/s, {:.2} CPU-s per 100 k in the relay, {faults:?}", run.rate, run.node_cpu * 1e5);
        let figures = results.of(who);
        figures.runs.push(run);
        figures.faults.push(faults);
        Ok(())
    }

    async fn slowly(
        &self,
        who: Contestant,
        outbox: Outbox,
        meter: &Meter,
        pid: u32,
        results: &mut Results,
    ) -> Result<()> {
        let measured = Measured { servers: self.servers, meter, args: self.args, outbox, pid };
        for rate in &self.args.latency_rates {
            say(who, &format!("latency at {rate}/s"));
            let latency = measured.latency(*rate).await.with_context(|| format!("latency at {rate}/s"))?;
            eprintln!("  p50 {:.2} ms, p99 {:.2} ms", latency.p50, latency.p99);
            results.of(who).latencies.push(latency);
        }
        say(who, "idle");
        results.of(who).idle.push(measured.idle().await?);
        Ok(())
    }
}

fn say(who: Contestant, what: &str) {
    eprintln!("  {}: {what}", who.name());
}
