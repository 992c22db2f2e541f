//! Sagas without a database: the orchestrator, scripted workers, and a clock that is moved by hand.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod flow;
mod payment;
mod world;
