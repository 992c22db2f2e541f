//! What a process wants to happen, as data.

use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::{Data, Instance, Status};
use crate::command::{BatchItemChange, CommandChange};
use crate::message::OutMessage;

/// The answer to one input. Everything in it commits together, or none of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The states passed through, the last one being the new state. Each is a line in the journal.
    pub path: Vec<String>,
    pub status: Status,
    /// The new data; `None` keeps what is there.
    pub data: Option<Data>,
    pub emit: Vec<OutMessage>,
    pub timers: Vec<TimerChange>,
    pub commands: Vec<CommandChange>,
    /// How the instance's item of a batch stands now.
    pub batch_item: Option<BatchItemChange>,
    /// Nothing moves: state and status stay, whatever they are. Only the journal grows.
    pub remark: bool,
    /// Kept with the journal line.
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TimerChange {
    Set { name: String, due: TimerDue },
    Cancel { name: String },
}

/// When a timer fires.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerDue {
    At(OffsetDateTime),
    /// Counted from the commit, by the clock of the database.
    After(Duration),
}

/// The timer behind [`Decision::deadline`].
pub const DEADLINE: &str = "deadline";

impl Decision {
    /// Go to a state and wait there for the next input.
    pub fn go(state: impl Into<String>) -> Self {
        Self {
            path: vec![state.into()],
            status: Status::Running,
            data: None,
            emit: Vec::new(),
            timers: Vec::new(),
            commands: Vec::new(),
            batch_item: None,
            remark: false,
            note: None,
        }
    }

    /// Takes note of an input that changes nothing, even one that comes after the end.
    pub fn remark(current: &Instance, note: impl Into<String>) -> Self {
        Self { status: current.status, remark: true, ..Self::go(&current.state) }.note(note)
    }

    /// Go on to a further state within the same decision.
    #[must_use]
    pub fn then(mut self, state: impl Into<String>) -> Self {
        self.path.push(state.into());
        self
    }

    /// The process ends here, well.
    #[must_use]
    pub fn succeed(mut self) -> Self {
        self.status = Status::Succeeded;
        self
    }

    /// The process ends here, in failure.
    #[must_use]
    pub fn fail(mut self) -> Self {
        self.status = Status::Failed;
        self
    }

    /// What was done is being undone.
    #[must_use]
    pub fn compensating(mut self) -> Self {
        self.status = Status::Compensating;
        self
    }

    /// The process ends here, everything it did being undone.
    #[must_use]
    pub fn compensated(mut self) -> Self {
        self.status = Status::Compensated;
        self
    }

    /// The process waits for an operator.
    #[must_use]
    pub fn pause(mut self) -> Self {
        self.status = Status::Paused;
        self
    }

    #[must_use]
    pub fn command(mut self, change: CommandChange) -> Self {
        self.commands.push(change);
        self
    }

    #[must_use]
    pub fn data(mut self, data: &impl Serialize) -> Self {
        self.data = Some(Data::of(data));
        self
    }

    #[must_use]
    pub fn emit(mut self, message: OutMessage) -> Self {
        self.emit.push(message);
        self
    }

    /// Ask to be called with [`super::Input::Timer`]; a timer of the same name is replaced.
    #[must_use]
    pub fn timer(mut self, name: &str, after: Duration) -> Self {
        self.timers.push(TimerChange::Set { name: name.to_owned(), due: TimerDue::After(after) });
        self
    }

    #[must_use]
    pub fn cancel_timer(mut self, name: &str) -> Self {
        self.timers.push(TimerChange::Cancel { name: name.to_owned() });
        self
    }

    /// The time by which the process should have moved on: shown to operators, and a timer named
    /// `deadline`.
    #[must_use]
    pub fn deadline(mut self, at: OffsetDateTime) -> Self {
        self.timers.push(TimerChange::Set { name: DEADLINE.to_owned(), due: TimerDue::At(at) });
        self
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The state the process is in afterwards.
    pub fn state(&self) -> &str {
        self.path.last().expect("a decision is made with a state and only ever gets more")
    }
}
