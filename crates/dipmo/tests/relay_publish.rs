//! The sending lanes against a scripted broker: what fails parks its key, what is unknown is sent again,
//! and a broker that is away marks nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::sync::Arc;

use dipmo::transport::Outcome;
use support::{Scripted, Turn, World, drain, refused};

const TOPIC: &str = "KAFKA:orders";

#[tokio::test]
async fn rows_arrive_in_order_within_their_key() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    for key in ["a", "b", "c"] {
        world.append(TOPIC, key, &["1", "2", "3"]).await;
    }
    assert_eq!(drain(&relay).await.published, 9);
    for key in ["a", "b", "c"] {
        assert_eq!(broker.bodies_of(key), ["1", "2", "3"]);
        assert_eq!(world.states(key).await, ["PUBLISHED"; 3]);
    }
    let unpublished = world.count("dipmo.outbox_status where published_at is null").await;
    assert_eq!((unpublished, world.count("dipmo.outbox_exception").await), (0, 0));
}

#[tokio::test]
async fn a_poison_row_parks_its_key_and_nothing_else() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.poison("a2", Outcome::Rejected(refused("TOO_LARGE")));
    world.append(TOPIC, "a", &["a1", "a2", "a3"]).await;
    world.append(TOPIC, "b", &["b1", "b2"]).await;
    drain(&relay).await;
    world.append(TOPIC, "a", &["a4"]).await;
    world.append(TOPIC, "b", &["b3"]).await;
    drain(&relay).await;
    assert_eq!(world.states("a").await, ["PUBLISHED", "DEAD", "PARKED", "PARKED"]);
    assert_eq!(broker.bodies_of("a"), ["a1"]);
    assert_eq!(broker.bodies_of("b"), ["b1", "b2", "b3"]);
    let codes = world.texts("select error_code from dipmo.outbox_exception where state = 'DEAD'").await;
    assert_eq!(codes, ["TOO_LARGE"]);
}

#[tokio::test]
async fn discarding_the_head_lets_the_rest_of_the_key_go_in_order() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.poison("1", Outcome::Rejected(refused("INVALID")));
    world.append(TOPIC, "a", &["1", "2", "3"]).await;
    drain(&relay).await;
    world.execute("update dipmo.outbox_exception set state = 'DISCARDED' where state = 'DEAD'").await;
    world.append(TOPIC, "a", &["4", "5"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), ["2", "3", "4", "5"]);
    assert_eq!(world.states("a").await, ["DISCARDED", "PUBLISHED", "PUBLISHED", "PUBLISHED", "PUBLISHED"]);
    world.append(TOPIC, "a", &["6"]).await;
    drain(&relay).await;
    assert_eq!(world.count("dipmo.outbox_exception").await, 3, "a key that is in order needs no exceptions");
}

#[tokio::test]
async fn a_failed_row_is_sent_again_when_due_and_its_key_follows() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.poison("1", Outcome::Retry(refused("BUSY")));
    world.append(TOPIC, "a", &["1", "2"]).await;
    world.append(TOPIC, "b", &["b1"]).await;
    drain(&relay).await;
    assert_eq!(world.states("a").await, ["RETRY", "PARKED"]);
    broker.heal();
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), [""; 0], "not before it is due");
    world.advance(2);
    world.append(TOPIC, "a", &["3"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3"]);
    assert_eq!(world.states("a").await, ["PUBLISHED"; 3]);
}

#[tokio::test]
async fn attempts_run_out_and_an_operator_starts_them_again() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.poison("1", Outcome::Retry(refused("BUSY")));
    world.append(TOPIC, "a", &["1", "2"]).await;
    for expected in ["RETRY", "RETRY", "DEAD", "DEAD"] {
        // Something else gets through, so the broker is not away.
        world.append(TOPIC, "b", &["b"]).await;
        drain(&relay).await;
        assert_eq!(world.states("a").await, [expected, "PARKED"]);
        world.advance(60);
    }
    assert_eq!(world.texts("select max(attempts)::text from dipmo.outbox_exception").await, ["3"]);
    broker.heal();
    world
        .execute(
            "update dipmo.outbox_exception set state = 'RETRY', attempts = 0, next_attempt_at = '2020-01-01'
             where state = 'DEAD'",
        )
        .await;
    world.append(TOPIC, "a", &["3"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3"]);
}

#[tokio::test]
async fn a_row_that_fails_alone_is_retried_and_does_not_stop_the_lane() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.poison("1", Outcome::Retry(refused("BUSY")));
    world.append(TOPIC, "a", &["1"]).await;
    let step = relay.run_once().await.unwrap();
    assert_eq!((step.excepted, step.breaker_open), (1, false));
}

#[tokio::test]
async fn while_the_broker_is_away_nothing_is_marked_and_afterwards_all_goes_out() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.then(&[Turn::Silent, Turn::Silent, Turn::Silent]);
    world.append(TOPIC, "a", &["1", "2"]).await;
    let cursors = "select string_agg(cursor::text, ',' order by shard) from dipmo.relay_shard where lane = 'KAFKA'";
    let before = world.texts(cursors).await;
    let mut opened = false;
    for _ in 0..3 {
        opened |= relay.run_once().await.unwrap().breaker_open;
    }
    assert!(opened, "the breaker opens");
    assert_eq!(world.states("a").await, ["PENDING"; 2]);
    assert_eq!(world.count("dipmo.outbox_exception").await + world.count("dipmo.relay_batch").await, 0);
    assert_eq!(world.texts(cursors).await, before, "the cursors stay");
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2"]);
    assert!(!relay.run_once().await.unwrap().breaker_open);
}

