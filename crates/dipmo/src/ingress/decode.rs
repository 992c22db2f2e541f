//! From the record of a broker to a message: envelope fields from headers or from the payload.
//!
//! Never fails and never panics: what cannot be decoded becomes a message with the raw bytes, as much
//! of the envelope as could be read, and the reason.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::consumer::{Envelope, Field, Format};
use crate::failure::Stage;
use crate::inbox::Fault;
use crate::message::Message;
use crate::transport::Record;

/// A key longer than this is shortened, because it becomes part of index entries.
const KEY_BYTES_MAX: usize = 400;
/// A longer envelope field is a mistake of the sender.
const FIELD_BYTES_MAX: usize = 1_000;

/// Reads the envelope. The fault says why the message cannot be handled as it is.
pub fn decode(record: &Record, system: Option<&str>, envelope: &Envelope) -> (Message, Option<Fault>) {
    let position = format!("{}/{}/{}", record.topic, record.partition, record.offset);
    let place = (Some(record.partition), Some(record.offset));
    decode_at(record, system, envelope, (place, position))
}

/// The same for a record from a place that may have no partitions; `id` is what it is called where it does
/// not say so itself.
pub(super) fn decode_at(
    record: &Record,
    system: Option<&str>,
    envelope: &Envelope,
    ((partition, offset), id): ((Option<i32>, Option<i64>), String),
) -> (Message, Option<Fault>) {
    let mut fields = Fields { envelope, record, body: None, fault: None };
    fields.parse_body();
    let message_id = fields.text(Field::MessageId);
    let aggregate_id = fields.text(Field::AggregateId);
    let mut message = Message {
        inbox_id: 0,
        source: system.unwrap_or(&record.topic).to_owned(),
        key: String::new(),
        key_bytes: None,
        tenant: fields.text(Field::Tenant).unwrap_or_default(),
        aggregate_version: fields.number(Field::AggregateVersion),
        event_type: fields.text(Field::EventType),
        event_version: fields.number(Field::EventVersion),
        correlation_id: fields.text(Field::CorrelationId),
        causation_id: fields.text(Field::CausationId),
        traceparent: fields.text(Field::Traceparent),
        headers: headers_as_json(&record.headers),
        message_id: message_id.unwrap_or(id),
        aggregate_id,
        topic: record.topic.clone(),
        partition,
        offset,
        payload: record.payload.clone(),
        event_time: record.timestamp,
        attempt: 1,
    };
    let fault = fields.fault;
    set_key(&mut message, record.key.clone());
    (message, fault)
}

struct Fields<'a> {
    envelope: &'a Envelope,
    record: &'a Record,
    body: Option<Value>,
    fault: Option<Fault>,
}

impl Fields<'_> {
    /// A tombstone has no payload and is valid in any format.
    fn parse_body(&mut self) {
        let Some(payload) = &self.record.payload else { return };
        if self.envelope.format == Format::Bytes {
            return;
        }
        if self.envelope.pointers.is_empty() {
            if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(payload) {
                self.fail("NOT_JSON", &error.to_string());
            }
            return;
        }
        match serde_json::from_slice(payload) {
            Ok(body) => self.body = Some(body),
            Err(error) => self.fail("NOT_JSON", &error.to_string()),
        }
    }

    fn text(&mut self, field: Field) -> Option<String> {
        // An empty field tells nothing. Taken for an id, it would make every such message a duplicate.
        let told = |text: &String| !text.is_empty();
        let found = self.header(field).filter(told).or_else(|| self.pointed(field).filter(told))?;
        if found.len() > FIELD_BYTES_MAX || found.contains('\0') {
            self.fail("BAD_ENVELOPE", &format!("{field:?} is too long or holds a NUL"));
            return None;
        }
        Some(found)
    }

    fn number<T: FromStr>(&mut self, field: Field) -> Option<T> {
        let text = self.text(field)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.fail("BAD_ENVELOPE", &format!("{field:?} is not a whole number of its size"));
        }
        number
    }

    fn header(&mut self, field: Field) -> Option<String> {
        let name = self.envelope.headers.get(&field)?;
        let (_, value) = self.record.headers.iter().find(|(header, _)| header == name)?;
        match std::str::from_utf8(value.as_deref()?) {
            Ok(text) => Some(text.to_owned()),
            Err(_) => {
                self.fail("BAD_ENVELOPE", &format!("header of {field:?} is not UTF-8"));
                None
            }
        }
    }

    fn pointed(&self, field: Field) -> Option<String> {
        match self.body.as_ref()?.pointer(self.envelope.pointers.get(&field)?)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }

    /// The first reason is the one worth reading.
    fn fail(&mut self, code: &str, why: &str) {
        self.fault.get_or_insert_with(|| Fault::new(Stage::ConsumerSerde, code, why));
    }
}

