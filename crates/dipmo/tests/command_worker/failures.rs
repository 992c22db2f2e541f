//! Commands that fail: no effect is left, an answer is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipmo::command::envelope::{header, kind};
use dipmo::consumer::Grouping;
use serde_json::json;

use crate::{Books, booked, command, events, said, sent, worker, world};

#[tokio::test]
async fn a_failure_undoes_the_handlers_writes_and_is_answered() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Batch)).await;
    let (good, bad) = (command("a", "good", 7), command("b", "bad", -1));
    node.receive(&[sent(0, &bad), sent(1, &good)]).await.unwrap();
    assert_eq!(booked(&world).await, ["a 7"]);
    assert_eq!(events(&world).await, 1, "nobody hears of what did not happen");
    let failure = json!({ "code": "NEGATIVE", "message": "an amount is not negative", "retryable": false });
    assert_eq!(said(&world).await[0], (kind::FAILED.to_owned(), failure));
    assert_eq!(world.states("b").await, ["PROCESSED"], "the message was handled: it was answered");
}

#[tokio::test]
async fn a_permanent_failure_stays_until_an_operator_has_the_command_sent_again() {
    let world = world().await;
    let books = Arc::new(Books::of(&world));
    let node = world.node(worker(&books, Grouping::Key)).await;
    node.receive(&[sent(0, &command("a", "k", -1))]).await.unwrap();
    // The retry of a caller who did not hear the answer must not turn out otherwise.
    node.receive(&[sent(1, &command("a", "k", 7))]).await.unwrap();
    assert_eq!((booked(&world).await.len(), books.calls.load(Ordering::SeqCst)), (0, 1));
    let mended = command("a", "k", 7).with_header(header::RESUBMITTED, true);
    node.receive(&[sent(2, &mended)]).await.unwrap();
    node.receive(&[sent(3, &mended.clone()), sent(4, &command("a", "k", 7).with_header(header::RESUBMITTED, true))])
        .await
        .unwrap();
    assert_eq!(booked(&world).await, ["a 7"], "an effect is never repeated, whoever asks");
    let kinds: Vec<String> = said(&world).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [kind::FAILED, kind::FAILED, kind::COMPLETED, kind::COMPLETED, kind::COMPLETED]);
}

#[tokio::test]
async fn a_failure_that_may_pass_is_not_kept() {
    let world = world().await;
    let books = Arc::new(Books::of(&world));
    books.retries_left.store(1, Ordering::SeqCst);
    let node = world.node(worker(&books, Grouping::Key)).await;
    node.receive(&[sent(0, &command("a", "k", 14))]).await.unwrap();
    assert_eq!((booked(&world).await.len(), world.count("dipmo.command_ledger").await), (0, 0));
    node.receive(&[sent(1, &command("a", "k", 14))]).await.unwrap();
    assert_eq!(booked(&world).await, ["a 14"]);
    let said = said(&world).await;
    assert_eq!((&said[0].0, &said[0].1["retryable"]), (&kind::FAILED.to_owned(), &json!(true)));
    assert_eq!(said[1].0, kind::COMPLETED);
}

#[tokio::test]
async fn an_error_of_the_handlers_sql_is_answered_by_its_sqlstate() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Key)).await;
    node.receive(&[sent(0, &command("a", "bad", 99)), sent(1, &command("a", "good", 1))]).await.unwrap();
    assert_eq!(booked(&world).await, ["a 1"]);
    let said = said(&world).await;
    assert_eq!((said[0].0.as_str(), &said[0].1["code"]), (kind::FAILED, &json!("23514")));
}

#[tokio::test]
async fn a_command_that_nobody_knows_is_answered() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Key)).await;
    let mut strange = command("a", "k", 7);
    strange.name = "Fly".to_owned();
    node.receive(&[sent(0, &strange)]).await.unwrap();
    let said = said(&world).await;
    let expected = json!({ "code": "UNKNOWN_COMMAND", "message": "nobody here does \"Fly\"", "retryable": false });
    assert_eq!(said, [(kind::FAILED.to_owned(), expected)]);
    assert_eq!(world.count("dipmo.command_ledger").await, 0, "a later version may know it");
}

#[tokio::test]
async fn a_panic_is_retried_by_the_inbox_and_not_answered_meanwhile() {
    let world = world().await;
    let books = Arc::new(Books::of(&world));
    books.panics_left.store(1, Ordering::SeqCst);
    let mut node = world.node(worker(&books, Grouping::Key)).await;
    node.receive(&[sent(0, &command("a", "k", 13)), sent(1, &command("b", "other", 1))]).await.unwrap();
    assert_eq!((booked(&world).await, said(&world).await.len()), (vec!["b 1".to_owned()], 1));
    assert_eq!(world.states("a").await, ["RETRY"]);
    world.advance(60);
    node.work_off().await;
    assert_eq!(booked(&world).await, ["a 13", "b 1"]);
    assert_eq!(said(&world).await.len(), 2);
}
