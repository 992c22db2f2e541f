//! The receiving side of commands: does each idempotency key once, and answers every time.
//!
//! Promise: the effects of a command, its entry in the ledger, its events and its answer commit together.
//! A command that comes again, as another message, is answered from the ledger. One that fails leaves no
//! effect of its own. A failure that may pass is not kept, so that sending the command again helps.
//! Not promised: that an effect outside the database happens once; a handler that calls out passes the
//! idempotency key on.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::Value;
use tracing::warn;
use uuid::Uuid;

use super::received::Command;
use super::{CommandError, Envelope};
use crate::failure::Failure;
use crate::handler::{Enlisted, EnlistedHandler, GroupFailure};
use crate::message::Message;
use crate::store::postgres::Tx;
use crate::store::postgres::command_ledger::{self, Answers, Recorded};

/// What a handler says to a command: its result, or why not.
pub type Answer = Result<Value, CommandError>;

/// Does commands of one name.
#[async_trait]
pub trait CommandHandler: Send + Sync + 'static {
    /// Does it, in the open transaction. What it wrote and published is undone if it answers with an error.
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer;

    /// Does many at once, for handlers whose statements work on sets; answers in the order of the commands.
    /// `None`, the default, has [`CommandHandler::handle`] called for each.
    ///
    /// What it writes for a command that it answers with an error stays: write for the others only. If it
    /// fails as a whole, all it wrote is undone, and each command is handled alone.
    async fn handle_many(
        &self,
        _enlisted: &mut Enlisted<'_>,
        _commands: &[&Envelope],
    ) -> Result<Option<Vec<Answer>>, Failure> {
        Ok(None)
    }
}

/// Handles commands by their names; a consumer of the queues on which they come.
#[expect(missing_debug_implementations, reason = "handlers have nothing to show")]
pub struct CommandWorker {
    handlers: HashMap<String, Arc<dyn CommandHandler>>,
    replies_by: Option<String>,
}

impl CommandWorker {
    /// With a handler for each command name; others are answered `UNKNOWN_COMMAND`.
    pub fn new<N: Into<String>>(handlers: impl IntoIterator<Item = (N, Arc<dyn CommandHandler>)>) -> Self {
        let handlers = handlers.into_iter().map(|(name, handler)| (name.into(), handler)).collect();
        Self { handlers, replies_by: None }
    }

    /// Answers by this transport, such as `AMQP`, instead of the one that the command came by.
    #[must_use]
    pub fn replies_by(mut self, transport: impl Into<String>) -> Self {
        self.replies_by = Some(transport.into());
        self
    }

    /// What needs no handler: what is not known, and what was answered before.
    fn answered(&self, command: &Command, recorded: &HashMap<Uuid, Recorded>) -> Option<Answer> {
        if !self.handlers.contains_key(&command.envelope.name) {
            let why = format!("nobody here does {:?}", command.envelope.name);
            return Some(Err(CommandError::permanent("UNKNOWN_COMMAND", why)));
        }
        command.answered(recorded.get(&command.key))
    }

    async fn handle_new(
        &self,
        enlisted: &mut Enlisted<'_>,
        commands: &[Command],
        answers: &mut [Option<Answer>],
    ) -> Result<(), GroupFailure> {
        let new: Vec<usize> = first_of_each_key(commands, answers);
        let mut savepoint = Savepoint::default();
        for (name, places) in in_sets(commands, &new) {
            let Some(handler) = self.handlers.get(name) else { continue };
            let set: Vec<&Envelope> = places.iter().map(|at| &commands[*at].envelope).collect();
            let given = handle_set(&**handler, enlisted, &mut savepoint, &set).await;
            let given = given.map_err(|failed| GroupFailure { at: places[failed.at], ..failed })?;
            for (at, answer) in places.into_iter().zip(given) {
                answers[at] = Some(answer);
            }
        }
        answer_repeats(commands, &new, answers);
        let kept = |at: &usize| commands[*at].entry(answers[*at].as_ref()?);
        let again = commands.iter().filter(|c| c.is_resubmitted()).map(|c| c.key).collect();
        enlisted.answers().extend(Answers { entries: new.iter().filter_map(kept).collect(), again });
        Ok(())
    }
}

