//! The life of an onboarding: one enum, changed in one function.

use crate::transition::IllegalTransition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnboardingState {
    Received,
    Qualified,
    BlockCreated,
    Completed,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnboardingEvent {
    CustomerQualified,
    BlockCreated,
    /// Nothing is left to do once the block stands.
    Closed,
    Failed,
}

impl OnboardingState {
    pub const ALL: [OnboardingState; 5] = [
        OnboardingState::Received,
        OnboardingState::Qualified,
        OnboardingState::BlockCreated,
        OnboardingState::Completed,
        OnboardingState::Failed,
    ];

    /// What the process row holds.
    pub fn name(self) -> &'static str {
        match self {
            OnboardingState::Received => "RECEIVED",
            OnboardingState::Qualified => "QUALIFIED",
            OnboardingState::BlockCreated => "BLOCK_CREATED",
            OnboardingState::Completed => "COMPLETED",
            OnboardingState::Failed => "FAILED",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    pub fn next(self, event: OnboardingEvent) -> Result<Self, IllegalTransition> {
        use OnboardingEvent as E;
        use OnboardingState as S;
        Ok(match (self, event) {
            (S::Received, E::CustomerQualified) => S::Qualified,
            (S::Qualified, E::BlockCreated) => S::BlockCreated,
            (S::BlockCreated, E::Closed) => S::Completed,
            (S::Received | S::Qualified, E::Failed) => S::Failed,
            (state, event) => {
                let overtaken = state.depth() >= event.depth();
                return Err(IllegalTransition { state: state.name(), event: event.name(), overtaken });
            }
        })
    }

    /// How far from the beginning.
    fn depth(self) -> u8 {
        match self {
            OnboardingState::Received => 0,
            OnboardingState::Qualified => 1,
            OnboardingState::BlockCreated => 2,
            OnboardingState::Completed | OnboardingState::Failed => 3,
        }
    }
}

impl OnboardingEvent {
    pub const ALL: [OnboardingEvent; 4] = [
        OnboardingEvent::CustomerQualified,
        OnboardingEvent::BlockCreated,
        OnboardingEvent::Closed,
        OnboardingEvent::Failed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            OnboardingEvent::CustomerQualified => "CustomerQualified",
            OnboardingEvent::BlockCreated => "BlockCreated",
            OnboardingEvent::Closed => "Closed",
            OnboardingEvent::Failed => "Failed",
        }
    }

    /// The depth of the state that the event leads to.
    fn depth(self) -> u8 {
        match self {
            OnboardingEvent::CustomerQualified => 1,
            OnboardingEvent::BlockCreated => 2,
            OnboardingEvent::Closed | OnboardingEvent::Failed => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every legal pair, as section 4.5 of the pattern draws it; nothing else is legal.
    const LEGAL: [(&str, &str, &str); 5] = [
        ("RECEIVED", "CustomerQualified", "QUALIFIED"),
        ("QUALIFIED", "BlockCreated", "BLOCK_CREATED"),
        ("BLOCK_CREATED", "Closed", "COMPLETED"),
        ("RECEIVED", "Failed", "FAILED"),
        ("QUALIFIED", "Failed", "FAILED"),
    ];

    #[test]
    fn every_pair_of_state_and_event_does_what_the_table_says() {
        for state in OnboardingState::ALL {
            for event in OnboardingEvent::ALL {
                let pair = (state.name(), event.name());
                let expected = LEGAL.iter().find(|(from, with, _)| (*from, *with) == pair).map(|(_, _, to)| *to);
                assert_eq!(state.next(event).ok().map(OnboardingState::name), expected, "{pair:?}");
            }
        }
    }

    #[test]
    fn a_repeated_event_is_overtaken_and_an_early_one_is_not() {
        let overtaken = |state: OnboardingState, event| state.next(event).map_err(|illegal| illegal.overtaken);
        assert_eq!(overtaken(OnboardingState::Completed, OnboardingEvent::BlockCreated), Err(true));
        assert_eq!(overtaken(OnboardingState::Received, OnboardingEvent::BlockCreated), Err(false));
    }

    #[test]
    fn names_read_back() {
        assert!(OnboardingState::ALL.into_iter().all(|s| OnboardingState::from_name(s.name()) == Some(s)));
    }
}
