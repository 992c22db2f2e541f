//! What an operator may do with a saga now, and why not the rest.

use super::compiled::Compiled;
use super::data::SagaData;
use super::decide::next_undo;
use crate::process::{Instance, OperatorVerb, Status};

/// Every verb, by the name it has on the command line and in the API.
pub const VERBS: [&str; 6] = ["pause", "resume", "resubmit", "skip", "compensate", "force-complete"];

/// The verbs that would not be refused now. One that needs evidence is taken to have some.
pub fn possible(instance: &Instance, data: &SagaData, compiled: &Compiled) -> Vec<&'static str> {
    let all = [
        OperatorVerb::Pause,
        OperatorVerb::Resume,
        OperatorVerb::Resubmit,
        OperatorVerb::Skip,
        OperatorVerb::Compensate,
        OperatorVerb::ForceComplete { evidence: "given".to_owned() },
    ];
    let view = View { status: instance.status, state: &instance.state, data, compiled };
    all.iter().filter(|verb| view.refusal(verb).is_none()).map(OperatorVerb::name).collect()
}

#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) status: Status,
    pub(super) state: &'a str,
    pub(super) data: &'a SagaData,
    pub(super) compiled: &'a Compiled,
}

impl View<'_> {
    /// One sentence: why not, and what would be possible instead.
    pub(super) fn refusal(&self, verb: &OperatorVerb) -> Option<String> {
        if matches!(self.status, Status::Succeeded | Status::Compensated) {
            return Some(format!("the saga has ended as {}: nothing moves it any more", self.status.name()));
        }
        match verb {
            OperatorVerb::Pause => self.no_pause(),
            OperatorVerb::Resume => self.no_resume(),
            OperatorVerb::Resubmit => self.no_resubmit(),
            OperatorVerb::Skip => self.no_skip(),
            OperatorVerb::Compensate => self.no_compensate(),
            OperatorVerb::ForceComplete { evidence } => self.no_force(evidence),
        }
    }

    fn no_pause(&self) -> Option<String> {
        match self.status {
            Status::Paused => Some(format!("the saga is paused already: {}", self.ways_on())),
            Status::Failed => Some(format!("the saga has FAILED and nothing moves: {}", self.ways_on())),
            _ => None,
        }
    }

    fn no_resume(&self) -> Option<String> {
        match self.status {
            Status::Paused if self.stopped_by_failure() => {
                Some(format!("{} failed for good, so there is nothing to wait for: {}", self.state, self.ways_on()))
            }
            Status::Paused => None,
            Status::Failed => Some(format!("the saga has FAILED, it is not paused: {}", self.ways_on())),
            _ => Some("the saga is not paused: pause holds it, resubmit sends the current command again".to_owned()),
        }
    }

    fn no_resubmit(&self) -> Option<String> {
        match self.status {
            Status::Paused if self.answer_is_held() => {
                Some(format!("the answer to {} is there already: resume goes on with it", self.state))
            }
            Status::Paused if !self.stopped_by_failure() => {
                Some("an operator has paused the saga: resume it first, then resubmit if no answer comes".to_owned())
            }
            Status::Failed if self.failed_step().is_none() => {
                Some(format!("no step is left that failed: {}", self.ways_on()))
            }
            _ => None,
        }
    }

    fn no_skip(&self) -> Option<String> {
        match self.status {
            Status::Running | Status::Compensating => {
                Some(format!("the answer to {} may come at any moment: pause the saga first", self.state))
            }
            Status::Paused if self.answer_is_held() => {
                Some(format!("the answer to {} is there already: resume goes on with it", self.state))
            }
            Status::Failed if self.data.given_up.is_none() => Some("no step is left to go on after".to_owned()),
            _ => None,
        }
    }

    fn no_compensate(&self) -> Option<String> {
        match self.status {
            Status::Compensating => Some("the saga is undoing what was done already: pause can hold it".to_owned()),
            Status::Paused if self.compensating() => {
                Some(format!("the saga was undoing what was done when it paused: {}", self.ways_on()))
            }
            Status::Failed if next_undo(self.compiled, self.data).is_none() => {
                Some("nothing was done that could be undone: resubmit, skip or force-complete can be".to_owned())
            }
            _ => None,
        }
    }

    fn no_force(&self, evidence: &str) -> Option<String> {
        if self.status == Status::Compensating || self.compensating() {
            return Some("what was done is being undone, so the saga cannot have succeeded: let it end".to_owned());
        }
        evidence.trim().is_empty().then(|| "evidence is missing: say what proves that the saga succeeded".to_owned())
    }

    fn ways_on(&self) -> &'static str {
        match self.status {
            Status::Paused if !self.stopped_by_failure() => "resume lets it go on",
            Status::Paused if self.compensating() => "resubmit sends the compensation again, skip goes on without it",
            Status::Paused => "resubmit sends it again, skip goes on without it, compensate undoes what was done",
            _ => "resubmit sends the failed step again, skip goes on without it, force-complete ends it with evidence",
        }
    }

    pub(super) fn compensating(&self) -> bool {
        self.data.paused.is_some_and(|paused| paused.compensating)
    }

    fn answer_is_held(&self) -> bool {
        self.data.held.as_ref().is_some_and(|held| held.completed)
    }

    /// Paused by a failure, and no late answer has changed that.
    fn stopped_by_failure(&self) -> bool {
        self.data.paused.is_some_and(|paused| paused.failed) && !self.answer_is_held()
    }

    fn failed_step(&self) -> Option<&str> {
        let step = &self.data.given_up.as_ref()?.step;
        self.data.steps.get(step).filter(|record| record.is_given_up()).map(|_| step.as_str())
    }
}
