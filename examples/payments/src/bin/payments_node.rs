//! `payments-node`: one process of the platform in a shared database, until stdin ends: the core, or the worker
//! of one context. It may be killed at any moment and started again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use dipmo::node::{Node, NodeOptions, Roles};
use dipmo::shutdown::ShutdownTrigger;
use payments::context::Context;
use payments::demo::Plan;
use payments::fx::{BankClient, ClientOptions};
use payments::wiring::{Outside, Platform};

/// More than any message is in the hands of a process that is killed: a kill is no fault of the message.
const ATTEMPTS_MAX: u32 = 50;

#[derive(Debug, Parser)]
#[command(about = "Runs one process of the payments example, on tables that are there already", version)]
struct Cli {
    #[arg(value_enum)]
    part: Part,
    #[arg(long, env = "DIPMO_DATABASE_URL", hide_env_values = true)]
    postgres: String,
    /// Tells the schemas and logins of several platforms in one database apart
    #[arg(long, default_value = "")]
    suffix: String,
    /// Where the bank is (host:port)
    #[arg(long)]
    bank: String,
    /// How many payments the plan of the day has: what it says to refuse, this node refuses
    #[arg(long, default_value_t = 1_000)]
    payments: usize,
    /// How long the work of a killed node waits for another
    #[arg(long, default_value_t = 15_000)]
    lease_ms: u64,
    /// The most messages that one transaction takes
    #[arg(long, default_value_t = 500)]
    batch_max: usize,
}

/// What this process does.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    /// Sagas, batches and the relay
    Core,
    Accounts,
    Limits,
    Fx,
    Payments,
}

impl Part {
    fn context(self) -> Option<Context> {
        match self {
            Part::Core => None,
            Part::Accounts => Some(Context::Accounts),
            Part::Limits => Some(Context::Limits),
            Part::Fx => Some(Context::Fx),
            Part::Payments => Some(Context::Payments),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let node = node(&cli)?;
    // A thread of its own, because a blocked read would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        trigger.stop();
    });
    node.run(shutdown).await.with_context(|| format!("running {:?}", cli.part))
}

fn node(cli: &Cli) -> Result<Node> {
    let mut platform = Platform::shared(&cli.postgres, &cli.suffix)?;
    platform.connections_max = 6;
    let lease = Duration::from_millis(cli.lease_ms);
    // Another process of the same part has another name: what it held is taken over when its lease is over.
    let name = format!("{:?}-{}", cli.part, std::process::id()).to_lowercase();
    let mut options = NodeOptions::new(&name);
    options.relay.lease = lease;
    let (db, consumers) = match cli.part.context() {
        None => (platform.db(&platform.core, &name)?, platform.core_consumers()?),
        Some(context) => {
            options.roles = Roles { ingress: false, worker: true, relay: false, upkeep: false };
            let bank = Arc::new(BankClient::new(ClientOptions::new(&cli.bank)));
            let outside = Outside { bank, rail: Arc::new(Plan::new(cli.payments)) };
            let db = platform.db(&platform.contexts[&context], &name)?;
            let consumer = platform.context_consumer(context, &outside)?;
            (db, vec![consumer])
        }
    };
    let mut node = Node::new(db, options);
    for mut consumer in consumers {
        consumer.lease = lease;
        consumer.batch_max = cli.batch_max;
        consumer.retry.attempts_max = ATTEMPTS_MAX;
        node = node.consumer(consumer);
    }
    Ok(node)
}
