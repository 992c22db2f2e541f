//! Time has passed: no answer came, or the next try is due.

use super::turn::{ALARM, Cause};
use super::{Context, Turn};
use crate::command::CommandError;
use crate::failure::Failure;
use crate::process::{Decision, Instance};
use crate::saga::data::{SagaData, StepStatus};

pub(super) const TIMED_OUT: &str = "TIMED_OUT";

pub(in crate::saga) fn timer(
    context: &Context<'_>,
    current: &Instance,
    data: SagaData,
    name: &str,
) -> Result<Decision, Failure> {
    let mut turn = Turn::on(context, current, data, Cause::default());
    let (due, place) = (turn.due(), context.compiled.place(&current.state));
    let (Some(due), Some(place), ALARM) = (due, place, name) else {
        return Err(Failure::stale(format!("nothing waits for the timer {name} any more")));
    };
    turn.data.alarm = None;
    if due > context.now {
        let timers = turn.set_alarm();
        let note = format!("nothing is due yet: {} has time until {due}", current.state);
        return Ok(Decision { timers, ..turn.into_remark(current, note) });
    }
    if turn.data.status(&current.state) == Some(StepStatus::Waiting) {
        turn.send_or_give_up(place);
    } else {
        let patience = crate::span::show(context.compiled.call(place).timeout);
        let error =
            CommandError::retryable(TIMED_OUT, format!("no answer came in time, {patience} after the last sign"));
        turn.try_again(place, error, true);
    }
    Ok(turn.into_decision())
}
