//! Sagas as data: a definition says which commands are sent in which order, and one [`Orchestrator`]
//! drives them all.
//!
//! Nothing in here knows a database, a clock or a broker: the orchestrator is a
//! [`Process`](crate::process::Process), so every answer, timer and operator's wish becomes a decision,
//! and the same input decides the same again. `docs/sagas.md` tells how to write one.
//!
//! Promised: the commands of a saga are sent one after the other under one idempotency key each, what was
//! done is undone in reverse order, and a running saga keeps to the version it began with.
//! Not promised: that a receiver gets a command only once, or that an answer which comes after the end of
//! its saga has any effect.
//!
//! ```
//! use dipmo::saga::{Compensation, Definition, Orchestrator, Registry, Step, check};
//! use serde_json::json;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let undo = Compensation::new("STEP_CANCEL_FX", "CancelFxContract", "KAFKA:fx".parse()?);
//! let saga = Definition::new("PaymentExecution")
//!     .step(
//!         Step::new("STEP_BOOK_FX", "BookFxContract", "KAFKA:fx".parse()?)
//!             .when("input.currency != 'USD'")
//!             .payload(json!({ "currency": "input.currency" }))
//!             .compensation(undo),
//!     )
//!     .step(Step::new("STEP_SUBMIT_PAYMENT", "SubmitPayment", "KAFKA:payments".parse()?));
//! let mut registry = Registry::new();
//! registry.register(saga).map_err(|flaws| format!("{flaws:?}"))?;
//! let orchestrator = Orchestrator::new(registry);
//! assert_eq!(orchestrator.registry().names().collect::<Vec<_>>(), ["PaymentExecution"]);
//!
//! let problems = check("[[saga]]\nname = \"Empty\"\n").unwrap_err();
//! assert_eq!(problems[0].to_string(), "1:1: the saga has no step: it would end before it began; add a step with name, command and to");
//! # Ok(())
//! # }
//! ```

mod cel_json;
mod check;
mod compatible;
mod compiled;
mod data;
mod decide;
mod definition;
mod expression;
mod mapping;
mod names;
mod orchestrator;
mod read;
mod registry;
mod rules;
mod verbs;
mod why;
mod wire;

pub use check::{Problem, check};
pub use compatible::{Live, compatible};
pub use compiled::Compiled;
pub use data::{BatchRef, GivenUp, Held, Paused, SagaData, StepRecord, StepStatus};
pub use definition::{Compensation, Definition, Kind, OnFailure, Step};
pub use orchestrator::{Options, Orchestrator};
pub use registry::Registry;
pub use rules::Flaw;
pub use verbs::{VERBS, possible};
pub use why::{Why, why};

pub use crate::command::START_QUEUE;

/// Where the answers to the commands of sagas go, unless configured otherwise.
pub const REPLY_QUEUE: &str = "APP.CMD.REPLY.Q";

/// The states in which a saga ends; no step may have such a name.
pub mod end_state {
    pub const SUCCEEDED: &str = "SUCCEEDED";
    pub const FAILED: &str = "FAILED";
    pub const COMPENSATED: &str = "COMPENSATED";
    pub(crate) const ALL: [&str; 3] = [SUCCEEDED, FAILED, COMPENSATED];
}
