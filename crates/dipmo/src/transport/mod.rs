//! Brokers and other places that messages come from and go to, one file each.

pub mod amqp;
pub(crate) mod amqp_message;
mod amqp_sending;
mod amqp_trouble;
pub(crate) mod amqp_wire;
pub mod kafka;
mod kafka_deliveries;
mod kafka_groups;
mod kafka_headers;
mod kafka_polled;
mod kafka_refused;
pub(crate) mod kafka_source;
mod kafka_transaction;
mod kafka_transactions;
mod record;

pub use record::Record;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

/// As the headers of a row: it gets those that Debezium's outbox router gives, and no others. Written as
/// PostgreSQL prints it, so that it survives being kept in the outbox.
pub(crate) const DEBEZIUM_HEADERS: &str = r#"{"$layout": "debezium"}"#;

/// A row of the outbox on its way out; it borrows from the batch it was read in.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    pub id: i64,
    pub shard: i16,
    /// Rows of one database transaction have the same number and stand together; 0 is unknown.
    pub transaction: u64,
    pub message_id: Uuid,
    /// The topic, or the queue.
    pub topic: &'a str,
    /// Order is kept within (topic, key).
    pub key: &'a str,
    pub tenant: &'a str,
    pub aggregate_type: &'a str,
    pub aggregate_id: &'a str,
    pub aggregate_version: Option<i64>,
    pub event_type: &'a str,
    pub event_version: i32,
    pub correlation_id: Option<&'a str>,
    pub causation_id: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    /// A JSON object: what the writer wants to travel with the message.
    pub headers: Option<&'a str>,
    pub payload: Option<&'a [u8]>,
    pub occurred_at: OffsetDateTime,
}

/// What became of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has it, durably.
    Done,
    /// The destination has not taken it and may do so later; the trouble is this row's alone.
    Retry(Refusal),
    /// It can never succeed as it is.
    Rejected(Refusal),
    /// The destination did not answer: it may or may not have it. Sending again is the only way to know.
    Unknown(Refusal),
    /// Not tried, because an earlier row of its key in the same batch failed.
    Held,
}

/// Why a send failed, in words for an operator; carries no payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: String,
    pub message: String,
}

impl Refusal {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// The sending side of a broker.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Sends the rows in the order given, pipelined, and tells what became of each, in the same order.
    ///
    /// Within (topic, key) a row that is known to have failed must not be followed: those behind it are
    /// [`Outcome::Held`]. The call ends within a bounded time, whatever the broker does.
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome>;

    /// Whether rows of this topic are visible together with the others of their database transaction or
    /// not at all. Who calls must bring such a transaction whole, in one call.
    ///
    /// When one row of it cannot be sent, none is: the first row of each (topic, key) in it tells why,
    /// naming the row to blame, and the others are [`Outcome::Held`].
    fn keeps_whole(&self, _topic: &str) -> bool {
        false
    }

    /// Whether there are topics whose transactions are kept whole.
    fn keeps_any_whole(&self) -> bool {
        false
    }

    /// The shards were lost, or taken anew: the next rows of theirs must shut out whoever sent them before.
    fn forget(&self, _shards: &[i16]) {}
}
