//! Rows that only the broker refuses, in topics without transactions. It refuses whole batches, healthy rows
//! with the bad one, so that the culprit has to be found.
#![allow(unreachable_pub, dead_code, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/kafka.rs"]
mod kafka;
#[path = "kafka_transactions/scene.rs"]
mod scene;

use std::collections::BTreeMap;
use std::time::Duration;

use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use scene::{Event, Scene, names, publish};
use time::OffsetDateTime;

const TOO_LARGE: &str = "rejected KAFKA_MessageSizeTooLarge";
const KEYS: i64 = 20;

/// Without transactional topics.
fn plain(scene: &Scene, change: impl FnOnce(&mut KafkaOptions)) -> KafkaPublisher {
    let mut options = scene.options(Duration::from_secs(30));
    options.transactional_topics.clear();
    change(&mut options);
    KafkaPublisher::new(options).unwrap()
}

fn key_of(id: i64) -> String {
    format!("k{}", id % KEYS)
}

fn events(topic: &str, ids: std::ops::Range<i64>, oversized: &[i64]) -> Vec<Event> {
    let event = |id| {
        let event = Event::new(id, 0, topic, &key_of(id));
        if oversized.contains(&id) { event.oversized() } else { event }
    };
    ids.map(event).collect()
}

/// Only the culprits are rejected, what stands behind them in their keys is held, all the rest is done.
fn expected(events: &[Event], culprits: &[i64]) -> Vec<&'static str> {
    let behind = |id: i64| culprits.iter().any(|culprit| *culprit < id && key_of(*culprit) == key_of(id));
    let outcome = |id: i64| match behind(id) {
        true => "held",
        false if culprits.contains(&id) => TOO_LARGE,
        false => "done",
    };
    events.iter().map(|event| outcome(event.id)).collect()
}

/// What is done can be read once and in the order of its key, and nothing else can be read.
async fn assert_readable(scene: &Scene, topic: &str, events: &[Event], outcomes: &[String]) {
    let mut sent: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (event, _) in events.iter().zip(outcomes).filter(|(_, outcome)| *outcome == "done") {
        sent.entry(event.key.clone()).or_default().push(event.id);
    }
    let mut seen: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for body in scene.uncommitted(topic).await {
        let id: i64 = body.parse().unwrap();
        seen.entry(key_of(id)).or_default().push(id);
    }
    assert_eq!(seen, sent);
}

#[tokio::test]
async fn one_row_that_only_the_broker_refuses_stops_its_key_and_nothing_else() {
    let scene = Scene::new();
    let topic = scene.topic_of_small_messages(3).await.name;
    let publisher = plain(&scene, |_| {});
    let events = events(&topic, 0..200, &[67]);
    let outcomes = names(&publish(&publisher, &events).await);
    assert_eq!(outcomes, expected(&events, &[67]));
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "held").count(), 6);
    assert_readable(&scene, &topic, &events, &outcomes).await;
}

#[tokio::test]
async fn several_culprits_are_found_and_the_publisher_goes_on() {
    let scene = Scene::new();
    let topic = scene.topic_of_small_messages(3).await.name;
    let publisher = plain(&scene, |_| {});
    // Two neighbours, the very first and the very last, and 48 which stands behind 8 in its key.
    let culprits = [0, 8, 9, 48, 199];
    let mut all = events(&topic, 0..200, &culprits);
    let mut outcomes = names(&publish(&publisher, &all).await);
    assert_eq!(outcomes, expected(&all, &culprits));
    for round in 1..4 {
        let more = events(&topic, round * 1000..round * 1000 + 100, &[]);
        let told = names(&publish(&publisher, &more).await);
        assert_eq!(told, ["done"; 100]);
        outcomes.extend(told);
        all.extend(more);
    }
    assert_readable(&scene, &topic, &all, &outcomes).await;
}

/// Here the broker says which row it is, and fails the others of the batch all the same.
#[tokio::test]
async fn a_row_that_is_too_old_for_its_topic_does_not_take_others_with_it() {
    let scene = Scene::new();
    let topic = kafka::Topic::with(&[("message.timestamp.before.max.ms", "86400000")]).await.name;
    let publisher = plain(&scene, |_| {});
    let mut events = events(&topic, 0..100, &[]);
    for event in &mut events {
        // To librdkafka the epoch itself means now.
        let hour = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(3600);
        event.at = if event.id == 33 { hour } else { OffsetDateTime::now_utc() };
    }
    let outcomes = names(&publish(&publisher, &events).await);
    let expected =
        expected(&events, &[33]).into_iter().map(|told| told.replace(TOO_LARGE, "rejected KAFKA_InvalidTimestamp"));
    assert_eq!(outcomes, expected.collect::<Vec<_>>());
    assert_readable(&scene, &topic, &events, &outcomes).await;
}

/// Batches of a partition are under way while an earlier one is refused.
#[tokio::test]
async fn nothing_overtakes_a_batch_that_is_refused() {
    let scene = Scene::new();
    let topic = scene.topic_of_small_messages(2).await.name;
    let publisher = plain(&scene, |options| {
        options.settings.insert("batch.num.messages".to_owned(), "10".to_owned());
    });
    // A broker takes batches with a hole before them from a producer that is new to the partition.
    let mut all = events(&topic, 0..200, &[]);
    let mut outcomes = names(&publish(&publisher, &all).await);
    let more = events(&topic, 1000..4000, &[1500, 1777]);
    outcomes.extend(names(&publish(&publisher, &more).await));
    all.extend(more);
    assert_eq!(outcomes, expected(&all, &[1500, 1777]));
    assert_readable(&scene, &topic, &all, &outcomes).await;
}

#[tokio::test]
async fn other_topics_of_the_same_call_do_not_suffer_from_one_that_is_absent_or_refuses() {
    let scene = Scene::new();
    let (healthy, small) = (scene.topic().await.name, scene.topic_of_small_messages(1).await.name);
    let absent = format!("absent-{}", scene.id);
    let publisher = plain(&scene, |options| options.send_timeout = Duration::from_secs(10));
    let mut all = events(&healthy, 0..60, &[]);
    for event in all.iter_mut().filter(|event| event.id % 3 > 0) {
        event.topic = if event.id % 3 == 1 { absent.clone() } else { small.clone() };
    }
    all[59] = all[59].clone().oversized();
    let outcomes = names(&publish(&publisher, &all).await);
    for (event, outcome) in all.iter().zip(&outcomes) {
        let told = match event.id {
            59 => TOO_LARGE,
            // As librdkafka says it first, or when it knows.
            id if id % 3 == 1 => "rejected KAFKA_UnknownTopic",
            _ => "done",
        };
        assert!(outcome.starts_with(told), "{}: {outcomes:?}", event.id);
    }
    assert_eq!(scene.uncommitted(&healthy).await.len(), 20);
    assert_eq!(scene.uncommitted(&small).await.len(), 19);
}
