//! The relays that are measured, each a process of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testbed::{Debezium, DebeziumOptions};

use super::DATABASE;
use crate::child::Node;
use crate::meter::Meter;
use crate::servers::Servers;

/// A node that has not made its slot by then never will.
const SLOT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Debezium's own slot, made before the rows are written.
pub(crate) const PEER_SLOT: &str = "bench_debezium";
pub(crate) const PEER: &str = "Debezium 3.7.0 in Kafka Connect 4.3.1, poll.interval.ms=5, producer.linger.ms=1, \
     1 GB of heap, all compilers, no compression; a backlog for the warm JVM is written while the process stands still (SIGSTOP)";

/// How dipmo's relay finds the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Poll,
    Wal,
}

impl Reader {
    /// Makes it the reader of a database in which no relay runs. A reader of the WAL gets its slot, so that
    /// what is written from now on waits for it there.
    pub(crate) async fn choose(self, meter: &Meter, servers: &Servers, settings: &Settings) -> Result<()> {
        if self == Self::Poll {
            return Ok(());
        }
        meter.client.batch_execute("update dipmo.relay_lane set reader = 'wal' where lane = 'KAFKA'").await?;
        let node = start(servers, settings).await?;
        let streams = "select count(*) from dipmo.relay_lane where position is not null";
        let began = Instant::now();
        while meter.number(streams).await? == 0 {
            ensure!(began.elapsed() < SLOT_MAX, "the relay reads no slot after {} s", SLOT_MAX.as_secs());
            tokio::time::sleep(POLL).await;
        }
        node.stop().await
    }
}

/// Of dipmo's relay.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// It reads the table of Debezium's users too.
    pub(crate) foreign: bool,
    /// Of its producer.
    pub(crate) linger_ms: u64,
    pub(crate) kafka: Vec<String>,
}

/// dipmo's relay, without the rest of a node.
pub(crate) async fn start(servers: &Servers, settings: &Settings) -> Result<Node> {
    let (url, brokers, linger) = (servers.url(DATABASE), servers.brokers(), settings.linger_ms.to_string());
    let mut words = vec!["relay", &url, &brokers, &linger];
    if settings.foreign {
        words.push("--foreign");
    }
    words.extend(settings.kafka.iter().map(String::as_str));
    Node::start(&words).await
}

/// A worker that streams, tuned for speed: its defaults poll every 500 ms.
pub(crate) async fn start_debezium(servers: &Servers, settings: &[String]) -> Result<Debezium> {
    let (brokers, mut options) = (servers.brokers(), debezium(servers.postgres_port()));
    let pairs = settings.iter().filter_map(|setting| setting.split_once('='));
    options.worker.extend(pairs.map(|(name, value)| (format!("producer.{name}"), value.to_owned())));
    tokio::task::spawn_blocking(move || Debezium::start(&brokers, &options)).await?
}

/// Waits until the connector streams.
pub(crate) async fn streams(mut worker: Debezium) -> Result<Debezium> {
    let waiting = tokio::task::spawn_blocking(move || worker.wait_running().map(|()| worker));
    waiting.await?.context("waiting for Debezium")
}

fn debezium(port: u16) -> DebeziumOptions {
    let port = port.to_string();
    let text = "org.apache.kafka.connect.storage.StringConverter";
    let connector = [
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("database.hostname", "127.0.0.1"),
        ("database.port", &port),
        ("database.user", "postgres"),
        ("database.password", ""),
        ("database.dbname", DATABASE),
        ("topic.prefix", "bench"),
        ("plugin.name", "pgoutput"),
        ("slot.name", PEER_SLOT),
        ("publication.name", "bench"),
        ("publication.autocreate.mode", "disabled"),
        ("table.include.list", "public.outbox_messages"),
        ("snapshot.mode", "no_data"),
        ("skipped.operations", "u,d,t"),
        ("tombstones.on.delete", "false"),
        ("extended.headers.enabled", "false"),
        ("poll.interval.ms", "5"),
        ("key.converter", text),
        ("value.converter", text),
        ("header.converter", text),
        ("transforms", "outbox"),
        ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
        ("transforms.outbox.table.field.event.id", "id"),
        ("transforms.outbox.table.field.event.key", "aggregate_id"),
        ("transforms.outbox.table.field.event.payload", "payload"),
        ("transforms.outbox.route.by.field", "aggregate_type"),
        ("transforms.outbox.route.topic.replacement", "${routedByValue}"),
        ("transforms.outbox.table.fields.additional.placement", "event_type:header:event_type"),
    ];
    let worker = [("producer.linger.ms", "1"), ("producer.acks", "all")];
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    DebeziumOptions { heap: "1g".into(), worker: owned(&worker), connector: owned(&connector), full_speed: true }
}

/// Holds a process still, so that a backlog can wait for it.
pub(crate) fn pause(pid: u32) -> Result<()> {
    signal("STOP", pid)
}

pub(crate) fn resume(pid: u32) -> Result<()> {
    signal("CONT", pid)
}

/// The shell's own `kill`, because signals need `unsafe` or a crate.
fn signal(name: &str, pid: u32) -> Result<()> {
    let status = Command::new("sh").args(["-c", &format!("kill -s {name} {pid}")]).status()?;
    if !status.success() {
        bail!("signal {name} to process {pid} failed");
    }
    Ok(())
}
