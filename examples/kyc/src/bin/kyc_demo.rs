//! `kyc-demo`: puts `kyc-node` under load, kills it, and checks the outcome. Usually run by `cargo xtask demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use kyc::demo::{self, DemoOptions};

#[derive(Debug, Parser)]
#[command(about = "Puts the KYC example under load, kills it, and checks the outcome", version)]
struct Cli {
    /// An empty database
    #[arg(long, env = "DIPMO_DATABASE_URL", hide_env_values = true)]
    postgres: String,
    /// Go over Kafka (host:port) instead of INTERNAL
    #[arg(long)]
    kafka: Option<String>,
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// Repeat an earlier run; any number otherwise
    #[arg(long)]
    seed: Option<u64>,
    /// Leave everything running at the end
    #[arg(long)]
    keep: bool,
    /// Where the killed process writes its log
    #[arg(long, default_value_os_t = std::env::temp_dir().join(format!("kyc-node-{}.log", std::process::id())))]
    node_log: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<bool> {
    let node = std::env::current_exe().context("finding kyc-node")?.with_file_name("kyc-node");
    let passed = demo::run(&DemoOptions {
        postgres: cli.postgres,
        kafka: cli.kafka,
        messages: usize::try_from(cli.messages)?,
        // Small enough to be read aloud.
        seed: cli.seed.unwrap_or_else(|| u64::from(rand::random::<u16>())),
        node,
        node_log: cli.node_log.clone(),
        keep: cli.keep,
    })
    .await?;
    if passed {
        // A log that nobody needs is litter.
        let _ = std::fs::remove_file(&cli.node_log);
    } else {
        println!("The log of the killed process: {}", cli.node_log.display());
    }
    Ok(passed)
}
