//! Debezium on dipmo's outbox, held against what dipmo's own relay sends of the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dipmo::OutMessage;
use dipmo::clock::Clock;
use dipmo::consumer::Envelope;
use dipmo::ingress::decode;
use dipmo::relay::RelayOptions;
use dipmo::transport::Record;
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use serde_json::Value;
use uuid::Uuid;

use crate::peer::{Peer, caught_up, documented, drop_slot};
use crate::records::{Topics, bootstrap};
use crate::relay::{World, drain, eager};

const HEADING: &str = "Debezium on a dipmo outbox";

/// What the page gives the slot and the publication.
const SLOT: &str = "debezium_dipmo";

/// What the page gives `producer`.
const PRODUCER: &str = "shop";

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Everything that a row may hold: all fields and none, text, JSON, bytes, nothing; also for nobody outside.
fn messages(topics: &[String; 2]) -> Vec<OutMessage> {
    let message =
        |topic: usize, key: &str, event_type: &str| OutMessage::kafka(&topics[topic], ("order", key), event_type);
    let headers =
        serde_json::from_str(r#"{"schema-id": "s9", "attempt": 1, "none": null, "event-id": "forged"}"#).unwrap();
    let full = OutMessage {
        tenant: "acme".into(),
        correlation_id: Some("corr".into()),
        causation_id: Some("cause".into()),
        traceparent: Some(TRACEPARENT.into()),
        headers: Some(headers),
        event_version: 3,
        ..message(0, "o-1", "Placed").version(7).keyed("schlüssel 🔑").payload(r#"{"name": "grün 🍏",  "a":1}"#)
    };
    vec![
        full,
        OutMessage { tenant: "other".into(), ..message(0, "o-1", "Placed").version(7).payload("plain text") },
        message(1, "o-2", "Nothing"),
        message(1, "o-2", "Empty").payload(""),
        OutMessage::internal(("order", "o-2"), "Internal").payload("for consumers here"),
        message(0, "o-2", "Bytes").payload((0..=255).collect::<Vec<u8>>()),
        message(0, "", "NoKey").payload("{}"),
    ]
}

async fn append_in_rust(world: &World, messages: &[OutMessage]) {
    let mut client = world.db.client().await.unwrap();
    for message in messages {
        let tx = client.transaction().await.unwrap();
        world.db.append(&tx, std::slice::from_ref(message)).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// Numbers of several keys, several in a transaction, by SQL.
async fn append_in_sql(world: &World, topic: &str, numbers: std::ops::Range<i32>) {
    for number in numbers {
        world
            .execute(&format!(
                "begin;
                 select dipmo.outbox_append('KAFKA:{topic}', 'count', 'k-{0}', 'Counted', '{number}.0');
                 select dipmo.outbox_append('KAFKA:{topic}', 'count', 'k-{0}', 'Counted', '{number}.5',
                     occurred_at => '2026-01-02 03:04:05.678Z');
                 commit",
                number % 4
            ))
            .await;
    }
}

/// The bodies of each key, as they came.
fn by_key(records: &[Record]) -> BTreeMap<(String, Option<Bytes>), Vec<Option<Bytes>>> {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for record in records {
        keys.entry((record.topic.clone(), record.key.clone())).or_default().push(record.payload.clone());
    }
    keys
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let value = record.headers.iter().find(|(header, _)| header == name)?.1.as_ref()?;
    Some(std::str::from_utf8(value).unwrap())
}

/// What the page says Debezium makes of a record of the relay, given the row's own headers.
fn as_debezium(relayed: &Record, own: Option<&str>) -> Vec<(String, Option<String>)> {
    let text = |name: &str| header(relayed, name).map(str::to_owned);
    let mut headers = Vec::new();
    for name in ["event-id", "event-type", "event-version"] {
        headers.push((name.to_owned(), text(name)));
    }
    headers.push(("tenant-id".into(), Some(text("tenant-id").unwrap_or_default())));
    for name in ["correlation-id", "causation-id", "traceparent", "aggregate-type", "aggregate-id", "aggregate-version"]
    {
        headers.push((name.to_owned(), text(name)));
    }
    headers.push(("headers".into(), own.map(str::to_owned)));
    headers.push(("producer".into(), text("producer")));
    headers
}

/// What a consumer of dipmo reads from a record: all but its place, its time and the row's own headers.
fn understood(record: &Record) -> Value {
    let (message, fault) =
        decode(record, None, &Envelope { format: dipmo::consumer::Format::Bytes, ..Envelope::default() });
    assert!(fault.is_none(), "{fault:?}");
    serde_json::json!([
        message.source,
        message.message_id,
        message.key,
        message.tenant,
        message.aggregate_id,
        message.aggregate_version,
        message.event_type,
        message.event_version,
        message.correlation_id,
        message.causation_id,
        message.traceparent,
        message.payload.map(|payload| payload.to_vec()),
    ])
}

/// The same event, sent by both.
fn compare(relayed: &Record, by_debezium: &Record, own: Option<&str>) {
    let text = |(name, value): &(String, Option<Bytes>)| {
        (name.clone(), value.as_ref().map(|value| String::from_utf8(value.to_vec()).unwrap()))
    };
    let headers: Vec<_> = by_debezium.headers.iter().map(text).collect();
    assert_eq!(headers, as_debezium(relayed, own));
    assert_eq!((&by_debezium.topic, by_debezium.partition), (&relayed.topic, relayed.partition));
    assert_eq!((&by_debezium.key, &by_debezium.payload), (&relayed.key, &relayed.payload));
    assert_eq!(understood(by_debezium), understood(relayed));
    assert!(by_debezium.timestamp > relayed.timestamp, "when it was read, which is after it occurred");
}

#[tokio::test]
async fn debezium_sends_a_dipmo_outbox_as_the_page_says() {
    let names = ["a", "b"].map(|name| format!("{name}-{}", Uuid::now_v7()));
    let topics = Topics::create(&[&names[0], &names[1]]).await;
    let mut peer = Peer::new();
    let world = World::on(&peer.url(), Clock::database()).await;
    let client = peer.client().await;
    let setup = documented(HEADING, "sql").replace("schema dipmo ", &format!("schema {} ", world.db.schema()));
    // One by one: a slot cannot be made in a transaction that has written.
    for statement in setup.split(";\n") {
        client.batch_execute(&world.sql(statement)).await.unwrap();
    }

    let messages = messages(&names);
    append_in_rust(&world, &messages).await;
    append_in_sql(&world, &names[0], 0..20).await;
    let mut kafka = KafkaOptions::new(bootstrap());
    kafka.producer = Some(PRODUCER.into());
    let kafka = Some(Arc::new(KafkaPublisher::new(kafka).unwrap()) as Arc<_>);
    let sent = drain(&world.relay(RelayOptions { kafka, ..eager("relay") })).await.published;
    assert_eq!(sent, messages.len() - 1 + 40, "all but the one for INTERNAL");
    let relayed = peer.next(&topics, sent).await;

    let (table, prefix) = (format!("{}.outbox", world.db.schema()), world.db.schema().to_owned());
    let heartbeats = Topics::create(&[&format!("__debezium-heartbeat.{prefix}")]).await;
    let own = [("table.include.list", &*table), ("topic.prefix", &prefix), ("heartbeat.interval.ms", "500")];
    peer.start(HEADING, &own).await;
    let by_debezium = peer.next(&topics, sent).await;
    assert_eq!(by_key(&by_debezium), by_key(&relayed), "other bodies, or another order within a key");
    for record in &by_debezium {
        let id = header(record, "event-id").unwrap();
        let twin = relayed.iter().find(|relayed| header(relayed, "event-id") == Some(id)).unwrap();
        let own = world.texts(&format!("select headers::text from dipmo.outbox where message_id = '{id}'")).await;
        compare(twin, record, Some(own[0].as_str()).filter(|own| *own != "-"));
    }

    append_in_sql(&world, &names[1], 20..40).await;
    let streamed = peer.next(&topics, 40).await;
    let in_order = |bodies: &Vec<Option<Bytes>>| bodies.is_sorted();
    assert!(by_key(&streamed).values().all(in_order), "{streamed:?}");
    client.batch_execute("create table elsewhere as select 1").await.unwrap();
    caught_up(&client, SLOT).await;
    peer.stop().await;
    assert!(heartbeats.count() > 0);
    assert_eq!(topics.count(), i64::try_from(sent * 2 + 40).unwrap(), "none twice, none for INTERNAL");
    check_retention(&world).await;
    drop_slot(&client, SLOT).await;
}

/// The page's statement moves the lane that Debezium serves, and no other.
async fn check_retention(world: &World) {
    world.execute("update dipmo.relay_shard set cursor = 0").await;
    world.execute(&documented("Keeping retention going", "sql")).await;
    let lanes = "select lane || ' ' || (cursor > 0) from dipmo.relay_shard group by 1 order by 1";
    assert_eq!(world.texts(lanes).await, ["AMQP false", "INTERNAL false", "KAFKA true"]);
}
