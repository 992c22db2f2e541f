//! A command as its receiver sees it: its place in the ledger, and how it is answered.

use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::envelope::{header, kind};
use super::worker::Answer;
use super::{CommandError, Envelope};
use crate::error::Error;
use crate::failure::Failure;
use crate::message::{Destination, Message, OutMessage, dedupe_key};
use crate::saga::REPLY_QUEUE;
use crate::store::postgres::command_ledger::{Entry, Recorded};

/// Whose messages answers are, in the outbox.
const AGGREGATE_TYPE: &str = "Command";

#[derive(Debug)]
pub(super) struct Command {
    /// Under which it is in the ledger.
    pub(super) key: Uuid,
    pub(super) reply_to: Destination,
    pub(super) envelope: Envelope,
}

impl Command {
    /// `replies_by` is the transport of the answer, unless it goes by that of the command.
    pub(super) fn read(message: &Message, replies_by: Option<&str>) -> Result<Self, Failure> {
        let envelope = Envelope::of(message)?;
        if envelope.kind != kind::REQUESTED {
            let why = format!("a message of type {:?} on a queue for {}", envelope.kind, kind::REQUESTED);
            return Err(Failure::permanent("NOT_A_COMMAND", why));
        }
        let transport = replies_by.unwrap_or_else(|| transport_of(message));
        let queue = envelope.header(header::REPLY_TO).unwrap_or(REPLY_QUEUE);
        let reply_to = format!("{transport}:{queue}")
            .parse()
            .map_err(|error: Error| Failure::permanent("REPLY_TO", error.to_string()))?;
        let tenant = envelope.header(header::TENANT_ID).unwrap_or_default();
        let key = dedupe_key([tenant, &envelope.name, envelope.idempotency_key().as_ref()]);
        Ok(Self { key, reply_to, envelope })
    }

    pub(super) fn is_resubmitted(&self) -> bool {
        self.envelope.headers.get(header::RESUBMITTED).is_some_and(|value| *value != Value::Bool(false))
    }

    /// What the ledger has for it; an operator who sends it again wants another answer than a failure.
    pub(super) fn answered(&self, recorded: Option<&Recorded>) -> Option<Answer> {
        let recorded = recorded?;
        if recorded.answer == kind::COMPLETED {
            return Some(Ok(recorded.payload.clone()));
        }
        let failure = || serde_json::from_value::<CommandError>(recorded.payload.clone()).ok();
        if self.is_resubmitted() { None } else { failure().map(Err) }
    }

    /// What is kept of an answer: all but a failure that may pass.
    pub(super) fn entry(&self, answer: &Answer) -> Option<Entry> {
        let passing = answer.as_ref().is_err_and(|error| error.retryable);
        (!passing).then(|| Entry {
            key: self.key,
            name: self.envelope.name.clone(),
            idempotency_key: self.envelope.idempotency_key().into_owned(),
            command_id: self.envelope.command_id,
            answer: kind_of(answer),
            payload: payload_of(answer),
        })
    }

    /// By the id of the message answered: a repeat of that very message is answered by the same message.
    pub(super) fn reply(&self, answer: &Answer, now: OffsetDateTime) -> OutMessage {
        let id = dedupe_key(["reply", &self.envelope.message_id.to_string()]);
        self.message(id, kind_of(answer), payload_of(answer), now)
    }

    pub(super) fn message(&self, id: Uuid, kind: &str, payload: Value, now: OffsetDateTime) -> OutMessage {
        self.envelope.answer(id, kind, payload, now).into_message(self.reply_to.clone(), AGGREGATE_TYPE)
    }
}

pub(super) fn kind_of(answer: &Answer) -> &'static str {
    if answer.is_ok() { kind::COMPLETED } else { kind::FAILED }
}

pub(super) fn payload_of(answer: &Answer) -> Value {
    match answer {
        Ok(result) => result.clone(),
        Err(error) => serde_json::to_value(error).expect("an error of ours serialises"),
    }
}

/// The transport that a message came by, as destinations name it.
fn transport_of(message: &Message) -> &'static str {
    match (message.source.as_str(), message.partition) {
        ("INTERNAL", _) => "INTERNAL",
        (_, Some(_)) => "KAFKA",
        (_, None) => "AMQP",
    }
}
