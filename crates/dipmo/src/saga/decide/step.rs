//! Sending a command, and what becomes of it: done, tried again, given up.

use serde_json::{Value, json};
use uuid::Uuid;

use super::Turn;
use super::outgoing::send_id;
use crate::command::{CommandChange, CommandError, CommandStatus, End, Issue};
use crate::process::Status;
use crate::saga::compiled::{Call, Place};
use crate::saga::data::{GivenUp, Paused, StepStatus};
use crate::saga::definition::OnFailure;

pub(super) const EXPRESSION: &str = "EXPRESSION";

impl Turn<'_> {
    /// Goes on with the first step from `n` whose condition holds; after the last one the saga has succeeded.
    pub(super) fn advance(&mut self, n: usize) {
        let compiled = self.context.compiled;
        for (n, step) in compiled.steps.iter().enumerate().skip(n) {
            let wanted = match &step.when {
                None => Ok(true),
                Some(when) => when.condition(&self.scope()).map_err(|why| not_evaluated(&step.call, "when", why)),
            };
            match wanted {
                Ok(false) => self.record(&step.call.name).status = StepStatus::LeftOut,
                Ok(true) => return self.send_or_give_up(Place::Step(n)),
                Err(error) => return self.give_up(Place::Step(n), error, false),
            }
        }
        self.succeed();
    }

    pub(super) fn send_or_give_up(&mut self, place: Place) {
        if let Err(error) = self.send(place) {
            self.give_up(place, error, false);
        }
    }

    fn send(&mut self, place: Place) -> Result<(), CommandError> {
        let call = self.context.compiled.call(place);
        let content = self.content(place, call)?;
        let (now, timeout) = (self.context.now, call.timeout);
        let record = self.record(&call.name);
        record.status = StepStatus::Sent;
        record.attempt += 1;
        record.sends += 1;
        record.unheard += 1;
        record.due = Some(now + timeout);
        let (id, sends) = (record.command_id, record.sends);
        let envelope = self.command_envelope(call, id, sends, content);
        self.emit.push(envelope.into_message(call.to.clone(), self.context.compiled.name()));
        let issue = self.issue(call, id, sends);
        self.commands.push(CommandChange::Issue(issue));
        self.go(&call.name, working(place));
        Ok(())
    }

    /// Key and payload. A compensation keeps to the key of its step, so that it cannot overtake it.
    fn content(&self, place: Place, call: &Call) -> Result<(String, Value), CommandError> {
        let scope = self.scope();
        let (Place::Step(n) | Place::Undo(n)) = place;
        let key = match &self.context.compiled.steps[n].call.key {
            Some(key) => key.text(&scope).map_err(|why| not_evaluated(call, "key", why))?,
            None => self.key.clone(),
        };
        let payload = call.payload.value(&scope).map_err(|why| not_evaluated(call, "payload", why))?;
        Ok((key, payload))
    }

    fn issue(&self, call: &Call, id: Uuid, sends: u32) -> Issue {
        Issue {
            id,
            name: call.command.clone(),
            tenant: self.tenant.clone(),
            business_key: self.key.clone(),
            process_id: self.id,
            step: call.name.clone(),
            destination: Some(call.to.to_string()),
            idempotency_key: self.idempotency_key(&call.name),
            attempt: sends,
            lease: Some(call.timeout),
        }
    }

    pub(super) fn complete(&mut self, place: Place, result: Value) {
        let name = &self.context.compiled.call(place).name;
        self.stop_waiting(name);
        let record = self.record(name);
        record.status = StepStatus::Done;
        record.unheard = 0;
        record.error = None;
        record.result = Some(result.clone());
        let id = record.command_id;
        self.end_command(id, CommandStatus::Succeeded, Some(result), None, false);
        self.event("SagaStepCompleted", || json!({ "step": name }));
        match place {
            Place::Step(n) => {
                self.data.given_up = None;
                self.advance(n + 1);
            }
            Place::Undo(_) => self.undo(),
        }
    }

    /// May help to send it again: later, if there are attempts left.
    pub(super) fn try_again(&mut self, place: Place, error: CommandError, timed_out: bool) {
        let call = self.context.compiled.call(place);
        self.stop_waiting(&call.name);
        let now = self.context.now;
        let record = self.record(&call.name);
        let attempt = record.attempt;
        if attempt >= call.retry.attempts_max {
            return self.give_up(place, error, timed_out);
        }
        let delay = call.retry.delay_with(attempt, share_of(send_id(record.command_id, record.sends)));
        record.status = StepStatus::Waiting;
        record.due = Some(now + delay);
        let note = format!("attempt {attempt} of {} of {}: {error}", call.retry.attempts_max, call.name);
        record.error = Some(error);
        self.note(note);
    }

    /// No further try: the step says whether the saga undoes what was done or waits for an operator.
    pub(super) fn give_up(&mut self, place: Place, error: CommandError, timed_out: bool) {
        let call = self.context.compiled.call(place);
        self.stop_waiting(&call.name);
        let record = self.record(&call.name);
        record.status = if timed_out { StepStatus::TimedOut } else { StepStatus::Failed };
        record.error = Some(error.clone());
        let (id, sent) = (record.command_id, record.sends > 0);
        let (Place::Step(n) | Place::Undo(n)) = place;
        let step = &self.context.compiled.steps[n];
        let undoing = matches!(place, Place::Undo(_));
        if sent {
            let status = if timed_out { CommandStatus::TimedOut } else { CommandStatus::Failed };
            let park = timed_out || error.retryable || step.park || undoing;
            self.end_command(id, status, None, Some(error.clone()), park);
        }
        self.note(format!("{} failed for good: {error}", call.name));
        if !undoing {
            self.data.given_up = Some(GivenUp { step: call.name.clone(), error, timed_out });
        }
        if undoing || step.on_failure == OnFailure::Pause {
            self.pause_at(&call.name, Paused { compensating: undoing, failed: true });
        } else {
            self.undo();
        }
    }

    pub(super) fn pause_at(&mut self, state: &str, paused: Paused) {
        self.data.paused = Some(paused);
        self.go(state, Status::Paused);
        let error = self.data.steps.get(state).and_then(|record| record.error.clone());
        self.event("SagaPaused", || json!({ "step": state, "error": error }));
    }

    pub(super) fn end_command(
        &mut self,
        id: Uuid,
        status: CommandStatus,
        result: Option<Value>,
        error: Option<CommandError>,
        park: bool,
    ) {
        self.commands.push(CommandChange::End(End { id, status, result, error, park }));
    }
}

/// The status of a saga that waits for an answer.
pub(super) fn working(place: Place) -> Status {
    match place {
        Place::Step(_) => Status::Running,
        Place::Undo(_) => Status::Compensating,
    }
}

fn not_evaluated(call: &Call, part: &str, why: String) -> CommandError {
    CommandError::permanent(EXPRESSION, format!("{part} of {} cannot be evaluated: {why}", call.name))
}

/// Spreads retries without drawing lots: deciding again must decide the same.
fn share_of(id: Uuid) -> f64 {
    (id.as_u128() as u32) as f64 / u32::MAX as f64
}
