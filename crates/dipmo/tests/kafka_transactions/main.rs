//! Kafka transactions on a real broker: what readers see of a database transaction, all of it or nothing,
//! whoever fails in the middle.
#![allow(unreachable_pub, dead_code, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/kafka.rs"]
mod kafka;
#[path = "../support/relay.rs"]
mod relay;

mod fenced;
mod from_the_wal;
mod killed;
mod outages;
mod relayed;
mod scene;
mod whole;
