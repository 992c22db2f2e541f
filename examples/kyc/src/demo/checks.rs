//! Compares what happened with what the plan meant. Pure: the facts were read before.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use super::facts::Facts;
use super::kafka::Published;
use super::plan::{Case, Fate, Flow, Plan};
use crate::review::{REVIEW_COMPLETED, REVIEW_STARTED};
use crate::{HIT_INTAKE, ONBOARDING_INTAKE};

/// One claim, and what speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub claim: String,
    pub problems: Vec<String>,
}

impl Check {
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Everything that must hold.
pub fn all(plan: &Plan, facts: &Facts) -> Vec<Check> {
    let mut checks = vec![
        arrivals(plan, facts),
        effects(plan, facts),
        order(plan, facts),
        tables(facts),
        processes(plan, facts),
        set_aside(plan, facts),
        nothing_pending(facts),
    ];
    if let Some((meant, published)) = &facts.kafka {
        checks.push(published_at_least_once(plan, meant, published));
        checks.push(published_in_order(plan, published));
    }
    checks
}

fn arrivals(plan: &Plan, facts: &Facts) -> Check {
    let sent: HashSet<String> = plan.inputs.iter().map(|input| input.message_id.to_string()).collect();
    let claim = format!("each of the {} different messages was received once, repetitions were not", sent.len());
    Check { claim, problems: exactly_once(sent, facts.arrived.iter().cloned(), |id| format!("message {id}")) }
}

fn effects(plan: &Plan, facts: &Facts) -> Check {
    let meant: HashSet<(String, String)> = plan
        .cases
        .iter()
        .flat_map(|case| case.effects().iter().map(|kind| ((*kind).to_owned(), case.id.clone())))
        .collect();
    let claim = format!("each of the {} effects happened exactly once, and no other", meant.len());
    let found = facts.effects.iter().map(|effect| (effect.kind.clone(), effect.case_id.clone()));
    Check { claim, problems: exactly_once(meant, found, |(kind, case)| format!("{kind} of {case}")) }
}

fn order(plan: &Plan, facts: &Facts) -> Check {
    let numbers = numbers(plan);
    let mut problems = Vec::new();
    let mut counted: HashMap<(&str, &str), i64> = HashMap::new();
    let mut last: HashMap<(&str, &str), i64> = HashMap::new();
    for effect in &facts.effects {
        let seq = counted.entry((&effect.feature, &effect.key)).or_default();
        *seq += 1;
        if effect.seq != *seq {
            problems.push(format!("effect {} of {} in {} is number {seq}", effect.seq, effect.key, effect.feature));
        }
        let number = numbers.get(effect.case_id.as_str()).copied().unwrap_or(i64::MIN);
        let before = last.insert((&effect.kind, &effect.key), number);
        if before.is_some_and(|before| before >= number) {
            problems.push(format!("{} of {} came too late for {}", effect.kind, effect.case_id, effect.key));
        }
    }
    Check { claim: "the effects of every customer happened in the order of their numbers".into(), problems }
}

fn tables(facts: &Facts) -> Check {
    let told: HashSet<(String, String)> =
        facts.effects.iter().map(|effect| (effect.kind.clone(), effect.case_id.clone())).collect();
    let problems = exactly_once(told, facts.tables.iter().cloned(), |(kind, case)| format!("{kind} of {case}"));
    Check { claim: "the tables of the domain hold what the effects say".into(), problems }
}

fn processes(plan: &Plan, facts: &Facts) -> Check {
    let mut problems = Vec::new();
    let mut meant = 0;
    for case in &plan.cases {
        let found = facts.processes.get(&(case.flow.process_type().to_owned(), case.id.clone()));
        let path = found.map(|(_, journal)| journal.iter().map(String::as_str).collect::<Vec<_>>());
        let state = found.map(|(state, _)| state.as_str());
        if path.as_deref().unwrap_or(&[]) != case.path() || state != case.path().last().copied() {
            problems.push(format!("{} is {state:?} by {path:?}, not {:?}", case.id, case.path()));
        }
        meant += usize::from(!case.path().is_empty());
    }
    if facts.processes.len() != meant {
        problems.push(format!("there are {} processes", facts.processes.len()));
    }
    Check { claim: format!("each of the {meant} processes took its path and is in its final state"), problems }
}

/// What is dead, undecodable or waiting is what the plan put there, and nothing else.
fn set_aside(plan: &Plan, facts: &Facts) -> Check {
    let state_of = |case: &Case| match case.fate {
        Fate::Poison => Some("DEAD"),
        Fate::Behind => Some("PARKED"),
        Fate::Qualifies(_) | Fate::Refused => None,
    };
    let cases = plan.cases.iter().filter_map(|case| Some((case.flow, case.message_id, state_of(case)?)));
    let garbled = plan.inputs.iter().filter(|input| input.garbled);
    let garbled = garbled.map(|input| (input.flow, input.message_id, "SERDE_ERROR"));
    let meant: HashSet<(String, String, String)> = cases
        .chain(garbled)
        .map(|(flow, id, state)| (intake(flow).to_owned(), id.to_string(), state.to_owned()))
        .collect();
    let waiting = facts.open.iter().filter(|open| !["RECEIVED", "RETRY"].contains(&open.state.as_str()));
    let found = waiting.map(|open| (open.consumer.clone(), open.message_id.clone(), open.state.clone()));
    let problems = exactly_once(meant, found, |(consumer, id, state)| format!("{state} of {id} at {consumer}"));
    let claim = "only what is garbled is undecodable, only poison is dead, only what is behind it waits";
    Check { claim: claim.into(), problems }
}

fn nothing_pending(facts: &Facts) -> Check {
    let pending = facts.open.iter().filter(|open| ["RECEIVED", "RETRY"].contains(&open.state.as_str()));
    let mut problems: Vec<String> =
        pending.map(|open| format!("{} of {} is {}", open.message_id, open.consumer, open.state)).collect();
    if facts.unsent > 0 {
        problems.push(format!("{} messages of the outbox are not sent", facts.unsent));
    }
    Check { claim: "nothing else is pending, neither in the inbox nor in the outbox".into(), problems }
}

fn published_at_least_once(plan: &Plan, meant: &[String], published: &[Published]) -> Check {
    let first = first_of_each(published);
    let ids: HashSet<String> = meant.iter().cloned().collect();
    let mut problems = exactly_once(ids, first.iter().map(|p| p.event_id.clone()), |id| format!("event {id}"));
    let events: HashSet<(String, String)> = plan
        .cases
        .iter()
        .filter(|case| case.effects().contains(&"review-started"))
        .flat_map(|case| [REVIEW_STARTED, REVIEW_COMPLETED].map(|event| (event.to_owned(), case.id.clone())))
        .collect();
    let claim = format!("each of the {} events is on the topic {}, at least once", events.len(), crate::REVIEW_TOPIC);
    let found = first.iter().map(|p| (p.event_type.clone(), p.case_id.clone()));
    problems.extend(exactly_once(events, found, |(event, case)| format!("{event} of {case}")));
    Check { claim, problems }
}

fn published_in_order(plan: &Plan, published: &[Published]) -> Check {
    let numbers = numbers(plan);
    let mut problems = Vec::new();
    let mut last: HashMap<(&str, &str), i64> = HashMap::new();
    for event in first_of_each(published) {
        let number = numbers.get(event.case_id.as_str()).copied().unwrap_or(i64::MIN);
        if last.insert((&event.event_type, &event.key), number).is_some_and(|before| before >= number) {
            problems.push(format!("{} of {} came too late for {}", event.event_type, event.case_id, event.key));
        }
    }
    Check { claim: "without repetitions by event-id, the topic is in order within each key".into(), problems }
}

/// The broker may hold an event twice: a relay that dies before it has noted an answer sends again.
fn first_of_each(published: &[Published]) -> Vec<&Published> {
    let mut seen = HashSet::new();
    published.iter().filter(|event| seen.insert(&event.event_id)).collect()
}

fn numbers(plan: &Plan) -> HashMap<&str, i64> {
    plan.cases.iter().map(|case| (case.id.as_str(), case.number)).collect()
}

fn intake(flow: Flow) -> &'static str {
    match flow {
        Flow::Hit => HIT_INTAKE,
        Flow::Onboarding => ONBOARDING_INTAKE,
    }
}

/// What is missing, doubled, or was never meant, in a stable order.
fn exactly_once<T: Hash + Eq>(
    meant: HashSet<T>,
    found: impl Iterator<Item = T>,
    name: impl Fn(&T) -> String,
) -> Vec<String> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    for one in found {
        *counts.entry(one).or_default() += 1;
    }
    let mut problems = BTreeSet::new();
    for (one, count) in &counts {
        match (meant.contains(one), count) {
            (true, 1) => {}
            (true, _) => drop(problems.insert(format!("{} happened {count} times", name(one)))),
            (false, _) => drop(problems.insert(format!("{} was not meant", name(one)))),
        }
    }
    for one in meant.iter().filter(|one| !counts.contains_key(one)) {
        problems.insert(format!("{} is missing", name(one)));
    }
    problems.into_iter().collect()
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
