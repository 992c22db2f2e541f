//! dipmo's side: a node with the orchestrator, three contexts that do the steps and the relay between them,
//! and the starters, which append to the outbox as any service of the database would.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::dipmo::command::worker::{Answer, CommandHandler, CommandWorker};
use ::dipmo::command::{CommandError, Envelope};
use ::dipmo::consumer::{Consumer, Grouping};
use ::dipmo::failure::Failure;
use ::dipmo::handler::Enlisted;
use ::dipmo::node::{Node, NodeOptions};
use ::dipmo::saga::{Definition, Orchestrator, REPLY_QUEUE, Registry, START_QUEUE, Step};
use ::dipmo::shutdown::ShutdownTrigger;
use ::dipmo::store::postgres::{Db, DbOptions};
use anyhow::{Context, Result, anyhow, ensure};
use async_trait::async_trait;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::drive::{Moment, STARTERS_MAX, Sagas};
use super::payment::{self, BOOK_FX, EFFECT, STEPS};
use crate::node::{say, stdin_closed};
use crate::servers::connect;

const PAYMENT: &str = "Payment";

/// Who does what.
const CONTEXTS: [(&str, &[&str]); 3] =
    [("ACCOUNTS", &["CheckBalance", "CheckDailyLimit"]), ("FX", &[BOOK_FX]), ("PAYMENTS", &["SubmitPayment"])];

const EFFECTS: &str = "insert into bench_effect (saga, step)
    select * from unnest($1::text[], $2::text[]) on conflict do nothing";

/// How often the starters look for ends: seldom, because it costs. The moment of an end is that of its commit.
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs until stdin is closed.
pub(crate) async fn node(url: String) -> Result<()> {
    let db = Db::open(DbOptions::new(url))?;
    let mut registry = Registry::new();
    registry.register(definition()?).map_err(|flaws| anyhow!("the definition is refused: {flaws:?}"))?;
    let orchestrator = Consumer::process("orchestrator", Orchestrator::new(registry));
    let name = format!("bench-{}", Uuid::now_v7());
    let mut node =
        Node::new(db, NodeOptions::new(name)).consumer(orchestrator.from_internal_queues(&[START_QUEUE, REPLY_QUEUE]));
    for (context, commands) in CONTEXTS {
        node = node.consumer(worker(context, commands));
    }
    let (trigger, shutdown) = ShutdownTrigger::new();
    let mut loops = node.start(shutdown).await?;
    say("ready")?;
    stdin_closed().await?;
    trigger.stop();
    while let Some(ended) = loops.next_end().await {
        ended?;
    }
    Ok(())
}

fn definition() -> Result<Definition> {
    let mut definition = Definition::new(PAYMENT);
    for command in STEPS {
        let (context, _) =
            CONTEXTS.iter().find(|(_, commands)| commands.contains(&command)).context("a step without a context")?;
        let to = format!("INTERNAL:{}", queue(context, command)).parse()?;
        let step = Step::new(format!("STEP_{}", command.to_uppercase()), command, to);
        definition = definition.step(if command == BOOK_FX { step.when("input.fx") } else { step });
    }
    Ok(definition)
}

fn queue(context: &str, command: &str) -> String {
    format!("APP.CMD.{context}.{command}.Q")
}

fn worker(context: &str, commands: &[&str]) -> Consumer {
    let handler: Arc<dyn CommandHandler> = Arc::new(Inserting);
    let worker = CommandWorker::new(commands.iter().map(|command| (*command, Arc::clone(&handler))));
    let queues: Vec<String> = commands.iter().map(|command| queue(context, command)).collect();
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    Consumer::enlisted(context.to_lowercase(), worker).from_internal_queues(&queues).grouped(Grouping::Batch)
}

/// The effect of a step.
struct Inserting;

