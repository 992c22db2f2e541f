//! The same idempotency key again, whatever message it comes in.

use std::sync::Arc;

use dipmo::command::envelope::{header, kind};
use dipmo::consumer::Grouping;
use serde_json::json;

use crate::{Books, booked, command, events, replies, said, sent, support::fresh, worker, world};

#[tokio::test]
async fn a_command_sent_again_has_one_effect_and_the_same_answer() {
    for grouping in [Grouping::Record, Grouping::Key, Grouping::Batch] {
        let world = world().await;
        let node = world.node(worker(&Arc::new(Books::of(&world)), grouping)).await;
        let (first, second) = (command("a", "saga:STEP", 7), command("a", "saga:STEP", 7));
        node.receive(&[sent(0, &first)]).await.unwrap();
        node.receive(&[sent(1, &second)]).await.unwrap();
        assert_eq!(booked(&world).await, ["a 7"], "{grouping:?}");
        assert_eq!(events(&world).await, 1, "what did not happen again is not told again");
        let completed = (kind::COMPLETED.to_owned(), json!({ "booked": 7 }));
        assert_eq!(said(&world).await, [completed.clone(), completed], "every message is answered");
        let replies = replies(&world).await;
        assert_eq!(replies[1].causation_id, Some(second.message_id.to_string()));
        assert_ne!(replies[0].message_id, replies[1].message_id);
    }
}

#[tokio::test]
async fn the_same_command_twice_in_one_group_is_one_effect() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Batch)).await;
    let twice = [command("a", "k", 7), command("a", "k", 7), command("b", "other", 8)];
    node.receive(&[sent(0, &twice[0]), sent(1, &twice[1]), sent(2, &twice[2])]).await.unwrap();
    assert_eq!(booked(&world).await, ["a 7", "b 8"]);
    assert_eq!(said(&world).await.len(), 3);
    assert_eq!(world.count("dipmo.command_ledger").await, 2);
}

#[tokio::test]
async fn keys_of_two_tenants_do_not_meet() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Key)).await;
    let ours = command("a", "k", 1).with_header(header::TENANT_ID, "ours");
    let theirs = command("a", "k", 2).with_header(header::TENANT_ID, "theirs");
    node.receive(&[sent(0, &ours), sent(1, &theirs)]).await.unwrap();
    assert_eq!(booked(&world).await, ["a 1", "a 2"]);
}

#[tokio::test]
async fn an_answer_belongs_to_its_command_and_goes_where_it_says() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Key)).await;
    let mut quiet = command("a", "k", 7);
    quiet.headers.remove(header::REPLY_TO);
    node.receive(&[sent(0, &quiet)]).await.unwrap();
    let sql = "select concat_ws(' ', destination, event_type, key, correlation_id, headers ->> 'commandId')
               from dipmo.outbox where event_type = 'CommandCompleted'";
    let expected = format!("KAFKA:APP.CMD.REPLY.Q CommandCompleted a {} {}", quiet.correlation_id, quiet.command_id);
    assert_eq!(world.texts(sql).await, [expected]);
}

#[tokio::test]
async fn what_is_not_a_command_is_kept_and_not_answered() {
    let world = world().await;
    let node = world.node(worker(&Arc::new(Books::of(&world)), Grouping::Key)).await;
    let mut reply = command("a", "k", 7);
    reply.kind = kind::COMPLETED.to_owned();
    node.receive(&[sent(0, &reply), fresh(1, "b", "{}")]).await.unwrap();
    assert_eq!((world.states("a").await, world.states("b").await), (vec!["DEAD".into()], vec!["SERDE_ERROR".into()]));
    assert_eq!(world.count("dipmo.outbox").await, 0);
}
