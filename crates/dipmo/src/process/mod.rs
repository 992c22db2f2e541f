//! Process managers: a pure function decides, the store commits.
//!
//! Effects are data. A [`Process`] is given the current [`Instance`] and one [`Input`] and answers
//! with a [`Decision`]; the runner folds the inputs of a key in order and commits many decisions in
//! one transaction. Because `decide` has no effects of its own, it may be called again at any time.

mod decision;
mod status;

pub use decision::{DEADLINE, Decision, TimerChange, TimerDue};
pub use status::{IllegalStatus, Status, StatusEvent};

use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use uuid::Uuid;

pub use crate::failure::{Failure, Stage};
use crate::message::Message;

/// What a process decides about.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    Message(&'a Message),
    /// A timer that the process set earlier has become due.
    Timer {
        name: &'a str,
    },
}

/// One running process, identified by type, tenant and business key.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    pub id: Uuid,
    pub tenant: String,
    pub business_key: String,
    pub state: String,
    pub status: Status,
    /// Grows by one with every decision.
    pub version: i64,
    pub data: serde_json::Value,
    pub deadline: Option<OffsetDateTime>,
    pub correlation_id: Option<String>,
}

impl Instance {
    /// The data as the type the process keeps in it.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        T::deserialize(&self.data)
            .map_err(|error| Failure::permanent("PROCESS_DATA", format!("stored data does not fit: {error}")))
    }
}

/// A process manager. Must be pure: same arguments, same answer, no effects.
pub trait Process: Send + Sync + 'static {
    /// The type under which instances are stored; never change it once used.
    fn name(&self) -> &str;

    /// The business key of the instance that a message belongs to.
    fn business_key(&self, message: &Message) -> String {
        message.key.clone()
    }

    /// `current` is `None` for the first input of a business key.
    fn decide(&self, current: Option<&Instance>, input: Input<'_>, now: OffsetDateTime) -> Result<Decision, Failure>;
}
