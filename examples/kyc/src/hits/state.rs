//! The life of a hit: one enum, changed in one function.

use super::domain::Verdict;
use crate::transition::IllegalTransition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitState {
    Received,
    HitCreated,
    QualifiedPositive,
    QualifiedNegative,
    ReviewStarted,
    Completed,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitEvent {
    HitCreated,
    Qualified(Verdict),
    ReviewStarted,
    ReviewCompleted,
    /// Nothing is left to do for a hit that is no match.
    Closed,
    Failed,
}

impl HitState {
    pub const ALL: [HitState; 7] = [
        HitState::Received,
        HitState::HitCreated,
        HitState::QualifiedPositive,
        HitState::QualifiedNegative,
        HitState::ReviewStarted,
        HitState::Completed,
        HitState::Failed,
    ];

    /// What the process row holds.
    pub fn name(self) -> &'static str {
        match self {
            HitState::Received => "RECEIVED",
            HitState::HitCreated => "HIT_CREATED",
            HitState::QualifiedPositive => "QUALIFIED_POSITIVE",
            HitState::QualifiedNegative => "QUALIFIED_NEGATIVE",
            HitState::ReviewStarted => "REVIEW_STARTED",
            HitState::Completed => "COMPLETED",
            HitState::Failed => "FAILED",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    pub fn next(self, event: HitEvent) -> Result<Self, IllegalTransition> {
        use HitEvent as E;
        use HitState as S;
        Ok(match (self, event) {
            (S::Received, E::HitCreated) => S::HitCreated,
            (S::HitCreated, E::Qualified(Verdict::Positive)) => S::QualifiedPositive,
            (S::HitCreated, E::Qualified(Verdict::Negative)) => S::QualifiedNegative,
            (S::QualifiedPositive, E::ReviewStarted) => S::ReviewStarted,
            (S::QualifiedNegative, E::Closed) => S::Completed,
            (S::ReviewStarted, E::ReviewCompleted) => S::Completed,
            (S::Received | S::HitCreated | S::QualifiedPositive | S::ReviewStarted, E::Failed) => S::Failed,
            (state, event) => {
                let overtaken = state.depth() >= event.depth();
                return Err(IllegalTransition { state: state.name(), event: event.name(), overtaken });
            }
        })
    }

    /// How far from the beginning.
    fn depth(self) -> u8 {
        match self {
            HitState::Received => 0,
            HitState::HitCreated => 1,
            HitState::QualifiedPositive | HitState::QualifiedNegative => 2,
            HitState::ReviewStarted => 3,
            HitState::Completed | HitState::Failed => 4,
        }
    }
}

impl HitEvent {
    pub const ALL: [HitEvent; 7] = [
        HitEvent::HitCreated,
        HitEvent::Qualified(Verdict::Positive),
        HitEvent::Qualified(Verdict::Negative),
        HitEvent::ReviewStarted,
        HitEvent::ReviewCompleted,
        HitEvent::Closed,
        HitEvent::Failed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            HitEvent::HitCreated => "HitCreated",
            HitEvent::Qualified(Verdict::Positive) => "HitQualified(positive)",
            HitEvent::Qualified(Verdict::Negative) => "HitQualified(negative)",
            HitEvent::ReviewStarted => "ReviewStarted",
            HitEvent::ReviewCompleted => "ReviewCompleted",
            HitEvent::Closed => "Closed",
            HitEvent::Failed => "Failed",
        }
    }

    /// The depth of the state that the event leads to.
    fn depth(self) -> u8 {
        match self {
            HitEvent::HitCreated => 1,
            HitEvent::Qualified(_) => 2,
            HitEvent::ReviewStarted => 3,
            HitEvent::ReviewCompleted | HitEvent::Closed | HitEvent::Failed => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every legal pair, as section 4.4 of the pattern draws it; nothing else is legal.
    const LEGAL: [(&str, &str, &str); 10] = [
        ("RECEIVED", "HitCreated", "HIT_CREATED"),
        ("HIT_CREATED", "HitQualified(positive)", "QUALIFIED_POSITIVE"),
        ("HIT_CREATED", "HitQualified(negative)", "QUALIFIED_NEGATIVE"),
        ("QUALIFIED_POSITIVE", "ReviewStarted", "REVIEW_STARTED"),
        ("QUALIFIED_NEGATIVE", "Closed", "COMPLETED"),
        ("REVIEW_STARTED", "ReviewCompleted", "COMPLETED"),
        ("RECEIVED", "Failed", "FAILED"),
        ("HIT_CREATED", "Failed", "FAILED"),
        ("QUALIFIED_POSITIVE", "Failed", "FAILED"),
        ("REVIEW_STARTED", "Failed", "FAILED"),
    ];

    #[test]
    fn every_pair_of_state_and_event_does_what_the_table_says() {
        for state in HitState::ALL {
            for event in HitEvent::ALL {
                let pair = (state.name(), event.name());
                let expected = LEGAL.iter().find(|(from, with, _)| (*from, *with) == pair).map(|(_, _, to)| *to);
                assert_eq!(state.next(event).ok().map(HitState::name), expected, "{pair:?}");
            }
        }
    }

    #[test]
    fn a_repeated_event_is_overtaken_and_an_early_one_is_not() {
        let overtaken = |state: HitState, event| state.next(event).map_err(|illegal| illegal.overtaken);
        assert_eq!(overtaken(HitState::HitCreated, HitEvent::HitCreated), Err(true));
        assert_eq!(overtaken(HitState::Completed, HitEvent::ReviewStarted), Err(true));
        assert_eq!(overtaken(HitState::Received, HitEvent::ReviewCompleted), Err(false));
    }

    #[test]
    fn names_read_back() {
        assert!(HitState::ALL.into_iter().all(|state| HitState::from_name(state.name()) == Some(state)));
        assert_eq!(HitState::from_name("LOST"), None);
    }
}