#[async_trait]
impl EnlistedHandler for CommandWorker {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        self.handle_group(enlisted, &[message]).await.map_err(|failed| failed.failure)
    }

    async fn handle_group(&self, enlisted: &mut Enlisted<'_>, messages: &[&Message]) -> Result<(), GroupFailure> {
        let mut commands = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter().enumerate() {
            commands.push(
                Command::read(message, self.replies_by.as_deref()).map_err(|failure| GroupFailure { at, failure })?,
            );
        }
        // Those of a group before it in the same transaction.
        std::mem::take(enlisted.answers()).keep_for_group(enlisted.db(), enlisted.tx()).await?;
        let keys: Vec<Uuid> = commands.iter().map(|command| command.key).collect();
        let looked_up = command_ledger::look_up(enlisted.db(), enlisted.tx(), &keys).await;
        let failed = |error| GroupFailure { at: 0, failure: command_ledger::failure(&error) };
        let (now, recorded) = looked_up.map_err(failed)?;
        enlisted.set_now(now);
        let before = enlisted.sends();
        let mut answers: Vec<Option<Answer>> =
            commands.iter().map(|command| self.answered(command, &recorded)).collect();
        if answers.iter().any(Option::is_none) {
            self.handle_new(enlisted, &commands, &mut answers).await?;
        }
        for (command, answer) in commands.iter().zip(&answers) {
            let answer = answer.as_ref().expect("what was not answered before was handled");
            enlisted.publish(command.reply(answer, now));
        }
        let causes: HashMap<String, &Message> = commands
            .iter()
            .map(|command| command.envelope.message_id.to_string())
            .zip(messages.iter().copied())
            .collect();
        for sent in enlisted.sent_since(before) {
            if let Some(cause) = sent.causation_id.as_ref().and_then(|id| causes.get(id)) {
                sent.caused_by(cause);
            }
        }
        Ok(())
    }
}

/// All at once where the handler can, else one by one, each inside a savepoint of its own.
async fn handle_set(
    handler: &dyn CommandHandler,
    enlisted: &mut Enlisted<'_>,
    savepoint: &mut Savepoint,
    commands: &[&Envelope],
) -> Result<Vec<Answer>, GroupFailure> {
    if commands.len() > 1
        && let Some(answers) = handle_together(handler, enlisted, savepoint, commands).await?
    {
        return Ok(answers);
    }
    let mut answers = Vec::with_capacity(commands.len());
    for (at, command) in commands.iter().enumerate() {
        let answer = handle_alone(handler, enlisted, savepoint, command).await;
        answers.push(answer.map_err(|failure| GroupFailure { at, failure })?);
    }
    Ok(answers)
}

async fn handle_together(
    handler: &dyn CommandHandler,
    enlisted: &mut Enlisted<'_>,
    savepoint: &mut Savepoint,
    commands: &[&Envelope],
) -> Result<Option<Vec<Answer>>, GroupFailure> {
    let failed = |failure: Failure| GroupFailure { at: 0, failure };
    let (sends, set) = (enlisted.sends(), savepoint.set(enlisted.own_tx()));
    let handling = AssertUnwindSafe(handler.handle_many(enlisted, commands)).catch_unwind();
    let (set, handled) = tokio::join!(biased; set, handling);
    set.map_err(|error| failed(error.into()))?;
    match handled.unwrap_or_else(|_| Err(Failure::panicked())) {
        Ok(answers) if answers.as_ref().is_none_or(|answers| answers.len() == commands.len()) => return Ok(answers),
        Ok(_) => warn!(name = commands[0].name, "a handler did not answer every command of a set: handling each alone"),
        Err(failure) => warn!(name = commands[0].name, %failure, "a set of commands failed: handling each alone"),
    }
    undo(enlisted, sends).await.map_err(failed)?;
    Ok(None)
}

