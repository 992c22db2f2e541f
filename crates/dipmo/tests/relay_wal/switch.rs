//! From one reader to the other and back, while writers write.

use std::sync::atomic::{AtomicBool, Ordering};

use dipmo::relay::Relay;

use crate::support::{Scripted, World};
use crate::{TO, end, numbers, options, until};

/// Two writers with keys of their own, one message a transaction, until told to stop.
async fn write_until(world: &World, stop: &AtomicBool, key: &str) -> usize {
    let client = world.writer().await;
    let append = world.sql("select dipmo.outbox_append($1, 'order', $2, 'Placed', $3)");
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        client.execute(&append, &[&TO, &key, &written.to_string()]).await.unwrap();
        written += 1;
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_change_under_load_with_nothing_lost_doubled_or_out_of_order() {
    let (world, broker, stop) = (World::real_time().await, Scripted::new(), AtomicBool::new(false));
    let relay = world.relay(options(&broker, "one"));
    let changing = async {
        for round in 0..3 {
            world.read_by("wal").await;
            until(&relay, "wal", || async { world.account("position").await != "-" }).await;
            let so_far = broker.bodies().len();
            until(&relay, "sent from the WAL", || async { broker.bodies().len() > so_far + 50 }).await;
            world.read_by("poll").await;
            until(&relay, "poll", || async { world.account("slot").await == "-" }).await;
            let so_far = broker.bodies().len();
            until(&relay, "sent from the table", || async { broker.bodies().len() > so_far + 50 }).await;
            assert_eq!(world.slot_lsn().await, "none", "round {round}: no slot is left to keep WAL");
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (a, b, ()) = tokio::join!(write_until(&world, &stop, "a"), write_until(&world, &stop, "b"), changing);
    until(&relay, "all sent", || async { broker.bodies().len() >= a + b }).await;
    assert_eq!(broker.bodies_of("a"), numbers(0..a), "once each, in order");
    assert_eq!(broker.bodies_of("b"), numbers(0..b), "once each, in order");
    end(relay, &world).await;
}

/// Steps both in turn until the condition holds.
async fn both<F: Future<Output = bool>>(relays: &[Relay; 2], label: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..200 {
        for relay in relays {
            relay.run_once().await.unwrap();
        }
        if holds().await {
            return;
        }
    }
    panic!("{label}: never");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_that_share_the_table_hand_over_to_one_that_reads_the_wal() {
    let (world, broker) = (World::real_time().await, Scripted::new());
    let relays = [world.relay(options(&broker, "one")), world.relay(options(&broker, "two"))];
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    for key in &keys {
        world.append_numbers(key, 0..3).await;
    }
    both(&relays, "sent from the table", || async { broker.bodies().len() >= 60 }).await;
    world.read_by("wal").await;
    for key in &keys {
        world.append_numbers(key, 3..6).await;
    }
    both(&relays, "sent on the way", || async { broker.bodies().len() >= 120 }).await;
    both(&relays, "the WAL is read", || async { world.account("position").await != "-" }).await;
    for key in &keys {
        world.append_numbers(key, 6..9).await;
    }
    both(&relays, "sent from the WAL", || async { broker.bodies().len() >= 180 }).await;
    for key in &keys {
        assert_eq!(broker.bodies_of(key), numbers(0..9), "{key}");
    }
    let [one, two] = relays;
    one.stop().await.unwrap();
    end(two, &world).await;
}
