//! Why something is not moving: one sentence, and what can be done about it.
//!
//! The reference may be the id of a process, a saga or a command, a business key, or the key of messages.
//! What stands in the way is looked for in the order of the flow: a message that could not be sent, one
//! that was received and failed, then what the process itself waits for.

use serde::Serialize;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::process::Instance;
use crate::saga::{self, Registry};
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_why::{self as store, Obstacle};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// What the reference turned out to be.
    pub subject: String,
    pub sentence: String,
    /// What stands in the way, the first thing to deal with first.
    pub obstacles: Vec<String>,
    /// Commands that an operator may type next.
    pub next_actions: Vec<String>,
}

/// Explains a reference. `sagas` are the definitions that are known.
pub async fn why(db: &Db, sagas: &Registry, reference: &str) -> Result<Answer> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let id = Uuid::parse_str(reference).ok();
    let found = match id {
        Some(id) => store::process_of(db, &tx, id).await?,
        None => store::by_business_key(db, &tx, reference).await?,
    };
    let correlation = found.as_ref().map(|instance| instance.id.to_string());
    let correlation = correlation.as_deref().or(Some(reference));
    let key = found.is_none().then_some(reference);
    let unsent = store::outbox(db, &tx, correlation, key).await?;
    let unhandled = store::inbox(db, &tx, correlation, key).await?;
    let command = match id {
        Some(id) => store::command(db, &tx, id).await?,
        None => None,
    };
    let mut answer = match found {
        Some(instance) => of_process(&instance, sagas),
        None if command.is_some() => Answer::about(format!("command {reference}"), "its saga has not begun".to_owned()),
        None if unsent.is_empty() && unhandled.is_empty() => return Err(unknown(reference)),
        None => Answer::about(format!("key {reference:?}"), "has messages that do not move".to_owned()),
    };
    if let Some(command) = command {
        answer.subject = format!("{} ({command})", answer.subject);
    }
    answer.add_unsent(&unsent);
    answer.add_unhandled(&unhandled);
    Ok(answer)
}

fn unknown(reference: &str) -> Error {
    Error::not_found(format!(
        "nothing is in the way of {reference:?}: there is no process, command or waiting message of that name"
    ))
}

fn of_process(instance: &Instance, sagas: &Registry) -> Answer {
    let Instance { id, process_type, business_key, status, state, .. } = instance;
    let subject = format!("{process_type} {business_key:?}, {id}");
    let pinned = instance.data::<saga::SagaData>().ok();
    let compiled = pinned.and_then(|data| sagas.version(process_type, &data.definition));
    match compiled.and_then(|compiled| saga::why(instance, compiled).ok()) {
        Some(why) => Answer {
            subject,
            sentence: why.sentence,
            obstacles: Vec::new(),
            next_actions: why.next_actions.iter().map(|verb| format!("dipmo process {verb} {id}")).collect(),
        },
        None => {
            let wait = if status.is_final() { "has ended" } else { "waits for its next message or timer" };
            Answer {
                next_actions: vec![format!("dipmo process show {id}")],
                ..Answer::about(subject, format!("is {} in {state}: it {wait}", status.name()))
            }
        }
    }
}

impl Answer {
    fn about(subject: String, sentence: String) -> Self {
        Self { subject, sentence, obstacles: Vec::new(), next_actions: Vec::new() }
    }

    fn add_unsent(&mut self, unsent: &[Obstacle]) {
        for obstacle in unsent {
            self.obstacles.push(format!("outbox message {}: {}", obstacle.id, told(obstacle, "to")));
        }
        if let Some(head) = unsent.iter().find(|obstacle| obstacle.state != "PARKED") {
            self.first(&[format!("dipmo outbox retry {}", head.id), format!("dipmo outbox discard {}", head.id)]);
        }
    }

    fn add_unhandled(&mut self, unhandled: &[Obstacle]) {
        for obstacle in unhandled {
            self.obstacles.push(format!("inbox message {}: {}", obstacle.id, told(obstacle, "for")));
        }
        let failed = |obstacle: &&Obstacle| ["DEAD", "SERDE_ERROR", "RETRY"].contains(&obstacle.state.as_str());
        if let Some(head) = unhandled.iter().find(failed) {
            let verb = if head.state == "SERDE_ERROR" { "redecode" } else { "retry" };
            self.first(&[format!("dipmo inbox {verb} {}", head.id), format!("dipmo inbox discard {}", head.id)]);
        }
    }

    /// What is in the way comes before what the process itself allows.
    fn first(&mut self, actions: &[String]) {
        self.next_actions.splice(0..0, actions.iter().cloned());
    }
}

fn told(obstacle: &Obstacle, preposition: &str) -> String {
    let Obstacle { state, place, event_type, error, due, .. } = obstacle;
    let event_type = event_type.as_deref().unwrap_or("a message");
    let error = error.as_deref().map_or(String::new(), |error| format!(", {error}"));
    let due = due.and_then(|due| due.format(&Rfc3339).ok()).map_or(String::new(), |due| format!(", next try at {due}"));
    format!("{event_type} {preposition} {place} is {state}{error}{due}")
}
