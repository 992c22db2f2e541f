//! What a saga waits for, in one sentence, and what an operator can do about it.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::compiled::Compiled;
use super::data::{SagaData, StepRecord, StepStatus};
use super::verbs;
use crate::failure::Failure;
use crate::process::{Instance, Status};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub sentence: String,
    /// The verbs that would not be refused now.
    pub next_actions: Vec<&'static str>,
}

/// Explains an instance by the version of the definition that it keeps to.
pub fn why(instance: &Instance, compiled: &Compiled) -> Result<Why, Failure> {
    let data: SagaData = instance.data()?;
    let sentence = sentence(instance, &data, compiled);
    Ok(Why { sentence, next_actions: verbs::possible(instance, &data, compiled) })
}

fn sentence(instance: &Instance, data: &SagaData, compiled: &Compiled) -> String {
    let record = data.steps.get(&instance.state);
    let command = compiled.place(&instance.state).map_or("", |place| compiled.call(place).command.as_str());
    match (instance.status, record) {
        (Status::Succeeded, _) => "has succeeded".to_owned(),
        (Status::Failed, _) => format!("has failed{}", because(data)),
        (Status::Compensated, _) => format!("has undone what it had done{}", because(data)),
        (Status::Paused, record) => paused(data, command, record),
        (Status::Compensating, Some(record)) => {
            format!("undoes what was done{}: {}", because(data), waits(command, record))
        }
        (_, Some(record)) => waits(command, record),
        (_, None) => "has not begun".to_owned(),
    }
}

fn waits(command: &str, record: &StepRecord) -> String {
    let sent = times(record.sends);
    match record.status {
        StepStatus::Waiting => {
            let error = record.error.as_ref().map_or(String::new(), |error| format!(" after {error}"));
            format!(
                "waits to send {command} again{error}: it was sent {sent}, the next try is due at {}",
                at(record.due)
            )
        }
        StepStatus::Running => {
            format!(
                "waits for the answer to {command}, which a worker has; sent {sent}, patience ends at {}",
                at(record.due)
            )
        }
        _ => format!("waits for the answer to {command}, sent {sent}, patience ends at {}", at(record.due)),
    }
}

fn paused(data: &SagaData, command: &str, record: Option<&StepRecord>) -> String {
    let failed = data.paused.is_some_and(|paused| paused.failed);
    let answer = match &data.held {
        Some(held) if held.completed => "; meanwhile it was completed, which resume applies",
        Some(_) => "; meanwhile it failed, which resume applies",
        None => "",
    };
    match record {
        Some(StepRecord { error: Some(error), sends, .. }) if failed => {
            format!("paused because {command} failed for good, sent {}: {error}{answer}", times(*sends))
        }
        Some(record) => {
            format!("paused by an operator while {command} was under way, sent {}{answer}", times(record.sends))
        }
        None => "paused".to_owned(),
    }
}

fn because(data: &SagaData) -> String {
    data.given_up
        .as_ref()
        .map_or(String::new(), |given_up| format!(" because {} failed: {}", given_up.step, given_up.error))
}

fn times(sends: u32) -> String {
    match sends {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

fn at(due: Option<OffsetDateTime>) -> String {
    due.and_then(|due| due.format(&Rfc3339).ok()).unwrap_or_else(|| "no set time".to_owned())
}
