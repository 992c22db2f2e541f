//! What the demo sends, and what must come of it. The same seed gives the same plan.

use std::collections::{HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::body;
use crate::hits;
use crate::hits::domain::Verdict;
use crate::onboarding;

/// About this many messages a customer.
const MESSAGES_PER_CUSTOMER: usize = 16;
/// Shares of the whole, in percent.
const REPEATED: usize = 8;
const GARBLED: usize = 1;
const REORDERED: usize = 5;
const HITS: u32 = 75;
const REFUSED: u32 = 3;
const SLOW: u32 = 2;
/// One poisoned case in so many; each holds up what is behind it.
const CASES_PER_POISON: usize = 600;

/// A line of messages that are numbered and must be handled in order.
pub(crate) type Line = (Flow, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    Hit,
    Onboarding,
}

/// What must become of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Qualifies(Verdict),
    /// Refused by a rule of the domain: the process ends in FAILED.
    Refused,
    /// Invalid for ever: DEAD, and no process begins.
    Poison,
    /// Sound, but behind a poison of the same customer: waits.
    Behind,
}

/// A notification or an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub flow: Flow,
    pub id: String,
    pub customer: String,
    /// Its place in the line of its customer, from one.
    pub number: i64,
    pub message_id: Uuid,
    pub fate: Fate,
    /// How often the screening service will not answer.
    pub slow: u32,
}

/// One message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub flow: Flow,
    pub message_id: Uuid,
    pub customer: String,
    pub case_id: String,
    pub number: Option<i64>,
    pub body: Vec<u8>,
    /// The same message was sent before.
    pub repeats: bool,
    pub garbled: bool,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub cases: Vec<Case>,
    /// In the order of sending.
    pub inputs: Vec<Input>,
    /// How many are sent after a later one of their line.
    pub reordered: usize,
    pub customers: usize,
}

impl Flow {
    pub(crate) fn event_type(self) -> &'static str {
        match self {
            Flow::Hit => hits::NOTIFICATION,
            Flow::Onboarding => onboarding::ONBOARDING,
        }
    }

    pub(crate) fn aggregate_type(self) -> &'static str {
        match self {
            Flow::Hit => "Notification",
            Flow::Onboarding => "Application",
        }
    }

    pub(crate) fn process_type(self) -> &'static str {
        match self {
            Flow::Hit => hits::PROCESS,
            Flow::Onboarding => onboarding::PROCESS,
        }
    }

    pub(crate) fn topic(self) -> &'static str {
        match self {
            Flow::Hit => crate::NOTIFICATION_TOPIC,
            Flow::Onboarding => crate::ONBOARDING_TOPIC,
        }
    }
}

impl Case {
    /// The effects that must happen, each once.
    pub fn effects(&self) -> &'static [&'static str] {
        match (self.flow, self.fate) {
            (Flow::Hit, Fate::Qualifies(Verdict::Positive)) => {
                &["hit-opened", "hit-qualified", "review-started", "review-completed"]
            }
            (Flow::Hit, Fate::Qualifies(Verdict::Negative)) => &["hit-opened", "hit-qualified"],
            (Flow::Onboarding, Fate::Qualifies(_)) => &["customer-qualified", "block-created"],
            (_, Fate::Refused | Fate::Poison | Fate::Behind) => &[],
        }
    }

    /// The states that its process must pass through; none if there must be no process.
    pub fn path(&self) -> &'static [&'static str] {
        match (self.flow, self.fate) {
            (Flow::Hit, Fate::Qualifies(Verdict::Positive)) => {
                &["RECEIVED", "HIT_CREATED", "QUALIFIED_POSITIVE", "REVIEW_STARTED", "COMPLETED"]
            }
            (Flow::Hit, Fate::Qualifies(Verdict::Negative)) => {
                &["RECEIVED", "HIT_CREATED", "QUALIFIED_NEGATIVE", "COMPLETED"]
            }
            (Flow::Onboarding, Fate::Qualifies(_)) => &["RECEIVED", "QUALIFIED", "BLOCK_CREATED", "COMPLETED"],
            (_, Fate::Refused) => &["RECEIVED", "FAILED"],
            (_, Fate::Poison | Fate::Behind) => &[],
        }
    }

    fn line(&self) -> Line {
        (self.flow, self.customer.clone())
    }
}

impl Plan {
    pub fn new(seed: u64, messages: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let share = |percent: usize| (messages * percent / 100).max(1);
        let customers = (messages / MESSAGES_PER_CUSTOMER).max(3);
        let count = messages.saturating_sub(share(REPEATED) + share(GARBLED)).max(1);
        let mut cases = cases(&mut rng, count, customers);
        poison(&mut rng, &mut cases);
        let order = order(&mut rng, &cases, share(REORDERED));
        let reordered = overtaken(&cases, &order);
        let mut placed: Vec<(f64, Input)> = Vec::with_capacity(messages);
        for (place, at) in order.iter().enumerate() {
            placed.push((place as f64, body::input(&cases[*at], &mut rng)));
        }
        for _ in 0..share(REPEATED) {
            let (place, original) = placed[rng.random_range(0..count)].clone();
            // Later than the original: which of the two is the repetition is then certain.
            let later = rng.random_range(place + 0.5..count as f64 + 1.0);
            placed.push((later, Input { repeats: true, ..original }));
        }
        let poisoned: HashSet<Line> = cases.iter().filter(|c| c.fate == Fate::Poison).map(Case::line).collect();
        for n in 0..share(GARBLED) {
            placed.push((rng.random_range(0.0..count as f64), garbled(&mut rng, n, customers, &poisoned)));
        }
        placed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Self { seed, cases, inputs: placed.into_iter().map(|(_, input)| input).collect(), reordered, customers }
    }

