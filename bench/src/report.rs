//! Medians with their spread, targets, and one file a run that says how it came about.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::servers::{SETTINGS, SHARED_BUFFERS};

/// One measured run of one contestant; costs are per row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) rows: usize,
    pub(crate) rate: f64,
    pub(crate) node_cpu: f64,
    pub(crate) postgres_cpu: f64,
    pub(crate) broker_cpu: f64,
    pub(crate) wal_bytes: f64,
    pub(crate) dead_made: f64,
    pub(crate) dead_left: f64,
    pub(crate) rss_mb: f64,
}

/// What one thing was measured to be, and what it should be; no values if it was not measured.
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) values: Vec<f64>,
    pub(crate) goal: Goal,
    pub(crate) unit: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    Under(f64),
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::Under(limit) => value < limit,
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Under(limit) => write!(f, "under {limit}"),
            Self::AtMost(limit) => write!(f, "at most {limit}"),
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
        }
    }
}

/// Collects a run's text; printed as it grows, saved at the end.
pub(crate) struct Report {
    name: &'static str,
    text: String,
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({low:.digits$}-{high:.digits$})", median(values))
}

impl Report {
    pub(crate) fn new(name: &'static str, dataset: &str) -> Self {
        let kafka = "Kafka: one broker, 1 GB of heap, acks=all, idempotent, zstd".to_owned();
        let figures = "figures: median (least-most); CPU in processor seconds per 100 000 rows".to_owned();
        Self::about(name, &[], &[kafka, format!("dataset: {dataset}"), figures])
    }

    /// `settings` are those of PostgreSQL beside the ones of all benches.
    pub(crate) fn about(name: &'static str, settings: &[(&str, &str)], facts: &[String]) -> Self {
        let mut report = Self { name, text: String::new() };
        report.line(&format!("# bench {name}\n"));
        let command: Vec<String> = std::env::args().skip(1).collect();
        report.line(&format!("- command: `cargo xtask bench {}`", command.join(" ")));
        report.line(&format!("- commit: {}", commit()));
        report.line(&format!("- date: {}", now("[year]-[month]-[day] [hour]:[minute] UTC")));
        report.line(&format!("- machine: {}", machine()));
        let settings = SETTINGS.iter().chain(settings).map(|(name, value)| format!("{name}={value}"));
        report.line(&format!(
            "- PostgreSQL: fsync=on, synchronous_commit=on, shared_buffers={SHARED_BUFFERS}, {}",
            settings.collect::<Vec<_>>().join(", ")
        ));
        for fact in facts {
            report.line(&format!("- {fact}"));
        }
        report.line("");
        report
    }

    pub(crate) fn line(&mut self, line: &str) {
        println!("{line}");
        let _ = writeln!(self.text, "{line}");
    }

    /// One line a contestant, then every run.
    pub(crate) fn table(&mut self, contestants: &[(String, Vec<Run>)], rate_base: &str) {
        let base = contestants.iter().find(|(name, _)| name == rate_base).map(|(_, runs)| runs_of(runs, |r| r.rate));
        self.line(
            "| what | rows/s | node CPU | PostgreSQL CPU | node + PostgreSQL | broker CPU | WAL B/row | \
             dead rows/row made, left | node peak MB | rate against limit |",
        );
        self.line("|---|---|---|---|---|---|---|---|---|---|");
        for (name, runs) in contestants {
            let ratio = base.as_ref().map(|base| median(&runs_of(runs, |r| r.rate)) / median(base));
            self.line(&format!(
                "| {name} | {} | {} | {} | {} | {} | {} | {}, {} | {} | {} |",
                spread(&runs_of(runs, |r| r.rate), 0),
                spread(&runs_of(runs, |r| r.node_cpu * 1e5), 2),
                spread(&runs_of(runs, |r| r.postgres_cpu * 1e5), 2),
                spread(&runs_of(runs, total_cpu), 2),
                spread(&runs_of(runs, |r| r.broker_cpu * 1e5), 2),
                spread(&runs_of(runs, |r| r.wal_bytes), 0),
                spread(&runs_of(runs, |r| r.dead_made), 4),
                spread(&runs_of(runs, |r| r.dead_left), 4),
                spread(&runs_of(runs, |r| r.rss_mb), 0),
                ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            ));
        }
        self.line("");
    }

    pub(crate) fn every_run(&mut self, contestants: &[(String, Vec<Run>)]) {
        self.line("\nEvery run, in the order of repetition:\n");
        self.line("| what | rows | rows/s | node CPU | PostgreSQL CPU | broker CPU | WAL B/row | node peak MB |");
        self.line("|---|---|---|---|---|---|---|---|");
        for (name, runs) in contestants {
            for run in runs {
                self.line(&format!(
                    "| {name} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} |",
                    run.rows,
                    run.rate,
                    run.node_cpu * 1e5,
                    run.postgres_cpu * 1e5,
                    run.broker_cpu * 1e5,
                    run.wal_bytes,
                    run.rss_mb
                ));
            }
        }
    }

    pub(crate) fn targets(&mut self, targets: &[Target]) {
        self.line("| target | limit | measured | |");
        self.line("|---|---|---|---|");
        for Target { what, values, goal, unit } in targets {
            if values.is_empty() {
                self.line(&format!("| {what} | {goal} {unit} | | NOT MEASURED |"));
                continue;
            }
            let verdict = if goal.is_met(median(values)) { "met" } else { "MISSED" };
            // Small limits need more digits than two.
            let digits = if goal.is_met(0.0) && !goal.is_met(0.1) { 4 } else { 2 };
            self.line(&format!("| {what} | {goal} {unit} | {} {unit} | {verdict} |", spread(values, digits)));
        }
        self.line("");
    }

    /// Saves under bench/results.
    pub(crate) fn save(mut self) -> Result<()> {
        self.line(&format!("\nload average at the end: {}", load_average()));
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        fs::create_dir_all(&dir)?;
        let file = dir.join(format!("{}-{}.md", now("[year][month][day]-[hour][minute][second]"), self.name));
        fs::write(&file, &self.text).with_context(|| format!("writing {}", file.display()))?;
        eprintln!("saved to {}", file.display());
        Ok(())
    }
}

pub(crate) fn runs_of(runs: &[Run], value: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(value).collect()
}

pub(crate) fn total_cpu(run: &Run) -> f64 {
    (run.node_cpu + run.postgres_cpu) * 1e5
}

pub(crate) fn load_average() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn now(format: &str) -> String {
    let utc = OffsetDateTime::now_utc();
    let formatted = match format {
        "[year][month][day]-[hour][minute][second]" => {
            utc.format(format_description!("[year][month][day]-[hour][minute][second]"))
        }
        _ => utc.format(format_description!("[year]-[month]-[day] [hour]:[minute] UTC")),
    };
    formatted.unwrap_or_default()
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let dirty = git(&["status", "--porcelain", "--", "../crates"]).is_some_and(|changes| !changes.is_empty());
    let suffix = if dirty { " with uncommitted changes in crates/" } else { "" };
    git(&["rev-parse", "--short", "HEAD"]).map_or("unknown".into(), |commit| commit + suffix)
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().next().unwrap_or_default().replace("MemTotal:", "");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    format!("{cores} cores, {model}, {} of memory, load average at the start {}", memory.trim(), load_average())
}
