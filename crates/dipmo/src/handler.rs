//! Handlers that write their own tables: they are given the open transaction, so that the inbox
//! entry, their SQL and the messages they send commit together or not at all.

use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use time::OffsetDateTime;

use crate::message::{Message, OutMessage};
use crate::process::Failure;
use crate::store::postgres::command_ledger::Answers;
use crate::store::postgres::{Db, Tx};

/// The open transaction, and the messages to send with it.
#[expect(missing_debug_implementations, reason = "an open transaction has nothing to show")]
pub struct Enlisted<'a> {
    db: &'a Db,
    tx: &'a Tx<'a>,
    now: Option<OffsetDateTime>,
    outbox: Vec<OutMessage>,
    answers: Answers,
}

const NOW: &str = "
-- handler.now
select coalesce($1::timestamptz, now())";

impl<'a> Enlisted<'a> {
    pub(crate) fn new(db: &'a Db, tx: &'a Tx<'a>) -> Self {
        Self { db, tx, now: None, outbox: Vec::new(), answers: Answers::default() }
    }

    /// For the handler's own statements. Do not commit or roll back: the runner does.
    pub fn tx(&self) -> &Tx<'a> {
        self.tx
    }

    /// Sends a message if and only if the transaction commits.
    pub fn send(&mut self, message: OutMessage, cause: &Message) {
        let mut message = message;
        message.caused_by(cause);
        self.outbox.push(message);
    }

    /// Sends a message that tells its own cause, such as an event that a command's envelope made.
    pub fn publish(&mut self, message: OutMessage) {
        self.outbox.push(message);
    }

    /// The time of the transaction, by the clock of the database; asked for once.
    pub async fn now(&mut self) -> Result<OffsetDateTime, Failure> {
        if let Some(now) = self.now {
            return Ok(now);
        }
        let statement = self.tx.prepare_cached(NOW).await?;
        let now = self.tx.query_one(&statement, &[&self.db.clock().for_statement()]).await?.get(0);
        Ok(*self.now.insert(now))
    }

    /// For statements of ours that travel together with the handler's.
    pub(crate) fn own_tx(&self) -> &'a Tx<'a> {
        self.tx
    }

    pub(crate) fn db(&self) -> &'a Db {
        self.db
    }

    /// For whoever learned the time on the way.
    pub(crate) fn set_now(&mut self, now: OffsetDateTime) {
        self.now = Some(now);
    }

    /// How many messages are to be sent so far.
    pub(crate) fn sends(&self) -> usize {
        self.outbox.len()
    }

    /// Forgets what was to be sent since there were so many.
    pub(crate) fn unsend(&mut self, down_to: usize) {
        self.outbox.truncate(down_to);
    }

    /// What was published since there were so many, to complete it.
    pub(crate) fn sent_since(&mut self, from: usize) -> &mut [OutMessage] {
        &mut self.outbox[from..]
    }

    /// Answers to commands, written to the ledger together with what the transaction leaves behind.
    pub(crate) fn answers(&mut self) -> &mut Answers {
        &mut self.answers
    }

    pub(crate) fn into_parts(self) -> (Vec<OutMessage>, Answers) {
        (self.outbox, self.answers)
    }
}

/// Handles messages inside the transaction that records them as handled.
///
/// Where spans are exported, the `traceparent` of the messages given is that of the span around their
/// handling, so that whatever is sent because of them continues the trace.
#[async_trait]
pub trait EnlistedHandler: Send + Sync + 'static {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure>;

    /// Handles the messages of one group, in order, in one transaction. Worth overriding where one
    /// statement can serve them all.
    async fn handle_group(&self, enlisted: &mut Enlisted<'_>, messages: &[&Message]) -> Result<(), GroupFailure> {
        for (at, message) in messages.iter().enumerate() {
            let handled = AssertUnwindSafe(self.handle(enlisted, message)).catch_unwind().await;
            let handled = handled.unwrap_or_else(|_| Err(Failure::panicked()));
            handled.map_err(|failure| GroupFailure { at, failure })?;
        }
        Ok(())
    }
}

/// A failure and the message of the group that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFailure {
    /// Index into the group. The transaction is rolled back, and what came before is handled again
    /// without it.
    pub at: usize,
    pub failure: Failure,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// For tests of what is around a handler.
    pub(crate) struct Nothing;

    #[async_trait]
    impl EnlistedHandler for Nothing {
        async fn handle(&self, _: &mut Enlisted<'_>, _: &Message) -> Result<(), Failure> {
            Ok(())
        }
    }
}
