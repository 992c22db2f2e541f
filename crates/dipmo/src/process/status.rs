//! The status of a process: one enum, changed in one function, repeated by a CHECK in the table.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    New,
    Running,
    Succeeded,
    Failed,
    Compensating,
    Compensated,
    Paused,
}

/// What can happen to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusEvent {
    Advance,
    Succeed,
    Fail,
    Compensate,
    Compensated,
    Pause,
    Resume,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IllegalStatus {
    pub from: Status,
    pub event: StatusEvent,
}

impl Status {
    pub const ALL: [Status; 7] = [
        Status::New,
        Status::Running,
        Status::Succeeded,
        Status::Failed,
        Status::Compensating,
        Status::Compensated,
        Status::Paused,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Status::New => "NEW",
            Status::Running => "RUNNING",
            Status::Succeeded => "SUCCEEDED",
            Status::Failed => "FAILED",
            Status::Compensating => "COMPENSATING",
            Status::Compensated => "COMPENSATED",
            Status::Paused => "PAUSED",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// No decision moves it any more.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed | Status::Compensated)
    }

    pub fn next(self, event: StatusEvent) -> Result<Self, IllegalStatus> {
        use Status as S;
        use StatusEvent as E;
        Ok(match (self, event) {
            (S::New | S::Running, E::Advance) => S::Running,
            (S::Compensating, E::Advance) => S::Compensating,
            (S::Paused, E::Advance) => S::Paused,
            // An operator may complete what failed or waits, with evidence.
            (S::New | S::Running | S::Paused | S::Failed, E::Succeed) => S::Succeeded,
            (S::New | S::Running | S::Compensating | S::Paused, E::Fail) => S::Failed,
            (S::Running | S::Failed | S::Paused, E::Compensate) => S::Compensating,
            // From a pause: the last compensation was skipped, or its answer came meanwhile.
            (S::Compensating | S::Paused, E::Compensated) => S::Compensated,
            (S::New | S::Running | S::Compensating, E::Pause) => S::Paused,
            (S::Paused | S::Failed, E::Resume) => S::Running,
            (from, event) => return Err(IllegalStatus { from, event }),
        })
    }
}

impl StatusEvent {
    pub const ALL: [StatusEvent; 7] = [
        StatusEvent::Advance,
        StatusEvent::Succeed,
        StatusEvent::Fail,
        StatusEvent::Compensate,
        StatusEvent::Compensated,
        StatusEvent::Pause,
        StatusEvent::Resume,
    ];

    pub fn name(self) -> &'static str {
        match self {
            StatusEvent::Advance => "advance",
            StatusEvent::Succeed => "succeed",
            StatusEvent::Fail => "fail",
            StatusEvent::Compensate => "compensate",
            StatusEvent::Compensated => "compensated",
            StatusEvent::Pause => "pause",
            StatusEvent::Resume => "resume",
        }
    }
}

impl fmt::Display for IllegalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a process that is {} cannot {}", self.from.name(), self.event.name())
    }
}

impl std::error::Error for IllegalStatus {}
