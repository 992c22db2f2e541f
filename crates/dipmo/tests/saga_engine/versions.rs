//! Definitions change while sagas run; a saga keeps to the version it began with.

use dipmo::failure::Failure;
use dipmo::process::{Input, Process, Status};
use dipmo::saga::{Live, Registry, compatible};
use serde_json::json;

use crate::payment::{self, *};
use crate::workers::{Arrive, Workers, play};
use crate::world::World;

fn shorter() -> dipmo::saga::Definition {
    let mut definition = payment::definition();
    definition.steps.remove(0);
    definition
}

#[test]
fn a_running_saga_keeps_to_its_version_and_a_new_one_begins_with_the_new() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let mut registry = (*world.orchestrator.registry()).clone();
    registry.register(shorter()).unwrap();
    world.orchestrator.replace(registry);
    play(&mut world, &mut Workers::default(), false, Arrive::AfterTimer);
    assert_eq!(world.path, [CHECK_BALANCE, CHECK_LIMIT, SUBMIT, "SUCCEEDED"]);
    let start = World::message(&world.start_envelope(payment::input(false)));
    let decision = world.orchestrator.decide(None, Input::Message(&start), world.now).unwrap();
    assert_eq!(decision.path, [CHECK_LIMIT]);
    assert_eq!(decision.status, Status::Running);
}

#[test]
fn a_version_that_this_node_does_not_know_yet_is_waited_for() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let known = (*world.orchestrator.registry()).clone();
    let mut other = Registry::new();
    other.register(shorter()).unwrap();
    world.orchestrator.replace(other);
    let command = world.last_request();
    let answer = world.answer(&command, "CommandCompleted", json!({}));
    let message = World::message(&answer);
    let failure = world.orchestrator.decide(world.instance.as_ref(), Input::Message(&message), world.now).unwrap_err();
    assert!(matches!(failure, Failure::Transient { ref code, .. } if code == "UNKNOWN_DEFINITION"), "{failure}");
    world.orchestrator.replace(known);
    world.deliver(&answer).unwrap();
    assert_eq!(world.state(), CHECK_LIMIT);
}

#[test]
fn what_running_sagas_keep_to_cannot_be_taken_away() {
    let mut old = Registry::new();
    let before = old.register(payment::definition()).unwrap();
    let live = |count| vec![Live { name: before.name().to_owned(), hash: before.hash().to_owned(), count }];
    let mut both = old.clone();
    both.register(shorter()).unwrap();
    let remarks = compatible(&old, &both, &live(3)).unwrap();
    assert!(remarks[0].contains("3 sagas keep to PaymentExecution"), "{remarks:?}");
    assert_eq!(compatible(&old, &old, &live(3)), Ok(vec![]));
    let mut only_new = Registry::new();
    only_new.register(shorter()).unwrap();
    let refusals = compatible(&old, &only_new, &live(3)).unwrap_err();
    assert!(refusals[0].contains("would be forgotten"), "{refusals:?}");
    assert_eq!(compatible(&old, &only_new, &live(0)), Ok(vec![]), "nobody keeps to it any more");
    let remarks = compatible(&old, &Registry::new(), &[]).unwrap();
    assert_eq!(remarks, ["PaymentExecution can no longer be started"]);
    let mut removed = Registry::new();
    removed.add(before.clone(), false);
    let refusals = compatible(&old, &removed, &live(1)).unwrap_err();
    assert!(refusals[0].contains("would be removed"), "{refusals:?}");
}

#[test]
fn a_stored_version_is_taken_back_only_with_the_body_it_was_stored_with() {
    let definition = payment::definition();
    let hash = definition.hash();
    let body: serde_json::Value = serde_json::from_str(&definition.canonical_json()).unwrap();
    let mut registry = Registry::new();
    registry.restore(&hash, body.clone(), false).unwrap();
    assert!(registry.version("PaymentExecution", &hash).is_some());
    assert!(registry.current("PaymentExecution").is_none(), "an older version starts nothing");
    let mut changed = body.clone();
    changed["steps"][0]["timeout"] = "31s".into();
    let error = registry.restore(&hash, changed, true).unwrap_err().to_string();
    assert!(error.contains("another body"), "{error}");
    let mut unknown = body;
    unknown["stps"] = json!([]);
    assert!(registry.restore(&hash, unknown, true).unwrap_err().to_string().contains("stps"));
}
