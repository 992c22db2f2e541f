//! Sends what the outbox holds.
