//! What an operator may do in every state a saga can be in, and what becomes of the saga then.

use dipmo::command::envelope::kind;
use dipmo::failure::Failure;
use dipmo::process::{OperatorVerb, Status};
use dipmo::saga::{OnFailure, StepStatus, VERBS, possible, why};
use serde_json::json;

use crate::payment::{self, *};
use crate::workers::{Act, Arrive, Workers, play};
use crate::world::World;

fn verb(name: &str) -> OperatorVerb {
    match name {
        "pause" => OperatorVerb::Pause,
        "resume" => OperatorVerb::Resume,
        "resubmit" => OperatorVerb::Resubmit,
        "skip" => OperatorVerb::Skip,
        "compensate" => OperatorVerb::Compensate,
        _ => OperatorVerb::ForceComplete { evidence: "the bank's statement of 2 November".to_owned() },
    }
}

fn pausing() -> dipmo::saga::Definition {
    let mut definition = payment::definition();
    definition.steps.iter_mut().for_each(|step| step.on_failure = OnFailure::Pause);
    definition
}

/// A saga whose exchange contract is under way: one step with a compensation is done.
fn booking(definition: dipmo::saga::Definition) -> World {
    let mut world = World::started(definition, payment::input(true));
    for _ in 0..2 {
        let command = world.last_request();
        world.completes(&command, result_of(&command.name));
    }
    assert_eq!(world.state(), BOOK_FX);
    world
}

fn with(mut world: World, change: impl FnOnce(&mut World)) -> World {
    change(&mut world);
    world
}

fn compensating() -> World {
    with(booking(payment::definition()), |world| world.fails(&world.last_request(), "NO", false))
}

fn pause(world: &mut World) {
    world.operator(OperatorVerb::Pause).unwrap();
}

/// Every situation, and the verbs that are possible in it.
fn situations() -> Vec<(&'static str, World, Vec<&'static str>)> {
    let running = vec!["pause", "resubmit", "compensate", "force-complete"];
    let fails = |world: &mut World| world.fails(&world.last_request(), "NO", false);
    let completes = |world: &mut World| {
        let command = world.last_request();
        world.completes(&command, result_of(&command.name));
    };
    let started = |world: &mut World| {
        let answer = world.answer(&world.last_request(), kind::STARTED, json!({}));
        world.deliver(&answer).unwrap();
    };
    let failed_at_once = || with(World::started(payment::definition(), payment::input(true)), fails);
    vec![
        ("sent", booking(payment::definition()), running.clone()),
        ("being worked on", with(booking(payment::definition()), started), running.clone()),
        ("waiting to try again", with(booking(payment::definition()), |w| assert!(w.fire())), running),
        ("paused", with(booking(payment::definition()), pause), vec!["resume", "skip", "compensate", "force-complete"]),
        (
            "paused with a success held",
            with(booking(payment::definition()), |w| {
                pause(w);
                completes(w);
            }),
            vec!["resume", "compensate", "force-complete"],
        ),
        (
            "paused with a failure held",
            with(booking(payment::definition()), |w| {
                pause(w);
                fails(w);
            }),
            vec!["resume", "skip", "compensate", "force-complete"],
        ),
        (
            "paused by a failure",
            with(booking(pausing()), fails),
            vec!["resubmit", "skip", "compensate", "force-complete"],
        ),
        (
            "paused by a failure that was none",
            with(booking(pausing()), |w| {
                fails(w);
                completes(w);
            }),
            vec!["resume", "compensate", "force-complete"],
        ),
        ("compensating", compensating(), vec!["pause", "resubmit"]),
        ("compensating, paused", with(compensating(), pause), vec!["resume", "skip"]),
        ("compensation failed", with(compensating(), fails), vec!["resubmit", "skip"]),
        ("failed", failed_at_once(), vec!["resubmit", "skip", "force-complete"]),
        (
            "failed, done late",
            with(World::started(undoable_first(), payment::input(true)), |w| {
                while w.fire() {}
                completes(w);
            }),
            vec!["skip", "compensate", "force-complete"],
        ),
        ("compensated", with(compensating(), completes), vec![]),
        (
            "succeeded",
            with(booking(payment::definition()), |w| {
                completes(w);
                completes(w);
            }),
            vec![],
        ),
    ]
}

/// Its first step can be undone.
fn undoable_first() -> dipmo::saga::Definition {
    let mut definition = payment::definition();
    definition.steps[0].compensation = Some(undo("STEP_FREE_BALANCE", "FreeBalance"));
    definition
}

#[test]
fn in_every_state_a_verb_is_done_or_refused_with_a_reason_and_never_else() {
    for (situation, world, allowed) in situations() {
        let compiled = world.orchestrator.registry();
        let instance = world.instance.clone().unwrap();
        let compiled = compiled.version(&instance.process_type, &world.data().definition).unwrap().clone();
        assert_eq!(possible(&instance, &world.data(), &compiled), allowed, "{situation}");
        assert_eq!(why(&instance, &compiled).unwrap().next_actions, allowed, "{situation}");
        for name in VERBS.iter().filter(|name| !allowed.contains(name)) {
            let (_, mut world, _) = situations().into_iter().find(|(other, ..)| *other == situation).unwrap();
            let before = world.instance.clone();
            let failure = world.operator(verb(name)).unwrap_err();
            let Failure::Permanent { code, message } = &failure else { panic!("{situation}, {name}: {failure}") };
            assert_eq!(code, "REFUSED", "{situation}, {name}");
            assert!(message.contains(": ") && !message.ends_with('.'), "{situation}, {name}: {message}");
            assert_eq!(world.instance, before, "{situation}, {name}: a refusal changes nothing");
        }
    }
}

