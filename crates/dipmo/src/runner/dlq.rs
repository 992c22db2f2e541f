//! The mirror of what could not be handled: original event and failure, same key, in order.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::consumer::Consumer;
use crate::inbox::Fault;
use crate::message::{Message, OutMessage};

/// The message for the DLQ topic, if the consumer has one.
pub(super) fn dead_letter(consumer: &Consumer, message: &Message, fault: &Fault) -> Option<OutMessage> {
    let topic = consumer.dlq_topic.as_deref()?;
    let failed_at = OffsetDateTime::now_utc().format(&Rfc3339).expect("RFC 3339 holds every current date");
    let mut body = json!({
        "dlqId": Uuid::now_v7(),
        "consumerName": consumer.name,
        "failedAt": failed_at,
        "failureStage": fault.stage.name(),
        "failureCode": fault.code,
        "failureMessage": fault.message,
        "originalTopic": message.topic,
        "originalPartition": message.partition,
        "originalOffset": message.offset,
        "originalMessageId": message.message_id,
        "originalKey": message.key,
        "originalHeaders": message.headers,
        "attempts": message.attempt,
    });
    match message.payload.as_deref() {
        None => body["originalEvent"] = Value::Null,
        Some(bytes) => match serde_json::from_slice::<Value>(bytes) {
            Ok(event) => body["originalEvent"] = event,
            Err(_) => body["originalEventBase64"] = STANDARD.encode(bytes).into(),
        },
    }
    Some(OutMessage::kafka(topic, ("DeadLetter", &message.key), "DeadLetter").json(&body))
}
