//! `payments-demo`: a day of payments and the books at its end. Usually run by `cargo xtask demo payments`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use dipmo::transport::amqp::AmqpOptions;
use payments::wiring::Platform;
use payments::{demo, setup};

#[derive(Debug, Parser)]
#[command(about = "Runs a day of payments across four contexts and checks the books", version)]
struct Cli {
    /// An empty database, with the rights to make schemas and roles
    #[arg(long, env = "DIPMO_DATABASE_URL", hide_env_values = true)]
    postgres: String,
    /// A database for each context, beside the one given, and this broker between them (amqp://...)
    #[arg(long, hide_env_values = true)]
    amqp: Option<String>,
    /// Tell the events of every context here (host:port)
    #[arg(long)]
    kafka: Option<String>,
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    payments: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    // What is planned to go wrong is told by the demo itself.
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(std::io::stderr).init();
    demo::exit_code(run(&Cli::parse()).await)
}

async fn run(cli: &Cli) -> Result<bool> {
    demo::hush_planned_panics();
    let mut platform = match &cli.amqp {
        None => Platform::shared(&cli.postgres, "")?,
        Some(broker) => {
            let databases = setup::make_databases(&cli.postgres, "").await?;
            Platform::apart(&cli.postgres, "", &databases, AmqpOptions::from_url(broker)?)?
        }
    };
    if let Some(brokers) = &cli.kafka {
        setup::make_topics(brokers).await?;
        platform.kafka = Some(brokers.clone());
    }
    demo::run(&platform, cli.payments as usize).await
}
