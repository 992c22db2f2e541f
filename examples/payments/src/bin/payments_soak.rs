//! `payments-soak`: payments at a steady rate. Usually run by `cargo xtask soak`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use payments::wiring::Platform;
use payments::{demo, soak};

#[derive(Debug, Parser)]
#[command(about = "Runs payments at a steady rate, watches latency and backlog, and checks the books", version)]
struct Cli {
    /// An empty database, with the rights to make schemas and roles
    #[arg(long, env = "DIPMO_DATABASE_URL", hide_env_values = true)]
    postgres: String,
    /// Payments a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(std::io::stderr).init();
    demo::exit_code(run(&Cli::parse()).await)
}

async fn run(cli: &Cli) -> Result<bool> {
    demo::hush_planned_panics();
    soak::run(&Platform::shared(&cli.postgres, "")?, cli.rate as usize, Duration::from_secs(cli.seconds)).await
}
