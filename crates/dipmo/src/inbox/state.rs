//! The states of a received message: one enum, changed in one function, repeated by the tables.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InboxState {
    /// Durable, not handled yet.
    Received,
    /// Failed, will be tried again; its key waits.
    Retry,
    /// Waits behind an earlier message of its key.
    Parked,
    Processed,
    /// Needs nothing: stale, discarded, or replaced.
    Ignored,
    /// Cannot succeed without an operator.
    Dead,
    /// Cannot be decoded; kept as it came.
    SerdeError,
}

/// What can happen to a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InboxEvent {
    Succeed,
    Ignore,
    FailForNow,
    FailForGood,
    Undecodable,
    /// An earlier message of the key failed.
    Park,
    /// An operator wants another attempt.
    Requeue,
    /// An operator gives the message up.
    Discard,
    /// Decoded anew as another message.
    Redecode,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IllegalTransition {
    pub state: InboxState,
    pub event: InboxEvent,
}

impl InboxState {
    pub const ALL: [InboxState; 7] = [
        InboxState::Received,
        InboxState::Retry,
        InboxState::Parked,
        InboxState::Processed,
        InboxState::Ignored,
        InboxState::Dead,
        InboxState::SerdeError,
    ];

    pub fn name(self) -> &'static str {
        match self {
            InboxState::Received => "RECEIVED",
            InboxState::Retry => "RETRY",
            InboxState::Parked => "PARKED",
            InboxState::Processed => "PROCESSED",
            InboxState::Ignored => "IGNORED",
            InboxState::Dead => "DEAD",
            InboxState::SerdeError => "SERDE_ERROR",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Nothing more will happen to it.
    pub fn is_closed(self) -> bool {
        matches!(self, InboxState::Processed | InboxState::Ignored)
    }

    pub fn next(self, event: InboxEvent) -> Result<Self, IllegalTransition> {
        use InboxEvent as E;
        use InboxState as S;
        Ok(match (self, event) {
            (S::Received | S::Retry | S::Parked, E::Succeed) => S::Processed,
            (S::Received | S::Retry | S::Parked, E::Ignore) => S::Ignored,
            (S::Received | S::Retry | S::Parked, E::FailForNow) => S::Retry,
            (S::Received | S::Retry | S::Parked, E::FailForGood) => S::Dead,
            (S::Received | S::Retry | S::Parked, E::Undecodable) => S::SerdeError,
            (S::Received | S::Retry | S::Parked, E::Park) => S::Parked,
            (S::Retry | S::Dead, E::Requeue) => S::Retry,
            (S::Retry | S::Dead | S::SerdeError, E::Discard) => S::Ignored,
            (S::SerdeError, E::Redecode) => S::Ignored,
            (state, event) => return Err(IllegalTransition { state, event }),
        })
    }
}

impl InboxEvent {
    pub const ALL: [InboxEvent; 9] = [
        InboxEvent::Succeed,
        InboxEvent::Ignore,
        InboxEvent::FailForNow,
        InboxEvent::FailForGood,
        InboxEvent::Undecodable,
        InboxEvent::Park,
        InboxEvent::Requeue,
        InboxEvent::Discard,
        InboxEvent::Redecode,
    ];

    pub fn name(self) -> &'static str {
        match self {
            InboxEvent::Succeed => "succeed",
            InboxEvent::Ignore => "ignore",
            InboxEvent::FailForNow => "fail for now",
            InboxEvent::FailForGood => "fail for good",
            InboxEvent::Undecodable => "undecodable",
            InboxEvent::Park => "park",
            InboxEvent::Requeue => "requeue",
            InboxEvent::Discard => "discard",
            InboxEvent::Redecode => "redecode",
        }
    }
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message that is {} cannot take the event {:?}", self.state.name(), self.event.name())
    }
}

impl std::error::Error for IllegalTransition {}
