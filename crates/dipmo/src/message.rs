//! A message as handlers see it: an envelope with named fields around bytes that stay as received.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::failure::Failure;

/// A message received by a consumer.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The inbox row, once there is one; 0 before.
    pub inbox_id: i64,
    /// Where it came from, part of the dedupe key: the topic, or the name of the source system.
    pub source: String,
    pub message_id: String,
    pub topic: String,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    /// Messages of one key are handled in order.
    pub key: String,
    /// The key as received, when it is not text.
    pub key_bytes: Option<Bytes>,
    pub tenant: String,
    pub aggregate_id: Option<String>,
    pub aggregate_version: Option<i64>,
    pub event_type: Option<String>,
    pub event_version: Option<i32>,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    pub headers: Option<Map<String, Value>>,
    pub payload: Option<Bytes>,
    pub event_time: Option<OffsetDateTime>,
    /// Which attempt this is, counted from one.
    pub attempt: u32,
}

impl Message {
    /// The payload as JSON. What is wrong with it is told in the failure, never the payload itself.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let payload = self.payload.as_deref().unwrap_or(b"null");
        serde_json::from_slice(payload).map_err(|error| Failure::undecodable("JSON", error.to_string()))
    }

    pub fn event_type(&self) -> &str {
        self.event_type.as_deref().unwrap_or("")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.as_ref()?.get(name)?.as_str()
    }

    /// What ties a journey together: the correlation id given, else the message's own id.
    pub fn correlation(&self) -> &str {
        self.correlation_id.as_deref().unwrap_or(&self.message_id)
    }

    /// Where it came from and its bytes, and nothing that was read out of them.
    pub(crate) fn bare(&self) -> Self {
        Self {
            key: self.message_id.clone(),
            key_bytes: self.key_bytes.clone().or_else(|| Some(self.key.clone().into_bytes().into())),
            tenant: String::new(),
            aggregate_id: None,
            aggregate_version: None,
            event_type: None,
            event_version: None,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            event_time: None,
            ..self.clone()
        }
    }

    /// The dedupe key of this message for a consumer.
    pub fn dedupe_key(&self, consumer: &str) -> Uuid {
        dedupe_key([consumer, &self.source, &self.message_id])
    }
}

/// A message to send; it goes out if and only if the transaction that appends it commits.
#[derive(Debug, Clone, PartialEq)]
pub struct OutMessage {
    pub message_id: Uuid,
    pub destination: Destination,
    pub tenant: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    /// Where given, the same event type of the same version is refused a second time.
    pub aggregate_version: Option<i64>,
    pub event_type: String,
    pub event_version: i32,
    /// What order is kept by, the aggregate id unless set.
    pub key: Option<String>,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    pub headers: Option<Map<String, Value>>,
    pub payload: Option<Bytes>,
}

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Consumers in the same database, by event type.
    Internal,
    /// Consumers in the same database that take this queue, whatever the event type.
    InternalQueue {
        queue: String,
    },
    Kafka {
        topic: String,
    },
    /// A queue of a broker that speaks AMQP 1.0.
    Amqp {
        queue: String,
    },
}

impl Destination {
    /// A broker gets it, and not a consumer of the same database.
    pub(crate) fn leaves_the_database(&self) -> bool {
        matches!(self, Self::Kafka { .. } | Self::Amqp { .. })
    }
}

impl OutMessage {
    pub fn new(destination: Destination, aggregate: (&str, &str), event_type: &str) -> Self {
        Self {
            message_id: Uuid::now_v7(),
            destination,
            tenant: String::new(),
            aggregate_type: aggregate.0.to_owned(),
            aggregate_id: aggregate.1.to_owned(),
            aggregate_version: None,
            event_type: event_type.to_owned(),
            event_version: 1,
            key: None,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            payload: None,
        }
    }

    pub fn internal(aggregate: (&str, &str), event_type: &str) -> Self {
        Self::new(Destination::Internal, aggregate, event_type)
    }

    pub fn internal_queue(queue: &str, aggregate: (&str, &str), event_type: &str) -> Self {
        Self::new(Destination::InternalQueue { queue: queue.to_owned() }, aggregate, event_type)
    }

