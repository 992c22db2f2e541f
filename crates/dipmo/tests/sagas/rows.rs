//! What is in the tables when a saga has ended, or waits.

use dipmo::command::CommandError;
use dipmo::operator::journey::journey;
use dipmo::operator::why::why;

use crate::{ATTEMPTS, Scene, object};

#[tokio::test]
async fn a_saga_that_goes_well_leaves_commands_journal_and_result() {
    let scene = Scene::new(true).await;
    let id = scene.purchase("P-1").await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(scene.commands(id).await, ["Purchase SUCCEEDED 1", "Reserve SUCCEEDED 1", "Pay SUCCEEDED 1"]);
    assert_eq!(scene.shop.done(), ["STEP_RESERVE", "STEP_PAY"]);
    let result = scene.world.texts(&format!("select result::text from dipmo.command where id = '{id}'")).await;
    assert_eq!(object(&result[0]), object(r#"{"receipt": "R-P-1"}"#));
    let journal = scene
        .world
        .texts(&format!("select kind || ' ' || to_state from dipmo.journal where process_id = '{id}' order by id"))
        .await;
    assert_eq!(journal, ["MESSAGE STEP_RESERVE", "MESSAGE STEP_PAY", "MESSAGE SUCCEEDED"]);
    let refused = scene.world.session().await.batch_execute("update journal set reason = 'x'").await.unwrap_err();
    assert!(refused.as_db_error().unwrap().message().contains("append-only"), "{refused}");
    assert_eq!(scene.world.count("dipmo.timer").await, 0, "nothing is left to fire");
}

#[tokio::test]
async fn a_journey_tells_everything_in_the_order_of_time() {
    let scene = Scene::new(true).await;
    let id = scene.purchase("P-1").await;
    let journey = journey(&scene.world.db, &id.to_string()).await.unwrap();
    assert!(!journey.cut && journey.lines.is_sorted_by_key(|line| line.at), "{journey:?}");
    let count = |place: &str| journey.lines.iter().filter(|line| line.place == place).count();
    // Start, two commands and two answers, each sent and received; the saga's three decisions.
    assert_eq!((count("outbox"), count("inbox"), count("process"), count("command")), (5, 5, 3, 3), "{journey:?}");
    let unknown = dipmo::operator::journey::journey(&scene.world.db, "nobody").await.unwrap_err();
    assert_eq!(unknown.kind(), dipmo::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_failure_that_passes_is_tried_again_under_the_same_key() {
    let scene = Scene::new(true).await;
    scene.shop.fails("Reserve", Some(CommandError::retryable("BUSY", "come back later")));
    let id = scene.purchase("P-1").await;
    assert_eq!(scene.status(id).await, "RUNNING STEP_RESERVE");
    let told = why(&scene.world.db, &scene.registry, "P-1").await.unwrap();
    assert!(told.sentence.starts_with("waits to send Reserve again after BUSY"), "{told:?}");
    scene.shop.fails("Reserve", None);
    scene.after(60).await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(scene.commands(id).await[1], "Reserve SUCCEEDED 2");
    assert_eq!(scene.shop.done(), ["STEP_RESERVE", "STEP_PAY"]);
}

#[tokio::test]
async fn a_command_that_nobody_answers_times_out_by_its_policy() {
    let scene = Scene::new(false).await;
    let id = scene.purchase("P-1").await;
    for _ in 0..20 {
        scene.after(60).await;
    }
    assert_eq!(scene.status(id).await, "FAILED FAILED");
    let commands = scene.commands(id).await;
    assert_eq!(commands[1], format!("Reserve TIMED_OUT {ATTEMPTS}"));
    assert_eq!(commands[0], "Purchase TIMED_OUT 1", "the caller's command says how it ended");
    assert_eq!(scene.dead_letters().await.len(), 1);
}

#[tokio::test]
async fn what_was_done_is_undone_when_a_later_step_is_refused() {
    let scene = Scene::new(true).await;
    scene.shop.fails("Reserve", Some(CommandError::permanent("SOLD_OUT", "there is none left")));
    let sold_out = scene.purchase("P-1").await;
    assert_eq!(scene.status(sold_out).await, "FAILED FAILED", "nothing was done, so nothing is undone");
    scene.shop.fails("Reserve", None);
    scene.shop.fails("Pay", Some(CommandError::permanent("NO_MONEY", "the card was refused")));
    let id = scene.purchase("P-2").await;
    assert_eq!(scene.status(id).await, "PAUSED STEP_PAY");
    assert_eq!(scene.dead_letters().await, ["Pay 1 the card was refused"]);
    let told = why(&scene.world.db, &scene.registry, &id.to_string()).await.unwrap();
    assert!(told.sentence.contains("NO_MONEY"), "{told:?}");
    assert!(told.next_actions.contains(&format!("dipmo process resubmit {id}")), "{told:?}");
}

#[tokio::test]
async fn a_request_given_twice_is_one_saga() {
    let scene = Scene::new(true).await;
    let id = scene.purchase("P-1").await;
    // The same start once more, as another message.
    let again = format!(
        "select dipmo.outbox_append_bytes('INTERNAL:APP.CMD.ORCHESTRATOR.Q', 'Command', 'P-1', 'CommandRequested',
                                          o.payload, correlation_id => o.correlation_id)::text
         from dipmo.outbox o where o.correlation_id = '{id}' order by o.id limit 1"
    );
    scene.world.texts(&again).await;
    scene.run().await;
    assert_eq!(scene.world.count("dipmo.process").await, 1);
    assert_eq!(scene.shop.done(), ["STEP_RESERVE", "STEP_PAY"]);
}

#[tokio::test]
async fn a_start_that_nobody_knows_is_dead_with_the_known_names() {
    let scene = Scene::new(true).await;
    let envelope = r#"{"messageId": "018f0000-0000-7000-8000-000000000001", "type": "CommandRequested",
        "name": "Purchas", "commandId": "018f0000-0000-7000-8000-000000000002",
        "correlationId": "018f0000-0000-7000-8000-000000000002", "occurredAt": "2026-01-01T00:00:00Z", "key": "P-9"}"#;
    scene.world.append("INTERNAL:APP.CMD.ORCHESTRATOR.Q", "P-9", &[envelope]).await;
    scene.run().await;
    let error = scene.world.texts("select state || ' ' || error_message from dipmo.inbox_work").await;
    assert_eq!(error, [r#"DEAD there is no saga or command named "Purchas"; known are: Purchase"#]);
    let told = why(&scene.world.db, &scene.registry, "P-9").await.unwrap();
    assert!(told.obstacles[0].contains("is DEAD"), "{told:?}");
    assert!(told.next_actions[0].starts_with("dipmo inbox retry"), "{told:?}");
}
