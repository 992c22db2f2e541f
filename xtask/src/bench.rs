//! Benchmarks, built in release mode. The bench binary starts its own servers and saves its results.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, bail};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// ingest, relay, growth or saga, and their options; --help after one of them lists these
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

/// `cargo xtask bench`
pub(crate) fn run(args: &Args) -> Result<()> {
    let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["run", "--quiet", "--release", "--package", "bench", "--"])
        .args(&args.bench)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("bench {} ended with {status}", args.bench.join(" "));
    }
    Ok(())
}
