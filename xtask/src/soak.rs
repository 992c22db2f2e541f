//! Payments at a steady rate against a private PostgreSQL: `payments-soak` does and tells the rest.

use anyhow::{Context, Result};
use testbed::{Postgres, PostgresOptions};

use crate::demo::cargo;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Payments a second
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// For how many seconds instead
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
}

/// `cargo xtask soak`
pub(crate) fn run(args: &Args) -> Result<()> {
    println!("Building the example in release mode and starting a private PostgreSQL server ...");
    let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL")?;
    let seconds = args.seconds.unwrap_or(args.minutes * 60);
    let soak = [
        "--release".to_owned(),
        "--bin".to_owned(),
        "payments-soak".to_owned(),
        "--".to_owned(),
        format!("--postgres={}", postgres.url()),
        format!("--rate={}", args.rate),
        format!("--seconds={seconds}"),
    ];
    let soak: Vec<&str> = soak.iter().map(String::as_str).collect();
    cargo("run", "payments", &soak)
}
