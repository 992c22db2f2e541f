//! One span for each message that is sent, from the offer to the broker's answer.

use std::sync::Arc;

use tracing::{Span, field, info_span};

use crate::trace::TraceContext;
use crate::transport::{Outcome, Outgoing};

/// The open spans of a batch, row by row; none where spans are not exported.
#[derive(Default)]
pub(super) struct PublishSpans(Vec<(Span, Option<String>)>);

impl PublishSpans {
    pub(super) fn open(trace: Option<&Arc<dyn TraceContext>>, rows: &[Outgoing<'_>]) -> Self {
        let Some(context) = trace else { return Self::default() };
        let open = |row: &Outgoing<'_>| {
            let span = publish_span(row);
            let traceparent = context.adopt(&span, row.traceparent);
            (span, traceparent)
        };
        Self(rows.iter().map(open).collect())
    }

    /// Whoever receives the messages continues the spans of their sending.
    pub(super) fn continue_in<'a>(&'a self, rows: &mut [Outgoing<'a>]) {
        for (row, (_, traceparent)) in rows.iter_mut().zip(&self.0) {
            row.traceparent = traceparent.as_deref().or(row.traceparent);
        }
    }

    /// The answers are in: each span ends, with its outcome.
    pub(super) fn end(self, outcomes: &[Outcome]) {
        for ((span, _), outcome) in self.0.into_iter().zip(outcomes) {
            let (name, refusal) = match outcome {
                Outcome::Done => ("DONE", None),
                Outcome::Held => ("HELD", None),
                Outcome::Retry(refusal) => ("RETRY", Some(refusal)),
                Outcome::Rejected(refusal) => ("REJECTED", Some(refusal)),
                Outcome::Unknown(refusal) => ("UNKNOWN", Some(refusal)),
            };
            span.record("outcome", name);
            if let Some(refusal) = refusal {
                span.record("error.type", refusal.code.as_str());
                span.record("otel.status_code", "ERROR");
                span.record("otel.status_description", refusal.message.as_str());
            }
        }
    }
}

fn publish_span(row: &Outgoing<'_>) -> Span {
    info_span!(
        parent: None,
        "publish",
        otel.name = format!("{} publish", row.topic),
        otel.kind = "producer",
        messaging.operation.type = "send",
        messaging.destination.name = row.topic,
        messaging.message.id = %row.message_id,
        event_type = row.event_type,
        correlation_id = row.correlation_id,
        outcome = field::Empty,
        error.type = field::Empty,
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
    )
}
