//! The slot: it moves on by itself, and a slot that is not the one we left is noticed.

use crate::support::{Scripted, World};
use crate::{end, numbers, options, until, until_following, until_sent, wal_world};

/// As by an operator, once the server knows that nobody reads it.
pub async fn dropped(world: &World) {
    let free = format!("pg_replication_slots where slot_name = '{}' and not active", world.slot());
    while world.count(&free).await == 0 {
        tokio::task::yield_now().await;
    }
    let query = format!("select pg_drop_replication_slot('{}')::text", world.slot());
    world.texts(&query).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_moves_on_while_only_other_tables_are_written() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world.execute("create table dipmo.elsewhere (n bigint)").await;
    world.execute("insert into dipmo.elsewhere select generate_series(1, 1000)").await;
    let written = world.texts("select pg_current_wal_insert_lsn()::text").await.remove(0);
    let moved = format!("('{{}}'::pg_lsn >= '{written}'::pg_lsn)::text");
    until(&relay, "the slot has moved on", || async {
        let at = world.slot_lsn().await;
        world.texts(&format!("select {}", moved.replace("{}", &at))).await[0] == "true"
    })
    .await;
    assert_eq!(broker.bodies().len(), 0);
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_dropped_loses_nothing_and_it_is_said() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world.append_numbers("a", 0..10).await;
    until_sent(&relay, &broker, 10).await;
    relay.stop().await.unwrap();
    dropped(&world).await;
    world.append_numbers("a", 10..40).await;
    let next = world.relay(options(&broker, "two"));
    until_sent(&next, &broker, 40).await;
    world.append_numbers("a", 40..50).await;
    until_sent(&next, &broker, 50).await;
    assert_eq!(broker.bodies(), numbers(0..50), "once each, in order");
    let notes = world.texts("select reason from dipmo.audit where action = 'relay.resync'").await;
    assert_eq!(notes, ["the slot is gone"]);
    end(next, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_moved_or_made_anew_by_somebody_else_is_noticed() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    relay.stop().await.unwrap();
    world.append_numbers("a", 0..10).await;
    let advance = format!("pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())", world.slot());
    world.texts(&format!("select end_lsn::text from {advance}")).await;
    let next = world.relay(options(&broker, "two"));
    until_sent(&next, &broker, 10).await;
    next.stop().await.unwrap();
    dropped(&world).await;
    world.append_numbers("a", 10..20).await;
    world
        .texts(&format!(
            "select slot_name::text from pg_create_logical_replication_slot('{}', 'pgoutput')",
            world.slot()
        ))
        .await;
    world.append_numbers("a", 20..30).await;
    let last = world.relay(options(&broker, "three"));
    until_sent(&last, &broker, 30).await;
    until(&last, "the account follows", || async {
        world.count("dipmo.outbox_status where state = 'PENDING'").await == 0
    })
    .await;
    assert_eq!(broker.bodies(), numbers(0..30), "once each, in order");
    let notes = world.texts("select reason from dipmo.audit where action = 'relay.resync'").await;
    assert_eq!(notes, ["the slot was moved or made anew by somebody else"; 2]);
    end(last, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_open_while_the_slot_is_lost_is_not_forgotten() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    let mut writer = world.writer().await;
    let open = writer.transaction().await.unwrap();
    let append = world.sql("select dipmo.outbox_append('KAFKA:orders', 'order', 'slow', 'Placed', 'late')");
    open.execute(&append, &[]).await.unwrap();
    world.append_numbers("a", 0..5).await;
    until_sent(&relay, &broker, 5).await;
    relay.stop().await.unwrap();
    dropped(&world).await;
    let next = world.relay(options(&broker, "two"));
    world.append_numbers("a", 5..10).await;
    // A slot begins when the transactions that run have ended, so the new reader waits for this one.
    let ending = async {
        open.commit().await.unwrap();
    };
    let (sent, ()) = tokio::join!(until_sent(&next, &broker, 11), ending);
    assert_eq!((sent.published, sent.excepted), (6, 0));
    assert_eq!(broker.bodies_of("a"), numbers(0..10));
    assert_eq!(broker.bodies_of("slow"), ["late"]);
    end(next, &world).await;
}
