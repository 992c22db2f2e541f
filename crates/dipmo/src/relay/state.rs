//! The states of a message in the outbox, and the one function that changes them.
//!
//! Only exceptions have a row with a state. PENDING and PUBLISHED are where the cursor stands, unless the
//! message has been an exception.

use std::fmt;

/// Where a message of the outbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutboxState {
    /// Beyond the cursor, or in a gap.
    Pending,
    /// Failed, and due again later.
    Retry,
    /// Waits behind an earlier message of its key.
    Parked,
    /// The destination has it.
    Published,
    /// Given up; its key waits for an operator.
    Dead,
    /// An operator decided that it is never sent.
    Discarded,
}

/// What can happen to a message of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutboxEvent {
    /// The destination took it.
    Acknowledged,
    /// It failed and has attempts left.
    Failed,
    /// It was rejected, or its attempts are used up.
    GivenUp,
    /// An earlier message of its key is open.
    Blocked,
    /// An operator asks for another try.
    Requeued,
    /// An operator drops it.
    Dropped,
}

/// An event that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IllegalTransition {
    pub state: OutboxState,
    pub event: OutboxEvent,
}

impl OutboxState {
    pub const ALL: [OutboxState; 6] =
        [Self::Pending, Self::Retry, Self::Parked, Self::Published, Self::Dead, Self::Discarded];

    /// As the table spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Retry => "RETRY",
            Self::Parked => "PARKED",
            Self::Published => "PUBLISHED",
            Self::Dead => "DEAD",
            Self::Discarded => "DISCARDED",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// A message in this state keeps the later ones of its key back.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Retry | Self::Parked | Self::Dead)
    }

    /// Every legal pair, nothing else.
    pub fn next(self, event: OutboxEvent) -> Result<Self, IllegalTransition> {
        use OutboxEvent as E;
        use OutboxState as S;
        Ok(match (self, event) {
            (S::Pending | S::Retry | S::Parked, E::Acknowledged) => S::Published,
            (S::Pending | S::Retry | S::Parked, E::Failed) => S::Retry,
            (S::Pending | S::Retry | S::Parked, E::GivenUp) => S::Dead,
            (S::Pending | S::Parked, E::Blocked) => S::Parked,
            (S::Retry | S::Dead, E::Requeued) => S::Retry,
            (S::Retry | S::Parked | S::Dead, E::Dropped) => S::Discarded,
            (state, event) => return Err(IllegalTransition { state, event }),
        })
    }
}

impl OutboxEvent {
    pub const ALL: [OutboxEvent; 6] =
        [Self::Acknowledged, Self::Failed, Self::GivenUp, Self::Blocked, Self::Requeued, Self::Dropped];

    pub fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Failed => "failed",
            Self::GivenUp => "given up",
            Self::Blocked => "blocked",
            Self::Requeued => "requeued",
            Self::Dropped => "dropped",
        }
    }
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message that is {} cannot be {:?}", self.state.name(), self.event)
    }
}

impl std::error::Error for IllegalTransition {}

#[cfg(test)]
mod tests {
    use super::OutboxEvent as E;
    use super::OutboxState as S;

    #[test]
    fn every_pair_of_state_and_event_is_decided() {
        let row = |state: S| E::ALL.map(|event| state.next(event).ok());
        let expected = [
            (S::Pending, [Some(S::Published), Some(S::Retry), Some(S::Dead), Some(S::Parked), None, None]),
            (S::Retry, [Some(S::Published), Some(S::Retry), Some(S::Dead), None, Some(S::Retry), Some(S::Discarded)]),
            (S::Parked, [Some(S::Published), Some(S::Retry), Some(S::Dead), Some(S::Parked), None, Some(S::Discarded)]),
            (S::Published, [None; 6]),
            (S::Dead, [None, None, None, None, Some(S::Retry), Some(S::Discarded)]),
            (S::Discarded, [None; 6]),
        ];
        for (state, next) in expected {
            assert_eq!(row(state), next, "{}", state.name());
        }
    }

    #[test]
    fn names_read_back() {
        for state in S::ALL {
            assert_eq!(S::from_name(state.name()), Some(state));
        }
        assert_eq!(S::from_name("NEW"), None);
    }
}