async fn handle_alone(
    handler: &dyn CommandHandler,
    enlisted: &mut Enlisted<'_>,
    savepoint: &mut Savepoint,
    command: &Envelope,
) -> Result<Answer, Failure> {
    let (sends, set) = (enlisted.sends(), savepoint.set(enlisted.own_tx()));
    let handling = AssertUnwindSafe(handler.handle(enlisted, command)).catch_unwind();
    let (set, handled) = tokio::join!(biased; set, handling);
    set?;
    let answer = handled.map_err(|_| Failure::panicked())?;
    if answer.is_err() {
        undo(enlisted, sends).await?;
    }
    Ok(answer)
}

/// What a command did can be undone alone. The savepoint of the last one ends with the transaction.
#[derive(Default)]
struct Savepoint {
    is_set: bool,
}

impl Savepoint {
    /// Polled before the handler it is on the wire before the handler's first statement, which need not wait.
    fn set<'a>(&mut self, tx: &'a Tx<'a>) -> impl Future<Output = Result<(), tokio_postgres::Error>> + 'a {
        let again = std::mem::replace(&mut self.is_set, true);
        tx.batch_execute(if again { "release savepoint command; savepoint command" } else { "savepoint command" })
    }
}

async fn undo(enlisted: &mut Enlisted<'_>, sends: usize) -> Result<(), Failure> {
    enlisted.unsend(sends);
    Ok(enlisted.tx().batch_execute("rollback to savepoint command").await?)
}

/// Those without an answer, the first of each idempotency key.
fn first_of_each_key(commands: &[Command], answers: &[Option<Answer>]) -> Vec<usize> {
    let mut seen = HashSet::new();
    (0..commands.len()).filter(|at| answers[*at].is_none() && seen.insert(commands[*at].key)).collect()
}

/// The same command twice in one group: the second is told what the first was.
fn answer_repeats(commands: &[Command], first: &[usize], answers: &mut [Option<Answer>]) {
    if answers.iter().all(Option::is_some) {
        return;
    }
    let done: HashMap<Uuid, usize> = first.iter().map(|at| (commands[*at].key, *at)).collect();
    for at in 0..commands.len() {
        if answers[at].is_none() {
            answers[at] = done.get(&commands[at].key).and_then(|first| answers[*first].clone());
        }
    }
}

/// Sets of one command name, as large as the order within each key allows.
fn in_sets<'a>(commands: &'a [Command], places: &[usize]) -> Vec<(&'a str, Vec<usize>)> {
    let mut sets: Vec<(&str, Vec<usize>)> = Vec::new();
    // From where on the sets may be joined, and which name each key has had since.
    let (mut open_from, mut names_of_keys) = (0, HashMap::<&str, &str>::new());
    for at in places.iter().copied() {
        let Envelope { key, name, .. } = &commands[at].envelope;
        if names_of_keys.get(key.as_str()).is_some_and(|other| other != name) {
            open_from = sets.len();
            names_of_keys.clear();
        }
        names_of_keys.insert(key, name);
        match sets[open_from..].iter_mut().find(|(set, _)| set == name) {
            Some((_, set)) => set.push(at),
            None => sets.push((name, vec![at])),
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::command::envelope::kind;
    use crate::message::Destination;

    fn command(key: &str, name: &str) -> Command {
        let envelope = serde_json::from_value(json!({
            "messageId": Uuid::now_v7(), "type": kind::REQUESTED, "name": name, "commandId": Uuid::now_v7(),
            "correlationId": Uuid::now_v7(), "occurredAt": "2025-11-02T12:34:56Z", "key": key
        }));
        Command { key: Uuid::now_v7(), reply_to: Destination::Internal, envelope: envelope.unwrap() }
    }

    #[test]
    fn sets_are_as_large_as_the_order_within_keys_allows() {
        let commands = [command("a", "Hold"), command("b", "Hold"), command("c", "Free"), command("b", "Free")];
        let sets = in_sets(&commands, &[0, 1, 2, 3]);
        assert_eq!(sets, [("Hold", vec![0, 1]), ("Free", vec![2]), ("Free", vec![3])]);
        let independent = [command("a", "Hold"), command("b", "Free"), command("c", "Hold"), command("a", "Hold")];
        assert_eq!(in_sets(&independent, &[0, 1, 2, 3]), [("Hold", vec![0, 2, 3]), ("Free", vec![1])]);
    }
}