#[test]
fn after_every_verb_the_saga_comes_to_its_end_with_nothing_open() {
    for at in 0..situations().len() {
        let names = situations().swap_remove(at).2;
        for name in names {
            let (situation, mut world, _) = situations().swap_remove(at);
            let about = format!("{situation}, {name}");
            let mut workers = Workers::default();
            world.operator(verb(name)).unwrap_or_else(|failure| panic!("{about}: {failure}"));
            if name == "pause" {
                assert!(world.timers.is_empty(), "{about}: a paused saga is not driven by time");
                world.operator(OperatorVerb::Resume).unwrap();
            }
            play(&mut world, &mut workers, false, Arrive::AfterTimer);
            if world.status() == Status::Paused {
                world.operator(OperatorVerb::Compensate).unwrap();
                play(&mut world, &mut workers, false, Arrive::AfterTimer);
            }
            world.assert_nothing_open(&about);
        }
    }
}

#[test]
fn while_paused_answers_are_held_and_resume_goes_on_with_them() {
    let mut world = with(booking(payment::definition()), pause);
    let command = world.last_request();
    world.fails(&command, "LATER_DONE", true);
    world.completes(&command, result_of("BookFxContract"));
    world.completes(&command, json!({ "contractId": "another" }));
    assert_eq!((world.state(), world.status()), (BOOK_FX, Status::Paused));
    world.operator(OperatorVerb::Resume).unwrap();
    assert_eq!(world.state(), SUBMIT);
    assert_eq!(world.last_request().payload["rate"], "0.92", "the first success counts");
}

#[test]
fn a_resubmitted_step_gets_all_its_attempts_again_under_the_same_key() {
    let mut world = with(booking(pausing()), |world| while world.fire() {});
    assert_eq!(world.status(), Status::Paused);
    let before = world.last_request();
    world.operator(OperatorVerb::Resubmit).unwrap();
    let after = world.last_request();
    assert_eq!(after.headers["idempotencyKey"], before.headers["idempotencyKey"]);
    let resubmitted = (before.headers.get("resubmitted"), after.headers.get("resubmitted"));
    assert_eq!(resubmitted, (None, Some(&true.into())), "its worker must not repeat an old refusal");
    assert_ne!(after.message_id, before.message_id);
    let row = &world.commands[&after.command_id];
    assert!(!row.parked, "it is no dead letter any more");
    while world.fire() {}
    assert_eq!(world.requests().len() as u32, 2 + 2 * ATTEMPTS);
}

#[test]
fn what_was_skipped_is_not_undone_and_what_was_done_is() {
    let mut world = with(booking(pausing()), |world| world.fails(&world.last_request(), "NO", false));
    world.operator(OperatorVerb::Skip).unwrap();
    assert_eq!(world.state(), SUBMIT);
    assert_eq!(world.last_request().payload["rate"], "1", "a skipped step has no result");
    assert_eq!(world.data().steps[BOOK_FX].status, StepStatus::Skipped);
    world.operator(OperatorVerb::Compensate).unwrap();
    // What was sent before has been answered, or never will be.
    world.handled = world.requests().len() - 1;
    play(&mut world, &mut Workers::default(), false, Arrive::AfterTimer);
    assert_eq!(world.sent_steps()[4..], [RELEASE_LIMIT]);
    assert_eq!(world.status(), Status::Compensated);
}

#[test]
fn a_failed_saga_can_be_taken_up_again() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let mut workers = Workers::default().script(CHECK_BALANCE, [Act::Silent; 3]);
    play(&mut world, &mut workers, false, Arrive::AfterTimer);
    assert_eq!(world.status(), Status::Failed);
    world.operator(OperatorVerb::Resubmit).unwrap();
    assert_eq!(world.commands[&crate::world::SAGA].status, dipmo::command::CommandStatus::Running);
    play(&mut world, &mut workers, false, Arrive::AfterTimer);
    assert_eq!(world.status(), Status::Succeeded);
    world.assert_nothing_open("taken up again");
}

#[test]
fn force_complete_wants_evidence_and_keeps_it() {
    let mut world = booking(payment::definition());
    assert!(world.operator(OperatorVerb::ForceComplete { evidence: " ".to_owned() }).is_err());
    world.operator(verb("force-complete")).unwrap();
    assert_eq!(world.status(), Status::Succeeded);
    assert!(world.notes.last().unwrap().contains("statement of 2 November"), "{:?}", world.notes);
}

#[test]
fn a_saga_says_in_one_sentence_what_it_waits_for() {
    let sentence = |world: &World| {
        let registry = world.orchestrator.registry();
        let instance = world.instance.as_ref().unwrap();
        why(instance, registry.current(&instance.process_type).unwrap()).unwrap().sentence
    };
    let world = booking(payment::definition());
    assert_eq!(
        sentence(&world),
        "waits for the answer to BookFxContract, sent once, patience ends at 2025-11-02T12:00:30Z"
    );
    let world = with(world, |w| w.fails(&w.last_request(), "BANK_DOWN", true));
    let text = sentence(&world);
    assert!(text.starts_with("waits to send BookFxContract again after BANK_DOWN: scripted: it was sent once, the next try is due at 2025-11-02T12:00:02"), "{text}");
    let world = with(booking(pausing()), |w| while w.fire() {});
    let text = sentence(&world);
    assert_eq!(
        text,
        "paused because BookFxContract failed for good, sent 3 times: TIMED_OUT: no answer came in time, 30s after the last sign"
    );
    let text = sentence(&compensating());
    assert!(
        text.starts_with(
            "undoes what was done because STEP_BOOK_FX failed: NO: scripted: waits for the answer to ReleaseLimit"
        ),
        "{text}"
    );
}