#[tokio::test]
async fn an_away_broker_does_not_hold_up_internal() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.then(&[Turn::Silent, Turn::Silent]);
    world.subscribe("billing", "Placed").await;
    world.append(TOPIC, "a", &["1"]).await;
    world.append("INTERNAL", "a", &["1"]).await;
    let step = relay.run_once().await.unwrap();
    assert_eq!((step.handed_over, step.published), (1, 0));
}

#[tokio::test]
async fn what_arrived_unheard_is_sent_again_in_order() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    broker.then(&[Turn::ArrivesUnheard]);
    world.append(TOPIC, "a", &["1", "2"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "1", "2"]);
    assert_eq!(world.states("a").await, ["PUBLISHED"; 2]);
}

#[tokio::test]
async fn a_relay_that_dies_after_the_answer_sends_again_and_loses_nothing() {
    let world = World::new().await;
    let broker = Scripted::new();
    broker.then(&[Turn::ArrivesAndHangs]);
    world.append(TOPIC, "a", &["1", "2"]).await;
    let relay = Arc::new(world.relay(broker.options("r1")));
    let dying = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.run_once().await }
    });
    broker.reached.notified().await;
    dying.abort();
    assert!(dying.await.unwrap_err().is_cancelled());
    drop(relay);
    assert_eq!(world.states("a").await, ["PENDING"; 2]);
    world.append(TOPIC, "a", &["3"]).await;
    drain(&world.relay(broker.options("r1"))).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "1", "2", "3"]);
}

#[tokio::test]
async fn a_relay_paused_past_its_lease_cannot_move_the_cursor() {
    let world = World::new().await;
    let (slow, quick) = (Scripted::new(), Scripted::new());
    slow.then(&[Turn::Stop]);
    world.append(TOPIC, "a", &["1"]).await;
    let paused = Arc::new(world.relay(slow.options("slow")));
    let step = tokio::spawn({
        let paused = Arc::clone(&paused);
        async move { paused.run_once().await }
    });
    slow.reached.notified().await;
    world.advance(16);
    let taker = world.relay(quick.options("quick"));
    drain(&taker).await;
    world.append(TOPIC, "a", &["2"]).await;
    drain(&taker).await;
    let state = "select concat_ws(',', owner, epoch, cursor, gaps) from dipmo.relay_shard order by shard";
    let batches = world.count("dipmo.relay_batch").await;
    let before = world.texts(state).await;
    slow.go_on.notify_one();
    step.await.unwrap().unwrap();
    assert_eq!(world.texts(state).await, before, "the fence holds");
    assert_eq!(world.count("dipmo.relay_batch").await, batches);
    assert_eq!(quick.bodies_of("a"), ["1", "2"]);
    assert_eq!(paused.run_once().await.unwrap().published, 0, "it has let go of the shards");
}

#[tokio::test]
async fn two_relays_share_the_shards_and_hand_them_over() {
    let world = World::new().await;
    let broker = Scripted::new();
    let (first, second) = (world.relay(broker.options("first")), world.relay(broker.options("second")));
    assert_eq!(first.run_once().await.unwrap().shards, 32);
    assert_eq!(second.run_once().await.unwrap().shards, 0);
    let mut appended = Vec::new();
    for round in 0..8 {
        for key in 0..20 {
            let body = format!("{round}");
            world.append(TOPIC, &format!("k{key}"), &[&body]).await;
        }
        appended.push(format!("{round}"));
        first.run_once().await.unwrap();
        second.run_once().await.unwrap();
    }
    let owners = world
        .texts(
            "select owner || count(*) from dipmo.relay_shard where owner is not null group by owner, lane order by 1",
        )
        .await;
    assert_eq!(owners, ["first16", "first16", "second16", "second16"].map(|o| o.replace("16", "8")));
    drain(&first).await;
    drain(&second).await;
    first.stop().await.unwrap();
    second.run_once().await.unwrap();
    assert_eq!(second.run_once().await.unwrap().shards, 32, "all of it, at once");
    for key in 0..20 {
        assert_eq!(broker.bodies_of(&format!("k{key}")), appended, "no loss, no duplicate, in order");
    }
}

#[tokio::test]
async fn an_expired_lease_is_taken_over_with_its_exceptions() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("first"));
    broker.poison("1", Outcome::Retry(refused("BUSY")));
    world.append(TOPIC, "a", &["1", "2"]).await;
    drain(&relay).await;
    drop(relay);
    broker.heal();
    world.append(TOPIC, "a", &["3"]).await;
    let heir = world.relay(broker.options("heir"));
    assert_eq!(drain(&heir).await.published, 0, "the lease of the dead still runs");
    world.advance(16);
    drain(&heir).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3"]);
}

#[tokio::test]
async fn the_heartbeat_tells_what_the_relay_sees() {
    let world = World::new().await;
    let relay = world.relay(Scripted::new().options("r1"));
    world.append(TOPIC, "a", &["1"]).await;
    drain(&relay).await;
    let detail = world.texts("select detail::text from dipmo.node where name = 'r1' and role = 'relay'").await;
    for name in ["\"lanes\"", "\"level\": 1", "\"safe_id\"", "\"backlog\"", "\"stallers\"", "\"shards\": 32"] {
        assert!(detail[0].contains(name), "{name} in {}", detail[0]);
    }
}

#[tokio::test]
async fn an_exception_whose_message_is_gone_is_given_up() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    drain(&relay).await;
    world
        .execute(
            "insert into dipmo.outbox_exception (id, shard, destination, key, state, next_attempt_at)
             select 1, dipmo.outbox_shard('KAFKA:orders', 'a'), 'KAFKA:orders', 'a', 'RETRY', '2020-01-01'",
        )
        .await;
    drain(&relay).await;
    let codes = world.texts("select state || ' ' || error_code from dipmo.outbox_exception").await;
    assert_eq!(codes, ["DEAD ROW_GONE"]);
}
