//! The envelope of commands, replies and events: one JSON object, the same on every transport.
//!
//! `docs/envelope.schema.json` describes it. Fields that this version does not know are kept and travel
//! on. The payload is an object; one that arrives as text holding JSON is read as what it holds.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::CommandError;
use crate::failure::Failure;
use crate::message::{Destination, Message, OutMessage, dedupe_key};

/// The version of the envelope itself, in the header `schemaVersion`.
pub const SCHEMA_VERSION: &str = "1";

/// Names of the headers that have a meaning.
pub mod header {
    pub const REPLY_TO: &str = "replyTo";
    pub const TENANT_ID: &str = "tenantId";
    pub const SCHEMA_VERSION: &str = "schemaVersion";
    pub const IDEMPOTENCY_KEY: &str = "idempotencyKey";
    pub const TRACE_ID: &str = "traceId";
    pub const SPAN_ID: &str = "spanId";
    /// Which sending of the command this is, counted from one.
    pub const ATTEMPT: &str = "attempt";
    /// An operator has had it sent again: a failure that was answered before does not count.
    pub const RESUBMITTED: &str = "resubmitted";
    pub const BATCH_ID: &str = "batchId";
    pub const BATCH_ITEM: &str = "batchItem";
}

/// The types with a meaning of their own; events may have any other.
pub mod kind {
    pub const REQUESTED: &str = "CommandRequested";
    /// A worker has begun and wants more time; optional.
    pub const STARTED: &str = "CommandStarted";
    pub const COMPLETED: &str = "CommandCompleted";
    pub const FAILED: &str = "CommandFailed";
    pub const TIMED_OUT: &str = "CommandTimedOut";
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    pub message_id: Uuid,
    /// One of [`kind`], or the type of an event.
    #[serde(rename = "type")]
    pub kind: String,
    /// The command's name.
    pub name: String,
    pub command_id: Uuid,
    /// The saga, for everything that belongs to one.
    pub correlation_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub occurred_at: OffsetDateTime,
    /// What order is kept by.
    pub key: String,
    pub headers: Map<String, Value>,
    pub payload: Value,
    /// What this version does not know.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Who a message is for, without the rest of its envelope.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Heading<'a> {
    #[serde(rename = "type", borrow)]
    pub(crate) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) key: Cow<'a, str>,
    pub(crate) command_id: Uuid,
    pub(crate) correlation_id: Uuid,
}

impl<'a> Heading<'a> {
    /// Of the payload of a message; `None` where that is no envelope, or not a whole one.
    pub(crate) fn of(payload: Option<&'a [u8]>) -> Option<Self> {
        serde_json::from_slice(payload?).ok()
    }
}

impl Envelope {
    /// Reads the payload of a message. What is wrong is told with the field's name, never the payload.
    pub fn of(message: &Message) -> Result<Self, Failure> {
        let bytes = message.payload.as_deref().unwrap_or_default();
        serde_json::from_slice(bytes).map_err(|error| Failure::undecodable("ENVELOPE", error.to_string()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.as_str()
    }

    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.headers.insert(name.to_owned(), value.into());
        self
    }

    /// An answer to this command: same command, correlation and key, caused by it.
    ///
    /// `message_id` is the caller's, because a pure caller must make the same one again.
    pub fn answer(&self, message_id: Uuid, kind: &str, payload: Value, now: OffsetDateTime) -> Self {
        let kept =
            [header::TENANT_ID, header::SCHEMA_VERSION, header::IDEMPOTENCY_KEY, header::TRACE_ID, header::SPAN_ID];
        let kept = kept.iter().filter_map(|name| Some(((*name).to_owned(), self.headers.get(*name)?.clone())));
        Self {
            message_id,
            kind: kind.to_owned(),
            name: self.name.clone(),
            command_id: self.command_id,
            correlation_id: self.correlation_id,
            causation_id: Some(self.message_id.to_string()),
            occurred_at: now,
            key: self.key.clone(),
            headers: kept.collect(),
            payload,
            rest: Map::new(),
        }
    }

    /// An event that this command has brought about. Its id is made of the command's idempotency key and
    /// the kind: a command that is done twice tells of it twice by the same id.
    pub fn event(&self, kind: &str, payload: Value, now: OffsetDateTime) -> Self {
        let id = dedupe_key([self.idempotency_key().as_ref(), &self.name, kind]);
        self.answer(id, kind, payload, now)
    }

    /// What must not be done twice: the key given, else the command itself.
    pub fn idempotency_key(&self) -> Cow<'_, str> {
        match self.header(header::IDEMPOTENCY_KEY) {
            Some(key) => Cow::Borrowed(key),
            None => Cow::Owned(self.command_id.to_string()),
        }
    }

