//! Commands for contexts without a database of their own: this one keeps their inbox, ledger and outbox.
//!
//! A [`Courier`] takes each command there and brings the answer, or says that the other side has it and
//! answers later by [`answer`].
//! Promise: what was answered is kept by the idempotency key and sent in one transaction; a command that
//! comes again is answered from the ledger, without a call. An answer given twice is one answer.
//! Not promised: that the other side is called once; it gets the idempotency key with every call.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use uuid::Uuid;

use super::envelope::kind;
use super::received::{Command, kind_of, payload_of};
use super::worker::Answer;
use super::{CommandError, Envelope, has_nul};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::handler::{Enlisted, EnlistedHandler};
use crate::message::{Message, OutMessage, dedupe_key};
use crate::store::postgres::command_ledger::{self, Answers, Recorded};
use crate::store::postgres::command_taken::{self as store, Found, Taken};
use crate::store::postgres::{Db, Tx};

/// Nobody waits longer for an answer; sagas have the same limit.
pub const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Takes commands to where they are done.
#[async_trait]
pub trait Courier: Send + Sync + 'static {
    /// `message` is the one that `command` came in, with its bytes as they were sent. The call must be
    /// short: a transaction is open meanwhile, and the database ends one that is idle for 30 s.
    async fn deliver(&self, command: &Envelope, message: &Message) -> Delivered;
}

/// What the other side says to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivered {
    Answered(Answer),
    /// It has the command and answers later; within the lease, if it asks for one.
    Taken {
        lease: Option<Duration>,
    },
}

/// A consumer whose commands are done elsewhere. Group it by [`crate::consumer::Grouping::Record`]: with
/// others in its transaction, a command would be delivered again whenever one of them fails.
#[expect(missing_debug_implementations, reason = "a courier has nothing to show")]
pub struct RemoteWorker {
    courier: Arc<dyn Courier>,
}

impl RemoteWorker {
    pub fn new(courier: Arc<dyn Courier>) -> Self {
        Self { courier }
    }
}

#[async_trait]
impl EnlistedHandler for RemoteWorker {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let command = Command::read(message, None)?;
        let looked_up = command_ledger::look_up(enlisted.db(), enlisted.tx(), &[command.key]).await;
        let (now, recorded) = looked_up.map_err(failure)?;
        enlisted.set_now(now);
        if let Some(answer) = command.answered(recorded.get(&command.key)) {
            enlisted.send(command.reply(&answer, now), message);
            return Ok(());
        }
        let sent = match self.courier.deliver(&command.envelope, message).await {
            Delivered::Answered(answer) => {
                let answer = storable(answer);
                record(enlisted.db(), enlisted.tx(), &command, &answer).await.map_err(failure)?;
                command.reply(&answer, now)
            }
            Delivered::Taken { lease } => {
                take(enlisted, &command, message).await?;
                let id = dedupe_key(["started", &command.envelope.message_id.to_string()]);
                command.message(id, kind::STARTED, lease_payload(lease), now)
            }
        };
        enlisted.send(sent, message);
        Ok(())
    }
}

async fn take(enlisted: &Enlisted<'_>, command: &Command, message: &Message) -> Result<(), Failure> {
    let taken = Taken {
        key: command.key,
        envelope: serde_json::to_value(&command.envelope).expect("an envelope serialises without error"),
        reply_to: command.reply_to.to_string(),
        traceparent: message.traceparent.clone(),
    };
    let kept = store::take(enlisted.db(), enlisted.tx(), command.envelope.command_id, &taken).await;
    kept.map_err(failure)
}

fn failure(error: Error) -> Failure {
    command_ledger::failure(&error)
}

/// Whether an answer was new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Now,
    /// The same was said before; nothing was done now.
    Before,
}

/// Why an answer, or a wish for more time, is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// There is no such command.
    Unknown,
    /// It was sent, but whoever got it has not said that it answers later.
    NotTaken,
    /// There is an answer already, of this type.
    Answered(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unknown => f.write_str("nobody has taken a command of this id"),
            Refused::NotTaken => f.write_str("the command was sent, and nobody has taken it yet"),
            Refused::Answered(answer) => write!(f, "the command was answered before, by {answer}"),
        }
    }
}

