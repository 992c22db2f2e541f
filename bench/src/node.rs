//! What is measured: the loops of dipmo as a deployed node runs them, and the raw limits beside them.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use clap::ValueEnum;
use dipmo::OutMessage;
use dipmo::consumer::{Consumer, Mode};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::ingress::KafkaIngress;
use dipmo::message::Message;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::relay::{ForeignTable, Relay, RelayOptions};
use dipmo::runner::Worker;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::{Db, DbOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use dipmo::wake::Wake;
use futures_util::TryStreamExt as _;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::load;
use crate::saga;
use crate::saga::drive::drive;
use crate::servers::connect;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Role {
    /// Kafka to the inbox
    Ingress {
        url: String,
        brokers: String,
        topic: String,
        consumer: String,
        #[arg(value_enum)]
        work: Work,
        /// Settings of librdkafka, name=value
        kafka: Vec<String>,
    },
    /// The outbox to Kafka
    Relay {
        url: String,
        brokers: String,
        linger_ms: u64,
        /// Sends public.outbox_messages too, whose aggregate types are topics here
        #[arg(long)]
        foreign: bool,
        kafka: Vec<String>,
    },
    /// The least a durable inbox can be: one table, 500 rows a transaction
    Lean { url: String, records: usize, keys: usize, size: usize },
    /// A consumer that only counts
    Count { brokers: String, topic: String, records: usize },
    /// A producer without a database
    Produce { brokers: String, topic: String, records: usize, keys: usize, size: usize },
    /// COPY of the outbox to nowhere
    Copy { url: String },
    /// The orchestrator of the payments, the contexts that do their steps, and the relay between them
    Sagas { url: String },
    /// Starts payments and waits for their ends
    StartSagas { url: String },
    /// The steps of payments without anybody who remembers where they are
    Inserts { url: String },
}

/// What the ingress does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Stores it; nothing else.
    Store,
    /// Processes what was stored, from the table.
    Worker,
    /// Process step in the transaction that takes it in.
    Process,
    /// Handler with the open transaction, one key at a time.
    Enlisted,
}

pub(crate) async fn run(role: Role) -> Result<()> {
    match role {
        Role::Ingress { url, brokers, topic, consumer, work, kafka } => {
            ingress(url, options(brokers, &kafka), topic, consumer, work).await
        }
        Role::Relay { url, brokers, linger_ms, foreign, kafka } => {
            relay(url, options(brokers, &kafka), linger_ms, foreign).await
        }
        Role::Lean { url, records, keys, size } => lean(&url, records, keys, size).await,
        Role::Count { brokers, topic, records } => {
            told_to_go().await?;
            tokio::task::spawn_blocking(move || count(&brokers, &topic, records)).await??;
            done().await
        }
        Role::Produce { brokers, topic, records, keys, size } => {
            let payloads = load::Payloads::new(keys, size);
            told_to_go().await?;
            tokio::task::spawn_blocking(move || load::produce(&brokers, &topic, 0..records, keys, &payloads)).await??;
            done().await
        }
        Role::Copy { url } => copy(&url).await,
        Role::Sagas { url } => saga::dipmo::node(url).await,
        Role::StartSagas { url } => drive(saga::dipmo::Starters::connect(&url).await?).await,
        Role::Inserts { url } => drive(saga::limits::Inserts::connect(&url).await?).await,
    }
}

fn options(brokers: String, settings: &[String]) -> KafkaOptions {
    let mut options = KafkaOptions::new(brokers);
    let pairs = settings.iter().filter_map(|setting| setting.split_once('='));
    options.settings.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    options
}

pub(crate) fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{word}").and_then(|()| out.flush()).context("writing to the parent")
}

/// The parent reads the figures first.
async fn told_to_go() -> Result<()> {
    say("ready")?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}

async fn done() -> Result<()> {
    say("done")?;
    stdin_closed().await
}

