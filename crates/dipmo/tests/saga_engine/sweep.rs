//! Every step and every compensation failed in every way, with every message once and twice.

use dipmo::command::CommandStatus;
use dipmo::process::{OperatorVerb, Status};
use dipmo::saga::StepStatus;

use crate::payment::{self, *};
use crate::workers::{Act, Arrive, Workers, play};
use crate::world::World;

/// (what the worker does, whether the command is done in the end)
fn faults() -> Vec<(Vec<Act>, bool)> {
    let attempts = ATTEMPTS as usize;
    let mut faults = vec![(vec![Act::Permanent], false)];
    for act in [Act::Retryable, Act::Silent] {
        for times in 1..=attempts {
            // A doubled message is handled twice, so there may be twice as many tries as attempts.
            faults.push((vec![act; times], times < attempts));
        }
    }
    faults.push((vec![Act::Silent, Act::Retryable, Act::Permanent], false));
    faults.push((vec![Act::Late], true));
    faults
}

fn undo_of(step: &str) -> Option<&'static str> {
    match step {
        CHECK_LIMIT => Some(RELEASE_LIMIT),
        BOOK_FX => Some(CANCEL_FX),
        _ => None,
    }
}

fn expected_path(failed: Option<&str>, steps: &[&str]) -> Vec<String> {
    let upto = failed.map_or(steps.len(), |failed| steps.iter().position(|step| *step == failed).unwrap());
    let mut path: Vec<&str> = steps[..upto].to_vec();
    path.extend(failed);
    let undone: Vec<&str> = steps[..upto].iter().rev().filter_map(|step| undo_of(step)).collect();
    let end = match (failed, undone.is_empty()) {
        (None, _) => "SUCCEEDED",
        (Some(_), true) => "FAILED",
        (Some(_), false) => "COMPENSATED",
    };
    if failed.is_some() {
        path.extend(undone);
    }
    path.push(end);
    path.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_step_may_fail_in_every_way_and_exactly_what_was_done_is_undone() {
    let mut ways = 0;
    for foreign in [true, false] {
        let steps: Vec<&str> = STEPS.into_iter().filter(|step| foreign || *step != BOOK_FX).collect();
        for step in &steps {
            for (acts, done) in faults() {
                let mut world = World::started(payment::definition(), payment::input(foreign));
                let mut workers = Workers::default().script(step, acts.clone());
                play(&mut world, &mut workers, false, Arrive::AfterTimer);
                let about = format!("{step} {acts:?} foreign {foreign}");
                assert_eq!(world.path, expected_path((!done).then_some(*step), &steps), "{about}");
                world.assert_nothing_open(&about);
                ways += 1;
            }
        }
    }
    assert_eq!(ways, 7 * faults().len());
}

#[test]
fn every_message_may_arrive_twice() {
    for step in STEPS {
        for (acts, done) in faults() {
            // Each delivery takes an act of the script: both copies of a send share its fate.
            let acts: Vec<Act> = acts.into_iter().flat_map(|act| [act, act]).collect();
            let mut world = World::started(payment::definition(), payment::input(true));
            let mut workers = Workers::default().script(step, acts.clone());
            play(&mut world, &mut workers, true, Arrive::AfterTimer);
            let about = format!("{step} {acts:?} doubled");
            assert_eq!(world.path, expected_path((!done).then_some(step), &STEPS), "{about}");
            world.assert_nothing_open(&about);
            let mut effects = workers.effects.clone();
            effects.sort();
            effects.dedup();
            assert_eq!(effects.len(), workers.effects.len(), "{about}: something was done twice");
            assert_eq!(world.kinds_to("KAFKA:callers").len(), 1, "{about}: the caller is answered once");
        }
    }
}

#[test]
fn a_compensation_that_fails_for_good_waits_for_an_operator_and_goes_on_when_sent_again() {
    for undo in [CANCEL_FX, RELEASE_LIMIT] {
        for (acts, done) in faults() {
            let mut world = World::started(payment::definition(), payment::input(true));
            let mut workers = Workers::default().script(SUBMIT, [Act::Permanent]).script(undo, acts.clone());
            play(&mut world, &mut workers, false, Arrive::AfterTimer);
            let about = format!("{undo} {acts:?}");
            if !done {
                assert_eq!((world.state(), world.status()), (undo, Status::Paused), "{about}");
                let row = &world.commands[&world.data().steps[undo].command_id];
                assert!(row.parked && row.status != CommandStatus::Succeeded, "{about}: {row:?}");
                assert!(world.timers.is_empty(), "{about}");
                let verb = if acts.contains(&Act::Permanent) { OperatorVerb::Skip } else { OperatorVerb::Resubmit };
                workers.heal();
                world.operator(verb).unwrap();
                play(&mut world, &mut workers, false, Arrive::AfterTimer);
            }
            assert_eq!(world.status(), Status::Compensated, "{about}");
            assert_eq!(world.sent_steps()[4..], [CANCEL_FX, RELEASE_LIMIT], "{about}");
            world.assert_nothing_open(&about);
        }
    }
}

#[test]
fn an_answer_that_comes_after_everything_changes_nothing_but_the_journal() {
    for step in STEPS {
        let mut world = World::started(payment::definition(), payment::input(true));
        let late = vec![Act::Late; ATTEMPTS as usize];
        let silent = std::iter::once(Act::Late).chain(vec![Act::Silent; ATTEMPTS as usize]);
        let mut workers = Workers::default().script(step, silent.chain(late));
        // The worker keeps its answer by the key, so only a lost answer can make the step look undone.
        workers.forgetful = true;
        play(&mut world, &mut workers, false, Arrive::AtTheEnd);
        assert_eq!(world.path, expected_path(Some(step), &STEPS), "{step}");
        assert_eq!(world.data().steps[step].status, StepStatus::Done, "what was learnt late is remembered");
        assert!(world.notes.last().unwrap().contains("after it had been given up"), "{step}: {:?}", world.notes);
        world.assert_nothing_open(step);
    }
}
