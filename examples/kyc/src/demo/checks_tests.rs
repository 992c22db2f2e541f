//! The checks must notice: each kind of harm is done to facts that were right.

use super::*;
use crate::demo::facts::{EffectRow, OpenMessage};

fn feature(kind: &str) -> &'static str {
    match kind.split('-').next() {
        Some("hit") => "hits",
        Some("review") => "review",
        _ => "onboarding",
    }
}

/// What a faultless run would leave behind, over Kafka.
fn right(plan: &Plan) -> Facts {
    let mut facts = Facts::default();
    let mut kafka = (Vec::new(), Vec::new());
    let mut seqs: HashMap<(&str, String), i64> = HashMap::new();
    let distinct = plan.inputs.iter().filter(|input| !input.repeats);
    facts.arrived = distinct.clone().map(|input| input.message_id.to_string()).collect();
    let open = |flow, id: uuid::Uuid, state: &str| OpenMessage {
        consumer: intake(flow).to_owned(),
        message_id: id.to_string(),
        state: state.to_owned(),
    };
    let garbled = distinct.filter(|input| input.garbled);
    facts.open = garbled.map(|input| open(input.flow, input.message_id, "SERDE_ERROR")).collect();
    for case in &plan.cases {
        for kind in case.effects() {
            let seq = seqs.entry((feature(kind), case.customer.clone())).or_default();
            *seq += 1;
            facts.tables.insert(((*kind).to_owned(), case.id.clone()));
            facts.effects.push(EffectRow {
                feature: feature(kind).to_owned(),
                key: case.customer.clone(),
                seq: *seq,
                kind: (*kind).to_owned(),
                case_id: case.id.clone(),
            });
            let event = [("review-started", REVIEW_STARTED), ("review-completed", REVIEW_COMPLETED)]
                .into_iter()
                .find(|(of, _)| of == kind);
            if let Some((_, event_type)) = event {
                let event_id = format!("{event_type}-{}", case.id);
                kafka.0.push(event_id.clone());
                let (key, case_id) = (case.customer.clone(), case.id.clone());
                kafka.1.push(Published { event_id, event_type: event_type.to_owned(), key, case_id });
            }
        }
        let path: Vec<String> = case.path().iter().map(|state| (*state).to_owned()).collect();
        match (path.last().cloned(), case.fate) {
            (Some(state), _) => {
                let key = (case.flow.process_type().to_owned(), case.id.clone());
                facts.processes.insert(key, (state, path));
            }
            (None, Fate::Poison) => facts.open.push(open(case.flow, case.message_id, "DEAD")),
            (None, _) => facts.open.push(open(case.flow, case.message_id, "PARKED")),
        }
    }
    facts.kafka = Some(kafka);
    facts
}

/// The numbers of the checks that fail after the harm.
fn failing(harm: impl Fn(&mut Facts)) -> Vec<usize> {
    let plan = Plan::new(5, 1_000);
    let mut facts = right(&plan);
    harm(&mut facts);
    all(&plan, &facts).iter().enumerate().filter(|(_, check)| !check.passed()).map(|(n, _)| n).collect()
}

#[test]
fn a_faultless_run_passes() {
    assert_eq!(failing(|_| {}), [0_usize; 0]);
}

#[test]
fn a_lost_or_doubled_arrival_is_noticed() {
    assert_eq!(failing(|facts| drop(facts.arrived.pop())), [0]);
    assert_eq!(failing(|facts| facts.arrived.push(facts.arrived[0].clone())), [0]);
}

#[test]
fn a_doubled_effect_is_noticed() {
    assert_eq!(failing(|facts| facts.effects.push(facts.effects[0].clone())), [1, 2]);
}

#[test]
fn a_lost_effect_is_noticed() {
    assert_eq!(failing(|facts| drop(facts.effects.pop())), [1, 3]);
}

#[test]
fn effects_in_the_wrong_order_are_noticed() {
    let swap = |facts: &mut Facts| {
        let first = facts.effects[0].clone();
        let other = facts.effects.iter().position(|e| {
            e.key == first.key && e.kind == first.kind && e.case_id != first.case_id && e.feature == first.feature
        });
        let other = other.expect("a customer has more than one hit");
        let case = std::mem::replace(&mut facts.effects[other].case_id, first.case_id);
        facts.effects[0].case_id = case;
    };
    assert_eq!(failing(swap), [2]);
}

#[test]
fn a_process_that_stopped_half_way_is_noticed() {
    let stop = |facts: &mut Facts| {
        let process = facts.processes.values_mut().find(|(state, _)| state == "COMPLETED");
        let (state, path) = process.expect("some process is completed");
        path.pop();
        *state = path.last().expect("a path has more than one state").clone();
    };
    assert_eq!(failing(stop), [4]);
}

#[test]
fn what_is_set_aside_or_pending_without_reason_is_noticed() {
    let extra = |state: &str| OpenMessage { consumer: "c".into(), message_id: "m".into(), state: state.into() };
    assert_eq!(failing(|facts| facts.open.push(extra("DEAD"))), [5]);
    assert_eq!(failing(|facts| facts.open.push(extra("RETRY"))), [6]);
    assert_eq!(failing(|facts| facts.unsent = 1), [6]);
    assert_eq!(failing(|facts| facts.open.retain(|open| open.state != "DEAD")), [5]);
}

#[test]
fn the_topic_may_repeat_but_not_lose_or_reorder() {
    let events = |facts: &mut Facts, harm: fn(&mut Vec<Published>)| {
        harm(&mut facts.kafka.as_mut().expect("these facts have a topic").1);
    };
    assert_eq!(failing(|facts| events(facts, |events| events.push(events[0].clone()))), [0_usize; 0]);
    assert_eq!(failing(|facts| events(facts, |events| drop(events.pop()))), [7]);
    assert_eq!(failing(|facts| events(facts, |events| events.reverse())), [8]);
}
