//! The demo on a fresh machine: private servers, then `kyc-demo`, which does and tells the rest.
//!
//! The servers end with this process, however it ends; see `testbed`.

use std::env;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use testbed::{Kafka, KafkaOptions, Postgres, PostgresOptions};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many messages are sent
    #[arg(long, default_value_t = 5_000)]
    messages: u32,
    /// Go over a real Kafka (downloaded from Maven Central the first time, needs Java) instead of INTERNAL
    #[arg(long)]
    kafka: bool,
    /// Leave everything running at the end, and say how to look around
    #[arg(long)]
    keep: bool,
    /// Repeat an earlier run; the seed of every run is printed
    #[arg(long)]
    seed: Option<u64>,
}

/// `cargo xtask demo`
pub(crate) fn run(args: &Args) -> Result<()> {
    println!("Building the example and starting {} ...", servers(args));
    let kafka = args.kafka.then(|| thread::spawn(|| Kafka::start(KafkaOptions::default())));
    let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL")?;
    cargo("build", &["--bins"])?;
    let kafka = match kafka.map(thread::JoinHandle::join) {
        None => None,
        Some(started) => {
            let started = started.map_err(|_| anyhow!("the thread that starts Kafka panicked"))?;
            Some(started.context("starting Kafka")?)
        }
    };
    println!();
    let mut demo = vec!["--bin".into(), "kyc-demo".into(), "--".into()];
    demo.push(format!("--postgres={}", postgres.url()));
    demo.push(format!("--messages={}", args.messages));
    demo.extend(kafka.as_ref().map(|kafka| format!("--kafka={}", kafka.bootstrap())));
    demo.extend(args.seed.map(|seed| format!("--seed={seed}")));
    demo.extend(args.keep.then(|| "--keep".into()));
    let demo: Vec<&str> = demo.iter().map(String::as_str).collect();
    cargo("run", &demo)
}

fn servers(args: &Args) -> &'static str {
    if args.kafka { "private PostgreSQL and Kafka servers" } else { "a private PostgreSQL server" }
}

fn cargo(verb: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([verb, "--quiet", "--package", "kyc"])
        .args(args)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("the demo did not end well ({status})");
    }
    Ok(())
}