    /// The payload as the type the handler works with. What is wrong is told, never the payload.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, CommandError> {
        T::deserialize(&self.payload).map_err(|error| CommandError::permanent("PAYLOAD", error.to_string()))
    }

    /// As a row of the outbox: the envelope is the payload, and the columns repeat what routing,
    /// ordering and operators need; the headers, what readers of a broker look for beside the body.
    /// `aggregate_type` says whose message it is.
    pub fn into_message(self, destination: Destination, aggregate_type: &str) -> OutMessage {
        let mut message = OutMessage::new(destination, (aggregate_type, &self.key), &self.kind);
        message.message_id = self.message_id;
        message.tenant = self.header(header::TENANT_ID).unwrap_or_default().to_owned();
        message.correlation_id = Some(self.correlation_id.to_string());
        message.causation_id.clone_from(&self.causation_id);
        message.headers = message.destination.leaves_the_database().then(|| self.headings());
        message.payload = Some(Bytes::from(serde_json::to_vec(&self).expect("an envelope serialises without error")));
        message
    }

    fn headings(&self) -> Map<String, Value> {
        let mut headers = Map::new();
        headers.insert("commandId".to_owned(), self.command_id.to_string().into());
        headers.insert("name".to_owned(), self.name.as_str().into());
        if let Some(reply_to) = self.header(header::REPLY_TO) {
            headers.insert(header::REPLY_TO.to_owned(), reply_to.into());
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "messageId": "018f0000-0000-7000-8000-000000000001",
            "type": "CommandRequested",
            "name": "CheckBalance",
            "commandId": "018f0000-0000-7000-8000-000000000002",
            "correlationId": "018f0000-0000-7000-8000-000000000003",
            "causationId": "018f0000-0000-7000-8000-000000000004",
            "occurredAt": "2025-11-02T12:34:56Z",
            "key": "P-1",
            "headers": { "replyTo": "APP.CMD.REPLY.Q", "tenantId": "acme", "x-of-theirs": 7 },
            "payload": { "amount": { "currency": "USD", "value": "100.00" } },
            "priority": "HIGH"
        })
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let envelope: Envelope = serde_json::from_value(sample()).unwrap();
        assert_eq!(serde_json::to_value(&envelope).unwrap(), sample());
    }

    #[test]
    fn a_payload_given_as_text_is_read() {
        let mut text = sample();
        text["payload"] = Value::String(sample()["payload"].to_string());
        let envelope: Envelope = serde_json::from_value(text).unwrap();
        assert_eq!(envelope.payload, sample()["payload"]);
    }

    #[test]
    fn an_answer_belongs_to_the_same_command_and_saga() {
        let command: Envelope = serde_json::from_value(sample()).unwrap();
        let answer = command.answer(Uuid::nil(), kind::COMPLETED, json!({}), OffsetDateTime::UNIX_EPOCH);
        assert_eq!((answer.command_id, answer.correlation_id), (command.command_id, command.correlation_id));
        assert_eq!(answer.causation_id, Some(command.message_id.to_string()));
        assert_eq!(answer.header(header::REPLY_TO), None, "nobody answers an answer");
    }

    #[test]
    fn a_missing_field_is_named() {
        for name in ["messageId", "type", "name", "commandId", "correlationId", "occurredAt", "key"] {
            let mut broken = sample();
            broken.as_object_mut().unwrap().remove(name);
            let error = serde_json::from_value::<Envelope>(broken).unwrap_err();
            assert!(error.to_string().contains(&format!("missing field `{name}`")), "{error}");
        }
    }

    #[test]
    fn what_may_be_left_out_is_empty_then() {
        let mut bare = sample();
        for name in ["causationId", "headers", "payload", "priority"] {
            bare.as_object_mut().unwrap().remove(name);
        }
        let envelope: Envelope = serde_json::from_value(bare).unwrap();
        assert_eq!((envelope.causation_id, envelope.payload), (None, Value::Null));
        assert!(envelope.headers.is_empty() && envelope.rest.is_empty());
    }

    #[test]
    fn a_field_given_twice_or_of_the_wrong_kind_is_refused() {
        let twice = sample().to_string().replacen('{', r#"{"key":"P-2","#, 1);
        let error = serde_json::from_str::<Envelope>(&twice).unwrap_err();
        assert!(error.to_string().contains("duplicate field `key`"), "{error}");
        let mut wrong = sample();
        wrong["occurredAt"] = json!("yesterday");
        assert!(serde_json::from_value::<Envelope>(wrong).is_err());
        assert!(serde_json::from_value::<Envelope>(json!([])).is_err());
    }

    #[test]
    fn names_may_be_written_with_escapes() {
        let escaped = sample().to_string().replacen("\"key\"", "\"\\u006bey\"", 1);
        let envelope: Envelope = serde_json::from_str(&escaped).unwrap();
        assert_eq!(envelope.key, "P-1");
    }
}
