//! Commands to other contexts: the envelope they travel in, their states, and what a process may change
//! about them.
//!
//! A command has one id and one idempotency key for its whole life; each time it is sent it is a new
//! message. The receiver may get it any number of times and must act on the idempotency key once.

pub mod accept;
pub mod envelope;
mod envelope_read;
mod received;
pub mod remote;
mod status;
pub mod worker;

pub use envelope::Envelope;
pub use status::{CommandEvent, CommandStatus, IllegalCommand};
pub use worker::{Answer, CommandHandler, CommandWorker};

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::failure::Failure;

/// Where commands from outside go: whoever runs sagas takes them there.
pub const START_QUEUE: &str = "APP.CMD.ORCHESTRATOR.Q";

/// What a decision changes about a command; written in the transaction of the decision.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandChange {
    /// It is sent, for the first time or again.
    Issue(Issue),
    /// A worker has it; an answer is due within the lease.
    Run {
        id: Uuid,
        lease: Option<Duration>,
    },
    End(End),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Issue {
    pub id: Uuid,
    pub name: String,
    pub tenant: String,
    pub business_key: String,
    pub process_id: Uuid,
    pub step: String,
    /// Where it goes, as text of the outbox; `None` for a saga as a whole.
    pub destination: Option<String>,
    pub idempotency_key: String,
    /// How often it has been sent, this time included.
    pub attempt: u32,
    /// An answer is due within this time.
    pub lease: Option<Duration>,
}

/// The last word on a command.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub id: Uuid,
    /// SUCCEEDED, FAILED or TIMED_OUT.
    pub status: CommandStatus,
    pub result: Option<Value>,
    pub error: Option<CommandError>,
    /// Goes to the dead letters, where an operator can send it again.
    pub park: bool,
}

/// Why a command failed, as it travels in the payload of `CommandFailed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandError {
    pub code: String,
    pub message: String,
    /// Whether sending it again may help.
    #[serde(default)]
    pub retryable: bool,
    /// Nobody knows whether it was done, such as when a system behind the worker did not answer. A saga that
    /// gives such a command up undoes it where the compensation takes what is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

impl CommandError {
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: false, unknown: false }
    }

    pub fn retryable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: true, unknown: false }
    }

    /// It may have been done or not: sending it again finds out.
    pub fn unknown(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { unknown: true, ..Self::retryable(code, message) }
    }
}

/// So that `?` works on SQL in a handler: what the server may not refuse next time is worth sending again.
impl From<tokio_postgres::Error> for CommandError {
    fn from(error: tokio_postgres::Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Transient { code, message } => Self::retryable(code, message),
            Failure::Permanent { code, message } | Failure::Undecodable { code, message } => {
                Self::permanent(code, message)
            }
            Failure::Stale { reason } => Self::permanent("STALE", reason),
        }
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// How one item of a batch stands, as its saga sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItemChange {
    pub batch_id: Uuid,
    pub item_id: String,
    pub status: BatchItemStatus,
    pub error: Option<String>,
    /// The saga had ended, and its batch may have: it is open again until it is counted anew.
    pub reopens: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchItemStatus {
    New,
    Running,
    Succeeded,
    Failed,
    TimedOut,
}

impl BatchItemStatus {
    pub fn name(self) -> &'static str {
        match self {
            BatchItemStatus::New => "NEW",
            BatchItemStatus::Running => "RUNNING",
            BatchItemStatus::Succeeded => "SUCCEEDED",
            BatchItemStatus::Failed => "FAILED",
            BatchItemStatus::TimedOut => "TIMED_OUT",
        }
    }
}

/// Text in PostgreSQL cannot hold it.
fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
        _ => false,
    }
}
