//! What every context has: its tables, where it tells of what it did, and handlers that work on sets.

use std::sync::Arc;

use async_trait::async_trait;
use dipmo::Destination;
use dipmo::command::{Answer, CommandError, CommandHandler, Envelope};
use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// The contexts, which own nothing in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    Accounts,
    Limits,
    Fx,
    Payments,
}

impl Context {
    pub const ALL: [Context; 4] = [Context::Accounts, Context::Limits, Context::Fx, Context::Payments];

    /// Of its schema and its role, unless another is given.
    pub fn name(self) -> &'static str {
        match self {
            Context::Accounts => "accounts",
            Context::Limits => "limits",
            Context::Fx => "fx",
            Context::Payments => "payments",
        }
    }

    pub fn tables(self) -> &'static str {
        match self {
            Context::Accounts => crate::accounts::TABLES,
            Context::Limits => crate::limits::TABLES,
            Context::Fx => crate::fx::TABLES,
            Context::Payments => crate::payments::TABLES,
        }
    }

    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Context::Accounts => &["CheckBalance", "TakeHold", "ReleaseHold"],
            Context::Limits => &["CheckDailyLimit", "ReleaseLimit"],
            Context::Fx => &["BookFxContract", "CancelFxContract"],
            Context::Payments => &["SubmitPayment", "WithdrawPayment", "RunScheduledPaymentsForDay"],
        }
    }

    /// Whoever does this command.
    pub fn of(command: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|context| context.commands().contains(&command))
    }

    pub fn queue(self, command: &str) -> String {
        format!("APP.CMD.{}.{command}.Q", self.name().to_uppercase())
    }

    /// Where it tells of what it did.
    pub fn topic(self) -> &'static str {
        match self {
            Context::Accounts => "events.Accounts",
            Context::Limits => "events.Limits",
            Context::Fx => "events.Fx",
            Context::Payments => "events.Payments",
        }
    }
}

/// The schema of a context. Its statements say `domain.`, and are read with the schema in its place.
#[derive(Debug, Clone)]
pub struct Domain {
    pub context: Context,
    schema: Arc<str>,
    /// Whether others hear of what happens here, by Kafka.
    tells: bool,
}

impl Domain {
    pub fn new(context: Context, schema: &str, tells: bool) -> Self {
        Self { context, schema: schema.into(), tells }
    }

    pub fn sql(&self, statement: &str) -> String {
        statement.replace("domain.", &format!("{}.", self.schema))
    }

    pub(crate) async fn query(
        &self,
        enlisted: &Enlisted<'_>,
        statement: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let prepared = enlisted.tx().prepare_cached(&self.sql(statement)).await?;
        Ok(enlisted.tx().query(&prepared, params).await?)
    }

    /// Tells of what a command has done, if anybody listens.
    pub(crate) async fn tell(
        &self,
        enlisted: &mut Enlisted<'_>,
        command: &Envelope,
        event: &str,
        payload: Value,
    ) -> Result<(), Failure> {
        if self.tells {
            let now = enlisted.now().await?;
            let to = Destination::Kafka { topic: self.context.topic().to_owned() };
            enlisted.publish(command.event(event, payload, now).into_message(to, self.context.name()));
        }
        Ok(())
    }
}

/// A handler of sets: the way for many is the way for one.
#[async_trait]
pub(crate) trait Desk: Send + Sync + 'static {
    /// An answer to each; whatever it writes is for those that it answers well.
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure>;
}

/// A desk as the worker knows it.
pub(crate) struct AtDesk<D>(pub(crate) D);

#[async_trait]
impl<D: Desk> CommandHandler for AtDesk<D> {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        let mut answers = self.0.serve(enlisted, &[command]).await?;
        answers.pop().unwrap_or_else(|| Err(CommandError::retryable("NO_ANSWER", "the desk said nothing")))
    }

    async fn handle_many(
        &self,
        enlisted: &mut Enlisted<'_>,
        commands: &[&Envelope],
    ) -> Result<Option<Vec<Answer>>, Failure> {
        self.0.serve(enlisted, commands).await.map(Some)
    }
}

/// Payloads of a set, or the answer to those that cannot be read.
pub(crate) fn read_all<T: serde::de::DeserializeOwned>(commands: &[&Envelope]) -> Vec<Result<T, CommandError>> {
    commands.iter().map(|command| command.payload()).collect()
}
