//! A saga whose commands are handled in Python and in Java, over the queues of a real broker.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../amqp/client.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod client;
mod queues;
mod scene;
#[path = "../support/world.rs"]
mod world;

use std::time::Duration;

use client::{data, message, text};
use dipmo::command::Envelope;
use dipmo::command::envelope::kind;
use queues::Queues;
use scene::{CHECK_BALANCE, CHECK_LIMIT, LIMIT, Scene};
use serde_json::json;
use testbed::{HoldAt, Language};
use uuid::Uuid;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

const BOTH: [Language; 2] = [Language::Python, Language::Java];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_runs_through_python_and_java_on_the_queues_of_the_contract() {
    let mut scene = Scene::on(Queues::of_the_contract(), None).await;
    let saga = scene.start("100.00").await;
    let answer = scene.answer_to(saga).await;
    assert_eq!((answer.kind.as_str(), &answer.payload), (kind::COMPLETED, &json!({ "remaining": "400.00" })));
    assert_eq!(scene.status(saga).await, "SUCCEEDED|SUCCEEDED");
    assert_eq!(scene.effects().await, "held 100.00, used 100.00");
    for (language, step) in BOTH.into_iter().zip([CHECK_BALANCE, CHECK_LIMIT]) {
        let command = scene.command(saga, step).await;
        let seen = scene.noted(language, "message_id, correlation_id, reply_to, deliveries").await;
        let expected = format!("{}|{}|APP.CMD.REPLY.Q|1", command.message_id, command.command_id);
        assert_eq!(seen, [expected], "message id, correlation id and reply-to as {language:?} sees them");
    }
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_comes_again_gets_the_same_answer_and_has_no_second_effect() {
    let mut scene = Scene::on(Queues::of_its_own(), None).await;
    let saga = scene.start("100.00").await;
    scene.answer_to(saga).await;
    for (language, step) in BOTH.into_iter().zip([CHECK_BALANCE, CHECK_LIMIT]) {
        let command = scene.command(saga, step).await;
        let first = scene.first_reply(&command).await;
        let resent = Envelope { message_id: Uuid::now_v7(), ..command.clone() };
        // The same message, as after an acknowledgement that was lost; then one more attempt of the saga.
        let again = scene.send_again(language, [&command, &resent]).await;
        assert_eq!(again, [first.clone(), first], "byte for byte, the id included");
        let mut expected = [format!("{}|2", command.message_id), format!("{}|1", resent.message_id)];
        expected.sort();
        assert_eq!(scene.noted(language, "message_id, deliveries").await, expected, "{language:?} got them all");
    }
    assert_eq!(scene.effects().await, "held 100.00, used 100.00");
    assert_eq!(scene.status(saga).await, "SUCCEEDED|SUCCEEDED");
    scene.stop().await;
}

async fn survives_a_kill(at: HoldAt) {
    let mut scene = Scene::on(Queues::of_its_own(), Some(at)).await;
    let saga = scene.start("100.00").await;
    for (language, own) in BOTH.into_iter().zip(["held 100.00", "used 100.00"]) {
        scene.wait_until_held(language);
        let effects = scene.effects().await;
        assert!(effects.contains(own), "it has committed: {effects}");
        scene.kill_and_restart(language);
    }
    assert_eq!(scene.answer_to(saga).await.kind, kind::COMPLETED);
    for language in BOTH {
        scene.until_delivered(language, 2).await;
    }
    assert_eq!(scene.effects().await, "held 100.00, used 100.00");
    assert_eq!(scene.status(saga).await, "SUCCEEDED|SUCCEEDED");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_killed_between_commit_and_answer_answers_when_it_is_back() {
    survives_a_kill(HoldAt::Committed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_killed_between_answer_and_acknowledgement_has_no_second_effect() {
    survives_a_kill(HoldAt::Answered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_a_handler_fails_the_saga_with_its_code() {
    let mut scene = Scene::on(Queues::of_its_own(), None).await;
    for (amount, step, code, effects) in [
        ("1000.01", CHECK_BALANCE, "INSUFFICIENT_FUNDS", "held 0, used 0"),
        ("500.01", CHECK_LIMIT, "DAILY_LIMIT_EXCEEDED", "held 500.01, used 0"),
    ] {
        let saga = scene.start(amount).await;
        let answer = scene.answer_to(saga).await;
        assert_eq!(answer.kind, kind::FAILED);
        assert_eq!((&answer.payload["code"], &answer.payload["step"]), (&json!(code), &json!(step)));
        assert_eq!(scene.status(saga).await, "FAILED|FAILED");
        let command = scene.command(saga, step).await;
        let row = scene.command_row(command.command_id).await;
        assert_eq!(row, format!("FAILED|{code}|1"), "once: nobody asks again after a no");
        assert_eq!(scene.effects().await, effects, "a refusal leaves nothing behind");
    }
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_whose_database_fails_is_asked_again_until_it_works() {
    let mut scene = Scene::on(Queues::of_its_own(), None).await;
    scene.world.execute("alter table limits_java.used rename to used_away").await;
    let saga = scene.start("100.00").await;
    scene.until_asked_again(saga, LIMIT).await;
    scene.world.execute("alter table limits_java.used_away rename to used").await;
    assert_eq!(scene.answer_to(saga).await.kind, kind::COMPLETED);
    assert_eq!(scene.effects().await, "held 100.00, used 100.00");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_command_is_a_dead_letter_and_the_handlers_go_on() {
    let mut scene = Scene::on(Queues::of_its_own(), None).await;
    for language in BOTH {
        let id = format!("no-command.{}", Uuid::now_v7());
        let queue = scene.queues.of(language).to_owned();
        let (other, third) = (format!("{id}.2"), format!("{id}.3"));
        let wrong =
            [message(&id, &[], data(b"{oops")), message(&other, &[], text("{}")), message(&third, &[], data(b""))];
        scene.client.put(&queue, wrong).await;
        for id in [&id, &other, &third] {
            scene.client.find_dead(id).await;
        }
    }
    let saga = scene.start("100.00").await;
    assert_eq!(scene.answer_to(saga).await.kind, kind::COMPLETED);
    scene.stop().await;
}