/// The ordering key: the record's key, else the aggregate, else the message alone.
fn set_key(message: &mut Message, key: Option<Bytes>) {
    let text = match &key {
        None => message.aggregate_id.clone().unwrap_or_else(|| message.message_id.clone()),
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => text.to_owned(),
            _ => hex(bytes),
        },
    };
    let shortened = if text.len() > KEY_BYTES_MAX { hex(&Sha256::digest(text.as_bytes())) } else { text };
    let lossless = key.as_deref().is_none_or(|bytes| bytes == shortened.as_bytes());
    message.key_bytes = if lossless { None } else { key };
    message.key = shortened;
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Header name to text; repeated names become a list, what is not text becomes `{"base64": ...}`.
fn headers_as_json(headers: &[(String, Option<Bytes>)]) -> Option<Map<String, Value>> {
    if headers.is_empty() {
        return None;
    }
    let mut map = Map::with_capacity(headers.len());
    for (name, value) in headers {
        let name = name.replace('\0', "\u{fffd}");
        let value = match value.as_deref().map(std::str::from_utf8) {
            None => Value::Null,
            Some(Ok(text)) if !text.contains('\0') => Value::String(text.to_owned()),
            Some(_) => json!({ "base64": STANDARD.encode(value.as_deref().unwrap_or_default()) }),
        };
        match map.get_mut(&name) {
            None => drop(map.insert(name, value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;

    fn record(payload: &[u8]) -> Record {
        Record {
            topic: "hits".into(),
            partition: 3,
            offset: 7,
            payload: Some(Bytes::copy_from_slice(payload)),
            ..Record::default()
        }
    }

    fn with_header(mut record: Record, name: &str, value: &[u8]) -> Record {
        record.headers.push((name.into(), Some(Bytes::copy_from_slice(value))));
        record
    }

    #[test]
    fn the_position_is_the_id_when_no_header_gives_one() {
        let (message, fault) = decode(&record(b"{}"), None, &Envelope::default());
        assert_eq!((message.message_id.as_str(), message.source.as_str(), fault), ("hits/3/7", "hits", None));
        assert_eq!(message.key, "hits/3/7", "without a key a message is ordered with nothing else");
    }

    #[test]
    fn what_is_not_json_keeps_its_bytes_and_its_headers() {
        let broken = with_header(record(b"{oops"), "event-id", b"e-1");
        let (message, fault) = decode(&broken, Some("ihub"), &Envelope::default());
        assert_eq!((message.message_id.as_str(), message.source.as_str()), ("e-1", "ihub"));
        assert_eq!(message.payload.as_deref(), Some(&b"{oops"[..]));
        assert_eq!(fault.map(|f| (f.stage, f.code)), Some((Stage::ConsumerSerde, "NOT_JSON".into())));
    }

    #[test]
    fn fields_are_found_in_the_payload_where_pointers_are_given() {
        let mut envelope = Envelope::default();
        envelope.pointers.insert(Field::MessageId, "/eventId".into());
        envelope.pointers.insert(Field::AggregateVersion, "/aggregate/version".into());
        let (message, fault) = decode(&record(br#"{"eventId":"e-2","aggregate":{"version":4}}"#), None, &envelope);
        assert_eq!((message.message_id.as_str(), message.aggregate_version, fault), ("e-2", Some(4), None));
    }

    #[test]
    fn an_empty_id_is_no_id_and_a_number_too_large_is_told() {
        let mut envelope = Envelope::default();
        let empty = with_header(record(br#"{"eventId":""}"#), "event-id", b"");
        assert_eq!(decode(&empty, None, &envelope).0.message_id, "hits/3/7");
        envelope.pointers.insert(Field::MessageId, "/eventId".into());
        assert_eq!(decode(&empty, None, &envelope).0.message_id, "hits/3/7");
        let (_, fault) = decode(&with_header(record(b"{}"), "event-version", b"3000000000"), None, &envelope);
        assert_eq!(fault.map(|f| f.code).as_deref(), Some("BAD_ENVELOPE"));
    }

    #[test]
    fn a_binary_key_is_kept_as_it_came() {
        let mut binary = record(b"{}");
        binary.key = Some(Bytes::from_static(&[0, 255, 1]));
        let (message, _) = decode(&binary, None, &Envelope::default());
        assert_eq!((message.key.as_str(), message.key_bytes.as_deref()), ("0x00ff01", Some(&[0, 255, 1][..])));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_leave_a_nul() {
        let seed: u64 = rand::rng().random();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut bytes = |max: usize| {
            let mut bytes = vec![0u8; rng.random_range(0..max)];
            rng.fill_bytes(&mut bytes);
            Bytes::from(bytes)
        };
        for _ in 0..5_000 {
            let mut wild = record(&bytes(60));
            wild.key = Some(bytes(900));
            for (_, name) in Field::ALL {
                wild.headers.push((name.into(), Some(bytes(30))));
            }
            wild.headers.push((String::from_utf8_lossy(&bytes(10)).into_owned(), Some(bytes(10))));
            let (message, _) = decode(&wild, None, &Envelope::default());
            let text = format!("{}{}{:?}{}", message.key, message.message_id, message.event_type, message.tenant);
            assert!(!text.contains('\0'), "seed {seed}");
            assert!(message.key.len() <= KEY_BYTES_MAX, "seed {seed}");
            assert!(!message.headers.is_some_and(|h| Value::Object(h).to_string().contains("\\u0000")), "seed {seed}");
        }
    }
}
