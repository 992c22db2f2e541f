//! The INTERNAL lane: consumers in the same database get each message once and in order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::future::poll_fn;
use std::time::Duration;

use dipmo::Message;
use dipmo::consumer::Consumer;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::inbox::PgInbox;
use support::{World, drain, eager};
use tokio_postgres::AsyncMessage;

const BODIES: [&str; 3] = ["1", "2", "3"];

/// A handler that no test lets run.
struct Idle;

#[async_trait::async_trait]
impl EnlistedHandler for Idle {
    async fn handle(&self, _: &mut Enlisted<'_>, _: &Message) -> Result<(), Failure> {
        Err(Failure::permanent("IDLE", "only the hand-over is looked at"))
    }
}

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
async fn a_queue_is_for_those_who_take_it_and_for_nobody_else() {
    let world = World::new().await;
    world.subscribe("engine", "INTERNAL:KYC.CMD").await;
    world.subscribe("second", "INTERNAL:KYC.CMD").await;
    world.subscribe("neighbour", "INTERNAL:KYC.CMD.REPLY").await;
    world.subscribe("types", "Placed").await;
    world.subscribe("audit", "*").await;
    world.append("INTERNAL:KYC.CMD", "a", &BODIES).await;
    world.append("INTERNAL", "a", &["typed"]).await;
    // An event type that reads like a queue is still an event type.
    world.execute("select dipmo.outbox_append('INTERNAL', 'order', 'a', 'INTERNAL:KYC.CMD', 'odd')").await;
    assert_eq!(drain(&world.relay(eager("r1"))).await.handed_over, 5);
    for consumer in ["engine", "second"] {
        assert_eq!(received(&world, consumer, "a").await, BODIES, "{consumer}");
    }
    assert_eq!(received(&world, "neighbour", "a").await, [""; 0]);
    assert_eq!(received(&world, "types", "a").await, ["typed"]);
    assert_eq!(received(&world, "audit", "a").await, ["typed", "odd"]);
    let topics = world
        .texts(
            "select distinct source || ' ' || topic from dipmo.inbox where consumer_id =
                              (select id from dipmo.consumer where name = 'engine')",
        )
        .await;
    assert_eq!(topics, ["INTERNAL INTERNAL:KYC.CMD"], "the handler is told the queue");
    assert_eq!(world.states("a").await, ["PUBLISHED"; 5]);
}

#[tokio::test]
async fn a_registered_consumer_gets_its_queues_and_loses_those_it_no_longer_names() {
    let world = World::new().await;
    let taken = |queues: &'static [&'static str]| Consumer::enlisted("engine", Idle).from_internal_queues(queues);
    PgInbox::register(world.db.clone(), &taken(&["one", "two"])).await.unwrap();
    PgInbox::register(world.db.clone(), &taken(&["two"])).await.unwrap();
    world.append("INTERNAL:one", "a", &["lost to nobody"]).await;
    world.append("INTERNAL:two", "a", &["taken"]).await;
    drain(&world.relay(eager("r1"))).await;
    assert_eq!(received(&world, "engine", "a").await, ["taken"]);
}

#[tokio::test]
async fn every_transport_has_a_lane_of_its_own_and_nothing_else_is_a_destination() {
    let world = World::new().await;
    let lane = |destination: &str| {
        format!("select s.lane from dipmo.relay_shard s where s.shard = dipmo.outbox_shard('{destination}', 'k')")
    };
    for (destination, expected) in
        [("INTERNAL", "INTERNAL"), ("INTERNAL:q", "INTERNAL"), ("KAFKA:t", "KAFKA"), ("AMQP:q", "AMQP")]
    {
        assert_eq!(world.texts(&lane(destination)).await, [expected], "{destination}");
        world.append(destination, "k", &["1"]).await;
    }
    assert_eq!(world.count("dipmo.relay_shard where lane = 'AMQP' and shard between 32 and 47").await, 16);
    let client = world.db.client().await.unwrap();
    for wrong in ["INTERNAL:", "AMQP", "AMQP:", "internal", "SMTP:x"] {
        let append = world.sql(&format!("select dipmo.outbox_append('{wrong}', 'order', 'k', 'Placed', '1')"));
        let refused = client.batch_execute(&append).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.message(), format!("outbox_append: unknown destination {wrong}"));
        assert!(refused.hint().unwrap().contains("AMQP:<queue>"));
    }
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
                 (partition_no, offset_no) = (select o.shard, o.id from dipmo.outbox o) and event_time is not null)
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

#[tokio::test]
async fn workers_of_other_processes_are_told_of_what_they_got() {
    let world = World::new().await;
    world.subscribe("billing", "Placed").await;
    let config: tokio_postgres::Config = world.url.parse().unwrap();
    let (client, mut connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    let (heard, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                heard.send(notification.channel().to_owned()).unwrap();
            }
        }
    });
    let channel = format!("{}_inbox", world.db.schema());
    client.batch_execute(&format!("listen {channel}")).await.unwrap();
    world.append("INTERNAL", "a", &BODIES).await;
    drain(&world.relay(eager("r1"))).await;
    assert_eq!(told.recv().await, Some(channel));
    listening.abort();
}
