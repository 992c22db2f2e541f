//! The relay against a real Kafka: what a consumer on the other side sees.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dipmo::relay::RelayOptions;
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use support::{World, drain, eager};
use uuid::Uuid;

fn brokers() -> String {
    std::env::var("DIPMO_TEST_KAFKA").expect("run the tests by `cargo xtask test`, which starts the servers")
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers());
    config
}

/// Makes a topic with a name of its own.
async fn topic(settings: &[(&str, &str)]) -> String {
    let name = format!("t{}", Uuid::now_v7().simple());
    let admin: AdminClient<DefaultClientContext> = client().create().unwrap();
    let mut topic = NewTopic::new(&name, 3, TopicReplication::Fixed(1));
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    for made in admin.create_topics([&topic], &AdminOptions::new()).await.unwrap() {
        made.unwrap();
    }
    name
}

/// Reads the first `count` messages of a topic.
async fn read(topic: &str, count: usize) -> Vec<OwnedMessage> {
    let mut config = client();
    config.set("group.id", topic).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    let consumer: StreamConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let mut messages = Vec::new();
    while messages.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(30), consumer.recv()).await;
        messages.push(next.expect("the message is there").unwrap().detach());
    }
    messages
}

fn options(node: &str, change: impl Fn(&mut KafkaOptions)) -> RelayOptions {
    let mut kafka = KafkaOptions::new(brokers());
    kafka.send_timeout = Duration::from_secs(5);
    change(&mut kafka);
    RelayOptions { kafka: Some(Arc::new(KafkaPublisher::new(kafka).unwrap())), ..eager(node) }
}

fn headers(message: &OwnedMessage) -> BTreeMap<String, String> {
    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap_or_default().to_vec()).unwrap();
    message.headers().unwrap().iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
}

#[tokio::test]
async fn a_message_arrives_with_its_envelope_key_time_and_untouched_bytes() {
    let world = World::new().await;
    let topic = topic(&[]).await;
    let bytes: Vec<u8> = (0..=255).collect();
    let sql = world.sql(
        "select dipmo.outbox_append_bytes('KAFKA:' || $1::text, 'quote', 'q1', 'QuoteSubmitted', $2,
             aggregate_version => 7, event_version => 3, tenant => 'acme', key => 'schlüssel',
             correlation_id => 'corr', causation_id => 'cause',
             traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
             headers => '{\"schema-id\": \"s9\"}', occurred_at => '2026-01-02 03:04:05.678Z',
             message_id => '22222222-2222-2222-2222-222222222222')",
    );
    world.db.client().await.unwrap().query(&sql, &[&topic, &bytes]).await.unwrap();
    drain(&world.relay(options("r1", |kafka| kafka.producer = Some("quote-service".into())))).await;
    let message = read(&topic, 1).await.remove(0);
    assert_eq!(message.payload(), Some(&bytes[..]));
    assert_eq!(message.key(), Some("schlüssel".as_bytes()));
    assert_eq!(message.timestamp().to_millis(), Some(1_767_323_045_678));
    let expected = [
        ("aggregate-id", "q1"),
        ("aggregate-type", "quote"),
        ("aggregate-version", "7"),
        ("causation-id", "cause"),
        ("correlation-id", "corr"),
        ("event-id", "22222222-2222-2222-2222-222222222222"),
        ("event-type", "QuoteSubmitted"),
        ("event-version", "3"),
        ("producer", "quote-service"),
        ("schema-id", "s9"),
        ("tenant-id", "acme"),
        ("trace-id", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(headers(&message), expected);
}

#[tokio::test]
async fn a_key_keeps_its_order_and_its_partition() {
    let world = World::new().await;
    let topic = topic(&[]).await;
    world
        .execute(&format!(
            "select dipmo.outbox_append('KAFKA:{topic}', 'order', 'k' || n % 10, 'Placed', n::text)
             from generate_series(1, 2000) n"
        ))
        .await;
    assert_eq!(drain(&world.relay(options("r1", |_| {}))).await.published, 2000);
    let mut last: BTreeMap<String, (i32, i64)> = BTreeMap::new();
    for message in read(&topic, 2000).await {
        let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
        let n: i64 = std::str::from_utf8(message.payload().unwrap()).unwrap().parse().unwrap();
        let before = last.insert(key, (message.partition(), n));
        assert!(before.is_none_or(|(partition, before)| partition == message.partition() && before < n));
    }
    assert_eq!(last.len(), 10);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_dead_and_other_keys_flow() {
    let world = World::new().await;
    let topic = topic(&[]).await;
    let destination = format!("KAFKA:{topic}");
    let huge = "x".repeat(3_000_000);
    world.append(&destination, "a", &["1", &huge, "3"]).await;
    world.append(&destination, "b", &["1"]).await;
    drain(&world.relay(options("r1", |_| {}))).await;
    assert_eq!(world.states("a").await, ["PUBLISHED", "DEAD", "PARKED"]);
    assert_eq!(world.states("b").await, ["PUBLISHED"]);
    let codes = world.texts("select error_code from dipmo.outbox_exception where state = 'DEAD'").await;
    assert_eq!(codes, ["KAFKA_MessageSizeTooLarge"]);
}

#[tokio::test]
async fn a_topic_that_does_not_exist_parks_its_keys_and_other_topics_flow() {
    let world = World::new().await;
    let topic = topic(&[]).await;
    world.append(&format!("KAFKA:{topic}.absent"), "a", &["1", "2"]).await;
    world.append(&format!("KAFKA:{topic}"), "a", &["1"]).await;
    drain(&world.relay(options("r1", |_| {}))).await;
    let states = world.texts("select state from dipmo.outbox_status order by id").await;
    assert_eq!(states, ["DEAD", "PARKED", "PUBLISHED"]);
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_marks_nothing() {
    let world = World::new().await;
    world.append("KAFKA:orders", "a", &["1", "2"]).await;
    let options = options("r1", |kafka| {
        kafka.brokers = format!("127.0.0.1:{}", testbed::free_port().unwrap());
        kafka.send_timeout = Duration::from_millis(300);
    });
    let relay = world.relay(options);
    for _ in 0..3 {
        relay.run_once().await.unwrap();
    }
    assert!(relay.run_once().await.unwrap().breaker_open);
    assert_eq!(world.states("a").await, ["PENDING"; 2]);
    assert_eq!(world.count("dipmo.outbox_exception").await, 0);
}
