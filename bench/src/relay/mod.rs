//! The outbox to Kafka: a backlog drained, latency and idle cost, beside the raw limits and a peer.
//!
//! All contestants carry the same messages in one run on one machine, in turns. Each turn has a database of
//! its own, and what it published is read back and held against the rows.

mod latency;
mod limits;
pub(crate) mod outbox;
pub(crate) mod process;
mod results;
mod session;
pub(crate) mod topic;

use anyhow::{Context, Result};

use self::process::{PEER, Settings};
use self::results::{Contestant, Results};
use self::session::Session;
use self::topic::{PARTITIONS, Topic};
use crate::report::Report;
use crate::servers::Servers;

pub(crate) const DATABASE: &str = "bench_relay";
const TOPIC: &str = "bench-out";

#[derive(Debug, Clone, clap::Args)]
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
    /// A relay to measure beside dipmo's
    #[arg(long)]
    peer: Option<Peer>,
    /// Few rows and seconds, one repetition and nothing to warm up: only to see that it works
    #[arg(long)]
    quick: bool,
    /// How long dipmo's producer waits for company
    #[arg(long, default_value_t = 0)]
    linger_ms: u64,
    /// A setting of librdkafka for dipmo's producer, name=value; may be repeated
    #[arg(long)]
    kafka: Vec<String>,
    /// A setting of the peer's producer, name=value; may be repeated
    #[arg(long)]
    peer_kafka: Vec<String>,
    /// Rows a second while latency is measured
    #[arg(long, value_delimiter = ',', default_values_t = [200, 2_000])]
    latency_rates: Vec<u32>,
    /// Seconds of a latency run
    #[arg(long, default_value_t = 30)]
    latency_seconds: u32,
    /// Seconds of quiet over which the idle cost is measured
    #[arg(long, default_value_t = 20)]
    idle_seconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Debezium,
}

impl Args {
    fn settings(&self) -> Settings {
        Settings { foreign: false, linger_ms: self.linger_ms, kafka: self.kafka.clone() }
    }

    fn quickly(self) -> Self {
        if !self.quick {
            return self;
        }
        Self { rows: self.rows.min(20_000), repetitions: 1, latency_seconds: 5, idle_seconds: 5, ..self }
    }
}

/// `bench relay`
pub(crate) async fn run(args: Args) -> Result<()> {
    let args = args.quickly();
    let servers = Servers::start()?;
    servers.age().await?;
    let topic = Topic::create(&servers, TOPIC, &[]).await?;
    servers.create_topic(limits::TOPIC_BARE, PARTITIONS, &[]).await?;
    let mut report = Report::new(if args.quick { "relay-quick" } else { "relay" }, &dataset(&args));
    let mut results = Results::default();
    // The first round warms the broker's compiler and the caches, and is not counted.
    for repetition in usize::from(args.quick)..=args.repetitions {
        let session = Session { servers: &servers, args: &args, topic: &topic, full: repetition > 0 };
        let mut scrap = Results::default();
        let into = if repetition > 0 { &mut results } else { &mut scrap };
        eprintln!("repetition {repetition} of {}", args.repetitions);
        session.dipmo(Contestant::Poll, into).await.context("dipmo poll")?;
        session.dipmo(Contestant::Wal, into).await.context("dipmo wal")?;
        if args.peer.is_some() {
            session.dipmo(Contestant::WalForeign, into).await.context("dipmo wal on Debezium's table")?;
            session.debezium(into).await.context("Debezium")?;
        }
    }
    results.table(&mut report, &args.latency_rates);
    report.targets(&results.targets(args.peer.is_some()));
    report.every_run(&results.every_run());
    report.save()
}

fn dataset(args: &Args) -> String {
    let Args { rows, size, keys, repetitions, linger_ms, latency_seconds, idle_seconds, .. } = args;
    let peer = args.peer.map_or(String::new(), |_| format!("\n- peer: {PEER}"));
    let warm_up = if args.quick { "a QUICK try, nothing warmed up" } else { "after one that is not counted" };
    format!(
        "{rows} rows of {size} B written one a transaction, {keys} keys, {PARTITIONS} partitions, dipmo's linger \
         {linger_ms} ms; {repetitions} repetitions, interleaved, {warm_up}; latency open loop, {latency_seconds} s; \
         idle {idle_seconds} s{peer}"
    )
}
