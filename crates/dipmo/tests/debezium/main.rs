//! The real Debezium beside dipmo: on dipmo's outbox, and on the table that its own users have.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/outbox_messages.rs"]
mod outbox_messages;
#[path = "../support/records.rs"]
mod records;
#[path = "../support/relay.rs"]
mod relay;

mod baseline;
mod dipmo_outbox;
mod peer;
