//! One span for each message of a batch, from the first try to handle it until it is settled.
//!
//! Tries that are rolled back do not show: the span of a message ends with the transaction that settles
//! it, or with the batch that could not be settled. Messages that are only stored have none.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{Span, field, info_span};
use uuid::Uuid;

use super::fold::Delivery;
use crate::error::Error;
use crate::inbox::{Disposition, Settlement};
use crate::message::{Message, OutMessage};
use crate::trace::TraceContext;

/// The open spans of a batch; none where spans are not exported.
#[derive(Debug)]
pub(super) struct Spans<'a> {
    context: Option<&'a dyn TraceContext>,
    consumer: &'a str,
    // Key groups of a batch are handled side by side.
    open: Mutex<HashMap<Id, MessageSpan>>,
}

/// Deliveries are cloned and cut apart on their way: what a message is known by stays.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Id {
    Fresh(Uuid),
    Stored(i64),
}

#[derive(Debug)]
struct MessageSpan {
    span: Span,
    traceparent: Option<String>,
}

impl<'a> Spans<'a> {
    pub(super) fn new(context: Option<&'a Arc<dyn TraceContext>>, consumer: &'a str) -> Self {
        Self { context: context.map(Arc::as_ref), consumer, open: Mutex::default() }
    }

    /// Opens the spans of these deliveries, where that has not been done by an earlier try.
    pub(super) fn open(&self, deliveries: &[Delivery]) {
        let Some(context) = self.context else { return };
        let mut open = self.lock();
        for message in deliveries.iter().filter_map(Delivery::message) {
            open.entry(self.id(message)).or_insert_with(|| {
                let span = message_span(self.consumer, message);
                let traceparent = context.adopt(&span, message.traceparent.as_deref());
                MessageSpan { span, traceparent }
            });
        }
    }

    /// Runs user code for a message inside its span.
    pub(super) fn within<T>(&self, message: &Message, run: impl FnOnce() -> T) -> T {
        match self.context {
            None => run(),
            Some(_) => self.span(message).in_scope(run),
        }
    }

    /// The span of the message, if it is the only one: a group has no span of its own.
    pub(super) fn around(&self, messages: &[&Message]) -> Span {
        match (self.context, messages) {
            (Some(_), [message]) => self.span(message),
            _ => Span::none(),
        }
    }

    /// What the message causes continues its span, unless user code has said otherwise.
    pub(super) fn continued_by(&self, message: &Message, caused: &mut [OutMessage]) {
        if self.context.is_some() && !caused.is_empty() {
            let traceparent = self.traceparent(message);
            for out in caused.iter_mut().filter(|out| out.traceparent.is_none()) {
                out.traceparent.clone_from(&traceparent);
            }
        }
    }

    /// The message as handlers see it: its traceparent is that of its span.
    pub(super) fn as_handled<'m>(&self, message: &'m Message) -> Cow<'m, Message> {
        match self.context.and_then(|_| self.traceparent(message)) {
            None => Cow::Borrowed(message),
            traceparent => Cow::Owned(Message { traceparent, ..message.clone() }),
        }
    }

    /// The deliveries are settled: each span ends, with its outcome.
    pub(super) fn settled(&self, deliveries: &[Delivery], settlement: &Settlement) {
        if self.context.is_none() {
            return;
        }
        let mut open = self.lock();
        let arrived = settlement.arrivals.iter().map(|a| (Id::Fresh(a.dedupe_key), &a.disposition));
        let stored = settlement.stored.iter().map(|s| (Id::Stored(s.inbox_id), &s.disposition));
        for (id, disposition) in arrived.chain(stored) {
            if let Some(MessageSpan { span, .. }) = open.remove(&id) {
                record(&span, disposition);
            }
        }
        for message in deliveries.iter().filter_map(Delivery::message) {
            if let Some(MessageSpan { span, .. }) = open.remove(&self.id(message)) {
                span.record("outcome", "DUPLICATE");
            }
        }
    }

    /// The rest of the batch could not be settled; it comes again.
    pub(super) fn unsettled(&self, error: &Error) {
        for (_, MessageSpan { span, .. }) in self.lock().drain() {
            span.record("outcome", "UNSETTLED");
            failed(&span, &format!("{:?}", error.kind()), &error.to_string());
        }
    }

    fn id(&self, message: &Message) -> Id {
        match message.inbox_id {
            0 => Id::Fresh(message.dedupe_key(self.consumer)),
            inbox_id => Id::Stored(inbox_id),
        }
    }

    fn span(&self, message: &Message) -> Span {
        self.lock().get(&self.id(message)).map_or_else(Span::none, |found| found.span.clone())
    }

    fn traceparent(&self, message: &Message) -> Option<String> {
        self.lock().get(&self.id(message))?.traceparent.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, MessageSpan>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Named as OpenTelemetry's conventions for messaging want it.
fn message_span(consumer: &str, message: &Message) -> Span {
    info_span!(
        parent: None,
        "process",
        otel.name = format!("{consumer} process"),
        otel.kind = "consumer",
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
        error.type = field::Empty,
        messaging.system = system(message),
        messaging.operation.type = "process",
        messaging.destination.name = message.topic,
        messaging.message.id = message.message_id,
        consumer,
        key = message.key,
        attempt = message.attempt,
        outcome = field::Empty,
    )
}

fn system(message: &Message) -> &'static str {
    match message.partition {
        _ if message.source == "INTERNAL" => "dipmo",
        Some(_) => "kafka",
        None => "amqp",
    }
}

fn record(span: &Span, disposition: &Disposition) {
    span.record("outcome", disposition.state().name());
    if let Some(fault) = disposition.fault() {
        failed(span, &fault.code, &fault.message);
    }
}

fn failed(span: &Span, code: &str, message: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", message);
}
