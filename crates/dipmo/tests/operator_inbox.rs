//! Operators and the inbox: lists, retries, discards, keys, decoding again; each change audited.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use bytes::Bytes;
use dipmo::operator::inbox::{self, InboxFilter, StoredRecord};
use dipmo::operator::{Page, audit, keys};
use dipmo::process::Failure;
use dipmo::{ErrorKind, Message};
use support::{World, ann};

fn decoded(stored: &StoredRecord) -> Message {
    Message {
        inbox_id: 0,
        source: stored.source.clone(),
        message_id: stored.message_id.clone(),
        topic: stored.topic.clone(),
        partition: stored.partition,
        offset: stored.offset,
        key: stored.key.clone(),
        key_bytes: None,
        tenant: String::new(),
        aggregate_id: Some("o-1".into()),
        aggregate_version: None,
        event_type: Some("OrderPlaced".into()),
        event_version: None,
        correlation_id: None,
        causation_id: None,
        traceparent: None,
        headers: stored.headers.clone(),
        payload: Some(Bytes::from_static(b"{}")),
        event_time: None,
        attempt: 1,
    }
}

#[tokio::test]
async fn a_list_is_paged_by_id_and_narrowed_by_consumer_state_and_key() {
    let world = World::with_billing().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(world.message(&format!("k{n}"), "DEAD").await);
    }
    world.message("k0", "RECEIVED").await;
    let dead = InboxFilter { state: Some("DEAD".into()), ..InboxFilter::default() };
    let first = inbox::list(&world.db, &dead, &Page { limit: 3, after: None }).await.unwrap();
    let after = first.next.as_deref().map(|n| n.parse().unwrap());
    let rest = inbox::list(&world.db, &dead, &Page { limit: 3, after }).await.unwrap();
    let seen: Vec<i64> = first.items.iter().chain(&rest.items).map(|row| row.id).collect();
    assert_eq!((seen, rest.next), (ids, None));
    let of_key = InboxFilter { key: Some("k0".into()), ..InboxFilter::default() };
    assert_eq!(inbox::list(&world.db, &of_key, &Page::default()).await.unwrap().items.len(), 2);
    let elsewhere = InboxFilter { consumer: Some("nobody".into()), ..InboxFilter::default() };
    assert!(inbox::list(&world.db, &elsewhere, &Page::default()).await.unwrap().items.is_empty());
    let closed = InboxFilter { state: Some("PROCESSED".into()), ..InboxFilter::default() };
    let refused = inbox::list(&world.db, &closed, &Page::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn the_payload_is_shown_only_when_it_is_asked_for() {
    let world = World::with_billing().await;
    let id = world.message_with("k", "SERDE_ERROR", b"\xff\x00oops").await;
    let veiled = inbox::show(&world.db, id, false).await.unwrap();
    assert_eq!((veiled.payload, veiled.payload_bytes), (None, Some(6)));
    let shown = inbox::show(&world.db, id, true).await.unwrap().payload.unwrap();
    assert_eq!(shown.hex.as_deref(), Some("ff006f6f7073"));
    assert_eq!(inbox::show(&world.db, 1, true).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_retried_head_is_due_at_once_with_fresh_attempts_and_its_key_stays_parked() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 2).await;
    inbox::retry(&world.db, ids[0], &ann()).await.unwrap();
    let work = "select state, attempts, next_attempt_at <= now() from inbox_work";
    assert_eq!(world.text(&format!("{work} where id = {}", ids[0])).await, "(RETRY,0,t)");
    assert_eq!(world.text("select state, head_id from parked_key").await, format!("(WAITING,{})", ids[0]));
    let trail = audit::list(&world.db, &audit::AuditFilter::default(), &Page::default()).await.unwrap();
    let row = &trail.items[0];
    assert_eq!(
        (row.actor.as_str(), row.action.as_str(), row.reason.as_str()),
        ("ann", "inbox.retry", "checked with the shop")
    );
    assert_eq!(row.detail["from"], "DEAD");
}

#[tokio::test]
async fn a_discarded_head_is_ignored_with_the_reason_and_its_key_drains() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 2).await;
    inbox::discard(&world.db, ids[0], &ann()).await.unwrap();
    let done = world.text("select id, state, reason from inbox_done").await;
    assert_eq!(done, format!("({},IGNORED,\"discarded: checked with the shop\")", ids[0]));
    assert_eq!(world.number("select count(*) from inbox_work").await, 2, "what waited is still there");
    assert_eq!(world.text("select state from parked_key").await, "(DRAINING)", "only a worker deletes the key");
    let again = inbox::discard(&world.db, ids[0], &ann()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    assert_eq!(world.number("select count(*) from audit").await, 1, "a refusal leaves no audit row");
}

