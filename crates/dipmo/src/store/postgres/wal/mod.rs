//! Reads the outbox from the server's log instead of its table.
//!
//! [`slot`] prepares the server, [`stream`] receives, [`decode`] and [`row`] take apart what was received,
//! [`connect`] opens the connection. A replication connection of our own: the published clients hand every
//! frame through a channel, three frames a row, and bring their own TLS; here whole read buffers are decoded
//! at once, and rows are slices of them.
//!
//! Promise: rows arrive in the order of commits, each at least once; after a reconnect everything that was not
//! confirmed arrives again.

mod cell;
mod connect;
mod decode;
mod envelope;
mod feedback;
mod frame;
mod lsn;
mod row;
pub(crate) mod slot;
mod stream;
#[cfg(test)]
#[path = "tests/world.rs"]
mod test_world;

pub(crate) use lsn::Lsn;
pub(crate) use row::{Origin, WalRow};
pub(crate) use stream::{WalBatch, WalStream};

/// A table that another outbox relay was fed from: `outbox_messages` as Debezium's users lay it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignTable {
    pub schema: String,
    pub table: String,
    /// The topic is this and the aggregate type.
    pub topic_prefix: String,
}

impl ForeignTable {
    /// As SQL names it.
    pub(crate) fn quoted(&self) -> String {
        let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        format!("{}.{}", quote(&self.schema), quote(&self.table))
    }

    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Self {
        Self { schema: schema.into(), table: table.into(), topic_prefix: "outbox.".to_owned() }
    }
}
