//! The relay over the WAL: the same promises as over the table, and the way from one reader to the other.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/relay.rs"]
mod support;

#[path = "../support/kafka.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod kafka;
#[path = "../support/outbox_messages.rs"]
mod outbox_messages;
#[path = "../support/records.rs"]
mod records;

mod bad_days;
mod emit;
mod foreign;
mod lanes;
mod operator;
mod slot;
mod switch;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::relay::{Relay, RelayOptions, RelayStep};
use dipmo::transport::Outcome;
use support::{Scripted, Turn, World, refused};

const TO: &str = "KAFKA:orders";
const PATIENCE: Duration = Duration::from_secs(60);

/// Only the lane that may read the WAL.
fn options(broker: &Arc<Scripted>, node: &str) -> RelayOptions {
    RelayOptions { internal: false, ..broker.options(node) }
}

impl World {
    async fn read_by(&self, reader: &str) {
        self.execute(&format!("update dipmo.relay_lane set reader = '{reader}' where lane = 'KAFKA'")).await;
    }

    async fn account(&self, column: &str) -> String {
        self.texts(&format!("select {column}::text from dipmo.relay_lane where lane = 'KAFKA'")).await.remove(0)
    }

    fn slot(&self) -> String {
        format!("dipmo_{}_outbox", self.db.schema())
    }

    async fn slot_lsn(&self) -> String {
        let query =
            "select coalesce(max(confirmed_flush_lsn)::text, 'none') from pg_replication_slots where slot_name =";
        self.texts(&format!("{query} '{}'", self.slot())).await.remove(0)
    }
}

/// A schema whose KAFKA lane is read from the WAL; the slot is dropped with it.
async fn wal_world() -> World {
    let world = World::real_time().await;
    world.read_by("wal").await;
    world
}

/// Steps until the condition holds, and tells what all the steps did.
async fn until<F: Future<Output = bool>>(relay: &Relay, label: &str, mut holds: impl FnMut() -> F) -> RelayStep {
    let (begun, mut sum) = (Instant::now(), RelayStep::default());
    loop {
        let step = relay.run_once().await.unwrap();
        sum.published += step.published;
        sum.excepted += step.excepted;
        sum.differences += step.differences;
        if holds().await {
            return sum;
        }
        assert!(begun.elapsed() < PATIENCE, "{label}: not within {PATIENCE:?}");
    }
}

async fn until_sent(relay: &Relay, broker: &Scripted, count: usize) -> RelayStep {
    let label = format!("{count} messages sent");
    until(relay, &label, || async { broker.bodies().len() >= count }).await
}

/// Until the lane stands where the WAL is read.
async fn until_following(relay: &Relay, world: &World) {
    until(relay, "the WAL is read", || async { world.account("position").await != "-" }).await;
}

