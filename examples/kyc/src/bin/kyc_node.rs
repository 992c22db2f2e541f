//! `kyc-node`: one process of the example, until SIGTERM, Ctrl-C, or the end of stdin if asked for.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use dipmo::backoff::RetryPolicy;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::{Db, DbOptions};
use kyc::node::{self, NodeOptions};
use kyc::tables::{SCHEMA_DEFAULT, Tables};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Seven workers, the key groups of three handlers, relay and upkeep.
const CONNECTIONS_MAX: usize = 24;

#[derive(Debug, Parser)]
#[command(about = "Runs the workers, relay and upkeep of the KYC example", version)]
struct Cli {
    #[arg(long, env = "DIPMO_DATABASE_URL", hide_env_values = true)]
    postgres: String,
    /// Take the inputs from Kafka (host:port) and tell of reviews there
    #[arg(long)]
    kafka: Option<String>,
    /// The schema of the example's own tables
    #[arg(long, default_value = SCHEMA_DEFAULT)]
    schema: String,
    /// How long the work of a killed node waits for another
    #[arg(long, default_value_t = 15_000)]
    lease_ms: u64,
    /// The longest pause before a failed message is tried again
    #[arg(long, default_value_t = 300_000)]
    retry_delay_max_ms: u64,
    /// Stop when stdin ends, so as not to outlive the parent
    #[arg(long)]
    until_stdin_ends: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let name = format!("kyc-{}", std::process::id());
    let db = DbOptions {
        connections_max: CONNECTIONS_MAX,
        application_name: name.clone(),
        ..DbOptions::new(cli.postgres.clone())
    };
    let db = Db::open(db)?;
    let kyc = kyc::Options {
        tables: Tables::new(&cli.schema),
        kafka: cli.kafka.is_some(),
        retry: retry(Duration::from_millis(cli.retry_delay_max_ms)),
        lease: Duration::from_millis(cli.lease_ms),
        ..kyc::Options::default()
    };
    let options = NodeOptions { name, brokers: cli.kafka.clone(), kyc };
    let (trigger, shutdown) = ShutdownTrigger::new();
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let parent_gone = stdin_ends();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
            _ = parent_gone, if cli.until_stdin_ends => {}
        }
        trigger.stop();
    });
    node::run(db, &options, shutdown).await
}

/// Jitter spreads retries; where the delay itself is short, it is no longer than that.
fn retry(delay_max: Duration) -> RetryPolicy {
    let default = RetryPolicy::default();
    RetryPolicy { delay_max, jitter_max: default.jitter_max.min(delay_max), ..default }
}

/// A thread of its own, because a blocked read would keep the runtime from ending.
fn stdin_ends() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = sender.send(());
    });
    receiver
}