    pub fn effects(&self) -> usize {
        self.cases.iter().map(|case| case.effects().len()).sum()
    }

    pub fn count(&self, fate: impl Fn(Fate) -> bool) -> usize {
        self.cases.iter().filter(|case| fate(case.fate)).count()
    }

    /// Different messages, repetitions left out.
    pub fn distinct(&self) -> usize {
        self.inputs.iter().filter(|input| !input.repeats).count()
    }
}

fn customer(number: usize) -> String {
    format!("c-{number:04}")
}

fn cases(rng: &mut StdRng, count: usize, customers: usize) -> Vec<Case> {
    let mut numbers: HashMap<Line, i64> = HashMap::new();
    let mut case = |n: usize| {
        let flow = if rng.random_range(0..100) < HITS { Flow::Hit } else { Flow::Onboarding };
        let customer = customer(rng.random_range(0..customers));
        let number = numbers.entry((flow, customer.clone())).or_default();
        *number += 1;
        let verdict = if rng.random() { Verdict::Positive } else { Verdict::Negative };
        let refused = rng.random_range(0..100) < REFUSED;
        let slow = if rng.random_range(0..100) < SLOW { rng.random_range(1..=2) } else { 0 };
        let prefix = if flow == Flow::Hit { 'n' } else { 'o' };
        Case {
            flow,
            id: format!("{prefix}-{n:06}"),
            customer,
            number: *number,
            message_id: uuid(rng),
            fate: if refused { Fate::Refused } else { Fate::Qualifies(verdict) },
            slow: if flow == Flow::Hit && !refused { slow } else { 0 },
        }
    };
    (0..count).map(&mut case).collect()
}

fn uuid(rng: &mut StdRng) -> Uuid {
    uuid::Builder::from_random_bytes(rng.random()).into_uuid()
}

/// Poisons a few cases; what is behind them in their lines must wait.
fn poison(rng: &mut StdRng, cases: &mut [Case]) {
    for _ in 0..(cases.len() / CASES_PER_POISON).max(1) {
        let at = rng.random_range(0..cases.len());
        cases[at].fate = Fate::Poison;
        cases[at].slow = 0;
    }
    let mut first: HashMap<Line, i64> = HashMap::new();
    for case in cases.iter_mut() {
        match first.get(&case.line()) {
            Some(_) => (case.fate, case.slow) = (Fate::Behind, 0),
            None if case.fate == Fate::Poison => drop(first.insert(case.line(), case.number)),
            None => {}
        }
    }
}

/// Indexes into the cases in the order of sending: some change places with the next of their line.
fn order(rng: &mut StdRng, cases: &[Case], swaps: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    for _ in 0..swaps {
        let at = rng.random_range(0..order.len());
        let line = cases[order[at]].line();
        if let Some(next) = (at + 1..order.len()).find(|other| cases[order[*other]].line() == line) {
            order.swap(at, next);
        }
    }
    order
}

fn overtaken(cases: &[Case], order: &[usize]) -> usize {
    let mut highest: HashMap<Line, i64> = HashMap::new();
    let mut count = 0;
    for case in order.iter().map(|at| &cases[*at]) {
        let seen = highest.entry(case.line()).or_default();
        count += usize::from(case.number < *seen);
        *seen = case.number.max(*seen);
    }
    count
}

/// Bytes that no one can read. Not in the line of a poison, where they would wait unread.
fn garbled(rng: &mut StdRng, n: usize, customers: usize, poisoned: &HashSet<Line>) -> Input {
    let flow = if rng.random() { Flow::Hit } else { Flow::Onboarding };
    let lines = (0..customers).map(|_| customer(rng.random_range(0..customers)));
    // A name of its own where every line has a poison.
    let free = lines.into_iter().find(|name| !poisoned.contains(&(flow, name.clone())));
    Input {
        flow,
        message_id: uuid(rng),
        customer: free.unwrap_or_else(|| "c-garbled".to_owned()),
        case_id: format!("garbled-{n}"),
        number: None,
        body: body::garbled(rng),
        repeats: false,
        garbled: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_again_and_another_seed_another() {
        assert_eq!(Plan::new(7, 500).inputs, Plan::new(7, 500).inputs);
        assert_ne!(Plan::new(7, 500).inputs, Plan::new(8, 500).inputs);
    }

    #[test]
    fn a_plan_holds_every_kind_of_trouble() {
        for seed in 0..20 {
            let plan = Plan::new(seed, 2_000);
            assert_eq!(plan.inputs.len(), 2_000, "seed {seed}");
            assert!(plan.reordered > 20, "seed {seed}");
            assert!(plan.count(|fate| fate == Fate::Poison) > 0, "seed {seed}");
            assert!(plan.count(|fate| fate == Fate::Refused) > 0, "seed {seed}");
            assert!(plan.inputs.iter().any(|input| input.repeats) && plan.inputs.iter().any(|input| input.garbled));
            assert!(plan.cases.iter().any(|case| case.slow > 0), "seed {seed}");
        }
    }

    #[test]
    fn the_smallest_plan_can_be_made() {
        for messages in 0..40 {
            assert!(!Plan::new(1, messages).inputs.is_empty());
        }
    }

    #[test]
    fn a_repetition_comes_after_its_original() {
        let mut seen = HashSet::new();
        for input in Plan::new(3, 1_000).inputs {
            assert_eq!(seen.insert(input.message_id), !input.repeats);
        }
    }
}