#[async_trait]
impl CommandHandler for Inserting {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        let failed = |error: tokio_postgres::Error| CommandError::retryable("DATABASE", error.to_string());
        let statement = enlisted.tx().prepare_cached(EFFECT).await.map_err(failed)?;
        enlisted.tx().execute(&statement, &[&command.key, &command.name]).await.map_err(failed)?;
        Ok(done(command))
    }

    async fn handle_many(
        &self,
        enlisted: &mut Enlisted<'_>,
        commands: &[&Envelope],
    ) -> Result<Option<Vec<Answer>>, Failure> {
        let failed = |error: tokio_postgres::Error| Failure::transient("DATABASE", error.to_string());
        let sagas: Vec<&str> = commands.iter().map(|command| command.key.as_str()).collect();
        let steps: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
        let statement = enlisted.tx().prepare_cached(EFFECTS).await.map_err(failed)?;
        enlisted.tx().execute(&statement, &[&sagas, &steps]).await.map_err(failed)?;
        Ok(Some(commands.iter().map(|command| Ok(done(command))).collect()))
    }
}

fn done(command: &Envelope) -> Value {
    json!({ "step": command.name, "ok": true })
}

const START: &str = "
-- bench.start
select dipmo.outbox_append($1, 'Command', $2, 'CommandRequested', $3, correlation_id => $4, message_id => $5)";

const ENDED: &str = "
-- bench.ended
select count(*) filter (where status = 'SUCCEEDED'),
       count(*) filter (where status in ('FAILED', 'COMPENSATED', 'PAUSED')) from dipmo.process";

const LAST_ENDED: &str = "
-- bench.last_ended
select exists (select from dipmo.process
               where type = 'Payment' and tenant = '' and business_key = $1 and status = 'SUCCEEDED')";

/// The row's last version is that of its end.
const ENDS: &str = "
-- bench.ends
select business_key, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint from dipmo.process";

pub(crate) struct Starters {
    sessions: Vec<(Client, Statement)>,
    watcher: Client,
    ended: Statement,
    last_ended: Statement,
}

impl Starters {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let mut sessions = Vec::new();
        for _ in 0..STARTERS_MAX {
            let client = connect(url).await?;
            let start = client.prepare(START).await?;
            sessions.push((client, start));
        }
        let watcher = connect(url).await?;
        let (ended, last_ended) = (watcher.prepare(ENDED).await?, watcher.prepare(LAST_ENDED).await?);
        Ok(Self { sessions, watcher, ended, last_ended })
    }
}

#[async_trait]
impl Sagas for Starters {
    /// One transaction, as of an API that has accepted a payment.
    async fn begin(&self, starter: usize, n: usize) -> Result<()> {
        let (client, start) = &self.sessions[starter];
        let (saga, message_id, key) = (Uuid::now_v7(), Uuid::now_v7(), n.to_string());
        let envelope = json!({
            "messageId": message_id, "type": "CommandRequested", "name": PAYMENT, "commandId": saga,
            "correlationId": saga, "occurredAt": OffsetDateTime::now_utc().format(&Rfc3339)?, "key": key,
            "headers": { "schemaVersion": "1", "idempotencyKey": key }, "payload": payment::input(n)
        });
        let to = format!("INTERNAL:{START_QUEUE}");
        client.query_one(start, &[&to, &key, &envelope.to_string(), &saga.to_string(), &message_id]).await?;
        Ok(())
    }

    /// All payments so far are waited for: they are numbered from zero.
    async fn ends(&self, numbers: Range<usize>) -> Result<HashMap<usize, Moment>> {
        let (wanted, began) = (i64::try_from(numbers.end)?, Instant::now());
        let last = (numbers.end - 1).to_string();
        // Counting costs: while the last one is under way it is not tried.
        while began.elapsed() < PATIENCE && !self.watcher.query_one(&self.last_ended, &[&last]).await?.get::<_, bool>(0)
        {
            tokio::time::sleep(POLL).await;
        }
        loop {
            let row = self.watcher.query_one(&self.ended, &[]).await?;
            let (succeeded, otherwise): (i64, i64) = (row.get(0), row.get(1));
            ensure!(otherwise == 0, "{otherwise} payments did not succeed");
            if succeeded >= wanted {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "{succeeded} of {wanted} payments have ended in time");
            tokio::time::sleep(POLL).await;
        }
        let mut ends = HashMap::new();
        for row in self.watcher.query(ENDS, &[]).await? {
            let n: usize = row.get::<_, String>(0).parse()?;
            if numbers.contains(&n) {
                ends.insert(n, row.get(1));
            }
        }
        Ok(ends)
    }
}
