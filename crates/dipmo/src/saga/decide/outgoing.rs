//! What a saga sends: commands, its answer, its events. Message ids are made, not drawn, so that deciding
//! again sends the same.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Turn;
use crate::command::Envelope;
use crate::command::envelope::{SCHEMA_VERSION, header, kind};
use crate::message::dedupe_key;
use crate::process::Status;
use crate::saga::compiled::Call;

/// The message id of the n-th send of a command.
pub(super) fn send_id(command_id: Uuid, sends: u32) -> Uuid {
    dedupe_key([command_id.to_string().as_str(), "send", &sends.to_string()])
}

impl Turn<'_> {
    pub(super) fn command_envelope(
        &self,
        call: &Call,
        command: Uuid,
        sends: u32,
        (key, payload): (String, Value),
    ) -> Envelope {
        let mut envelope = self.envelope(kind::REQUESTED, &call.command, send_id(command, sends));
        envelope.command_id = command;
        envelope.key = key;
        envelope.payload = payload;
        if self.data.steps.get(&call.name).is_some_and(|record| record.resubmitted) {
            envelope = envelope.with_header(header::RESUBMITTED, true);
        }
        envelope
            .with_header(header::REPLY_TO, self.context.options.reply_queue.as_str())
            .with_header(header::IDEMPOTENCY_KEY, self.idempotency_key(&call.name))
            .with_header(header::ATTEMPT, sends)
    }

    pub(super) fn idempotency_key(&self, step: &str) -> String {
        format!("{}:{step}", self.id)
    }

    /// Tells whoever started the saga how it ended; nothing where nobody asked.
    pub(super) fn answer(&mut self, kind: &str, payload: Value) {
        let Some(reply_to) = self.data.header(header::REPLY_TO).map(str::to_owned) else { return };
        let envelope =
            Envelope { causation_id: Some(self.data.started_by.to_string()), ..self.answer_envelope(kind, payload) };
        self.send_answer(&reply_to, envelope);
    }

    pub(super) fn send_answer(&mut self, reply_to: &str, envelope: Envelope) {
        match self.context.options.answer_to(reply_to) {
            Some(to) => self.emit.push(envelope.into_message(to, self.context.compiled.name())),
            None => self.note(format!("nobody was answered: replyTo {reply_to:?} is not a queue that can be reached")),
        }
    }

    fn answer_envelope(&self, kind: &str, payload: Value) -> Envelope {
        let mut envelope = self.envelope(kind, self.context.compiled.name(), self.once_id("answer"));
        let theirs = self.data.headers.get(header::IDEMPOTENCY_KEY).cloned();
        envelope.headers.extend(theirs.map(|key| (header::IDEMPOTENCY_KEY.to_owned(), key)));
        envelope.payload = payload;
        envelope
    }

    /// An event of the saga, where its definition names a place for them.
    pub(super) fn event(&mut self, event: &str, detail: impl FnOnce() -> Value) {
        let compiled = self.context.compiled;
        let Some(to) = compiled.definition().events.clone() else { return };
        let mut envelope = self.envelope(event, compiled.name(), self.once_id(event));
        let mut payload = json!({ "sagaId": self.id, "definition": compiled.hash(), "status": self.status.name() });
        if let (Value::Object(payload), Value::Object(detail)) = (&mut payload, detail()) {
            payload.extend(detail);
        }
        envelope.payload = payload;
        self.emit.push(envelope.into_message(to, compiled.name()));
    }

    /// The error of a saga that did not succeed, as its answer and its events carry it.
    pub(super) fn error_payload(&self) -> Value {
        match &self.data.given_up {
            Some(given_up) => json!({
                "code": given_up.error.code, "message": given_up.error.message, "retryable": false,
                "step": given_up.step, "compensated": self.status == Status::Compensated,
            }),
            None => json!({ "code": "FAILED", "message": "the saga has failed", "retryable": false }),
        }
    }

    /// For messages of which a decision sends several at most of different kinds or in a fixed order.
    fn once_id(&self, what: &str) -> Uuid {
        let (id, version, nth) = (self.id.to_string(), self.version.to_string(), self.emit.len().to_string());
        dedupe_key([id.as_str(), what, &version, &nth])
    }

    fn envelope(&self, kind: &str, name: &str, message_id: Uuid) -> Envelope {
        Envelope {
            message_id,
            kind: kind.to_owned(),
            name: name.to_owned(),
            command_id: self.id,
            correlation_id: self.id,
            causation_id: self.cause.message_id.clone(),
            occurred_at: self.context.now,
            key: self.key.clone(),
            headers: self.common_headers(),
            payload: Value::Null,
            rest: Map::new(),
        }
    }

    fn common_headers(&self) -> Map<String, Value> {
        let mut headers = Map::new();
        headers.insert(header::SCHEMA_VERSION.to_owned(), SCHEMA_VERSION.into());
        let tenant = Some(self.tenant.as_str()).filter(|tenant| !tenant.is_empty());
        if let Some(tenant) = tenant.or_else(|| self.data.header(header::TENANT_ID)) {
            headers.insert(header::TENANT_ID.to_owned(), tenant.into());
        }
        match &self.cause.trace {
            Some((trace, span)) => {
                headers.insert(header::TRACE_ID.to_owned(), trace.as_str().into());
                headers.insert(header::SPAN_ID.to_owned(), span.as_str().into());
            }
            None => {
                for name in [header::TRACE_ID, header::SPAN_ID] {
                    headers.extend(self.data.headers.get(name).map(|value| (name.to_owned(), value.clone())));
                }
            }
        }
        headers
    }
}
