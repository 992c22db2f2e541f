//! The figures of all contestants, one table of them, and the targets.

use super::latency::{Idle, Latency};
use super::topic::Faults;
use crate::report::{Goal, Report, Run, Target, median, runs_of, spread};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contestant {
    Poll,
    Wal,
    /// The same reader on the table that Debezium reads.
    WalForeign,
    DebeziumCold,
    DebeziumWarm,
    Receive,
    ReceivePeer,
    CopyOut,
    Produce,
}

use Contestant::{CopyOut, DebeziumCold, DebeziumWarm, Poll, Produce, Receive, ReceivePeer, Wal, WalForeign};

impl Contestant {
    pub(super) fn name(self) -> &'static str {
        match self {
            Poll => "dipmo poll",
            Wal => "dipmo wal",
            WalForeign => "dipmo wal, Debezium's table",
            DebeziumCold => "Debezium, cold",
            DebeziumWarm => "Debezium, warm",
            Receive => "limit: pg_recvlogical, dipmo's table",
            ReceivePeer => "limit: pg_recvlogical, Debezium's table",
            CopyOut => "limit: COPY out",
            Produce => "limit: bare producer",
        }
    }

    /// What PostgreSQL can stream of the table it reads.
    fn stream_limit(self) -> Option<Self> {
        match self {
            Poll | Wal => Some(Receive),
            WalForeign | DebeziumCold | DebeziumWarm => Some(ReceivePeer),
            _ => None,
        }
    }
}

/// In the order of the repetitions.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) runs: Vec<Run>,
    pub(super) faults: Vec<Faults>,
    pub(super) latencies: Vec<Latency>,
    pub(super) idle: Vec<Idle>,
}

#[derive(Debug, Default)]
pub(super) struct Results(Vec<(Contestant, Figures)>);

/// The name of a line, and its text for a contestant.
type Line<'a> = (String, Box<dyn Fn(Contestant, &Figures) -> String + 'a>);

impl Results {
    pub(super) fn of(&mut self, who: Contestant) -> &mut Figures {
        let at = self.0.iter().position(|(known, _)| *known >= who).unwrap_or(self.0.len());
        if self.0.get(at).is_none_or(|(known, _)| *known != who) {
            self.0.insert(at, (who, Figures::default()));
        }
        &mut self.0[at].1
    }

    fn get(&self, who: Contestant) -> Option<&Figures> {
        self.0.iter().find(|(known, _)| *known == who).map(|(_, figures)| figures)
    }

    /// One value a repetition; none if it was not measured.
    fn runs(&self, who: Contestant, value: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.get(who).map_or(Vec::new(), |figures| runs_of(&figures.runs, value))
    }

    /// Repetition by repetition.
    fn ratios(&self, who: Contestant, base: Contestant, value: fn(&Run) -> f64) -> Vec<f64> {
        self.runs(who, value).into_iter().zip(self.runs(base, value)).map(|(own, base)| own / base).collect()
    }

    pub(super) fn every_run(&self) -> Vec<(String, Vec<Run>)> {
        self.0.iter().map(|(who, figures)| (who.name().to_owned(), figures.runs.clone())).collect()
    }

    /// A column a contestant.
    pub(super) fn table(&self, report: &mut Report, rates: &[u32]) {
        let names: Vec<&str> = self.0.iter().map(|(who, _)| who.name()).collect();
        report.line(&format!("| | {} |", names.join(" | ")));
        report.line(&format!("|---|{}", "---|".repeat(names.len())));
        let mut lines = self.drain_lines();
        for rate in rates {
            lines.extend(latency_lines(*rate));
        }
        lines.push(idle_line("idle: relay, % of a core", |idle| idle.node));
        lines.push(idle_line("idle: PostgreSQL, % of a core", |idle| idle.postgres));
        for (name, text) in lines {
            let texts: Vec<String> = self.0.iter().map(|(who, figures)| text(*who, figures)).collect();
            report.line(&format!("| {name} | {} |", texts.join(" | ")));
        }
        report.line("");
    }

