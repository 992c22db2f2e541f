//! Messages that were emitted into the log without a table: the length of a JSON envelope, the envelope, the
//! payload.
//!
//! What cannot be understood is neither lost nor in the way: it becomes a row without destination.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::Lsn;
use super::row::{Origin, Text, Texts, WalRow, micros_of};

#[derive(Deserialize)]
struct Envelope<'a> {
    message_id: Option<Uuid>,
    destination: String,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tenant: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_id: Option<Cow<'a, str>>,
    aggregate_version: Option<i64>,
    #[serde(borrow)]
    event_type: Option<Cow<'a, str>>,
    event_version: Option<i32>,
    #[serde(borrow)]
    correlation_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    causation_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    traceparent: Option<Cow<'a, str>>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    occurred_at: Option<Cow<'a, str>>,
}

/// `at` and `committed_at` stand in for what the envelope leaves out.
pub(super) fn row(prefix: &str, at: Lsn, content: Bytes, committed_at: i64) -> WalRow {
    let mut row = understood(prefix, at, &content, committed_at).unwrap_or_else(|| {
        let size = content.len();
        let id = id_of(prefix, at, &content);
        Texts::default().into_row(Origin::Emitted, id, Some(content), size)
    });
    row.created_at = committed_at;
    if row.destination().is_empty() {
        row.occurred_at = committed_at;
    }
    row
}

fn understood(prefix: &str, at: Lsn, content: &Bytes, committed_at: i64) -> Option<WalRow> {
    let (len, rest) = content.split_first_chunk::<4>()?;
    let len = usize::try_from(i32::from_be_bytes(*len)).ok()?;
    let (envelope, payload) = rest.split_at_checked(len)?;
    let envelope: Envelope<'_> = serde_json::from_slice(envelope).ok()?;
    let headers = envelope.headers.map(RawValue::get);
    if envelope.destination.is_empty() || headers.is_some_and(|headers| !headers.starts_with('{')) {
        return None;
    }
    let occurred_at = match envelope.occurred_at.as_deref() {
        None => committed_at,
        Some(text) => micros_of(OffsetDateTime::parse(text, &Rfc3339).ok()?),
    };
    let mut texts = Texts::default();
    texts.set(Text::Destination, &[&envelope.destination]);
    texts.set_some(Text::Key, envelope.key.as_deref().or(envelope.aggregate_id.as_deref()));
    texts.set_some(Text::Tenant, envelope.tenant.as_deref());
    texts.set_some(Text::AggregateType, envelope.aggregate_type.as_deref());
    texts.set_some(Text::AggregateId, envelope.aggregate_id.as_deref());
    texts.set_some(Text::EventType, envelope.event_type.as_deref());
    texts.set_some(Text::CorrelationId, envelope.correlation_id.as_deref());
    texts.set_some(Text::CausationId, envelope.causation_id.as_deref());
    texts.set_some(Text::Traceparent, envelope.traceparent.as_deref());
    texts.set_some(Text::Headers, headers);
    let message_id = envelope.message_id.unwrap_or_else(|| id_of(prefix, at, content));
    let payload = content.slice_ref(payload);
    let mut row = texts.into_row(Origin::Emitted, message_id, Some(payload), content.len());
    row.aggregate_version = envelope.aggregate_version;
    row.event_version = envelope.event_version.unwrap_or(1);
    row.occurred_at = occurred_at;
    Some(row)
}

/// The same whenever the message is read again, so that receivers can drop the repetition.
fn id_of(prefix: &str, at: Lsn, content: &[u8]) -> Uuid {
    let digest = Sha256::new().chain_update(prefix).chain_update(at.0.to_be_bytes()).chain_update(content).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
#[path = "tests/envelope.rs"]
mod tests;