/// Stops the relay, and takes the slot away so that the server need not keep its WAL.
async fn end(relay: Relay, world: &World) {
    relay.stop().await.unwrap();
    drop(relay);
    let slots = format!("pg_replication_slots where slot_name = '{}'", world.slot());
    while world.count(&format!("{slots} and active")).await > 0 {
        tokio::task::yield_now().await;
    }
    world.texts(&format!("select pg_drop_replication_slot(slot_name)::text from {slots}")).await;
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

impl World {
    async fn append_numbers(&self, key: &str, range: std::ops::Range<usize>) {
        let bodies = numbers(range);
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        self.append(TO, key, &bodies).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_before_and_after_is_sent_once_and_in_order() {
    let (world, broker) = (wal_world().await, Scripted::new());
    world.append_numbers("a", 0..50).await;
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world.append_numbers("a", 50..100).await;
    world.append_numbers("b", 0..20).await;
    until_sent(&relay, &broker, 120).await;
    assert_eq!(broker.bodies_of("a"), numbers(0..100));
    assert_eq!(broker.bodies_of("b"), numbers(0..20));
    until(&relay, "the account follows", || async {
        world.count("dipmo.outbox_status where state = 'PENDING'").await == 0
    })
    .await;
    assert_eq!(world.count("dipmo.outbox_status where published_at is null").await, 0);
    assert_eq!(broker.bodies().len(), 120, "nothing is sent twice");
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_decide_the_order_and_a_rollback_leaves_no_trace() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    let append = world.sql("select dipmo.outbox_append('KAFKA:orders', 'order', 'k', 'Placed', $1)");
    let (mut early, mut lost) = (world.writer().await, world.writer().await);
    let first = early.transaction().await.unwrap();
    first.execute(&append, &[&"began first, committed last"]).await.unwrap();
    let aborted = lost.transaction().await.unwrap();
    aborted.execute(&append, &[&"never"]).await.unwrap();
    world.append(TO, "k", &["in between"]).await;
    until_sent(&relay, &broker, 1).await;
    aborted.rollback().await.unwrap();
    first.commit().await.unwrap();
    until_sent(&relay, &broker, 2).await;
    assert_eq!(broker.bodies(), ["in between", "began first, committed last"]);
    until(&relay, "all is accounted for", || async { world.states("k").await == ["PUBLISHED", "PUBLISHED"] }).await;
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_a_start_go_on_where_they_were() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world.append_numbers("a", 0..30).await;
    until_sent(&relay, &broker, 30).await;
    relay.stop().await.unwrap();
    world.append_numbers("a", 30..60).await;
    let next = world.relay(options(&broker, "two"));
    until_sent(&next, &broker, 60).await;
    until(&next, "all is accounted for", || async {
        world.count("dipmo.outbox_status where state <> 'PUBLISHED'").await == 0
    })
    .await;
    assert_eq!(broker.bodies(), numbers(0..60), "once each, in order");
    assert_eq!(world.count("dipmo.audit").await, 0, "there was nothing to catch up with");
    end(next, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_dies_between_send_and_account_sends_again_and_loses_nothing() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    broker.then(&[Turn::ArrivesAndHangs]);
    world.append_numbers("a", 0..10).await;
    let step = tokio::spawn(async move { relay.run_once().await.map(drop) });
    broker.reached.notified().await;
    step.abort();
    let _ = step.await;
    let next = world.relay(options(&broker, "one"));
    until(&next, "all is accounted for", || async {
        world.count("dipmo.outbox_status where state = 'PUBLISHED'").await == 10
    })
    .await;
    let sent = broker.bodies();
    assert!(sent.len() > 10, "what was not accounted for is sent again: {sent:?}");
    assert_eq!(sent[sent.len() - 10..], numbers(0..10));
    end(next, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_row_parks_its_key_and_the_stream_goes_on() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    broker.poison("bad", Outcome::Rejected(refused("TOO_LARGE")));
    world.append(TO, "ill", &["bad", "behind"]).await;
    world.append_numbers("well", 0..20).await;
    until_sent(&relay, &broker, 20).await;
    assert_eq!(broker.bodies_of("well"), numbers(0..20));
    assert_eq!(world.states("ill").await, ["DEAD", "PARKED"]);
    broker.heal();
    world
        .execute("update dipmo.outbox_exception set state = 'RETRY', next_attempt_at = now() where state = 'DEAD'")
        .await;
    until_sent(&relay, &broker, 22).await;
    assert_eq!(broker.bodies_of("ill"), ["bad", "behind"]);
    until(&relay, "settled", || async { world.states("ill").await == ["PUBLISHED", "PUBLISHED"] }).await;
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_holds_the_slot_and_everything_follows_when_it_is_back() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    broker.poison("0", Outcome::Unknown(refused("SILENT")));
    world.append_numbers("a", 0..40).await;
    let written = world.texts("select pg_current_wal_insert_lsn()::text").await.remove(0);
    assert_eq!(relay.run_once().await.unwrap().published, 0);
    // An orderly stop stores the position, and what was not sent lies behind it.
    relay.stop().await.unwrap();
    let held = format!("dipmo.relay_lane where lane = 'KAFKA' and position < '{written}'::pg_lsn");
    assert_eq!(world.count(&held).await, 1, "the slot must keep what was not sent");
    broker.heal();
    let next = world.relay(options(&broker, "two"));
    until_sent(&next, &broker, 40).await;
    assert_eq!(broker.bodies(), numbers(0..40));
    assert_eq!(world.count("dipmo.outbox_exception").await, 0, "nothing was the rows' fault");
    end(next, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_transaction_arrives_whole_and_in_order() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world
        .execute(
            "insert into dipmo.outbox (shard, destination, key, aggregate_type, aggregate_id, event_type, payload)
             select dipmo.outbox_shard('KAFKA:orders', 'k' || n % 7), 'KAFKA:orders', 'k' || n % 7, 'order', 'o',
                    'Placed', convert_to((n / 7)::text, 'UTF8')
             from generate_series(0, 99999) n",
        )
        .await;
    until_sent(&relay, &broker, 100_000).await;
    assert_eq!(broker.bodies().len(), 100_000);
    for key in 0..7 {
        let bodies = broker.bodies_of(&format!("k{key}"));
        assert_eq!(bodies, numbers(0..bodies.len()), "k{key}");
    }
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_relays_one_reads_and_the_other_takes_over() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let one = world.relay(options(&broker, "one"));
    until_following(&one, &world).await;
    let two = world.relay(options(&broker, "two"));
    world.append_numbers("a", 0..10).await;
    assert_eq!(two.run_once().await.unwrap().shards, 0, "there is one slot, and one reader");
    until_sent(&one, &broker, 10).await;
    one.stop().await.unwrap();
    world.append_numbers("a", 10..20).await;
    until_sent(&two, &broker, 20).await;
    assert_eq!(broker.bodies(), numbers(0..20));
    end(two, &world).await;
}
