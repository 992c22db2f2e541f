//! The table of services that use Debezium, rows for it, and what Debezium makes of them.
//!
//! tests/debezium holds these expectations against the real Debezium; whatever claims to send such a
//! table as Debezium does is held against the same.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

use dipmo::transport::Record;
use tokio_postgres::Client;
use uuid::Uuid;

/// Before the aggregate type, in the name of a topic.
pub const TOPIC_PREFIX: &str = "outbox.";

/// A row, and the value that PostgreSQL keeps of its payload and Debezium sends.
pub struct Row {
    pub id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: &'static str,
    pub event_type: &'static str,
    pub payload: Option<&'static str>,
    pub value: Option<&'static str>,
}

/// The key, the event type, the payload as written and as sent.
type Sample = (&'static str, &'static str, Option<&'static str>, Option<&'static str>);

/// jsonb sorts names by length, drops repeated ones and white space, and keeps digits: nothing may write it anew.
const SAMPLES: &[Sample] = &[
    ("o-1", "Placed", Some(r#"{"total":12.50,"id":1,"id":2}"#), Some(r#"{"id": 2, "total": 12.50}"#)),
    ("o-2", "Placed", Some(r#"  [ 1,2 , {} , [], null ] "#), Some("[1, 2, {}, [], null]")),
    ("o-1", "Paid", Some(r#"{"name":"grün \u00fc \ud83c\udf4f"}"#), Some(r#"{"name": "grün ü 🍏"}"#)),
    ("o-1", "Paid", Some(r#"{"quote":"\"\\ \/ \n \u001f"}"#), Some(r#"{"quote": "\"\\ / \n \u001f"}"#)),
    ("schlüssel 🔑", "Größe", Some("123456789012345678901234567890.10"), Some("123456789012345678901234567890.10")),
    ("o-2", "Shipped", Some("1e3"), Some("1000")),
    ("o-3", "Text", Some(r#""only text""#), Some(r#""only text""#)),
    ("o-3", "Null", Some("null"), Some("null")),
    ("o-3", "Gone", None, None),
    ("", "NoKey", Some("{}"), Some("{}")),
    ("o-1", "", Some("true"), Some("true")),
];

/// Rows of two aggregate types, of which every other row is one.
pub fn rows(aggregate_types: [&str; 2]) -> Vec<Row> {
    let row = |(number, sample): (usize, &Sample)| Row {
        id: Uuid::now_v7(),
        aggregate_type: aggregate_types[number % 2].to_owned(),
        aggregate_id: sample.0,
        event_type: sample.1,
        payload: sample.2,
        value: sample.3,
    };
    SAMPLES.iter().enumerate().map(row).collect()
}

/// Inserts the rows, each in a transaction of its own.
pub async fn insert(client: &Client, table: &str, rows: &[Row]) {
    let insert = format!(
        "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload, metadata)
         values ($1, $2, $3, $4, $5::text::jsonb, '{{\"user\": \"u1\"}}')"
    );
    for row in rows {
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&row.id, &row.aggregate_type, &row.aggregate_id, &row.event_type, &row.payload];
        client.execute(&insert, &values).await.unwrap();
    }
}

/// What a topic receives of a row: all that is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    pub topic: String,
    pub key: Option<String>,
    pub headers: Vec<(String, Option<String>)>,
    pub value: Option<String>,
}

/// What Debezium sends of a row.
pub fn expected(row: &Row) -> Sent {
    let header = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    Sent {
        topic: format!("{TOPIC_PREFIX}{}", row.aggregate_type),
        key: Some(row.aggregate_id.to_owned()),
        headers: vec![header("id", &row.id.to_string()), header("event_type", row.event_type)],
        value: row.value.map(str::to_owned),
    }
}

/// What was received, in the form in which it is expected.
pub fn received(record: &Record) -> Sent {
    let text = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|b| String::from_utf8(b.to_vec()).unwrap());
    Sent {
        topic: record.topic.clone(),
        key: text(&record.key),
        headers: record.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        value: text(&record.payload),
    }
}

/// Panics unless every row was sent once, as Debezium sends it and in order within its key.
pub fn check(rows: &[Row], records: &[Record]) {
    let of_key = |all: Vec<Sent>| {
        let mut keys = std::collections::BTreeMap::<_, Vec<Sent>>::new();
        for sent in all {
            keys.entry((sent.topic.clone(), sent.key.clone())).or_default().push(sent);
        }
        keys
    };
    assert_eq!(of_key(records.iter().map(received).collect()), of_key(rows.iter().map(expected).collect()));
}
