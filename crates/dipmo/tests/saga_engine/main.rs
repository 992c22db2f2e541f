//! Sagas without a database: the orchestrator, scripted workers, and a clock that is moved by hand.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checking;
mod envelopes;
mod flow;
mod late;
mod operators;
mod payment;
mod starts;
mod storm;
mod sweep;
mod traces;
mod versions;
mod workers;
mod world;
