//! The figures of all contestants, one table of them, and the targets.

use crate::report::{Goal, Report, Target, spread};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contestant {
    Inserts,
    Dipmo,
    RestateCalls,
    RestateInside,
    Dbos,
}

impl Contestant {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Inserts => "limit: the inserts alone",
            Self::Dipmo => "dipmo, steps are commands",
            Self::RestateCalls => "Restate, steps are calls",
            Self::RestateInside => "Restate, steps in the handler",
            Self::Dbos => "DBOS",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        !matches!(self, Self::Inserts | Self::Dipmo)
    }

    fn durability(self) -> &'static str {
        match self {
            Self::Inserts => "each insert is synced to disk; nobody knows where a payment is",
            Self::Dipmo => {
                "start, every command, every effect with its answer, and every decision are rows of PostgreSQL, \
                 synced to disk at commit"
            }
            Self::RestateCalls | Self::RestateInside => {
                "its own log, synced to disk, one replica; effects and log are two stores that agree by retries"
            }
            Self::Dbos => {
                "start, every step's result and the end are rows of PostgreSQL, synced to disk; an effect and the \
                 record of it are two transactions"
            }
        }
    }
}

/// One turn; costs are per saga.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) rate: f64,
    pub(super) server_cpu: f64,
    pub(super) worker_cpu: f64,
    pub(super) postgres_cpu: f64,
    pub(super) wal_bytes: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) most: f64,
    pub(super) server_mb: Option<f64>,
    pub(super) worker_mb: Option<f64>,
}

impl Figures {
    /// Everything but the starters, per 1 000 sagas.
    pub(super) fn cpu(&self) -> f64 {
        (self.server_cpu + self.worker_cpu + self.postgres_cpu) * 1e3
    }
}

/// In the order of the repetitions; `missed` says why there are none.
#[derive(Debug)]
struct Turns {
    who: Contestant,
    figures: Vec<Figures>,
    missed: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Results(Vec<Turns>);

type Value = fn(&Figures) -> f64;

impl Results {
    pub(super) fn add(&mut self, who: Contestant, figures: Figures) {
        self.of(who).figures.push(figures);
    }

    pub(super) fn miss(&mut self, who: Contestant, error: &anyhow::Error) {
        eprintln!("    not measured: {error:#}");
        // One line of a table: the rest went to stderr.
        let why = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
        self.of(who).missed = Some(why);
    }

    fn of(&mut self, who: Contestant) -> &mut Turns {
        let at = self.0.iter().position(|turns| turns.who == who).unwrap_or_else(|| {
            self.0.push(Turns { who, figures: Vec::new(), missed: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn values(&self, who: Contestant, value: impl Fn(&Figures) -> f64) -> Vec<f64> {
        let turns = self.0.iter().find(|turns| turns.who == who);
        turns.map_or(Vec::new(), |turns| turns.figures.iter().map(value).collect())
    }

    /// A column a contestant.
    pub(super) fn table(&self, report: &mut Report, rate: u32) {
        let names: Vec<&str> = self.0.iter().map(|turns| turns.who.name()).collect();
        report.line(&format!("| | {} |", names.join(" | ")));
        report.line(&format!("|---|{}", "---|".repeat(names.len())));
        let at = |what: &str| format!("at {rate}/s: {what}");
        self.line(report, "sagas/s", 0, |f| f.rate);
        self.ratios(report, "rate: dipmo's against it", |f| f.rate);
        self.line(report, "CPU in all, starters left out", 2, Figures::cpu);
        self.ratios(report, "CPU: dipmo's against it", Figures::cpu);
        self.line(report, "CPU in the server", 2, |f| f.server_cpu * 1e3);
        self.line(report, "CPU in the worker", 2, |f| f.worker_cpu * 1e3);
        self.line(report, "CPU in PostgreSQL", 2, |f| f.postgres_cpu * 1e3);
        self.line(report, "WAL of PostgreSQL, B/saga", 0, |f| f.wal_bytes);
        self.line(report, &at("p50, ms"), 1, |f| f.p50);
        self.line(report, &at("p99, ms"), 1, |f| f.p99);
        self.line(report, &at("most, ms"), 1, |f| f.most);
        self.line(report, "memory of the server at most, MB", 0, |f| f.server_mb.unwrap_or(f64::NAN));
        self.line(report, "memory of the worker at most, MB", 0, |f| f.worker_mb.unwrap_or(f64::NAN));
        report.line("");
        for turns in &self.0 {
            if let Some(why) = &turns.missed {
                report.line(&format!("{}: {} of its turns failed or could not be had: {why}\n", turns.who.name(), {
                    if turns.figures.is_empty() { "all" } else { "some" }
                }));
            }
        }
    }

    pub(super) fn durability(&self, report: &mut Report) {
        report.line("| | what is durable |");
        report.line("|---|---|");
        for turns in &self.0 {
            report.line(&format!("| {} | {} |", turns.who.name(), turns.who.durability()));
        }
        report.line("");
    }

    fn line(&self, report: &mut Report, name: &str, digits: usize, value: Value) {
        let text = |turns: &Turns| {
            let values: Vec<f64> = turns.figures.iter().map(value).filter(|value| !value.is_nan()).collect();
            if values.is_empty() { String::new() } else { spread(&values, digits) }
        };
        let texts: Vec<String> = self.0.iter().map(text).collect();
        report.line(&format!("| {name} | {} |", texts.join(" | ")));
    }

    /// Repetition by repetition.
    fn ratios(&self, report: &mut Report, name: &str, value: Value) {
        let own = self.values(Contestant::Dipmo, value);
        let text = |turns: &Turns| {
            let ratios: Vec<f64> = own.iter().zip(&turns.figures).map(|(own, its)| own / value(its)).collect();
            let other = turns.who != Contestant::Dipmo && !ratios.is_empty();
            if other { spread(&ratios, 2) } else { String::new() }
        };
        let texts: Vec<String> = self.0.iter().map(text).collect();
        report.line(&format!("| {name} | {} |", texts.join(" | ")));
    }

    pub(super) fn targets(&self, rate: u32) -> Vec<Target> {
        let target = |what: String, value: Value, goal: Goal, unit: &'static str| Target {
            what: format!("dipmo, {what}"),
            values: self.values(Contestant::Dipmo, value),
            goal,
            unit,
        };
        vec![
            target("CPU in all".into(), Figures::cpu, Goal::Under(0.7), "CPU-s per 1 000"),
            target("rate".into(), |f| f.rate, Goal::AtLeast(2_000.0), "sagas/s"),
            target(format!("p99 at {rate}/s"), |f| f.p99, Goal::Under(25.0), "ms"),
        ]
    }

    pub(super) fn every_run(&self, report: &mut Report) {
        report.line("Every run, in the order of repetition:\n");
        report.line("| what | sagas/s | CPU in all | server | worker | PostgreSQL | p50 ms | p99 ms | MB |");
        report.line("|---|---|---|---|---|---|---|---|---|");
        for turns in &self.0 {
            for f in &turns.figures {
                report.line(&format!(
                    "| {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.0} |",
                    turns.who.name(),
                    f.rate,
                    f.cpu(),
                    f.server_cpu * 1e3,
                    f.worker_cpu * 1e3,
                    f.postgres_cpu * 1e3,
                    f.p50,
                    f.p99,
                    f.server_mb.unwrap_or(0.0) + f.worker_mb.unwrap_or(0.0),
                ));
            }
        }
    }
}
