//! Somebody on duty wants something done. What is not possible is refused with one sentence.

use serde_json::{Value, json};

use super::step::working;
use super::turn::Cause;
use super::{Context, Turn};
use crate::command::{BatchItemStatus, CommandError, CommandStatus};
use crate::failure::Failure;
use crate::process::{Decision, Instance, OperatorAction, OperatorVerb, Status};
use crate::saga::compiled::Place;
use crate::saga::data::{GivenUp, Paused, SagaData, StepStatus};
use crate::saga::verbs::View;

pub(in crate::saga) fn operator(
    context: &Context<'_>,
    current: &Instance,
    data: SagaData,
    action: &OperatorAction,
) -> Result<Decision, Failure> {
    let view = View { status: current.status, state: &current.state, data: &data, compiled: context.compiled };
    if let Some(why) = view.refusal(&action.verb) {
        return Err(refused(why));
    }
    let step = match (&data.given_up, current.status) {
        (Some(given_up), Status::Failed) => given_up.step.clone(),
        _ => current.state.clone(),
    };
    let place = context.compiled.place(&step);
    let mut turn = Turn::on(context, current, data, Cause::default());
    turn.reopens = current.status.is_final();
    match (&action.verb, place) {
        (OperatorVerb::ForceComplete { evidence }, _) => turn.force_complete(&step, evidence),
        (_, None) => return Err(refused(format!("{step} is not a step of version {}", context.compiled.hash()))),
        (OperatorVerb::Pause, Some(place)) => turn.pause(place),
        (OperatorVerb::Resume, Some(place)) => turn.resume(place),
        (OperatorVerb::Resubmit, Some(place)) => turn.resubmit(place),
        (OperatorVerb::Skip, Some(place)) => turn.skip(place),
        (OperatorVerb::Compensate, Some(place)) => turn.compensate(place),
    }
    // A saga that has FAILED can only leave that state for another.
    if current.status == Status::Failed && matches!(turn.status, Status::Failed | Status::Paused) {
        let why = turn.data.given_up.map_or(String::new(), |given_up| given_up.error.to_string());
        return Err(refused(format!("the saga would fail again at once: {why}")));
    }
    Ok(turn.into_decision())
}

fn refused(why: impl Into<String>) -> Failure {
    Failure::permanent("REFUSED", why)
}

impl Turn<'_> {
    fn pause(&mut self, place: Place) {
        let name = &self.context.compiled.call(place).name;
        self.stop_waiting(name);
        self.pause_at(name, Paused { compensating: matches!(place, Place::Undo(_)), failed: false });
    }

    fn resume(&mut self, place: Place) {
        let call = self.context.compiled.call(place);
        self.data.paused = None;
        self.status = working(place);
        self.event("SagaResumed", || json!({ "step": call.name }));
        match self.data.held.take() {
            Some(held) if held.completed => return self.complete(place, held.payload),
            Some(held) => {
                let error = serde_json::from_value(held.payload);
                self.go(&call.name, working(place));
                return self.failed(place, error.unwrap_or_else(|_| CommandError::permanent("UNKNOWN", "unreadable")));
            }
            None => {}
        }
        self.go(&call.name, working(place));
        let now = self.context.now;
        let record = self.record(&call.name);
        // The pause does not count: the worker gets its whole time again.
        let after = match record.status {
            StepStatus::Waiting => call.retry.delay_with(record.attempt, 0.0),
            _ => call.timeout,
        };
        record.due = Some(now + after);
    }

    fn resubmit(&mut self, place: Place) {
        let name = &self.context.compiled.call(place).name;
        self.leave_the_halt(place);
        self.stop_waiting(name);
        let record = self.record(name);
        record.attempt = 0;
        // A refusal that the worker remembers is not the last word any more.
        record.resubmitted = true;
        self.send_or_give_up(place);
    }

    fn skip(&mut self, place: Place) {
        let name = &self.context.compiled.call(place).name;
        self.leave_the_halt(place);
        self.close(name, CommandStatus::Failed, Some(CommandError::permanent("SKIPPED", "an operator has skipped it")));
        let record = self.record(name);
        // One that was done late is no less done for being skipped.
        if record.status != StepStatus::Done {
            record.status = StepStatus::Skipped;
        }
        match place {
            Place::Step(n) => self.advance(n + 1),
            Place::Undo(_) => self.undo(),
        }
    }

    fn compensate(&mut self, place: Place) {
        let name = &self.context.compiled.call(place).name;
        let aborted = CommandError::permanent("ABORTED", "an operator has ended the saga");
        self.data.paused = None;
        match self.data.held.take() {
            Some(held) if held.completed => {
                self.close(name, CommandStatus::Succeeded, None);
                let record = self.record(name);
                record.status = StepStatus::Done;
                record.unheard = 0;
                record.result = Some(held.payload);
            }
            _ => {
                if self.close(name, CommandStatus::Failed, Some(aborted.clone())) {
                    let record = self.record(name);
                    record.status = StepStatus::Failed;
                    record.error = Some(aborted.clone());
                }
            }
        }
        let step = name.clone();
        self.data.given_up.get_or_insert(GivenUp { step, error: aborted, timed_out: false });
        self.undo();
    }

    fn force_complete(&mut self, step: &str, evidence: &str) {
        self.data.paused = None;
        self.data.held = None;
        self.data.given_up = None;
        if self.context.compiled.place(step).is_some() {
            let given_up = self.data.steps.get(step).filter(|record| record.is_given_up() && record.sends > 0);
            let given_up = given_up.map(|record| record.command_id);
            self.close(step, CommandStatus::Succeeded, None);
            given_up.into_iter().for_each(|id| self.end_command(id, CommandStatus::Succeeded, None, None, false));
            self.record(step).status = StepStatus::Done;
        }
        self.note(format!("completed by evidence: {evidence}"));
        self.succeed();
    }

    /// What held the saga holds it no longer; one that has FAILED is open again, with its command and item.
    fn leave_the_halt(&mut self, place: Place) {
        self.data.paused = None;
        self.data.held = None;
        if matches!(place, Place::Step(_)) {
            self.data.given_up = None;
        }
        if self.status == Status::Failed {
            self.open_own_command(2);
            self.batch_item(BatchItemStatus::Running, None);
        }
        self.status = working(place);
    }

    /// Ends the command of a step that still waits for its answer. True if there was one.
    fn close(&mut self, name: &str, status: CommandStatus, error: Option<CommandError>) -> bool {
        self.stop_waiting(name);
        let Some(record) = self.data.steps.get(name).filter(|record| record.is_open()) else { return false };
        let id = record.command_id;
        let result = (status == CommandStatus::Succeeded).then_some(Value::Null);
        self.end_command(id, status, result, error, false);
        true
    }
}
