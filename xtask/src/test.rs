//! Everything a change must pass, in one command; CI runs the same.
//!
//! The steps run in order and the first that fails ends the run; all tests run before that. The servers are stopped in
//! every case.

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::services::Services;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the tests whose name contains this, and no other step
    #[arg(long)]
    filter: Option<String>,
    /// Arguments for the test binaries
    #[arg(last = true)]
    args: Vec<String>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

/// `cargo xtask test`
pub(crate) fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let services = Services::start()?;
    let mut times = vec![("servers", started.elapsed())];
    let mut failed = None;
    for step in steps(args, &services) {
        let step_started = Instant::now();
        let passed = step.run();
        times.push((step.name, step_started.elapsed()));
        if let Err(error) = passed {
            failed = Some((step.name, error));
            break;
        }
    }
    drop(services);
    summarize(&times, started.elapsed());
    match failed {
        None => Ok(()),
        Some((name, error)) => Err(error.context(format!("step {name} FAILED"))),
    }
}

fn steps(args: &Args, services: &Services) -> Vec<Step> {
    let test = Step::test(args, services);
    if args.filter.is_some() {
        return vec![test];
    }
    let mut doc = Step::new("doc", "doc --workspace --no-deps");
    doc.env = vec![("RUSTDOCFLAGS", "-D warnings".into())];
    vec![
        Step::new("fmt", "fmt --all -- --check"),
        Step::new("clippy", "clippy --workspace --all-targets -- -D warnings"),
        test,
        doc,
    ]
}

impl Step {
    fn new(name: &'static str, command: &str) -> Self {
        Self { name, args: command.split(' ').map(str::to_owned).collect(), env: Vec::new() }
    }

    fn test(args: &Args, services: &Services) -> Self {
        let mut step = Self::new("test", "test --workspace --no-fail-fast");
        step.args.extend(args.filter.clone());
        if !args.args.is_empty() {
            step.args.push("--".into());
            step.args.extend(args.args.iter().cloned());
        }
        step.env = services.env().into();
        step
    }

    fn run(&self) -> Result<()> {
        eprintln!("\n=== {}: cargo {}", self.name, self.args.join(" "));
        let started = Instant::now();
        let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .status()
            .context("starting cargo")?;
        eprintln!("=== {}: {}", self.name, seconds(started.elapsed()));
        if !status.success() {
            bail!("cargo {} ended with {status}", self.args.join(" "));
        }
        Ok(())
    }
}

fn summarize(times: &[(&str, Duration)], total: Duration) {
    eprintln!("\n=== summary");
    for (name, time) in times.iter().chain([&("total", total)]) {
        eprintln!("{name:>10} {:>8}", seconds(*time));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
