//! Handlers that write their own tables: they are given the open transaction, so that the inbox
//! entry, their SQL and the messages they send commit together or not at all.

use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use deadpool_postgres::Transaction;
use futures_util::FutureExt as _;

use crate::message::{Message, OutMessage};
use crate::process::Failure;

/// The open transaction, and the messages to send with it.
#[expect(missing_debug_implementations, reason = "an open transaction has nothing to show")]
pub struct Enlisted<'a> {
    tx: &'a Transaction<'a>,
    outbox: Vec<OutMessage>,
}

impl<'a> Enlisted<'a> {
    pub(crate) fn new(tx: &'a Transaction<'a>) -> Self {
        Self { tx, outbox: Vec::new() }
    }

    /// For the handler's own statements. Do not commit or roll back: the runner does.
    pub fn tx(&self) -> &Transaction<'a> {
        self.tx
    }

    /// Sends a message if and only if the transaction commits.
    pub fn send(&mut self, message: OutMessage, cause: &Message) {
        let mut message = message;
        message.caused_by(cause);
        self.outbox.push(message);
    }

    pub(crate) fn into_outbox(self) -> Vec<OutMessage> {
        self.outbox
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
    async fn handle_group(&self, enlisted: &mut Enlisted<'_>, messages: &[Message]) -> Result<(), GroupFailure> {
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
