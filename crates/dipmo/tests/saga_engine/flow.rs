//! The ways through a saga, one at a time.

use dipmo::command::envelope::{header, kind};
use dipmo::command::{BatchItemStatus, CommandStatus};
use dipmo::process::Status;
use serde_json::json;

use crate::payment::{self, *};
use crate::world::{SAGA, World};

fn run(foreign: bool) -> World {
    let mut world = World::started(payment::definition(), payment::input(foreign));
    while !world.status().is_final() {
        let command = world.last_request();
        world.completes(&command, result_of(&command.name));
    }
    world
}

#[test]
fn a_saga_sends_its_commands_one_after_the_other_and_answers_its_caller() {
    let world = run(true);
    assert_eq!(world.path, [CHECK_BALANCE, CHECK_LIMIT, BOOK_FX, SUBMIT, "SUCCEEDED"]);
    assert_eq!(world.status(), Status::Succeeded);
    let payloads: Vec<_> = world.requests().into_iter().map(|request| (request.name, request.payload)).collect();
    assert_eq!(
        payloads[0],
        ("CheckBalance".into(), json!({ "account": "A-7", "amount": payment::input(true)["amount"] }))
    );
    assert_eq!(payloads[1], ("CheckDailyLimit".into(), payment::input(true)), "without a mapping the input is sent");
    assert_eq!(payloads[2], ("BookFxContract".into(), json!({ "from": "USD", "to": "EUR", "type": "SPOT" })));
    assert_eq!(payloads[3], ("SubmitPayment".into(), json!({ "paymentId": "P-1", "rate": "0.92" })));
    let (_, answer) = world.sent.iter().find(|(to, _)| to == "KAFKA:callers").unwrap();
    assert_eq!((answer.kind.as_str(), &answer.payload), (kind::COMPLETED, &json!({ "reference": "R-1" })));
    assert_eq!(world.commands[&SAGA].result, Some(json!({ "reference": "R-1" })));
    assert!(world.commands.values().all(|row| row.status == CommandStatus::Succeeded && !row.parked));
    assert!(world.timers.is_empty());
}

#[test]
fn a_step_whose_condition_does_not_hold_is_left_out() {
    let world = run(false);
    assert_eq!(world.path, [CHECK_BALANCE, CHECK_LIMIT, SUBMIT, "SUCCEEDED"]);
    assert_eq!(world.last_request().payload, json!({ "paymentId": "P-1", "rate": "1" }));
}

#[test]
fn a_command_carries_what_its_worker_needs() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let first = world.last_request();
    world.completes(&first, json!({}));
    let command = world.last_request();
    assert_eq!(command.correlation_id, SAGA);
    assert_ne!(command.command_id, SAGA);
    assert_eq!(command.key, "A-7", "order is kept by the key of the step");
    let of = |name| command.header(name);
    assert_eq!(of(header::REPLY_TO), Some("APP.CMD.REPLY.Q"));
    assert_eq!(of(header::TENANT_ID), Some("acme"));
    assert_eq!(of(header::SCHEMA_VERSION), Some("1"));
    assert_eq!(of(header::IDEMPOTENCY_KEY), Some(format!("{SAGA}:{CHECK_LIMIT}").as_str()));
    assert_eq!(of(header::TRACE_ID), Some("0af7651916cd43dd8448eb211c80319c"));
    assert_eq!(command.headers[header::ATTEMPT], 1);
    assert!(command.causation_id.is_some());
}

#[test]
fn a_failure_that_may_pass_is_tried_again_under_the_same_key_as_another_message() {
    let mut world = World::started(payment::definition(), payment::input(false));
    let first = world.last_request();
    world.fails(&first, "DB_DOWN", true);
    assert_eq!(world.requests().len(), 1, "the next try waits");
    assert!(world.fire());
    let second = world.last_request();
    assert_eq!(second.command_id, first.command_id);
    assert_eq!(second.headers[header::IDEMPOTENCY_KEY], first.headers[header::IDEMPOTENCY_KEY]);
    assert_ne!(second.message_id, first.message_id);
    assert_eq!(second.headers[header::ATTEMPT], 2);
    world.completes(&second, json!({}));
    assert_eq!(world.state(), CHECK_LIMIT);
}

#[test]
fn a_step_that_fails_for_good_has_what_was_done_undone_last_first() {
    let mut world = World::started(payment::definition(), payment::input(true));
    for _ in 0..3 {
        let command = world.last_request();
        world.completes(&command, result_of(&command.name));
    }
    let submit = world.last_request();
    world.fails(&submit, "BANK_REFUSES", false);
    assert_eq!((world.state(), world.status()), (CANCEL_FX, Status::Compensating));
    let cancel = world.last_request();
    assert_eq!(cancel.payload, json!({ "contractId": "FX-1" }));
    world.completes(&cancel, json!({}));
    let release = world.last_request();
    assert_eq!(release.key, "A-7", "a compensation keeps to the key of its step");
    world.completes(&release, json!({}));
    assert_eq!(world.path[4..], [CANCEL_FX, RELEASE_LIMIT, "COMPENSATED"]);
    assert_eq!(world.kinds_to("KAFKA:callers"), [kind::FAILED]);
    assert_eq!(world.commands[&SAGA].error.as_deref(), Some("BANK_REFUSES"));
    assert!(!world.commands[&submit.command_id].parked, "a worker's no is not a technical failure");
    assert_eq!(world.batch_items.last().unwrap().status, BatchItemStatus::Failed);
}

#[test]
fn where_nothing_is_to_be_undone_the_saga_has_failed() {
    let mut world = World::started(payment::definition(), payment::input(true));
    let command = world.last_request();
    world.fails(&command, "NO_FUNDS", false);
    assert_eq!(world.path, [CHECK_BALANCE, "FAILED"]);
    assert_eq!(world.commands[&SAGA].status, CommandStatus::Failed);
}

#[test]
fn a_worker_that_never_answers_is_asked_again_and_then_given_up() {
    let mut world = World::started(payment::definition(), payment::input(false));
    while world.fire() {}
    assert_eq!(world.requests().len() as u32, ATTEMPTS);
    assert_eq!(world.status(), Status::Failed);
    let command = world.last_request();
    let row = &world.commands[&command.command_id];
    assert_eq!((row.status, row.parked, row.attempts), (CommandStatus::TimedOut, true, ATTEMPTS));
    assert_eq!(world.kinds_to("KAFKA:callers"), [kind::TIMED_OUT]);
    assert_eq!(world.batch_items.last().unwrap().status, BatchItemStatus::TimedOut);
}
