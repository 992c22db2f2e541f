//! A message on its way out, from whichever reader it came: the table or the WAL.

use bytes::Bytes;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::relay_internal::Routed;
use super::wal::{Origin, WalRow};
use crate::message::Message;
use crate::transport::{DEBEZIUM_HEADERS, Outgoing};

/// [`OutRow::outgoing`] borrows from it.
#[derive(Debug)]
pub(crate) enum OutRow {
    /// Its columns are in the order of the statements in `relay_rows`.
    Table(Row),
    Wal(WalRow),
}

impl OutRow {
    /// Shard and id; id 0 for a message that has no row in the outbox.
    pub(crate) fn place(&self) -> (i16, i64) {
        match self {
            Self::Table(row) => (row.get(0), row.get(1)),
            Self::Wal(row) => (row.shard(), row.id()),
        }
    }

    pub(crate) fn destination(&self) -> &str {
        match self {
            Self::Table(row) => row.get(3),
            Self::Wal(row) => row.destination(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Table(row) => row.get(4),
            Self::Wal(row) => row.key(),
        }
    }

    pub(crate) fn routed(&self) -> Routed<'_> {
        let row = self.outgoing(0);
        let queue = Some(self.destination()).filter(|destination| *destination != "INTERNAL");
        Routed { shard: row.shard, id: row.id, message_id: row.message_id, event_type: row.event_type, queue }
    }

    /// About what it takes in memory.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Table(row) => row.raw_size_bytes(),
            Self::Wal(row) => row.size(),
        }
    }

    pub(crate) fn created_at(&self) -> OffsetDateTime {
        match self {
            Self::Table(row) => row.get(17),
            Self::Wal(row) => row.created_at(),
        }
    }

    /// As a consumer in the same database gets it; its place in the outbox is its position.
    pub(crate) fn message(&self) -> Message {
        let row = self.outgoing(0);
        let headers = row.headers.and_then(|text| serde_json::from_str(text).ok());
        Message {
            inbox_id: 0,
            source: "INTERNAL".to_owned(),
            message_id: row.message_id.to_string(),
            topic: self.destination().to_owned(),
            partition: Some(i32::from(row.shard)),
            offset: Some(row.id),
            key: row.key.to_owned(),
            key_bytes: None,
            tenant: row.tenant.to_owned(),
            aggregate_id: Some(row.aggregate_id.to_owned()),
            aggregate_version: row.aggregate_version,
            event_type: Some(row.event_type.to_owned()),
            event_version: Some(row.event_version),
            correlation_id: row.correlation_id.map(str::to_owned),
            causation_id: row.causation_id.map(str::to_owned),
            traceparent: row.traceparent.map(str::to_owned),
            headers,
            payload: row.payload.map(Bytes::copy_from_slice),
            event_time: Some(row.occurred_at),
            attempt: 1,
        }
    }

    /// `transaction` is equal for the rows of one database transaction, and 0 where that is not known.
    pub(crate) fn outgoing(&self, transaction: u64) -> Outgoing<'_> {
        match self {
            Self::Table(row) => of_table(row, transaction),
            Self::Wal(row) => of_wal(row, transaction),
        }
    }
}

/// The topic or queue of a row, whose shard has told its transport.
fn place(destination: &str) -> &str {
    destination.split_once(':').map_or(destination, |(_, place)| place)
}

/// What was emitted has no shard: only Kafka is reached that way, and anything else must not look like a topic.
fn topic(destination: &str) -> &str {
    destination.strip_prefix("KAFKA:").unwrap_or(destination)
}

fn of_table(row: &Row, transaction: u64) -> Outgoing<'_> {
    Outgoing {
        id: row.get(1),
        shard: row.get(0),
        transaction,
        message_id: row.get::<_, Uuid>(2),
        topic: place(row.get(3)),
        key: row.get(4),
        tenant: row.get(5),
        aggregate_type: row.get(6),
        aggregate_id: row.get(7),
        aggregate_version: row.get(8),
        event_type: row.get(9),
        event_version: row.get(10),
        correlation_id: row.get(11),
        causation_id: row.get(12),
        traceparent: row.get(13),
        headers: row.get(14),
        payload: row.get(15),
        occurred_at: row.get(16),
    }
}

fn of_wal(row: &WalRow, transaction: u64) -> Outgoing<'_> {
    Outgoing {
        id: row.id(),
        shard: row.shard(),
        transaction,
        message_id: row.message_id(),
        topic: topic(row.destination()),
        key: row.key(),
        tenant: row.tenant(),
        aggregate_type: row.aggregate_type(),
        aggregate_id: row.aggregate_id(),
        aggregate_version: row.aggregate_version(),
        event_type: row.event_type(),
        event_version: row.event_version(),
        correlation_id: row.correlation_id(),
        causation_id: row.causation_id(),
        traceparent: row.traceparent(),
        // A table of another layout is sent as its own relay did: with that relay's headers.
        headers: if matches!(row.origin(), Origin::Foreign(_)) { Some(DEBEZIUM_HEADERS) } else { row.headers() },
        payload: row.payload(),
        occurred_at: row.occurred_at(),
    }
}