/// Answers a command that was taken: the ledger and the message to its issuer are one transaction.
pub async fn answer(db: &Db, command_id: Uuid, answer: &Answer) -> Result<Result<Said, Refused>> {
    refuse_nul(answer)?;
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let Some(found) = store::find(db, &tx, command_id).await? else {
        return Ok(Err(missing(db, &tx, command_id).await?));
    };
    let command = command_of(&found.taken)?;
    let said = (kind_of(answer), payload_of(answer));
    if let Some(before) = answered(db, &tx, &command, &found).await? {
        let same = before.answer == said.0 && before.payload == said.1;
        return Ok(if same { Ok(Said::Before) } else { Err(Refused::Answered(before.answer)) });
    }
    record(db, &tx, &command, answer).await?;
    store::answer(db, &tx, command_id, (said.0, &said.1)).await?;
    db.append_in(&tx, &[traced(command.reply(answer, found.now), &found.taken)]).await?;
    tx.commit().await?;
    Ok(Ok(Said::Now))
}

/// Asks for more time, counted from now, for a command that was taken.
pub async fn extend(db: &Db, command_id: Uuid, lease: Duration) -> Result<Result<(), Refused>> {
    if lease.is_zero() || lease > LEASE_MAX {
        return Err(Error::invalid(format!("a lease has 1 to {} seconds", LEASE_MAX.as_secs())));
    }
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let Some(found) = store::find(db, &tx, command_id).await? else {
        return Ok(Err(missing(db, &tx, command_id).await?));
    };
    let command = command_of(&found.taken)?;
    if let Some(before) = answered(db, &tx, &command, &found).await? {
        return Ok(Err(Refused::Answered(before.answer)));
    }
    let started = command.message(Uuid::now_v7(), kind::STARTED, lease_payload(Some(lease)), found.now);
    db.append_in(&tx, &[traced(started, &found.taken)]).await?;
    tx.commit().await?;
    Ok(Ok(()))
}

/// The last word on a taken command, if there is one: of the ledger, or to this very sending.
async fn answered(db: &Db, tx: &Tx<'_>, command: &Command, found: &Found) -> Result<Option<Recorded>> {
    if let Some((answer, payload)) = found.answered.clone() {
        return Ok(Some(Recorded { answer, payload }));
    }
    let (_, mut recorded) = command_ledger::look_up(db, tx, &[command.key]).await?;
    let recorded = recorded.remove(&command.key);
    Ok(recorded.filter(|recorded| command.answered(Some(recorded)).is_some()))
}

async fn missing(db: &Db, tx: &Tx<'_>, command_id: Uuid) -> Result<Refused> {
    Ok(if store::is_sent(db, tx, command_id).await? { Refused::NotTaken } else { Refused::Unknown })
}

async fn record(db: &Db, tx: &Tx<'_>, command: &Command, answer: &Answer) -> Result<()> {
    let entries: Vec<_> = command.entry(answer).into_iter().collect();
    let again: HashSet<Uuid> = command.is_resubmitted().then_some(command.key).into_iter().collect();
    if (Answers { entries, again }).keep(db, tx).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Conflict, "the same command was answered by somebody else at this moment"))
}

fn command_of(taken: &Taken) -> Result<Command> {
    let envelope = serde_json::from_value(taken.envelope.clone())
        .map_err(|e| Error::new(ErrorKind::Bug, "reading a command that was taken").source(e))?;
    Ok(Command { key: taken.key, reply_to: taken.reply_to.parse()?, envelope })
}

fn traced(mut message: OutMessage, taken: &Taken) -> OutMessage {
    message.traceparent.clone_from(&taken.traceparent);
    message
}

fn lease_payload(lease: Option<Duration>) -> Value {
    lease.map_or_else(|| json!({}), |lease| json!({ "leaseMs": lease.min(LEASE_MAX).as_millis() as u64 }))
}

fn refuse_nul(answer: &Answer) -> Result<()> {
    if has_nul(&payload_of(answer)) {
        return Err(Error::invalid("the answer holds the character U+0000, which PostgreSQL cannot keep"));
    }
    Ok(())
}

/// An answer that could not be kept would be asked for again and again.
fn storable(answer: Answer) -> Answer {
    refuse_nul(&answer).map_err(|error| CommandError::permanent("NOT_STORABLE", error.to_string()))?;
    answer
}
