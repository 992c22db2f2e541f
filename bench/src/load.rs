//! The messages of the benchmarks: JSON of a fixed size, many keys, the same for every contestant.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use uuid::Uuid;

const WORDS: [&str; 16] = [
    "account",
    "balance",
    "payment",
    "pending",
    "settled",
    "branch",
    "currency",
    "EUR",
    "USD",
    "reference",
    "invoice",
    "customer",
    "review",
    "0000",
    "transfer",
    "domestic",
];

pub(crate) fn key(n: usize, keys: usize) -> String {
    format!("account-{:06}", key_number(n, keys))
}

pub(crate) fn key_number(n: usize, keys: usize) -> usize {
    // A step that is prime to any number of keys in use: neighbours have different keys.
    n.wrapping_mul(7_919) % keys
}

/// JSON of exactly `size` bytes: numbers and words, as compressible as business messages are.
pub(crate) fn payload(n: usize, key: &str, size: usize) -> String {
    let mut text = format!(r#"{{"n":{n},"account":"{key}","amount":{},"text":""#, n % 10_000);
    let mut random = n as u64 ^ 0x9e37_79b9_7f4a_7c15;
    while text.len() + 24 < size {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(random >> 60) as usize]);
        text.push_str(&format!(" {:x} ", (random >> 40) & 0xffff));
    }
    while text.len() + 2 < size {
        text.push('.');
    }
    text.push_str("\"}");
    text
}

/// Payloads made beforehand and taken in turn, so that making them is no part of what is measured.
pub(crate) struct Payloads(Vec<String>);

impl Payloads {
    pub(crate) fn new(keys: usize, size: usize) -> Self {
        Self((0..4_096).map(|n| payload(n, &key(n, keys), size)).collect())
    }

    pub(crate) fn get(&self, n: usize) -> &str {
        &self.0[n % self.0.len()]
    }
}

/// The headers that the relay gives a message with nothing optional in it.
fn headers(key: &str) -> OwnedHeaders {
    let id = Uuid::now_v7().to_string();
    let all = [
        ("event-id", id.as_str()),
        ("event-type", "Moved"),
        ("event-version", "1"),
        ("aggregate-type", "Account"),
        ("aggregate-id", key),
    ];
    let add = |headers: OwnedHeaders, (key, value)| headers.insert(Header { key, value: Some(value) });
    all.into_iter().fold(OwnedHeaders::new_with_capacity(all.len()), add)
}

/// The durable producer that the relay uses, without the relay.
pub(crate) fn produce(
    brokers: &str,
    topic: &str,
    numbers: std::ops::Range<usize>,
    keys: usize,
    payloads: &Payloads,
) -> Result<()> {
    let acks = Acks::default();
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("compression.type", "zstd")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", "200000");
    let producer: ThreadedProducer<Acks> = config.create_with_context(acks.clone())?;
    let count = numbers.len();
    for n in numbers {
        let key = key(n, keys);
        let mut record = BaseRecord::to(topic).key(&key).payload(payloads.get(n)).headers(headers(&key));
        while let Err((error, again)) = producer.send(record) {
            if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                return Err(error).context("producing");
            }
            std::thread::sleep(Duration::from_millis(2));
            record = again;
        }
    }
    producer.flush(Duration::from_secs(60)).context("producing")?;
    let acknowledged = acks.0.load(Ordering::Relaxed);
    if acknowledged != count {
        bail!("{acknowledged} of {count} records were acknowledged");
    }
    Ok(())
}

#[derive(Clone, Default)]
struct Acks(Arc<AtomicUsize>);

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_json_of_the_size_asked_for() {
        for n in [0, 7, 99_999, 1_234_567] {
            let text = payload(n, &key(n, 5_000), 456);
            assert_eq!(text.len(), 456);
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        }
    }
}
