//! The status of a command: one enum, changed in one function, repeated by a CHECK in the table.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandStatus {
    /// Accepted; nobody has said that they work on it.
    Pending,
    /// A worker has it, under a lease.
    Running,
    Succeeded,
    Failed,
    TimedOut,
}

/// What can happen to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandEvent {
    Start,
    Succeed,
    Fail,
    TimeOut,
    /// Sent again, by its retry policy or by an operator.
    Reissue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IllegalCommand {
    pub from: CommandStatus,
    pub event: CommandEvent,
}

impl CommandStatus {
    pub const ALL: [CommandStatus; 5] = [
        CommandStatus::Pending,
        CommandStatus::Running,
        CommandStatus::Succeeded,
        CommandStatus::Failed,
        CommandStatus::TimedOut,
    ];

    pub fn name(self) -> &'static str {
        match self {
            CommandStatus::Pending => "PENDING",
            CommandStatus::Running => "RUNNING",
            CommandStatus::Succeeded => "SUCCEEDED",
            CommandStatus::Failed => "FAILED",
            CommandStatus::TimedOut => "TIMED_OUT",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    pub fn is_ended(self) -> bool {
        matches!(self, CommandStatus::Succeeded | CommandStatus::Failed | CommandStatus::TimedOut)
    }

    pub fn next(self, event: CommandEvent) -> Result<Self, IllegalCommand> {
        use CommandEvent as E;
        use CommandStatus as S;
        Ok(match (self, event) {
            (S::Pending | S::Running, E::Start) => S::Running,
            (S::Pending | S::Running, E::Succeed) => S::Succeeded,
            (S::Pending | S::Running, E::Fail) => S::Failed,
            (S::Pending | S::Running, E::TimeOut) => S::TimedOut,
            (S::Pending | S::Running | S::Failed | S::TimedOut, E::Reissue) => S::Pending,
            (from, event) => return Err(IllegalCommand { from, event }),
        })
    }
}

impl CommandEvent {
    pub const ALL: [CommandEvent; 5] =
        [CommandEvent::Start, CommandEvent::Succeed, CommandEvent::Fail, CommandEvent::TimeOut, CommandEvent::Reissue];

    pub fn name(self) -> &'static str {
        match self {
            CommandEvent::Start => "start",
            CommandEvent::Succeed => "succeed",
            CommandEvent::Fail => "fail",
            CommandEvent::TimeOut => "time out",
            CommandEvent::Reissue => "reissue",
        }
    }
}

impl fmt::Display for IllegalCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command that is {} cannot {}", self.from.name(), self.event.name())
    }
}

impl std::error::Error for IllegalCommand {}
