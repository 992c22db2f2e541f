//! How sagas begin: known and unknown names, the same start twice, single commands, bad input.

use dipmo::command::envelope::{header, kind};
use dipmo::command::{BatchItemStatus, CommandStatus};
use dipmo::failure::Failure;
use dipmo::process::{Input, Process, Status};
use dipmo::saga::{Definition, OnFailure, Step};
use serde_json::json;
use uuid::Uuid;

use crate::payment::{self, *};
use crate::workers::{Arrive, Workers, play};
use crate::world::{CALLER, SAGA, World};

#[test]
fn a_start_given_twice_is_one_saga_and_is_answered_again_after_the_end() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let mut again = world.start_envelope(payment::input(false));
    again.message_id = Uuid::from_u128(88);
    world.deliver(&again).unwrap();
    assert_eq!(world.requests().len(), 1);
    assert!(world.kinds_to(CALLER).is_empty());
    play(&mut world, &mut Workers::default(), false, Arrive::AfterTimer);
    again.message_id = Uuid::from_u128(89);
    world.deliver(&again).unwrap();
    assert_eq!(world.kinds_to(CALLER), [kind::COMPLETED, kind::COMPLETED]);
    assert_eq!(world.status(), Status::Succeeded);
}

#[test]
fn another_command_for_a_key_that_is_taken_is_refused_and_answered() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let mut other = world.start_envelope(payment::input(false)).with_header(header::BATCH_ITEM, "P-2");
    other.message_id = Uuid::from_u128(88);
    other.command_id = Uuid::from_u128(99);
    other.correlation_id = other.command_id;
    world.deliver(&other).unwrap();
    let (_, answer) = world.sent.iter().find(|(to, _)| to == CALLER).unwrap();
    assert_eq!((answer.kind.as_str(), answer.command_id), (kind::FAILED, other.command_id));
    assert_eq!(answer.payload["code"], "KEY_TAKEN");
    let item = world.batch_items.last().unwrap();
    assert_eq!((item.item_id.as_str(), item.status), ("P-2", BatchItemStatus::Failed));
    assert_eq!((world.state(), world.status()), (CHECK_BALANCE, Status::Running));
}

#[test]
fn an_unknown_name_is_refused_with_the_names_that_are_known() {
    let world = World::new(payment::definition());
    let mut start = world.start_envelope(json!({}));
    start.name = "PaymentExecutoin".to_owned();
    let failure = world.orchestrator.decide(None, Input::Message(&World::message(&start)), world.now).unwrap_err();
    let Failure::Permanent { code, message } = failure else { panic!("{failure}") };
    assert_eq!(code, "UNKNOWN_DEFINITION");
    assert!(message.contains("PaymentExecutoin") && message.ends_with("known are: PaymentExecution"), "{message}");
}

#[test]
fn a_start_without_a_key_is_refused() {
    let world = World::new(payment::definition());
    let mut start = world.start_envelope(json!({}));
    start.key = String::new();
    let failure = world.orchestrator.decide(None, Input::Message(&World::message(&start)), world.now).unwrap_err();
    assert!(matches!(failure, Failure::Permanent { ref code, .. } if code == "NO_KEY"), "{failure}");
}

#[test]
fn what_is_no_command_and_no_answer_is_refused() {
    let world = World::new(payment::definition());
    let mut event = world.start_envelope(json!({}));
    event.kind = "BalanceChecked".to_owned();
    let failure = world.orchestrator.decide(None, Input::Message(&World::message(&event)), world.now).unwrap_err();
    assert!(matches!(failure, Failure::Permanent { ref code, .. } if code == "UNEXPECTED_TYPE"), "{failure}");
    let mut garbage = World::message(&event);
    garbage.payload = Some("{".into());
    let failure = world.orchestrator.decide(None, Input::Message(&garbage), world.now).unwrap_err();
    assert!(matches!(failure, Failure::Undecodable { .. }), "{failure}");
    let _ = world.orchestrator.address(&garbage);
    assert_eq!(world.orchestrator.new_id(&garbage), None);
}