    fn drain_lines(&self) -> Vec<Line<'_>> {
        let rate: fn(&Run) -> f64 = |run| run.rate;
        let cpu: fn(&Run) -> f64 = |run| run.node_cpu;
        let mut lines = vec![run_line("drain, rows/s", 0, |run| run.rate)];
        if self.get(DebeziumWarm).is_some() {
            lines.push(self.ratio_line("rate against Debezium, warm", |_| Some(DebeziumWarm), rate));
        }
        lines.push(self.ratio_line("rate against pg_recvlogical on its table", Contestant::stream_limit, rate));
        lines.push(self.ratio_line("rate against the bare producer", |_| Some(Produce), rate));
        lines.push(run_line("CPU in the relay", 2, |run| run.node_cpu * 1e5));
        if self.get(DebeziumWarm).is_some() {
            lines.push(self.ratio_line("the same against Debezium, warm", |_| Some(DebeziumWarm), cpu));
        }
        lines.push(run_line("CPU in PostgreSQL", 2, |run| run.postgres_cpu * 1e5));
        lines.push(run_line("CPU in the broker", 2, |run| run.broker_cpu * 1e5));
        lines.push(run_line("memory of the relay at most, MB", 0, |run| run.rss_mb));
        lines.push(run_line("WAL by relaying, B/row", 1, |run| run.wal_bytes));
        lines.push(run_line("dead rows made by relaying, per row", 4, |run| run.dead_made));
        lines.push(("lost, duplicated, out of order, in all".into(), Box::new(|_, figures| faults(&figures.faults))));
        lines
    }

    fn ratio_line(&self, name: &str, base: fn(Contestant) -> Option<Contestant>, value: fn(&Run) -> f64) -> Line<'_> {
        let text = move |who, _: &Figures| {
            let base = base(who).filter(|base| *base != who);
            base.map_or(String::new(), |base| some(&self.ratios(who, base, value), 2))
        };
        (name.into(), Box::new(text))
    }

    pub(super) fn targets(&self, peer: bool) -> Vec<Target> {
        let mut targets = Vec::new();
        let mut add = |what: String, values, goal, unit| targets.push(Target { what, values, goal, unit });
        if peer {
            let rate = self.ratios(Poll, DebeziumWarm, |run| run.rate);
            add("dipmo poll, drain rate against Debezium, warm".into(), rate, Goal::AtLeast(2.5), "times");
        }
        let rate = self.ratios(Wal, Receive, |run| run.rate);
        add("dipmo wal, drain rate against pg_recvlogical".into(), rate, Goal::AtLeast(0.85), "times");
        for who in [Poll, Wal] {
            let name = who.name();
            let none = Figures::default();
            let figures = self.get(who).unwrap_or(&none);
            if peer {
                let cpu = self.ratios(who, DebeziumWarm, |run| run.node_cpu);
                add(format!("{name}, CPU in the relay against Debezium, warm"), cpu, Goal::AtMost(0.25), "times");
            }
            let cpu = self.runs(who, |run| run.node_cpu * 1e5);
            add(format!("{name}, CPU in the relay"), cpu, Goal::Under(0.8), "CPU-s per 100 k");
            add(format!("{name}, memory"), self.runs(who, |run| run.rss_mb), Goal::Under(40.0), "MB");
            let at_200: Vec<&Latency> = figures.latencies.iter().filter(|latency| latency.rate == 200).collect();
            let p50 = at_200.iter().map(|latency| latency.p50).collect();
            add(format!("{name}, p50 at 200/s"), p50, Goal::Under(3.0), "ms");
            let p99 = at_200.iter().map(|latency| latency.p99).collect();
            add(format!("{name}, p99 at 200/s"), p99, Goal::Under(10.0), "ms");
            let idle = figures.idle.iter().map(|idle| idle.node * 100.0).collect();
            add(format!("{name}, idle"), idle, Goal::Under(1.0), "% of a core");
            add(format!("{name}, dead rows per row"), self.runs(who, |run| run.dead_made), Goal::Under(0.01), "");
            let wrong = figures.faults.iter().map(|f| (f.lost + f.duplicated + f.out_of_order) as f64).collect();
            add(format!("{name}, lost, duplicated or out of order"), wrong, Goal::AtMost(0.0), "rows");
        }
        targets
    }
}

fn run_line(name: &str, digits: usize, value: fn(&Run) -> f64) -> Line<'static> {
    (name.into(), Box::new(move |_, figures| some(&runs_of(&figures.runs, value), digits)))
}

fn latency_lines(rate: u32) -> Vec<Line<'static>> {
    let line = |name: &str, digits, value: fn(&Latency) -> f64| -> Line<'static> {
        let text = move |_, figures: &Figures| {
            let own = figures.latencies.iter().filter(|latency| latency.rate == rate);
            some(&own.map(value).collect::<Vec<f64>>(), digits)
        };
        (format!("at {rate}/s: {name}"), Box::new(text))
    };
    vec![
        line("commit to a consumer's hands, p50, ms", 2, |latency| latency.p50),
        line("p99, ms", 2, |latency| latency.p99),
        line("most, ms", 1, |latency| latency.most),
        line("commit to the broker's log (whole ms), p50, ms", 2, |latency| latency.append_p50),
        line("the same, p99, ms", 2, |latency| latency.append_p99),
        line("relay, % of a core", 1, |latency| latency.node_cpu * 100.0),
        line("PostgreSQL, writers included, % of a core", 1, |latency| latency.postgres_cpu * 100.0),
        line("rows/s that were written", 0, |latency| latency.written_rate),
    ]
}

fn idle_line(name: &str, value: fn(&Idle) -> f64) -> Line<'static> {
    let text =
        move |_, figures: &Figures| some(&figures.idle.iter().map(|i| value(i) * 100.0).collect::<Vec<f64>>(), 2);
    (name.into(), Box::new(text))
}

/// Empty where nothing was measured; a single value without a spread.
fn some(values: &[f64], digits: usize) -> String {
    match values {
        [] => String::new(),
        [_] => format!("{:.digits$}", median(values)),
        _ => spread(values, digits),
    }
}

fn faults(faults: &[Faults]) -> String {
    if faults.is_empty() {
        return String::new();
    }
    let sum = |value: fn(&Faults) -> usize| faults.iter().map(value).sum::<usize>();
    format!("{}, {}, {}", sum(|f| f.lost), sum(|f| f.duplicated), sum(|f| f.out_of_order))
}
