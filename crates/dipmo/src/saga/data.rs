//! What a saga remembers between two inputs: the data of its process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::command::CommandError;

/// Kept as the data of the process, so operators see it and the next decision starts from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SagaData {
    /// The version of the definition that the saga keeps to.
    pub definition: String,
    pub input: Value,
    /// The headers of the start.
    pub headers: Map<String, Value>,
    /// The message id of the start: what the final answer answers.
    pub started_by: Uuid,
    /// Steps and compensations that were reached, by name.
    pub steps: BTreeMap<String, StepRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchRef>,
    /// Why the saga does not go on to its good end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// An answer that came during a pause, applied when the saga resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// When the saga's timer fires: not later than anything it waits for.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub alarm: Option<OffsetDateTime>,
    /// What the saga answered, once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    pub status: StepStatus,
    pub command_id: Uuid,
    /// Counted anew when an operator resubmits.
    pub attempt: u32,
    /// Never counted anew: the message id is made from it.
    pub sends: u32,
    /// How many of the sends nobody has answered.
    pub unheard: u32,
    /// An operator has had it sent again: what its worker refused before is not the last word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resubmitted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CommandError>,
    /// When patience with the current send ends, or when the next one is made.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub due: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StepStatus {
    /// Not sent yet.
    New,
    Sent,
    /// A worker has said that it works on it.
    Running,
    /// For the time of the next try.
    Waiting,
    Done,
    /// Left out by its condition.
    LeftOut,
    /// Passed over by an operator.
    Skipped,
    Failed,
    TimedOut,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRef {
    pub id: Uuid,
    pub item: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GivenUp {
    pub step: String,
    pub error: CommandError,
    pub timed_out: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Paused {
    /// The saga was undoing what it had done.
    pub compensating: bool,
    /// Not an operator but a failed command has paused it.
    pub failed: bool,
}

/// An answer that waits for the saga to resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    pub completed: bool,
    pub payload: Value,
}

impl StepRecord {
    pub(super) fn new(command_id: Uuid) -> Self {
        Self {
            status: StepStatus::New,
            command_id,
            attempt: 0,
            sends: 0,
            unheard: 0,
            resubmitted: false,
            result: None,
            error: None,
            due: None,
        }
    }

    /// An answer would still move the saga.
    pub fn is_open(&self) -> bool {
        matches!(self.status, StepStatus::Sent | StepStatus::Running | StepStatus::Waiting)
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.status, StepStatus::Failed | StepStatus::TimedOut)
    }
}

impl SagaData {
    /// The step or compensation that a command belongs to.
    pub(super) fn name_of(&self, command_id: Uuid) -> Option<&str> {
        self.steps.iter().find(|(_, record)| record.command_id == command_id).map(|(name, _)| name.as_str())
    }

    pub(super) fn status(&self, name: &str) -> Option<StepStatus> {
        self.steps.get(name).map(|record| record.status)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.as_str()
    }
}
