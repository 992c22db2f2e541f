//! Time has passed: no answer came, or the next try is due.

use super::turn::{Cause, timer_name};
use super::{Context, Turn};
use crate::command::CommandError;
use crate::failure::Failure;
use crate::process::{Decision, Instance, Status};
use crate::saga::data::{SagaData, StepStatus};

pub(super) const TIMED_OUT: &str = "TIMED_OUT";

pub(in crate::saga) fn timer(
    context: &Context<'_>,
    current: &Instance,
    data: SagaData,
    name: &str,
) -> Result<Decision, Failure> {
    let mut turn = Turn::on(context, current, data, Cause::default());
    let waits = matches!(current.status, Status::Running | Status::Compensating);
    let record = turn.data.steps.get(&current.state);
    let expected = record.and_then(|record| timer_name(&current.state, record));
    let place = context.compiled.place(&current.state);
    let (Some(record), Some(place), true) = (record, place, waits && expected.as_deref() == Some(name)) else {
        return Err(Failure::stale(format!("nothing waits for the timer {name} any more")));
    };
    if record.status == StepStatus::Waiting {
        turn.send_or_give_up(place);
    } else {
        let patience = crate::span::show(context.compiled.call(place).timeout);
        let error =
            CommandError::retryable(TIMED_OUT, format!("no answer came in time, {patience} after the last sign"));
        turn.try_again(place, error, true);
    }
    Ok(turn.into_decision())
}
