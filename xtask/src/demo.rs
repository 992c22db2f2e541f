//! The demos on a fresh machine: private servers, then `kyc-demo` or `payments-demo`, which do and tell the rest.
//!
//! The servers end with this process, however it ends; see `testbed`.

use std::env;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use testbed::{Artemis, ArtemisOptions, Kafka, KafkaOptions, Postgres, PostgresOptions};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Example {
    /// Notifications and reviews, killed in the middle
    Kyc,
    /// A day of payments across four contexts, and its books
    Payments,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum, default_value = "kyc")]
    example: Example,
    /// How many messages are sent
    #[arg(long, default_value_t = 5_000)]
    messages: u32,
    /// Go over a real Kafka (downloaded from Maven Central the first time, needs Java) instead of INTERNAL
    #[arg(long)]
    kafka: bool,
    /// Of payments: a database for each context, over a real Kafka and a real Artemis (needs Java)
    #[arg(long)]
    full: bool,
    /// Leave everything running at the end, and say how to look around
    #[arg(long)]
    keep: bool,
    /// Repeat an earlier run; the seed of every run is printed
    #[arg(long)]
    seed: Option<u64>,
}

/// `cargo xtask demo`
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.example == Example::Payments {
        return payments(args.full);
    }
    println!("Building the example and starting {} ...", servers(args));
    let kafka = args.kafka.then(|| thread::spawn(|| Kafka::start(KafkaOptions::default())));
    let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL")?;
    cargo("build", "kyc", &["--bins"])?;
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
    cargo("run", "kyc", &demo)
}

fn payments(full: bool) -> Result<()> {
    println!("Building the example and starting private servers ...");
    let kafka = full.then(|| thread::spawn(|| Kafka::start(KafkaOptions::default())));
    let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL")?;
    let mut demo = vec!["--bin".into(), "payments-demo".into(), "--".into()];
    demo.push(format!("--postgres={}", postgres.url()));
    let _running = match kafka {
        None => None,
        Some(kafka) => {
            let artemis = Artemis::start(ArtemisOptions::default()).context("starting Artemis")?;
            let kafka = kafka.join().map_err(|_| anyhow!("the thread that starts Kafka panicked"))?;
            let kafka = kafka.context("starting Kafka")?;
            demo.extend([format!("--amqp={}", artemis.url()), format!("--kafka={}", kafka.bootstrap())]);
            Some((kafka, artemis))
        }
    };
    println!();
    let demo: Vec<&str> = demo.iter().map(String::as_str).collect();
    cargo("run", "payments", &demo)
}

fn servers(args: &Args) -> &'static str {
    if args.kafka { "private PostgreSQL and Kafka servers" } else { "a private PostgreSQL server" }
}

pub(crate) fn cargo(verb: &str, package: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([verb, "--quiet", "--package", package])
        .args(args)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("it did not end well ({status})");
    }
    Ok(())
}
