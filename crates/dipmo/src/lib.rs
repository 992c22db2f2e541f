//! Durable inbox, process manager and outbox: exactly-once effects for event-driven systems.
//!
//! Modules in the order of the flow: [`ingress`] takes records from a broker, [`inbox`] says what
//! becomes of each, [`process`] and [`handler`] are where user code decides, [`runner`] drives them,
//! [`relay`] sends what the outbox holds, [`upkeep`] keeps the tables in shape, [`operator`] looks
//! and repairs. A [`node::Node`] runs them all.

pub mod batch;
pub mod command;
pub mod consumer;
pub mod handler;
pub mod inbox;
pub mod ingress;
pub mod node;
pub mod operator;
pub mod process;
pub mod relay;
pub mod runner;
pub mod saga;
pub mod upkeep;

pub mod store;
pub mod transport;

pub mod backoff;
pub mod clock;
pub mod error;
pub mod failure;
pub mod locate;
pub mod message;
pub mod shutdown;
pub mod span;
pub mod trace;
pub mod wake;

pub use error::{Error, ErrorKind, Result};
pub use message::{Destination, Message, OutMessage};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
