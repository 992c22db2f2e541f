//! The `dipmo` binary: daemon and command line over the library.

mod api;
mod catalog;
mod cli;
mod commands;
mod config;
mod courier;
mod daemon;
mod definitions;
mod exit;
mod handler;
mod health;
mod http;
mod output;
mod telemetry;
mod tracing_export;

use std::process::ExitCode;

use clap::Parser as _;

use crate::exit::Exit;

/// A fourth less processor time than with the allocator of glibc, as measured with `cargo xtask bench saga`. The
/// Kafka client below uses it too; `.cargo/config.toml` says how it is built.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return Exit::Failed.into();
        }
    };
    let ended = runtime.block_on(commands::dispatch(cli));
    // A drain that ran out of time must not wait for what it gave up.
    runtime.shutdown_background();
    match ended {
        Ok(exit) => exit.into(),
        Err(quit) => {
            eprintln!("{quit}");
            quit.exit.into()
        }
    }
}