    pub fn amqp(queue: &str, aggregate: (&str, &str), event_type: &str) -> Self {
        Self::new(Destination::Amqp { queue: queue.to_owned() }, aggregate, event_type)
    }

    pub fn kafka(topic: &str, aggregate: (&str, &str), event_type: &str) -> Self {
        Self::new(Destination::Kafka { topic: topic.to_owned() }, aggregate, event_type)
    }

    /// Writes the payload as JSON, once.
    #[must_use]
    pub fn json(mut self, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("a payload type serialises without error");
        self.payload = Some(body.into());
        self
    }

    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    #[must_use]
    pub fn version(mut self, version: i64) -> Self {
        self.aggregate_version = Some(version);
        self
    }

    /// Keep order by this key instead of the aggregate id.
    #[must_use]
    pub fn keyed(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What order is kept by.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.aggregate_id)
    }

    /// Fills in what the message that caused this one tells: tenant, correlation, causation, trace.
    pub(crate) fn caused_by(&mut self, cause: &Message) {
        if self.tenant.is_empty() {
            self.tenant.clone_from(&cause.tenant);
        }
        self.correlation_id.get_or_insert_with(|| cause.correlation().to_owned());
        self.causation_id.get_or_insert_with(|| cause.message_id.clone());
        if self.traceparent.is_none() {
            self.traceparent.clone_from(&cause.traceparent);
        }
    }

    /// The key under which a version of an aggregate emits each event type once.
    pub(crate) fn version_key(&self) -> Option<Uuid> {
        let version = self.aggregate_version?.to_string();
        let parts = [&self.tenant, &self.aggregate_type, &self.aggregate_id, &version, &self.event_type];
        Some(dedupe_key(parts.map(String::as_str)))
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Destination::Internal => f.write_str("INTERNAL"),
            Destination::InternalQueue { queue } => write!(f, "INTERNAL:{queue}"),
            Destination::Kafka { topic } => write!(f, "KAFKA:{topic}"),
            Destination::Amqp { queue } => write!(f, "AMQP:{queue}"),
        }
    }
}

impl std::str::FromStr for Destination {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (transport, place) =
            text.split_once(':').map_or((text, None), |(transport, place)| (transport, Some(place)));
        match (transport, place.filter(|place| !place.is_empty())) {
            ("INTERNAL", None) if place.is_none() => Ok(Destination::Internal),
            ("INTERNAL", Some(queue)) => Ok(Destination::InternalQueue { queue: queue.to_owned() }),
            ("KAFKA", Some(topic)) => Ok(Destination::Kafka { topic: topic.to_owned() }),
            ("AMQP", Some(queue)) => Ok(Destination::Amqp { queue: queue.to_owned() }),
            _ => Err(crate::Error::invalid(format!(
                "unknown destination {text:?}: use INTERNAL, INTERNAL:<queue>, KAFKA:<topic> or AMQP:<queue>"
            ))),
        }
    }
}

/// 16 bytes of SHA-256 over the parts, the same as `dipmo.dedupe_key` in SQL.
///
/// Text in PostgreSQL cannot hold a NUL, so joining with it keeps the parts apart.
pub(crate) fn dedupe_key<'a>(parts: impl IntoIterator<Item = &'a str>) -> Uuid {
    let mut hash = Sha256::new();
    for (n, part) in parts.into_iter().enumerate() {
        if n > 0 {
            hash.update([0]);
        }
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    Uuid::from_slice(&digest[..16]).expect("a SHA-256 digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dedupe_key_keeps_its_parts_apart() {
        assert_ne!(dedupe_key(["a", "bc"]), dedupe_key(["ab", "c"]));
        assert_eq!(dedupe_key(["a", "bc"]), dedupe_key(["a", "bc"]));
    }

    #[test]
    fn destinations_read_back_what_they_print() {
        for text in ["INTERNAL", "INTERNAL:KYC.ENGINE.CMD", "KAFKA:payments.v1", "AMQP:KYC.ENGINE.CMD", "AMQP:a:b"] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        for text in ["", "KAFKA", "KAFKA:", "AMQP", "AMQP:", "internal", "INTERNAL:", "SMTP:x"] {
            assert!(text.parse::<Destination>().is_err(), "{text:?}");
        }
    }
}
