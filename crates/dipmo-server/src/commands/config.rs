//! `dipmo config check`: reads the file, looks the secrets up, and says what was understood.

use serde_json::{Value, json};

use super::Context;
use crate::cli::{ConfigVerb, Format};
use crate::config::{AmqpConfig, Config, ConsumerConfig, Problem, WorkerConfig};
use crate::definitions;
use crate::exit::{Exit, Quit};
use crate::output;

pub(super) fn run(context: &Context, verb: &ConfigVerb) -> Result<Exit, Quit> {
    let ConfigVerb::Check = verb;
    let Some(file) = &context.file else {
        return Err(Quit::new(Exit::Usage, "there is no configuration to check").hint("name the file with -c"));
    };
    secrets(&context.config).map_err(|problem| {
        Quit::new(Exit::Usage, format!("{}: {}: {}", file.display(), problem.key, problem.message))
    })?;
    let sagas = definitions::configured(&context.config.sagas)?;
    let mut understood = understood(&context.config);
    understood["sagas"] = sagas.registry.names().collect();
    match context.format {
        Format::Table => {
            output::one(Format::Table, &understood, "")?;
            output::print(&format!("{} is valid\n", file.display()))?;
        }
        format => output::one(format, &understood, &file.display().to_string())?,
    }
    Ok(Exit::Ok)
}

/// Every secret must be where the file says it is.
fn secrets(config: &Config) -> Result<(), Problem> {
    let options = config.database.options("dipmo")?;
    dipmo::store::postgres::Db::open(options).map_err(|error| Problem::new("database", error.to_string()))?;
    config.api.tokens()?;
    for (n, worker) in config.worker.iter().enumerate() {
        worker.token(n)?;
    }
    config.kafka.as_ref().map(|kafka| kafka.options(&config.database.schema)).transpose()?;
    config.amqp.as_ref().map(AmqpConfig::options).transpose().map(drop)
}

/// The configuration as it will be used, without secrets.
fn understood(config: &Config) -> Value {
    let kafka = config.kafka.as_ref().map(|kafka| {
        let settings: Vec<&String> = kafka.settings.keys().collect();
        json!({ "brokers": kafka.brokers, "transactional_topics": kafka.transactional_topics, "settings": settings })
    });
    let amqp = config.amqp.as_ref().map(|amqp| {
        json!({ "place": amqp.place(), "profile": format!("{:?}", amqp.profile), "backout_queue": amqp.backout_queue })
    });
    let retention = &config.retention;
    json!({
        "database": {
            "place": config.database.place(),
            "schema": config.database.schema,
            "connections": config.database.connections,
        },
        "kafka": kafka,
        "amqp": amqp,
        "node": { "name": config.node.name(), "drain_max": config.node.drain_max.to_string() },
        "consumer": config.consumer.iter().map(consumer).collect::<Vec<_>>(),
        "worker": config.worker.iter().map(worker).collect::<Vec<_>>(),
        "relay": { "lease": config.relay.lease.to_string(), "batch_rows": config.relay.batch_rows },
        "retention": {
            "inbox": retention.inbox.to_string(),
            "outbox": retention.outbox.to_string(),
            "journal": retention.journal.map_or("for ever".to_owned(), |span| span.to_string()),
            "dedupe": retention.dedupe.to_string(),
            "redrive": retention.redrive.to_string(),
            "broker": retention.broker.to_string(),
        },
        "http": config.http.listen,
        "api": {
            "tokens": config.api.tokens.iter().map(|t| json!({ "name": t.name, "role": t.role })).collect::<Vec<_>>(),
            "body_max_bytes": config.api.body_max_bytes,
            "concurrency": config.api.concurrency,
        },
        "log": { "format": format!("{:?}", config.log.format).to_lowercase(), "level": config.log.level },
        "otlp": config.otlp.as_ref().map(|otlp| &otlp.endpoint),
    })
}

fn consumer(c: &ConsumerConfig) -> Value {
    json!({
        "name": c.name,
        "topics": c.topics,
        "queues": c.queues,
        "internal": c.internal,
        "internal_queues": c.internal_queues,
        "handler": c.handler.sql.to_string(),
        "mode": format!("{:?}", c.mode).to_lowercase(),
        "on_dead": format!("{:?}", c.on_dead).to_lowercase(),
        "attempts_max": c.retry.attempts_max,
        "dlq_topic": c.dlq_topic,
    })
}

fn worker(w: &WorkerConfig) -> Value {
    json!({
        "name": w.name,
        "queues": w.queues,
        "place": w.place(),
        "timeout": w.timeout.to_string(),
        "concurrency": w.concurrency,
    })
}
