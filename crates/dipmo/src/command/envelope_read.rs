//! Reads an envelope in one pass.
//!
//! What serde derives for a struct that keeps unknown fields copies every field into a tree of its own first, which
//! cost more than the reading itself.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Envelope;

/// The names on the wire; any other is kept under its own.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    MessageId,
    Type,
    Name,
    CommandId,
    CorrelationId,
    CausationId,
    OccurredAt,
    Key,
    Headers,
    Payload,
    Other(String),
}

#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Rfc3339(#[serde(with = "time::serde::rfc3339")] OffsetDateTime);

/// What has been read so far.
#[derive(Default)]
struct Parts {
    message_id: Option<Uuid>,
    kind: Option<String>,
    name: Option<String>,
    command_id: Option<Uuid>,
    correlation_id: Option<Uuid>,
    causation_id: Option<Option<String>>,
    occurred_at: Option<Rfc3339>,
    key: Option<String>,
    headers: Option<Map<String, Value>>,
    payload: Option<Value>,
    rest: Map<String, Value>,
}

impl Parts {
    fn read<'de, A: MapAccess<'de>>(&mut self, field: Field, from: &mut A) -> Result<(), A::Error> {
        match field {
            Field::MessageId => once(&mut self.message_id, "messageId", from),
            Field::Type => once(&mut self.kind, "type", from),
            Field::Name => once(&mut self.name, "name", from),
            Field::CommandId => once(&mut self.command_id, "commandId", from),
            Field::CorrelationId => once(&mut self.correlation_id, "correlationId", from),
            Field::CausationId => once(&mut self.causation_id, "causationId", from),
            Field::OccurredAt => once(&mut self.occurred_at, "occurredAt", from),
            Field::Key => once(&mut self.key, "key", from),
            Field::Headers => once(&mut self.headers, "headers", from),
            Field::Payload => once(&mut self.payload, "payload", from),
            Field::Other(name) => {
                let value = from.next_value()?;
                self.rest.insert(name, value);
                Ok(())
            }
        }
    }

    fn whole<E: Error>(self) -> Result<Envelope, E> {
        Ok(Envelope {
            message_id: given(self.message_id, "messageId")?,
            kind: given(self.kind, "type")?,
            name: given(self.name, "name")?,
            command_id: given(self.command_id, "commandId")?,
            correlation_id: given(self.correlation_id, "correlationId")?,
            causation_id: self.causation_id.flatten(),
            occurred_at: given(self.occurred_at, "occurredAt")?.0,
            key: given(self.key, "key")?,
            headers: self.headers.unwrap_or_default(),
            payload: object_or_text(self.payload.unwrap_or_default()),
            rest: self.rest,
        })
    }
}

fn once<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    part: &mut Option<T>,
    name: &'static str,
    from: &mut A,
) -> Result<(), A::Error> {
    if part.is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    *part = Some(from.next_value()?);
    Ok(())
}

fn given<T, E: Error>(part: Option<T>, name: &'static str) -> Result<T, E> {
    part.ok_or_else(|| E::missing_field(name))
}

fn object_or_text(payload: Value) -> Value {
    match payload {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        other => other,
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Envelope;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an envelope, which is a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope, A::Error> {
        let mut parts = Parts::default();
        while let Some(field) = map.next_key()? {
            parts.read(field, &mut map)?;
        }
        parts.whole()
    }
}

impl<'de> Deserialize<'de> for Envelope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}
