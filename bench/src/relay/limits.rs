//! What PostgreSQL and Kafka can do at best with the same rows, one half of a relay at a time.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Args, DATABASE};
use crate::child::Node;
use crate::ingest::{PATIENCE, limit};
use crate::meter::{self, Meter, Usage};
use crate::report::Run;
use crate::servers::Servers;

pub(super) const TOPIC_BARE: &str = "bench-bare";
/// Made before the rows are written.
pub(super) const SLOT: &str = "bench_receive";
const POLL: Duration = Duration::from_millis(2);

pub(super) async fn copy(servers: &Servers, meter: &Meter, args: &Args) -> Result<Run> {
    let node = Node::start(&["copy", &servers.url(DATABASE)]).await?;
    limit(meter, node, args.rows, None).await
}

pub(super) async fn produce(servers: &Servers, meter: &Meter, args: &Args) -> Result<Run> {
    let (rows, keys, size) = (args.rows.to_string(), args.keys.to_string(), args.size.to_string());
    let node = Node::start(&["produce", &servers.brokers(), TOPIC_BARE, &rows, &keys, &size]).await?;
    limit(meter, node, args.rows, None).await
}

pub(super) async fn create_slot(meter: &Meter, name: &str) -> Result<()> {
    let create = "select pg_create_logical_replication_slot($1::text::name, 'pgoutput')";
    meter.client.query(create, &[&name]).await.with_context(|| format!("creating slot {name}"))?;
    Ok(())
}

/// pg_recvlogical with PostgreSQL's own plugin, to nowhere.
pub(super) async fn receive(servers: &Servers, meter: &Meter, args: &Args) -> Result<Run> {
    let end: String = meter.client.query_one("select pg_current_wal_flush_lsn()::text", &[]).await?.get(0);
    let before = meter.sample(None).await?;
    let began = Instant::now();
    let mut child = Receiver(start(servers, &end)?);
    let usage = child.ended().await?;
    let rate = args.rows as f64 / began.elapsed().as_secs_f64();
    let cost = meter.sample(None).await? - before;
    let status = child.0.wait()?;
    ensure!(status.success(), "pg_recvlogical ended with {status}");
    let all = "select count(*) from pg_replication_slots where slot_name = 'bench_receive'
               and confirmed_flush_lsn >= $1::text::pg_lsn";
    let all: i64 = meter.client.query_one(all, &[&end]).await?.get(0);
    ensure!(all == 1, "pg_recvlogical ended before it had received everything");
    let each = args.rows as f64;
    Ok(Run {
        rows: args.rows,
        rate,
        node_cpu: usage.cpu / each,
        postgres_cpu: cost.postgres / each,
        broker_cpu: cost.broker / each,
        wal_bytes: cost.wal_bytes / each,
        rss_mb: usage.rss_peak_mb,
        ..Run::default()
    })
}

fn start(servers: &Servers, end: &str) -> Result<Child> {
    let database = format!("host=127.0.0.1 port={} user=postgres dbname={DATABASE}", servers.postgres_port());
    let mut command = Command::new(servers.postgres_programs().join("pg_recvlogical"));
    command
        .args(["--dbname", &database, "--slot", SLOT, "--start", "--no-loop", "--endpos", end])
        // As dipmo asks for them: a bytea would be written as digits.
        .args(["-o", "proto_version=1", "-o", "publication_names=bench", "-o", "binary=true"])
        .args(["--file", "/dev/null"])
        .stdin(Stdio::null())
        .stdout(File::open("/dev/null")?);
    command.spawn().context("starting pg_recvlogical")
}

/// Ended with its owner.
struct Receiver(Child);

impl Receiver {
    /// Its figures when it has ended by itself and is not yet collected, so that /proc still has them.
    async fn ended(&self) -> Result<Usage> {
        let began = Instant::now();
        let mut rss_peak_mb = 0.0;
        loop {
            let usage = meter::usage(self.0.id())?;
            rss_peak_mb = usage.rss_peak_mb.max(rss_peak_mb);
            if meter::has_ended(self.0.id())? {
                let cpu = meter::usage(self.0.id())?.cpu;
                return Ok(Usage { cpu, rss_peak_mb });
            }
            if began.elapsed() > PATIENCE {
                bail!("pg_recvlogical has not ended after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
