//! Answers that come late, twice, contradict each other, or ask for more time.

use std::time::Duration;

use dipmo::command::CommandStatus;
use dipmo::command::envelope::kind;
use dipmo::failure::Failure;
use dipmo::process::{Input, OperatorVerb, Process, Status};
use dipmo::saga::StepStatus;
use serde_json::json;
use uuid::Uuid;

use crate::payment::{self, *};
use crate::workers::{Act, Arrive, Workers, play};
use crate::world::World;

fn started() -> World {
    World::started(payment::definition(), payment::input(true))
}

#[test]
fn a_success_that_comes_while_the_next_try_waits_is_taken() {
    let mut world = started();
    let command = world.last_request();
    assert!(world.fire(), "no answer in time");
    assert_eq!(world.data().steps[CHECK_BALANCE].status, StepStatus::Waiting);
    world.completes(&command, json!({}));
    assert_eq!(world.state(), CHECK_LIMIT);
    assert_eq!(world.requests().len(), 2, "it is not sent again");
    assert_eq!(world.timers.len(), 1, "only the timeout of the new step is set: {:?}", world.timers);
}

#[test]
fn a_failure_of_an_earlier_send_does_not_cost_the_later_one() {
    let mut world = started();
    let first = world.last_request();
    world.fire();
    world.fire();
    let second = world.last_request();
    world.fails(&first, "SLOW", true);
    assert_eq!(world.data().steps[CHECK_BALANCE].status, StepStatus::Sent, "the second send is still under way");
    world.fails(&second, "SLOW", true);
    assert_eq!(world.data().steps[CHECK_BALANCE].status, StepStatus::Waiting);
}

#[test]
fn an_answer_that_contradicts_the_one_before_changes_nothing() {
    let mut world = started();
    let command = world.last_request();
    world.completes(&command, json!({ "n": 1 }));
    let before = world.data();
    world.fails(&command, "CHANGED_MY_MIND", false);
    world.completes(&command, json!({ "n": 2 }));
    assert_eq!(world.data(), before);
    assert_eq!(world.state(), CHECK_LIMIT);
    assert!(world.notes.iter().all(|note| !note.contains("CHANGED")), "{:?}", world.notes);
}

#[test]
fn a_worker_that_has_begun_gets_the_time_it_asks_for() {
    let mut world = started();
    let command = world.last_request();
    let answer = world.answer(&command, kind::STARTED, json!({ "leaseMs": 600_000 }));
    world.deliver(&answer).unwrap();
    assert_eq!(world.commands[&command.command_id].status, CommandStatus::Running);
    assert_eq!(world.timers.len(), 1);
    let due = |world: &World| world.data().steps[CHECK_BALANCE].due.unwrap();
    assert_eq!(due(&world), world.now + Duration::from_secs(600));
    let greedy = world.answer(&command, kind::STARTED, json!({ "leaseMs": u64::MAX }));
    world.deliver(&greedy).unwrap();
    assert!(due(&world) <= world.now + Duration::from_secs(7 * 86_400));
}

#[test]
fn the_timer_of_a_saga_is_left_alone_until_it_fires_early_and_is_set_anew() {
    let mut world = started();
    let timers = world.timers.clone();
    world.now += Duration::from_secs(10);
    let command = world.last_request();
    world.completes(&command, json!({}));
    let due = world.data().steps[CHECK_LIMIT].due.unwrap();
    assert_eq!((world.state(), &world.timers), (CHECK_LIMIT, &timers), "nothing is written for it");
    assert!(timers.values().all(|early| *early < due));
    assert!(world.fire());
    assert_eq!(world.now, due, "fired early, then in time");
    assert!(world.notes.iter().any(|note| note.starts_with("nothing is due yet")), "{:?}", world.notes);
    assert_eq!(world.data().steps[CHECK_LIMIT].status, StepStatus::Waiting);
}

#[test]
fn a_step_that_wants_less_time_than_the_last_is_not_kept_waiting() {
    let mut definition = payment::definition();
    definition.steps[1].timeout = Duration::from_secs(1);
    let mut world = World::started(definition, payment::input(true));
    let command = world.last_request();
    world.completes(&command, json!({}));
    assert_eq!(world.timers.into_values().collect::<Vec<_>>(), [world.now + Duration::from_secs(1)]);
}

#[test]
fn a_step_that_turns_out_to_be_done_while_others_are_undone_is_undone_too() {
    let mut world = started();
    let mut workers = Workers::default()
        .script(BOOK_FX, [Act::Late, Act::Silent, Act::Silent])
        .script(RELEASE_LIMIT, [Act::Silent; 2]);
    workers.forgetful = true;
    while world.state() != RELEASE_LIMIT {
        match world.requests().get(world.handled).cloned() {
            Some(command) => {
                world.handled += 1;
                let answer = workers.handle(&mut world, &command);
                answer.iter().for_each(|answer| assert!(world.deliver(answer).unwrap()));
            }
            None => assert!(world.fire()),
        }
    }
    play(&mut world, &mut workers, false, Arrive::AfterTimer);
    assert_eq!(world.status(), Status::Compensated);
    assert_eq!(world.sent_steps()[3..], [RELEASE_LIMIT, CANCEL_FX]);
    assert!(world.notes.iter().any(|note| note.contains("it will be undone")), "{:?}", world.notes);
}

#[test]
fn a_step_of_which_nobody_knows_is_undone_where_its_compensation_says_so() {
    let mut definition = payment::definition();
    definition.steps[2].compensation =
        Some(undo(CANCEL_FX, "CancelFxContract").payload(json!({ "bookedFor": "saga.id" })).if_unknown());
    for (acts, undone) in [
        (vec![Act::Silent; 3], true),
        (vec![Act::Silent, Act::Permanent], false),
        (vec![Act::Retryable; 3], false),
        (vec![Act::Silent, Act::Retryable, Act::Retryable], true),
    ] {
        let mut world = World::started(definition.clone(), payment::input(true));
        let mut workers = Workers::default().script(BOOK_FX, acts.clone());
        play(&mut world, &mut workers, false, Arrive::AfterTimer);
        assert_eq!(world.sent_steps().contains(&CANCEL_FX.to_owned()), undone, "{acts:?}");
        world.assert_nothing_open(&format!("{acts:?}"));
    }
}

#[test]
fn answers_for_nobody_are_noted_or_ignored() {
    let mut world = started();
    let mut stray = world.last_request();
    stray.command_id = Uuid::from_u128(9);
    let before = (world.data(), world.timers.clone());
    world.completes(&stray, json!({}));
    assert_eq!((world.data(), world.timers.clone()), before);
    assert!(world.notes.last().unwrap().contains("never sent"));
    let answer = World::message(&world.answer(&stray, kind::COMPLETED, json!({})));
    let failure = world.orchestrator.decide(None, Input::Message(&answer), world.now).unwrap_err();
    assert!(matches!(failure, Failure::Stale { .. }), "{failure}");
}

#[test]
fn a_timer_for_which_nobody_waits_is_stale() {
    let mut world = started();
    let stale = |world: &World, name| {
        let decision = world.orchestrator.decide(world.instance.as_ref(), Input::Timer { name }, world.now);
        matches!(decision, Err(Failure::Stale { .. }))
    };
    assert!(stale(&world, "of somebody else"));
    assert!(!stale(&world, "alarm"));
    world.operator(OperatorVerb::Pause).unwrap();
    assert!(world.timers.is_empty() && stale(&world, "alarm"), "it fired while it was being cancelled");
}
