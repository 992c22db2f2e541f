//! The daemon between two Kafka topics: in, through a SQL function, and out again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use world::World;
use world::daemon::{Daemon, until};

fn brokers() -> String {
    std::env::var("DIPMO_TEST_KAFKA").expect("DIPMO_TEST_KAFKA is not set: run the tests with `cargo xtask test`")
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers());
    config
}

async fn topic(name: &str) {
    let admin: AdminClient<_> = client().create().unwrap();
    let topic = NewTopic::new(name, 2, TopicReplication::Fixed(1));
    admin.create_topics([&topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
}

async fn produce(topic: &str, key: &str, id: &str, payload: &str) {
    let producer: FutureProducer = client().create().unwrap();
    let headers = OwnedHeaders::new()
        .insert(Header { key: "event-id", value: Some(id) })
        .insert(Header { key: "event-type", value: Some("OrderPlaced") });
    let record = FutureRecord::to(topic).key(key).payload(payload).headers(headers);
    producer.send(record, Duration::from_secs(20)).await.unwrap();
}

/// The payloads of the next records of a topic, with their event type.
async fn take(topic: &str, count: usize) -> Vec<(String, String)> {
    let config = client().set("group.id", format!("{topic}-reader")).set("auto.offset.reset", "earliest").clone();
    let consumer: StreamConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let mut taken = Vec::new();
    while taken.len() < count {
        let record =
            tokio::time::timeout(Duration::from_secs(30), consumer.recv()).await.expect("a record in time").unwrap();
        let payload = String::from_utf8_lossy(record.payload().unwrap_or_default()).into_owned();
        let headers =
            record.headers().map(|h| h.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect());
        let headers: Vec<(String, Option<Vec<u8>>)> = headers.unwrap_or_default();
        let kind = headers.iter().find(|(name, _)| name.contains("type")).and_then(|(_, value)| value.clone());
        taken.push((String::from_utf8(kind.unwrap_or_default()).unwrap(), payload));
    }
    taken.sort();
    taken
}

#[tokio::test]
async fn records_go_in_through_a_function_and_out_and_the_undecodable_can_be_repaired() {
    let world = World::new().await;
    let (orders, invoices) = (format!("{}-orders", world.schema), format!("{}-invoices", world.schema));
    topic(&orders).await;
    topic(&invoices).await;
    world
        .run_sql(&format!(
            "create function on_order(message jsonb) returns bigint language sql as $$
             select {}.outbox_append('KAFKA:{invoices}', 'Invoice', message->>'key', 'InvoiceCreated',
                 coalesce(message->>'payload', 'none'), causation_id => message->>'messageId') $$",
            world.schema
        ))
        .await;
    for n in 0..3 {
        produce(&orders, &format!("o-{n}"), &format!("e-{n}"), &format!("{{\"n\":{n}}}")).await;
    }
    produce(&orders, "o-0", "e-0", "{\"n\":0}").await;
    produce(&orders, "o-x", "e-x", "{oops").await;
    let file = |format: &str| {
        format!(
            "[kafka]\nbrokers = \"{}\"\n[[consumer]]\nname = \"{orders}\"\ntopics = [\"{orders}\"]\nformat = \"{format}\"\n\
             handler = {{ sql = \"{}.on_order\" }}\n",
            brokers(),
            world.schema
        )
    };
    let daemon = Daemon::start(&world, &file("json"), &[]);
    daemon.ready().await;
    let sent: Vec<String> =
        take(&invoices, 3).await.into_iter().map(|(kind, payload)| format!("{kind} {payload}")).collect();
    assert_eq!(sent, ["InvoiceCreated {\"n\": 0}", "InvoiceCreated {\"n\": 1}", "InvoiceCreated {\"n\": 2}"]);
    until("the undecodable one is kept", async || world.text("select state from inbox_work").await == "(SERDE_ERROR)")
        .await;
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);
    assert_eq!(world.number("select count(*) from outbox").await, 3, "the duplicate had no effect");
    let again = Daemon::start(&world, &file("bytes"), &[]);
    again.ready().await;
    let stuck = world.dipmo(&["inbox", "list", "--state", "SERDE_ERROR", "-o", "name"]).ok().out;
    world.dipmo(&["inbox", "redecode", stuck.trim(), "--reason", "taken as bytes now"]).ok();
    until("it went out", async || world.number("select count(*) from outbox").await == 4).await;
    again.signal("-TERM");
    assert_eq!(again.ended().code, 0);
}

#[tokio::test]
async fn a_message_that_no_broker_takes_is_given_up_and_what_waited_behind_it_follows() {
    let world = World::new().await;
    let append = "select outbox_append('KAFKA:no such topic!', 'Order', 'o-1', 'OrderPlaced', '{}')";
    let daemon = Daemon::start(&world, &format!("[kafka]\nbrokers = \"{}\"\n", brokers()), &["--role", "relay"]);
    daemon.ready().await;
    world.run_sql(append).await;
    let states = "select state from outbox_exception order by id";
    until("it is DEAD", async || world.text(states).await == "(DEAD)").await;
    world.run_sql(append).await;
    until("the next one waits", async || world.text(states).await == "(DEAD)\n(PARKED)").await;
    let listed = world.dipmo(&["outbox", "list", "--state", "DEAD", "-o", "name"]).ok().out;
    world.dipmo(&["outbox", "discard", listed.trim(), "--reason", "wrong topic", "--yes"]).ok();
    until("the next one was tried", async || world.text(states).await == "(DISCARDED)\n(DEAD)").await;
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);
}
