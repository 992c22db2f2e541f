//! Everything that one transaction writes about a batch of messages.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::{InboxEvent, InboxState};
use crate::command::{BatchItemChange, CommandChange};
use crate::failure::Stage;
use crate::message::{Message, OutMessage};
use crate::process::{Instance, Status};

/// The longest error text that is kept.
const FAULT_MESSAGE_MAX: usize = 2_000;

/// Proof of ownership: the transaction commits only while every bucket still has this epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Held {
    pub scope: String,
    pub bucket: i32,
    pub epoch: i64,
}

/// The scope of the outbox's own shards, whose leases are the relay's.
pub(crate) const RELAY_SCOPE: &str = "relay";

/// The buckets that a settlement relies on.
pub type Fence = Vec<Held>;

/// Why a message is not through, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub stage: Stage,
    pub code: String,
    pub message: String,
}

impl Fault {
    pub fn new(stage: Stage, code: &str, message: &str) -> Self {
        let clean = |text: &str, max: usize| text.chars().filter(|c| *c != '\0').take(max).collect();
        Self { stage, code: clean(code, 200), message: clean(message, FAULT_MESSAGE_MAX) }
    }
}

/// What becomes of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    Received,
    Processed,
    Ignored { reason: String },
    Retry { after: Duration, fault: Fault },
    Parked,
    Dead { fault: Fault },
    SerdeError { fault: Fault },
}

impl Disposition {
    pub fn state(&self) -> InboxState {
        match self {
            Disposition::Received => InboxState::Received,
            Disposition::Processed => InboxState::Processed,
            Disposition::Ignored { .. } => InboxState::Ignored,
            Disposition::Retry { .. } => InboxState::Retry,
            Disposition::Parked => InboxState::Parked,
            Disposition::Dead { .. } => InboxState::Dead,
            Disposition::SerdeError { .. } => InboxState::SerdeError,
        }
    }

    /// What happens to a stored message that is settled so; `None` for one that is only received.
    pub fn event(&self) -> Option<InboxEvent> {
        Some(match self {
            Disposition::Received => return None,
            Disposition::Processed => InboxEvent::Succeed,
            Disposition::Ignored { .. } => InboxEvent::Ignore,
            Disposition::Retry { .. } => InboxEvent::FailForNow,
            Disposition::Parked => InboxEvent::Park,
            Disposition::Dead { .. } => InboxEvent::FailForGood,
            Disposition::SerdeError { .. } => InboxEvent::Undecodable,
        })
    }

    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Disposition::Retry { fault, .. } | Disposition::Dead { fault } | Disposition::SerdeError { fault } => {
                Some(fault)
            }
            _ => None,
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Disposition::Ignored { reason } => Some(reason),
            _ => None,
        }
    }

    pub fn delay(&self) -> Option<Duration> {
        match self {
            Disposition::Retry { after, .. } => Some(*after),
            _ => None,
        }
    }
}

/// A key begins to wait behind this message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Park {
    /// Until the message is through.
    ForHead,
    /// Until this version has come.
    ForVersion(i64),
    /// Not at all: workers may take it up at once, and what comes later queues behind it.
    Draining,
}

impl Park {
    pub(crate) fn state(self) -> &'static str {
        match self {
            Park::ForHead | Park::ForVersion(_) => "WAITING",
            Park::Draining => "DRAINING",
        }
    }

    pub(crate) fn awaits_version(self) -> Option<i64> {
        match self {
            Park::ForVersion(version) => Some(version),
            Park::ForHead | Park::Draining => None,
        }
    }
}

/// A message that the store has not seen before.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub dedupe_key: Uuid,
    pub message: Arc<Message>,
    pub disposition: Disposition,
    pub parks: Option<Park>,
}

impl Arrival {
    pub(crate) fn is_processed(&self) -> bool {
        self.disposition == Disposition::Processed
    }
}

/// A message that the store holds as open work.
#[derive(Debug, Clone)]
pub struct Stored {
    pub inbox_id: i64,
    pub key: String,
    pub disposition: Disposition,
    pub parks: Option<Park>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ProcessWrite {
    /// As it is to be.
    pub instance: Instance,
    /// The version it had when it was loaded; `None` makes a new instance.
    pub expected: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    pub process_id: Uuid,
    pub version: i64,
    pub kind: &'static str,
    pub from_state: Option<String>,
    pub to_state: String,
    pub status: Status,
    pub message_id: Option<String>,
    pub detail: Option<Value>,
    /// Who wanted it, and why, where it was an operator.
    pub by: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TimerWrite {
    pub process_id: Uuid,
    pub name: String,
    /// The ordering key, which decides the bucket.
    pub key: String,
    /// `None` cancels.
    pub due: Option<crate::process::TimerDue>,
}

/// A timer that has become due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiredTimer {
    pub process_id: Uuid,
    pub name: String,
    pub bucket: i32,
    pub attempts: i32,
}

/// One transaction: all of it happens, or none.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    pub fence: Fence,
    pub arrivals: Vec<Arrival>,
    pub stored: Vec<Stored>,
    /// Keys that must still be parked for the arrivals behind them to be found again.
    pub still_parked: Vec<(String, Option<i64>)>,
    /// Keys whose head is through: what waits behind it may go on. With the head, where known.
    pub released: Vec<(String, Option<i64>)>,
    /// The last version applied per key.
    pub versions: Vec<(String, i64)>,
    pub processes: Vec<ProcessWrite>,
    pub journal: Vec<JournalEntry>,
    pub timers: Vec<TimerWrite>,
    pub fired: Vec<FiredTimer>,
    /// Timers whose handling failed, and when to try again.
    pub postponed: Vec<(FiredTimer, Duration)>,
    /// In the order in which they were decided.
    pub commands: Vec<CommandChange>,
    pub batch_items: Vec<BatchItemChange>,
    pub outbox: Vec<OutMessage>,
}

impl Settlement {
    /// The messages were handed on from the outbox of this database, by its relay. What is processed of them
    /// stays there, and the dedupe key tells who has had it: a copy would say nothing new.
    pub(crate) fn is_from_outbox(&self) -> bool {
        self.fence.iter().any(|held| held.scope == RELAY_SCOPE)
    }
}

/// How a settlement ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    Committed,
    /// Rolled back: these arrivals have been seen before. Settle again without them.
    Duplicates(HashSet<Uuid>),
    /// Rolled back: these versions of an aggregate have emitted that event type before.
    VersionsTaken(HashSet<Uuid>),
    /// Rolled back: something changed since it was loaded. Load and decide again.
    Conflict,
}
