//! The form of a message on an AMQP 1.0 broker, out and in.
//!
//! Out: durable, string ids, one Data section with the payload untouched, everything else as application
//! properties, because brokers may replace the ids. In: Data sections or one string; anything else could not
//! be kept byte for byte and is told to be unreadable.

use bytes::Bytes;
use fe2o3_amqp::types::messaging::{ApplicationProperties, Body, Data, Header, Message, MessageId, Properties};
use fe2o3_amqp::types::primitives::{Binary, SimpleValue, Symbol, Timestamp, Value};
use serde_json::Value as Json;
use time::OffsetDateTime;

use super::amqp::Profile;
use super::{Outgoing, Record};

/// What IBM MQ has room for in a correlation id.
const IBM_CORRELATION_BYTES: usize = 24;
/// How often a copy was put away, as an application property.
pub(crate) const ATTEMPT: &str = "dipmoAttempt";
/// Why.
const PUT_AWAY_BECAUSE: &str = "dipmoReason";
/// Headers of a row that have a place of their own in the message.
const REPLY_TO: &str = "replyTo";
const COMMAND_ID: &str = "commandId";

/// A message that can be read.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) record: Record,
    pub(crate) message_id: Option<String>,
    pub(crate) correlation_id: Option<String>,
}

pub(super) fn outgoing(row: &Outgoing<'_>, profile: Profile) -> Message<Body<Value>> {
    let headers = row.headers.and_then(|text| serde_json::from_str::<serde_json::Map<String, Json>>(text).ok());
    let headers = headers.unwrap_or_default();
    let text = |name: &str| headers.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
    let correlation = text(COMMAND_ID).or(row.correlation_id);
    let fits = |id: &&str| profile != Profile::IbmMq || id.len() <= IBM_CORRELATION_BYTES;
    let occurred = i64::try_from(row.occurred_at.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    let properties = Properties {
        message_id: Some(MessageId::String(row.message_id.to_string())),
        correlation_id: correlation.filter(fits).map(|id| MessageId::String(id.to_owned())),
        reply_to: text(REPLY_TO).map(str::to_owned),
        content_type: Some(Symbol::from("application/json")),
        creation_time: Some(Timestamp::from(occurred)),
        ..Properties::default()
    };
    let payload = row.payload.unwrap_or_default().to_vec();
    Message {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: Some(application_properties(row, &headers)),
        body: Body::from(Data(Binary::from(payload))),
        footer: None,
    }
}

/// The row's own fields win over headers of the same name.
fn application_properties(row: &Outgoing<'_>, headers: &serde_json::Map<String, Json>) -> ApplicationProperties {
    let mut map = ApplicationProperties::builder().build();
    for (name, value) in headers.iter().filter(|(name, _)| *name != REPLY_TO) {
        map.insert(name.clone(), plain(value));
    }
    let texts = [
        ("correlationId", row.correlation_id),
        ("causationId", row.causation_id),
        ("traceparent", row.traceparent),
        ("eventType", Some(row.event_type)),
        ("key", Some(row.key)),
        ("tenantId", Some(row.tenant).filter(|tenant| !tenant.is_empty())),
        ("aggregateType", Some(row.aggregate_type)),
        ("aggregateId", Some(row.aggregate_id)),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            map.insert(name.to_owned(), SimpleValue::String(value.to_owned()));
        }
    }
    map.insert("messageId".to_owned(), SimpleValue::String(row.message_id.to_string()));
    map.insert("eventVersion".to_owned(), SimpleValue::Int(row.event_version));
    if let Some(version) = row.aggregate_version {
        map.insert("aggregateVersion".to_owned(), SimpleValue::Long(version));
    }
    map
}

/// What has parts travels as its JSON.
fn plain(value: &Json) -> SimpleValue {
    match value {
        Json::Null => SimpleValue::Null,
        Json::Bool(value) => SimpleValue::Bool(*value),
        Json::String(text) => SimpleValue::String(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => SimpleValue::Long(whole),
            (None, Some(float)) => SimpleValue::Double(float.into()),
            (None, None) => SimpleValue::String(number.to_string()),
        },
        parts => SimpleValue::String(parts.to_string()),
    }
}

