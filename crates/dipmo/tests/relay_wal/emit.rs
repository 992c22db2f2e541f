//! Messages without a row: sent from the WAL alone, and kept when they fail.

use dipmo::transport::Outcome;

use crate::support::{Scripted, World, refused};
use crate::{end, options, until, until_following, until_sent, wal_world};

const EMIT: &str = "select dipmo.outbox_emit('KAFKA:orders', 'order', $1, 'Placed', $2)::text";

async fn emit(world: &World, key: &str, bodies: &[&str]) {
    let client = world.writer().await;
    for body in bodies {
        client.query_one(&world.sql(EMIT), &[&key, body]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emitted_message_is_sent_and_leaves_no_row() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    emit(&world, "a", &["1", "2", "3"]).await;
    let mut writer = world.writer().await;
    let aborted = writer.transaction().await.unwrap();
    aborted.query_one(&world.sql(EMIT), &[&"a", &"never"]).await.unwrap();
    aborted.rollback().await.unwrap();
    emit(&world, "a", &["4"]).await;
    until_sent(&relay, &broker, 4).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3", "4"]);
    assert_eq!(world.count("dipmo.outbox").await, 0);
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emitted_message_that_fails_is_kept_in_order_and_sent_when_it_can_be() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    broker.poison("1", Outcome::Retry(refused("NOT_NOW")));
    emit(&world, "a", &["1", "2"]).await;
    emit(&world, "b", &["fine"]).await;
    until(&relay, "kept", || async { world.states("a").await == ["RETRY", "PARKED"] }).await;
    assert_eq!(broker.bodies(), ["fine"]);
    broker.heal();
    world.execute("update dipmo.outbox_exception set next_attempt_at = now() where state = 'RETRY'").await;
    emit(&world, "a", &["3"]).await;
    until_sent(&relay, &broker, 4).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3"]);
    // The rows that were kept come by in the WAL as well, and are not news.
    emit(&world, "c", &["last"]).await;
    until_sent(&relay, &broker, 5).await;
    assert_eq!(broker.bodies_of("a"), ["1", "2", "3"]);
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_emit_what_nobody_would_read() {
    let (world, broker) = (World::real_time().await, Scripted::new());
    let client = world.writer().await;
    let refused = client.query_one(&world.sql(EMIT), &[&"a", &"1"]).await.unwrap_err();
    let text = refused.as_db_error().unwrap().to_string();
    assert!(text.contains("nobody reads the WAL"), "{text}");
    world.read_by("wal").await;
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    let internal = world.sql("select dipmo.outbox_emit('INTERNAL', 'order', 'a', 'Placed', '1')::text");
    let text = client.query_one(&internal, &[]).await.unwrap_err().as_db_error().unwrap().to_string();
    assert!(text.contains("cannot be reached through the WAL"), "{text}");
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_to_the_table_waits_for_those_who_have_emitted() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    let mut writer = world.writer().await;
    let open = writer.transaction().await.unwrap();
    open.query_one(&world.sql(EMIT), &[&"a", &"still to come"]).await.unwrap();
    world.read_by("poll").await;
    for _ in 0..3 {
        relay.run_once().await.unwrap();
    }
    assert_ne!(world.account("slot").await, "-", "the slot must outlive the transaction");
    open.commit().await.unwrap();
    until(&relay, "handed over", || async { world.account("slot").await == "-" }).await;
    assert_eq!(broker.bodies(), ["still to come"]);
    end(relay, &world).await;
}