#[tokio::test]
async fn a_refusal_says_what_to_do_instead() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 1).await;
    let parked = inbox::retry(&world.db, ids[1], &ann()).await.unwrap_err();
    assert!(parked.to_string().contains(&format!("waits behind {}", ids[0])), "{parked}");
    let serde = world.message("s", "SERDE_ERROR").await;
    let undecodable = inbox::retry(&world.db, serde, &ann()).await.unwrap_err();
    assert!(undecodable.to_string().contains("redecode"), "{undecodable}");
    let dead = inbox::redecode(&world.db, ids[0], &ann(), |s| Ok(decoded(s))).await.unwrap_err();
    assert!(dead.to_string().contains("use retry"), "{dead}");
    let received = world.message("r", "RECEIVED").await;
    assert_eq!(inbox::discard(&world.db, received, &ann()).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(inbox::retry(&world.db, 42, &ann()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_message_that_is_decoded_again_becomes_a_new_one_and_the_old_one_says_so() {
    let world = World::with_billing().await;
    let id = world.message_with("k", "SERDE_ERROR", b"{oops").await;
    let still = inbox::redecode(&world.db, id, &ann(), |_| Err(Failure::undecodable("NOT_JSON", "line 1"))).await;
    assert_eq!(still.unwrap_err().kind(), ErrorKind::Poison);
    assert_eq!(world.number("select count(*) from audit").await, 0);
    let changed = inbox::redecode(&world.db, id, &ann(), |stored| {
        assert_eq!(stored.payload.as_deref(), Some(&b"{oops"[..]));
        Ok(Message { message_id: "mended".into(), ..decoded(stored) })
    })
    .await
    .unwrap();
    let new = changed.detail["redecoded_as"].as_i64().unwrap();
    assert_eq!(world.text("select id, state, attempts from inbox_work").await, format!("({new},RECEIVED,0)"));
    assert_eq!(world.text("select reason from inbox_done").await, format!("(\"redecoded as {new}\")"));
    let same_bucket = "select (hashtextextended(key, 0) & 15) = bucket from inbox_work";
    assert_eq!(world.text(same_bucket).await, "(t)");
    assert!(inbox::seen(&world.db, "billing", "orders", "mended").await.unwrap().is_some());
}

#[tokio::test]
async fn a_message_decoded_again_as_one_received_before_has_no_second_effect() {
    let world = World::with_billing().await;
    world.run("insert into inbox_dedupe (key) values (dedupe_key('billing', 'orders', 'known'))").await;
    let id = world.message("k", "SERDE_ERROR").await;
    let same = |s: &StoredRecord| Ok(Message { message_id: "known".into(), ..decoded(s) });
    let changed = inbox::redecode(&world.db, id, &ann(), same).await.unwrap();
    assert!(changed.note.contains("received before"), "{}", changed.note);
    assert_eq!(world.number("select count(*) from inbox_work").await, 0);
    assert_eq!(world.number("select count(*) from inbox").await, 1);
}

#[tokio::test]
async fn a_message_is_not_a_duplicate_of_itself_when_it_is_decoded_again() {
    let world = World::with_billing().await;
    let id = world.message("k", "SERDE_ERROR").await;
    world.run("insert into inbox_dedupe (key) select dedupe_key('billing', source, message_id) from inbox").await;
    inbox::redecode(&world.db, id, &ann(), |s| Ok(decoded(s))).await.unwrap();
    assert_eq!(world.text("select state from inbox_work").await, "(RECEIVED)");
}

#[tokio::test]
async fn a_released_key_drains_and_its_head_stays() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 3).await;
    let listed = keys::list(&world.db, Some("billing"), &Page::default()).await.unwrap().items;
    assert_eq!((listed[0].head_id, listed[0].waiting.n, listed[0].head_state.as_deref()), (ids[0], 3, Some("DEAD")));
    keys::release(&world.db, "billing", "k", false, &ann()).await.unwrap();
    assert_eq!(keys::show(&world.db, "billing", "k").await.unwrap().state, "DRAINING");
    assert_eq!(world.text(&format!("select state from inbox_work where id = {}", ids[0])).await, "(DEAD)");
    let twice = keys::release(&world.db, "billing", "k", false, &ann()).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Conflict);
    let unknown = keys::release(&world.db, "billing", "nobody", false, &ann()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_key_whose_head_is_being_retried_is_not_released() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 1).await;
    inbox::retry(&world.db, ids[0], &ann()).await.unwrap();
    let refused = keys::release(&world.db, "billing", "k", false, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains("discard it"), "{refused}");
}

#[tokio::test]
async fn a_gap_is_skipped_only_when_that_is_said() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 1).await;
    world.run(&format!("update inbox_work set state = 'PARKED', aggregate_version = id - {} + 6", ids[0])).await;
    world.run("update parked_key set awaits_version = 3").await;
    world.run("insert into inbox_version values (1, 'k', 2)").await;
    let refused = keys::release(&world.db, "billing", "k", false, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains("waits for version 3"), "{refused}");
    keys::release(&world.db, "billing", "k", true, &ann()).await.unwrap();
    assert_eq!(world.text("select version from inbox_version").await, "(5)", "6 comes next");
    assert_eq!(world.text("select state, awaits_version from parked_key").await, "(DRAINING,)");
}

#[tokio::test]
async fn of_two_operators_with_the_same_head_one_is_refused() {
    let world = World::with_billing().await;
    let ids = world.parked_key("k", 1).await;
    let (ann, bob) = (ann(), dipmo::operator::Change::new("bob", "me too").unwrap());
    let (a, b) = tokio::join!(inbox::discard(&world.db, ids[0], &ann), inbox::discard(&world.db, ids[0], &bob));
    let refused = [a, b].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].kind(), ErrorKind::Conflict);
    assert_eq!(world.number("select count(*) from audit").await, 1);
}