/// The message as a record of the queue; the error says why it cannot be read.
pub(crate) fn incoming(queue: &str, message: &Message<Body<Value>>) -> Result<Letter, &'static str> {
    let payload = payload(&message.body)?;
    let properties = message.properties.clone().unwrap_or_default();
    let mut headers: Vec<(String, Option<Bytes>)> = Vec::new();
    if let Some(found) = &message.application_properties {
        headers.extend(found.iter().map(|(name, value)| (name.clone(), text_of(value).map(Bytes::from))));
    }
    let key = headers.iter().find(|(name, _)| name == "key").and_then(|(_, value)| value.clone());
    let key = key.or_else(|| properties.group_id.clone().map(Bytes::from));
    let (message_id, correlation_id) = (id_text(properties.message_id), id_text(properties.correlation_id));
    // For handlers that answer: what they need is not among the application properties of other senders.
    let own =
        [(REPLY_TO, &properties.reply_to), ("amqpMessageId", &message_id), ("amqpCorrelationId", &correlation_id)];
    for (name, value) in own {
        if let Some(value) = value.clone().filter(|_| !headers.iter().any(|(known, _)| known == name)) {
            headers.push((name.to_owned(), Some(Bytes::from(value))));
        }
    }
    let timestamp = properties
        .creation_time
        .and_then(|at| OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.milliseconds()) * 1_000_000).ok());
    let record = Record { topic: queue.to_owned(), key, headers, payload, timestamp, ..Record::default() };
    Ok(Letter { record, message_id, correlation_id })
}

/// A copy to be put away: the same content, one attempt more, and why.
pub(crate) fn put_away(message: Message<Body<Value>>, why: &str) -> Message<Body<Value>> {
    let mut properties = message.application_properties.unwrap_or_else(|| ApplicationProperties::builder().build());
    let before = match properties.get(ATTEMPT) {
        Some(SimpleValue::Int(attempt)) => *attempt,
        _ => 0,
    };
    properties.insert(ATTEMPT.to_owned(), SimpleValue::Int(before.saturating_add(1)));
    properties.insert(PUT_AWAY_BECAUSE.to_owned(), SimpleValue::String(why.to_owned()));
    Message {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: message.properties,
        application_properties: Some(properties),
        body: message.body,
        footer: None,
    }
}

fn payload(body: &Body<Value>) -> Result<Option<Bytes>, &'static str> {
    match body {
        Body::Data(sections) => Ok(Some(sections.iter().flat_map(|data| data.0.iter().copied()).collect())),
        Body::Value(value) => match &value.0 {
            Value::String(text) => Ok(Some(Bytes::from(text.clone()))),
            Value::Binary(bytes) => Ok(Some(Bytes::from(bytes.to_vec()))),
            Value::Null => Ok(None),
            _ => Err("the body is a value that is neither text nor bytes"),
        },
        Body::Sequence(_) => Err("the body is a sequence of values"),
        Body::Empty => Ok(None),
    }
}

fn id_text(id: Option<MessageId>) -> Option<String> {
    let text = match id? {
        MessageId::String(text) => text,
        MessageId::Ulong(number) => number.to_string(),
        MessageId::Uuid(id) => uuid::Uuid::from_bytes(id.into_inner()).to_string(),
        MessageId::Binary(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Some(text).filter(|text| !text.is_empty())
}

fn text_of(value: &SimpleValue) -> Option<String> {
    Some(match value {
        SimpleValue::Null => return None,
        SimpleValue::Bool(value) => value.to_string(),
        SimpleValue::Ubyte(value) => value.to_string(),
        SimpleValue::Ushort(value) => value.to_string(),
        SimpleValue::Uint(value) => value.to_string(),
        SimpleValue::Ulong(value) => value.to_string(),
        SimpleValue::Byte(value) => value.to_string(),
        SimpleValue::Short(value) => value.to_string(),
        SimpleValue::Int(value) => value.to_string(),
        SimpleValue::Long(value) => value.to_string(),
        SimpleValue::Float(value) => value.to_string(),
        SimpleValue::Double(value) => value.to_string(),
        SimpleValue::Char(value) => value.to_string(),
        SimpleValue::Timestamp(value) => value.milliseconds().to_string(),
        SimpleValue::Uuid(value) => uuid::Uuid::from_bytes(value.clone().into_inner()).to_string(),
        SimpleValue::String(value) => value.clone(),
        SimpleValue::Symbol(value) => value.0.clone(),
        other => format!("{other:?}"),
    })
}
