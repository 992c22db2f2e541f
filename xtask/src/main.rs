//! Development chores, run as `cargo xtask <chore>`. Each chore is one file.

mod bench;
mod demo;
mod services;
mod soak;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Development chores", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Put the worked example under load, kill it in the middle, and check that nothing was lost or doubled
    Demo(demo::Args),
    /// Measure dipmo beside the raw limits of its servers: ingest or relay, in a release build
    Bench(bench::Args),
    /// Run payments at a steady rate, watch latency and backlog, and check the books at the end
    Soak(soak::Args),
    /// Check format, lints, tests and docs against private PostgreSQL, Kafka and AMQP servers
    Test(test::Args),
    /// Run private PostgreSQL, Kafka and AMQP servers until Ctrl-C or the end of stdin
    Services,
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Demo(args) => demo::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Soak(args) => soak::run(&args),
        Chore::Test(args) => test::run(&args),
        Chore::Services => services::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
