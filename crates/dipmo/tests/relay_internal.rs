//! The INTERNAL lane: consumers in the same database get each message once and in order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::time::Duration;

use dipmo::shutdown::ShutdownTrigger;
use support::{World, drain, eager};

const BODIES: [&str; 3] = ["1", "2", "3"];

async fn received(world: &World, consumer: &str, key: &str) -> Vec<String> {
    world
        .texts(&format!(
            "select convert_from(i.payload, 'UTF8') from dipmo.inbox_status i
             where i.consumer = '{consumer}' and i.key = '{key}' and i.state = 'RECEIVED' order by i.id"
        ))
        .await
}

#[tokio::test]
async fn each_subscriber_gets_each_message_once_and_in_order() {
    let world = World::new().await;
    world.subscribe("billing", "Placed").await;
    world.subscribe("audit", "*").await;
    world.subscribe("audit", "Placed").await;
    world.subscribe("other", "Cancelled").await;
    world.append("INTERNAL", "a", &BODIES).await;
    world.append("INTERNAL", "b", &BODIES).await;
    let relay = world.relay(eager("r1"));
    assert_eq!(drain(&relay).await.handed_over, 6);
    for (consumer, key) in [("billing", "a"), ("billing", "b"), ("audit", "a"), ("audit", "b")] {
        assert_eq!(received(&world, consumer, key).await, BODIES, "{consumer} {key}");
    }
    assert_eq!(world.count("dipmo.inbox").await, 12, "nobody else got anything");
    assert_eq!(world.states("a").await, ["PUBLISHED"; 3]);
    assert_eq!(world.count("dipmo.relay_batch").await, 2, "one line a shard");
}

#[tokio::test]
async fn the_envelope_is_handed_over_field_by_field() {
    let world = World::new().await;
    world.subscribe("billing", "Placed").await;
    world
        .execute(
            "select dipmo.outbox_append('INTERNAL', 'order', 'o1', 'Placed', '{}', aggregate_version => 4,
                 event_version => 2, tenant => 'acme', key => 'k', correlation_id => 'corr', causation_id => 'cause',
                 traceparent => '00-aa-bb-01', headers => '{\"x\": 1}',
                 message_id => '11111111-1111-1111-1111-111111111111')",
        )
        .await;
    drain(&world.relay(eager("r1"))).await;
    let row = world
        .texts(
            "select concat_ws('|', source, message_id, topic, key, tenant, aggregate_id, aggregate_version, event_type,
                 event_version, correlation_id, causation_id, traceparent, headers, convert_from(payload, 'UTF8'),
                 partition_no is null and offset_no is null and event_time is not null)
             from dipmo.inbox",
        )
        .await;
    let id = "11111111-1111-1111-1111-111111111111";
    let expected = format!("INTERNAL|{id}|INTERNAL|k|acme|o1|4|Placed|2|corr|cause|00-aa-bb-01|{{\"x\": 1}}|{{}}|t");
    assert_eq!(row, [expected]);
    let dedupe = world.texts("select (key = dipmo.dedupe_key('billing', 'INTERNAL', '11111111-1111-1111-1111-111111111111'))::text from dipmo.inbox_dedupe").await;
    assert_eq!(dedupe, ["true"], "the same key as any other way into the inbox");
    let work = world.texts("select concat_ws('|', bucket = (hashtextextended('k', 0) & 15), key, aggregate_version, state) from dipmo.inbox_work").await;
    assert_eq!(work, ["t|k|4|RECEIVED"]);
}

#[tokio::test]
async fn a_message_id_that_a_consumer_has_seen_is_not_handed_over_again() {
    let world = World::new().await;
    world.subscribe("billing", "Placed").await;
    let append = "select dipmo.outbox_append('INTERNAL', 'order', 'o1', 'Placed', '{}',
                      message_id => '11111111-1111-1111-1111-111111111111')";
    let relay = world.relay(eager("r1"));
    world.execute(append).await;
    world.execute(append).await;
    drain(&relay).await;
    world.execute(append).await;
    drain(&relay).await;
    assert_eq!(world.count("dipmo.inbox").await, 1);
}

#[tokio::test]
async fn a_relay_that_dies_at_any_point_hands_over_exactly_once() {
    let world = World::new().await;
    world.subscribe("billing", "Placed").await;
    let mut expected = Vec::new();
    // Each of the statements of a step is made to fail in turn, before and in the middle of the hand-over.
    for (n, table) in ["inbox", "inbox_work", "inbox_dedupe", "relay_batch", "relay_shard"].iter().enumerate() {
        let body = format!("{n}");
        world.append("INTERNAL", "a", &[&body]).await;
        expected.push(body);
        let relay = world.relay(eager("r1"));
        world
            .execute(&format!(
                "create function dipmo.fail_{table}() returns trigger language plpgsql as
                     $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
                 create trigger fail after insert or update on dipmo.{table}
                     for each statement when (current_setting('application_name') like '% relay INTERNAL')
                     execute function dipmo.fail_{table}()"
            ))
            .await;
        while relay.run_once().await.is_ok() {}
        drop(relay);
        world.execute(&format!("drop trigger fail on dipmo.{table}")).await;
        drain(&world.relay(eager("r1"))).await;
        assert_eq!(received(&world, "billing", "a").await, expected, "died writing {table}");
    }
}

#[tokio::test]
async fn workers_are_woken_and_an_idle_relay_sends_within_milliseconds() {
    let world = World::real_time().await;
    world.subscribe("billing", "Placed").await;
    let options =
        dipmo::relay::RelayOptions { poll_fallback: Duration::from_secs(30), ..dipmo::relay::RelayOptions::new("r1") };
    let mut woken = options.inbox_wake.listen();
    let relay = world.relay(options);
    let (trigger, shutdown) = ShutdownTrigger::new();
    let running = tokio::spawn(async move { relay.run(shutdown).await });
    world.append("INTERNAL", "first", &["1"]).await;
    woken.fired().await;
    let mut times = Vec::new();
    for n in 0..50 {
        let begun = std::time::Instant::now();
        world.append("INTERNAL", &format!("k{n}"), &["1"]).await;
        tokio::time::timeout(Duration::from_secs(20), woken.fired()).await.expect("a NOTIFY wakes the relay");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("insert to hand-over while idle: median {:?}, worst {:?}", times[25], times[49]);
    trigger.stop();
    running.await.unwrap();
    assert_eq!(world.count("dipmo.relay_shard where owner is not null").await, 0, "shards are given back");
    assert_eq!(world.count("dipmo.node").await, 0);
}
