//! One message to send, as it was found in the log.

use bytes::Bytes;
use time::{Duration, OffsetDateTime, PrimitiveDateTime, macros::datetime};
use uuid::Uuid;

/// Where PostgreSQL counts its times from.
const POSTGRES_EPOCH: OffsetDateTime = datetime!(2000-01-01 0:00 UTC);

/// Where a message was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A row of our outbox table.
    Outbox,
    /// A logical message; no table has it.
    Emitted,
    /// A row of the foreign table with this index.
    Foreign(u16),
}

/// The texts of a row, in the order of [`WalRow::texts`].
#[derive(Clone, Copy)]
pub(super) enum Text {
    Destination,
    Key,
    Tenant,
    AggregateType,
    AggregateId,
    EventType,
    CorrelationId,
    CausationId,
    Traceparent,
    Headers,
}

pub(super) const TEXTS: usize = 10;

/// A piece of [`WalRow::held`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// One inserted outbox row, or one emitted message; slices of what was received, the payload is not parsed.
#[derive(Clone)]
pub(crate) struct WalRow {
    pub(super) origin: Origin,
    pub(super) shard: i16,
    pub(super) id: i64,
    pub(super) message_id: Uuid,
    pub(super) aggregate_version: Option<i64>,
    pub(super) event_version: i32,
    /// Microseconds since the server's epoch.
    pub(super) occurred_at: i64,
    pub(super) created_at: i64,
    /// The frame, or texts that were put together from it.
    pub(super) held: Bytes,
    pub(super) texts: [Option<Span>; TEXTS],
    pub(super) payload: Option<Bytes>,
    pub(super) size: usize,
}

impl WalRow {
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// 0 for what no outbox table has; so is the id.
    pub(crate) fn shard(&self) -> i16 {
        self.shard
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(crate) fn message_id(&self) -> Uuid {
        self.message_id
    }

    /// Empty when the message could not be understood; its payload is then all that was received.
    pub(crate) fn destination(&self) -> &str {
        self.text(Text::Destination).unwrap_or_default()
    }

    pub(crate) fn key(&self) -> &str {
        self.text(Text::Key).unwrap_or_default()
    }

    pub(crate) fn tenant(&self) -> &str {
        self.text(Text::Tenant).unwrap_or_default()
    }

    pub(crate) fn aggregate_type(&self) -> &str {
        self.text(Text::AggregateType).unwrap_or_default()
    }

    pub(crate) fn aggregate_id(&self) -> &str {
        self.text(Text::AggregateId).unwrap_or_default()
    }

    pub(crate) fn aggregate_version(&self) -> Option<i64> {
        self.aggregate_version
    }

    pub(crate) fn event_type(&self) -> &str {
        self.text(Text::EventType).unwrap_or_default()
    }

    pub(crate) fn event_version(&self) -> i32 {
        self.event_version
    }

    pub(crate) fn correlation_id(&self) -> Option<&str> {
        self.text(Text::CorrelationId)
    }

    pub(crate) fn causation_id(&self) -> Option<&str> {
        self.text(Text::CausationId)
    }

    pub(crate) fn traceparent(&self) -> Option<&str> {
        self.text(Text::Traceparent)
    }

    /// A JSON text.
    pub(crate) fn headers(&self) -> Option<&str> {
        self.text(Text::Headers)
    }

    pub(crate) fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }

    pub(crate) fn occurred_at(&self) -> OffsetDateTime {
        moment(self.occurred_at)
    }

    pub(crate) fn created_at(&self) -> OffsetDateTime {
        moment(self.created_at)
    }

    /// The bytes it came in.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn text(&self, text: Text) -> Option<&str> {
        let span = self.texts[text as usize]?;
        // The decoder has let no other text in.
        std::str::from_utf8(piece(&self.held, span)).ok()
    }

    /// Whether every text can be read. The server sends UTF-8, unless its database was made as SQL_ASCII.
    pub(super) fn is_readable(&self) -> bool {
        self.texts.iter().flatten().all(|span| std::str::from_utf8(piece(&self.held, *span)).is_ok())
    }
}

impl std::fmt::Debug for WalRow {
    /// Neither payload nor texts: they may be personal.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalRow")
            .field("origin", &self.origin)
            .field("id", &self.id)
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}

pub(super) fn piece(held: &[u8], span: Span) -> &[u8] {
    let start = span.start as usize;
    held.get(start..start + span.len as usize).unwrap_or_default()
}

/// The server's infinities, and times that only it can write, become the last ones that we can.
fn moment(micros: i64) -> OffsetDateTime {
    POSTGRES_EPOCH.checked_add(Duration::microseconds(micros)).unwrap_or(if micros > 0 {
        PrimitiveDateTime::MAX.assume_utc()
    } else {
        PrimitiveDateTime::MIN.assume_utc()
    })
}

pub(super) fn micros_of(moment: OffsetDateTime) -> i64 {
    i64::try_from((moment - POSTGRES_EPOCH).whole_microseconds()).unwrap_or(i64::MAX)
}

/// Texts put together in one allocation, for messages whose texts are no slices of the frame.
#[derive(Default)]
pub(super) struct Texts {
    held: Vec<u8>,
    spans: [Option<Span>; TEXTS],
}

impl Texts {
    pub(super) fn set(&mut self, text: Text, parts: &[&str]) {
        let start = self.held.len();
        for part in parts {
            self.held.extend_from_slice(part.as_bytes());
        }
        let len = self.held.len() - start;
        self.spans[text as usize] = Some(Span { start: start as u32, len: len as u32 });
    }

    pub(super) fn set_some(&mut self, text: Text, value: Option<&str>) {
        if let Some(value) = value {
            self.set(text, &[value]);
        }
    }

    /// A message that has only an origin and these texts so far.
    pub(super) fn into_row(self, origin: Origin, message_id: Uuid, payload: Option<Bytes>, size: usize) -> WalRow {
        WalRow {
            origin,
            shard: 0,
            id: 0,
            message_id,
            aggregate_version: None,
            event_version: 1,
            occurred_at: 0,
            created_at: 0,
            held: self.held.into(),
            texts: self.spans,
            payload,
            size,
        }
    }
}
