//! Measures dipmo beside the raw limits of PostgreSQL and Kafka, on private servers; run by `cargo xtask bench`.
//!
//! What is measured runs in a child process of its own (`bench node ...`), so that its processor time and
//! memory are its own and not those of the load generator.

mod child;
mod growth;
mod ingest;
mod load;
mod meter;
mod node;
mod relay;
mod report;
mod saga;
mod servers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// As in the daemon.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "Benchmarks of dipmo", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Kafka to inbox, process and handler, beside a lean insert and a bare consumer
    Ingest(ingest::Args),
    /// Outbox to Kafka beside the raw limits and, if asked for, Debezium; then latency and idle cost
    Relay(relay::Args),
    /// Relay and ingest with a longer and longer history, and while a transaction is held open
    Growth(growth::Args),
    /// Payment sagas beside the inserts alone and, if asked for, Restate and DBOS
    Saga(saga::Args),
    /// What is measured, in a process of its own
    #[command(hide = true)]
    Node {
        #[command(subcommand)]
        role: node::Role,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().bench {
        Bench::Ingest(args) => ingest::run(&args).await,
        Bench::Relay(args) => relay::run(args).await,
        Bench::Growth(args) => growth::run(&args).await,
        Bench::Saga(args) => saga::run(args).await,
        Bench::Node { role } => node::run(role).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
