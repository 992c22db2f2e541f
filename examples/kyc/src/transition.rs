//! What a state machine of this example answers when an event does not fit its state.

use std::fmt;

/// The event is not among those that the state goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IllegalTransition {
    pub state: &'static str,
    pub event: &'static str,
    /// The machine is past the point that the event leads to: a repetition, not a mistake.
    pub overtaken: bool,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not go on with {}", self.state, self.event)
    }
}

impl std::error::Error for IllegalTransition {}
