//! What an operator does to readers and slots, and what the relays make of it.

use dipmo::ErrorKind;
use dipmo::operator::Change;
use dipmo::operator::relay::{create_slot, drop_slot, set_reader, status};
use dipmo::relay::Reader;

use crate::support::{Scripted, World};
use crate::{end, numbers, options, until, until_following, until_sent, wal_world};

fn ann() -> Change {
    Change::new("ann", "because").unwrap()
}

async fn emit(world: &World, body: &str) {
    world.texts(&format!("select dipmo.outbox_emit('KAFKA:orders', 'order', 'e', 'Placed', '{body}')::text")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_made_before_the_first_relay_keeps_what_is_emitted() {
    let (world, broker) = (World::real_time().await, Scripted::new());
    set_reader(&world.db, Reader::Wal, &ann()).await.unwrap();
    create_slot(&world.db, &[], &ann()).await.unwrap();
    emit(&world, "emitted").await;
    world.append_numbers("a", 0..10).await;
    let relay = world.relay(options(&broker, "one"));
    until_sent(&relay, &broker, 11).await;
    assert_eq!(broker.bodies_of("e"), ["emitted"]);
    assert_eq!(broker.bodies_of("a"), numbers(0..10));
    assert_eq!(world.count("dipmo.audit where action = 'relay.resync'").await, 0, "it is the relay's own slot");
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_read_is_not_dropped_and_goes_with_its_reader() {
    let (world, broker) = (World::real_time().await, Scripted::new());
    set_reader(&world.db, Reader::Wal, &ann()).await.unwrap();
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    let refused = drop_slot(&world.db, None, true, &ann()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let pid = status(&world.db).await.unwrap().slot("wal").and_then(|slot| slot.active_pid).unwrap();
    assert!(refused.to_string().contains(&format!("is being read by pid {pid}: ")), "{refused}");
    let changed = set_reader(&world.db, Reader::Poll, &ann()).await.unwrap();
    assert_eq!(changed.note, "the WAL is read to its end, then the slot is dropped and the table is read");
    until(&relay, "the slot is gone", || async { status(&world.db).await.unwrap().slots.is_empty() }).await;
    assert_eq!(status(&world.db).await.unwrap().kafka().unwrap().slot, None);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_dropped_by_force_costs_no_row() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    relay.stop().await.unwrap();
    drop(relay);
    world.append_numbers("a", 0..20).await;
    let free = format!("pg_replication_slots where slot_name = '{}' and not active", world.slot());
    while world.count(&free).await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(drop_slot(&world.db, None, false, &ann()).await.unwrap_err().kind(), ErrorKind::Conflict);
    drop_slot(&world.db, None, true, &ann()).await.unwrap();
    create_slot(&world.db, &[], &ann()).await.unwrap();
    let next = world.relay(options(&broker, "two"));
    until_sent(&next, &broker, 20).await;
    assert_eq!(broker.bodies(), numbers(0..20), "once each, in order");
    let notes = world.texts("select reason from dipmo.audit where action = 'relay.resync'").await;
    assert_eq!(
        notes,
        ["the slot was moved or made anew by somebody else"],
        "what was only emitted is gone: it is said"
    );
    end(next, &world).await;
}