pub(crate) async fn stdin_closed() -> Result<()> {
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

async fn ingress(url: String, kafka: KafkaOptions, topic: String, consumer: String, work: Work) -> Result<()> {
    let db = Db::open(DbOptions::new(url))?;
    let mut consumer = match work {
        Work::Enlisted => Consumer::enlisted(consumer, Counting),
        _ => Consumer::process(consumer, Steps),
    };
    consumer = consumer.from_kafka(&[&topic]);
    consumer.mode = if matches!(work, Work::Store | Work::Worker) { Mode::Store } else { Mode::Inline };
    consumer.backlog_max = usize::MAX >> 2;
    let consumer = Arc::new(consumer);
    let (trigger, shutdown) = ShutdownTrigger::new();
    let wake = Wake::default();
    let owner = format!("bench-{}", Uuid::now_v7());
    say("ready")?;
    let mut tasks = Vec::new();
    if work != Work::Worker {
        let ingress = KafkaIngress::new(db.clone(), consumer.clone(), kafka, owner.clone(), wake.clone()).await?;
        tasks.push(tokio::spawn(ingress.run(shutdown.clone())));
    }
    if work != Work::Store {
        let worker = Worker::new(db, consumer, owner, &wake).await?;
        tasks.push(tokio::spawn(worker.run(shutdown)));
    }
    stdin_closed().await?;
    trigger.stop();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// One line of state, one of the journal and one message a step.
struct Steps;

impl Process for Steps {
    fn name(&self) -> &str {
        "bench"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        let before: serde_json::Value = current.map(Instance::data).transpose()?.unwrap_or_default();
        let steps = before["steps"].as_i64().unwrap_or(0) + 1;
        let stepped = OutMessage::internal(("Account", &message.key), "Stepped").json(&json!({ "steps": steps }));
        Ok(Decision::go("OPEN").data(&json!({ "steps": steps, "last": message.message_id })).emit(stepped))
    }
}

/// One upsert a message.
struct Counting;

#[async_trait]
impl EnlistedHandler for Counting {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        const COUNT: &str = "insert into bench_account (key, seen) values ($1, 1)
            on conflict (key) do update set seen = bench_account.seen + 1";
        let failed = |error: tokio_postgres::Error| Failure::transient("DATABASE", error.to_string());
        let statement = enlisted.tx().prepare_cached(COUNT).await.map_err(failed)?;
        enlisted.tx().execute(&statement, &[&message.key]).await.map_err(failed)?;
        Ok(())
    }
}

async fn relay(url: String, mut kafka: KafkaOptions, linger_ms: u64, foreign: bool) -> Result<()> {
    let db = Db::open(DbOptions::new(url))?;
    let mut options = RelayOptions::new(format!("bench-{}", Uuid::now_v7()));
    options.internal = false;
    if foreign {
        options.foreign_tables =
            vec![ForeignTable { topic_prefix: String::new(), ..ForeignTable::new("public", "outbox_messages") }];
    }
    kafka.linger = Duration::from_millis(linger_ms);
    options.kafka = Some(Arc::new(KafkaPublisher::new(kafka)?));
    let relay = Relay::new(db, options)?;
    let (trigger, shutdown) = ShutdownTrigger::new();
    say("ready")?;
    let running = tokio::spawn(async move { relay.run(shutdown).await });
    stdin_closed().await?;
    trigger.stop();
    running.await.context("the relay panicked")
}

pub(crate) const LEAN_TABLE: &str = "
create table lean (
    id bigint generated always as identity, source text not null, message_id text not null, bucket smallint not null,
    state smallint not null default 0, payload bytea not null, received_at timestamptz not null default now(),
    primary key (source, message_id));
create index on lean (bucket, id) where state = 0";

async fn lean(url: &str, records: usize, keys: usize, size: usize) -> Result<()> {
    const BATCH: usize = 500;
    let client = connect(url).await?;
    let insert = client
        .prepare(
            "insert into lean (source, message_id, bucket, payload)
             select 'bench', m, b, p from unnest($1::text[], $2::smallint[], $3::bytea[]) as t (m, b, p)
             on conflict do nothing",
        )
        .await?;
    let payloads = load::Payloads::new(keys, size);
    told_to_go().await?;
    for first in (0..records).step_by(BATCH) {
        let numbers = first..(first + BATCH).min(records);
        let ids: Vec<String> = numbers.clone().map(|_| Uuid::now_v7().to_string()).collect();
        let buckets: Vec<i16> = numbers.clone().map(|n| (n % 16) as i16).collect();
        let bodies: Vec<&[u8]> = numbers.map(|n| payloads.get(n).as_bytes()).collect();
        client.execute(&insert, &[&ids, &buckets, &bodies]).await?;
    }
    done().await
}

fn count(brokers: &str, topic: &str, records: usize) -> Result<()> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", format!("count-{}", Uuid::now_v7()))
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("fetch.wait.max.ms", "100");
    let consumer: BaseConsumer = config.create()?;
    consumer.subscribe(&[topic])?;
    let mut seen = 0;
    while seen < records {
        if let Some(message) = consumer.poll(Duration::from_secs(1)) {
            message.context("counting")?;
            seen += 1;
            if seen == 1 {
                say("first")?;
            }
        }
    }
    Ok(())
}

async fn copy(url: &str) -> Result<()> {
    let client = connect(url).await?;
    told_to_go().await?;
    let sql = "copy (select shard, id, message_id, destination, key, tenant, aggregate_type, aggregate_id,
        aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers::text,
        payload, occurred_at, created_at from dipmo.outbox) to stdout (format binary)";
    let stream = client.copy_out(sql).await?;
    tokio::pin!(stream);
    let mut bytes = 0;
    while let Some(chunk) = stream.try_next().await? {
        bytes += chunk.len();
    }
    anyhow::ensure!(bytes > 0, "nothing was copied");
    done().await
}
