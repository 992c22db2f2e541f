//! Process managers: a pure function decides, the store commits.
//!
//! Effects are data. A [`Process`] is given the current [`Instance`] and one [`Input`] and answers
//! with a [`Decision`]; the runner folds the inputs of a key in order and commits many decisions in
//! one transaction. Because `decide` has no effects of its own, it may be called again at any time.

mod data;
mod decision;
mod status;

pub use data::Data;
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
    /// Somebody on duty wants something done.
    Operator(&'a OperatorAction),
}

/// What an operator wants of a process, and who answers for it.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorAction {
    pub verb: OperatorVerb,
    pub actor: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OperatorVerb {
    /// Hold it where it is.
    Pause,
    /// Let a paused one go on.
    Resume,
    /// Send the command of the current step again, under its old idempotency key.
    Resubmit,
    /// Go on with the next step as if this one were done.
    Skip,
    /// Undo what was done and end.
    Compensate,
    /// End it as succeeded, because something outside proves that it was.
    ForceComplete { evidence: String },
}

impl OperatorVerb {
    pub fn name(&self) -> &'static str {
        match self {
            OperatorVerb::Pause => "pause",
            OperatorVerb::Resume => "resume",
            OperatorVerb::Resubmit => "resubmit",
            OperatorVerb::Skip => "skip",
            OperatorVerb::Compensate => "compensate",
            OperatorVerb::ForceComplete { .. } => "force-complete",
        }
    }
}

/// Which instance a message belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The one of this type and business key in the tenant of the message; made if it is not there.
    Key { process_type: String, business_key: String },
    /// One that is there already.
    Id(Uuid),
}

/// One running process, identified by type, tenant and business key.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    pub id: Uuid,
    pub process_type: String,
    pub tenant: String,
    pub business_key: String,
    pub state: String,
    pub status: Status,
    /// Grows by one with every decision.
    pub version: i64,
    pub data: Data,
    pub deadline: Option<OffsetDateTime>,
    pub correlation_id: Option<String>,
}

impl Instance {
    /// The data as the type the process keeps in it.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        self.data.read()
    }
}

/// A process manager. Must be pure: same arguments, same answer, no effects. It may be asked about an input more
/// than once, also with an instance that somebody else has moved by then; only the answer that is committed counts.
pub trait Process: Send + Sync + 'static {
    /// The type under which instances are stored; never change it once used.
    fn name(&self) -> &str;

    /// The business key of the instance that a message belongs to.
    fn business_key(&self, message: &Message) -> String {
        message.key.clone()
    }

    /// Where the instances of several types share one process, or messages name an instance by its id.
    fn address(&self, message: &Message) -> Address {
        Address::Key { process_type: self.name().to_owned(), business_key: self.business_key(message) }
    }

    /// The id of the instance that this message makes, where the message tells; else one is chosen.
    fn new_id(&self, _message: &Message) -> Option<Uuid> {
        None
    }

    /// `current` is `None` for the first input of a business key.
    fn decide(&self, current: Option<&Instance>, input: Input<'_>, now: OffsetDateTime) -> Result<Decision, Failure>;
}
