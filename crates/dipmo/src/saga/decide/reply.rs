//! A worker has answered: in time, late, twice, or while the saga is paused.

use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::outgoing::send_id;
use super::timer::TIMED_OUT;
use super::turn::Cause;
use super::{Context, Turn};
use crate::command::envelope::kind;
use crate::command::{CommandChange, CommandError, Envelope};
use crate::message::Message;
use crate::process::{Decision, Instance, Status};
use crate::saga::compiled::Place;
use crate::saga::data::{Held, SagaData, StepRecord, StepStatus};

/// A worker that wants longer than this at a time must ask again.
const LEASE_MAX: Duration = Duration::from_secs(7 * 86_400);

pub(in crate::saga) fn reply(
    context: &Context<'_>,
    current: &Instance,
    data: SagaData,
    message: &Message,
    envelope: &Envelope,
) -> Decision {
    let turn = Turn::on(context, current, data, Cause::of(message));
    let name = turn.data.name_of(envelope.command_id).map(str::to_owned);
    let Some((name, place)) = name.and_then(|name| context.compiled.place(&name).map(|place| (name, place))) else {
        let note = format!("{} for command {}, which this saga never sent", envelope.kind, envelope.command_id);
        return turn.into_remark(current, note);
    };
    let record = &turn.data.steps[&name];
    match current.status {
        Status::Running | Status::Compensating if name == current.state && record.is_open() => {
            live(turn, current, place, envelope)
        }
        Status::Paused if name == current.state => hold(turn, current, envelope),
        _ => late(turn, current, place, envelope),
    }
}

fn live(mut turn: Turn<'_>, current: &Instance, place: Place, envelope: &Envelope) -> Decision {
    let name = &turn.context.compiled.call(place).name;
    let record = &turn.data.steps[name];
    let waiting = record.status == StepStatus::Waiting;
    match envelope.kind.as_str() {
        kind::COMPLETED => turn.complete(place, envelope.payload.clone()),
        kind::STARTED if waiting => return turn.into_remark(current, late_note(name, envelope)),
        kind::STARTED => turn.started(place, lease_of(&envelope.payload)),
        _ => {
            let error = error_of(envelope);
            // A failure of a send that was given up already has been counted as a timeout.
            if error.retryable && (waiting || answers_earlier(record, envelope)) {
                return turn.into_remark(current, late_note(name, envelope));
            }
            turn.failed(place, error);
        }
    }
    turn.into_decision()
}

impl Turn<'_> {
    fn started(&mut self, place: Place, lease: Option<Duration>) {
        let call = self.context.compiled.call(place);
        let lease = lease.unwrap_or(call.timeout).min(LEASE_MAX);
        let now: OffsetDateTime = self.context.now;
        let record = self.record(&call.name);
        record.status = StepStatus::Running;
        record.due = Some(now + lease);
        let id = record.command_id;
        self.commands.push(CommandChange::Run { id, lease: Some(lease) });
        self.note(format!("{} is being worked on", call.name));
    }

    pub(super) fn failed(&mut self, place: Place, error: CommandError) {
        let name = &self.context.compiled.call(place).name;
        let record = self.record(name);
        if error.retryable {
            if !error.unknown {
                record.unheard = record.unheard.saturating_sub(1);
            }
            let timed_out = error.code == TIMED_OUT;
            self.try_again(place, error, timed_out);
        } else {
            // Whatever was sent before gets the same answer: the worker keeps it by the idempotency key.
            record.unheard = 0;
            self.give_up(place, error, false);
        }
    }
}

/// During a pause nothing moves; one answer is kept, and success is worth more than failure.
fn hold(mut turn: Turn<'_>, current: &Instance, envelope: &Envelope) -> Decision {
    let completed = envelope.kind == kind::COMPLETED;
    let held = turn.data.held.as_ref().map(|held| held.completed);
    let failed_before = turn.data.paused.is_some_and(|paused| paused.failed);
    let keep = match (completed, held) {
        (true, held) => held != Some(true),
        (false, None) => envelope.kind != kind::STARTED && !failed_before,
        (false, Some(_)) => false,
    };
    if !keep {
        return turn.into_remark(current, late_note(&current.state, envelope));
    }
    let payload =
        if completed { envelope.payload.clone() } else { serde_json::to_value(error_of(envelope)).unwrap_or_default() };
    turn.data.held = Some(Held { completed, payload });
    turn.into_remark(current, format!("{} for {} is held until the saga resumes", envelope.kind, current.state))
}

/// The saga has moved on. That a step it gave up was done after all is remembered: it can be undone.
fn late(mut turn: Turn<'_>, current: &Instance, place: Place, envelope: &Envelope) -> Decision {
    let name = &turn.context.compiled.call(place).name;
    let record = turn.record(name);
    let missed = record.is_given_up() || record.status == StepStatus::Skipped;
    if envelope.kind != kind::COMPLETED || !missed {
        return turn.into_remark(current, late_note(name, envelope));
    }
    record.status = StepStatus::Done;
    record.unheard = 0;
    record.result = Some(envelope.payload.clone());
    let undoable = matches!(place, Place::Step(n) if turn.context.compiled.undo(n).is_some());
    let next = super::next_undo(turn.context.compiled, &turn.data);
    let what_now = match (current.status, place) {
        (Status::Compensating | Status::Paused, Place::Step(n)) if undoable && next >= Some(n) => "it will be undone",
        (Status::Failed, Place::Step(n)) if next == Some(n) => "an operator may compensate it",
        (_, Place::Step(_)) => "its effect stands",
        (_, Place::Undo(_)) => "noted",
    };
    turn.into_remark(current, format!("{name} was done after it had been given up: {what_now}"))
}

fn late_note(name: &str, envelope: &Envelope) -> String {
    format!("{} for {name} came late or again: nothing changes", envelope.kind)
}

/// Whether it answers a send that another one has followed.
fn answers_earlier(record: &StepRecord, envelope: &Envelope) -> bool {
    let Some(cause) = envelope.causation_id.as_deref() else { return false };
    (1..record.sends).any(|send| send_id(record.command_id, send).to_string() == cause)
}

pub(super) fn error_of(envelope: &Envelope) -> CommandError {
    if envelope.kind == kind::TIMED_OUT {
        return CommandError::retryable(TIMED_OUT, "the worker says that it took too long");
    }
    let unreadable = || CommandError::permanent("UNKNOWN", "the answer tells no code and message");
    serde_json::from_value(envelope.payload.clone()).unwrap_or_else(|_| unreadable())
}

fn lease_of(payload: &Value) -> Option<Duration> {
    payload.get("leaseMs")?.as_u64().filter(|millis| *millis > 0).map(Duration::from_millis)
}