#[test]
fn a_single_command_has_the_id_of_its_caller_all_the_way() {
    let mut world =
        World::started(Definition::command("SubmitPayment", to("SubmitPayment")), json!({ "paymentId": "P-1" }));
    let command = world.last_request();
    assert_eq!((command.command_id, command.correlation_id), (SAGA, SAGA));
    assert_eq!(command.payload, json!({ "paymentId": "P-1" }));
    assert_eq!(world.commands.len(), 1, "caller and step share one row");
    play(&mut world, &mut Workers::default(), true, Arrive::AfterTimer);
    assert_eq!(world.path, ["STEP_SUBMIT_PAYMENT", "SUCCEEDED"]);
    assert_eq!(world.commands[&SAGA].result, Some(result_of("SubmitPayment")));
    let (_, answer) = world.sent.iter().find(|(to, _)| to == CALLER).unwrap();
    assert_eq!((answer.command_id, &answer.payload), (SAGA, &result_of("SubmitPayment")));
    world.assert_nothing_open("command");
}

#[test]
fn a_single_command_that_fails_for_technical_reasons_is_parked() {
    let mut world = World::started(Definition::command("SubmitPayment", to("SubmitPayment")), json!({}));
    while world.fire() {}
    let row = &world.commands[&SAGA];
    assert_eq!((row.status, row.parked), (CommandStatus::TimedOut, true));
    world.assert_nothing_open("command");
}

#[test]
fn an_expression_that_does_not_fit_its_input_fails_the_step_with_a_reason() {
    for (step, part) in [
        (Step::new("STEP_A", "A", to("A")).when("input.missing == 1"), "when of STEP_A"),
        (Step::new("STEP_A", "A", to("A")).when("input.account"), "when of STEP_A"),
        (Step::new("STEP_A", "A", to("A")).key("input.missing"), "key of STEP_A"),
        (Step::new("STEP_A", "A", to("A")).payload(json!({ "a": { "b": "input.missing" } })), "payload of STEP_A"),
    ] {
        let world = World::started(Definition::new("Broken").step(step), payment::input(false));
        assert_eq!(world.path, ["FAILED"], "{part}");
        let error = world.data().given_up.unwrap().error;
        assert_eq!(error.code, "EXPRESSION");
        assert!(error.message.contains(part), "{error}");
        assert!(!error.message.contains("A-7"), "no value is told: {error}");
        world.assert_nothing_open(part);
    }
}

#[test]
fn a_step_may_wait_for_an_operator_instead() {
    let mut definition = payment::definition();
    definition.steps[0].on_failure = OnFailure::Pause;
    let mut world = World::started(definition, payment::input(false));
    let command = world.last_request();
    world.fails(&command, "NO_FUNDS", false);
    assert_eq!((world.state(), world.status()), (CHECK_BALANCE, Status::Paused));
    assert_eq!(world.kinds_to("KAFKA:events.Orchestrations"), ["SagaStarted", "SagaPaused"]);
    assert!(world.kinds_to(CALLER).is_empty(), "the caller waits as long as the operator");
}

#[test]
fn events_tell_the_course_of_a_saga() {
    let mut world = World::started(payment::definition(), payment::input(true));
    play(
        &mut world,
        &mut Workers::default().script(SUBMIT, [crate::workers::Act::Permanent]),
        false,
        Arrive::AfterTimer,
    );
    let step = "SagaStepCompleted";
    let expected = ["SagaStarted", step, step, step, "SagaCompensating", step, step, "SagaCompensated"];
    assert_eq!(world.kinds_to("KAFKA:events.Orchestrations"), expected);
    let mut ids: Vec<Uuid> = world.sent.iter().map(|(_, envelope)| envelope.message_id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), world.sent.len(), "every message has its own id");
}
