//! The configuration file: read, checked, and told with line and key what is wrong.
//!
//! One file a section. Unknown keys are refused. Messages never quote the file's text, because a line
//! may hold a secret.

mod amqp;
mod api;
mod consumer;
mod database;
mod kafka;
mod locate;
mod runtime;
mod sagas;
mod value;
mod worker;

pub(crate) use amqp::AmqpConfig;
pub(crate) use api::ApiConfig;
pub(crate) use consumer::ConsumerConfig;
pub(crate) use database::DatabaseConfig;
pub(crate) use kafka::KafkaConfig;
pub(crate) use runtime::{HttpConfig, LogConfig, LogFormat, NodeConfig, OtlpConfig, RelayConfig, RetentionConfig};
pub(crate) use sagas::SagasConfig;
pub(crate) use value::{Secret, Span};
pub(crate) use worker::WorkerConfig;

use std::fmt;
use std::path::Path;

use dipmo::upkeep::UpkeepOptions;
use serde::Deserialize;

/// A file larger than this is not a configuration.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) database: DatabaseConfig,
    pub(crate) kafka: Option<KafkaConfig>,
    pub(crate) amqp: Option<AmqpConfig>,
    pub(crate) node: NodeConfig,
    pub(crate) consumer: Vec<ConsumerConfig>,
    pub(crate) worker: Vec<WorkerConfig>,
    pub(crate) relay: RelayConfig,
    pub(crate) retention: RetentionConfig,
    pub(crate) http: HttpConfig,
    pub(crate) api: ApiConfig,
    pub(crate) sagas: SagasConfig,
    pub(crate) log: LogConfig,
    pub(crate) otlp: Option<OtlpConfig>,
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError {
    pub(crate) file: String,
    pub(crate) line: Option<usize>,
    pub(crate) key: String,
    pub(crate) message: String,
}

/// What is wrong with a value that was read; the key tells where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) key: String,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let wrong = |message: String| ConfigError { file: file.clone(), line: None, key: String::new(), message };
        let size = std::fs::metadata(path).map_err(|e| wrong(format!("cannot be read: {e}")))?.len();
        if size > FILE_BYTES_MAX {
            return Err(wrong(format!("has {size} bytes, more than {FILE_BYTES_MAX}")));
        }
        let bytes = std::fs::read(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        Self::parse(&bytes, &file)
    }

    /// Reads and checks; secrets are looked up later, when they are used.
    pub(crate) fn parse(bytes: &[u8], file: &str) -> Result<Self, ConfigError> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            let message = "the file is not UTF-8 text".to_owned();
            ConfigError { file: file.to_owned(), line: Some(line), key: String::new(), message }
        })?;
        let config: Config = toml::from_str(text).map_err(|error| locate::explain(text, file, &error))?;
        config.validate().map_err(|problem| locate::place(text, file, problem))?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), Problem> {
        self.database.validate()?;
        self.http.validate()?;
        self.api.validate()?;
        self.sagas.validate()?;
        self.log.validate()?;
        if let Some(kafka) = &self.kafka {
            kafka.validate()?;
        }
        if let Some(amqp) = &self.amqp {
            let read = !self.worker.is_empty() || self.consumer.iter().any(|consumer| !consumer.queues.is_empty());
            amqp.validate(read)?;
        }
        if let Some(otlp) = &self.otlp {
            otlp.validate()?;
        }
        for (n, consumer) in self.consumer.iter().enumerate() {
            consumer.validate(n, self.kafka.is_some(), self.amqp.is_some())?;
            if self.consumer[..n].iter().any(|other| other.name == consumer.name) {
                let message = format!("there is another consumer named {:?}", consumer.name);
                return Err(Problem::new(format!("consumer[{n}].name"), message));
            }
        }
        self.validate_workers()?;
        self.relay.validate()?;
        let upkeep = self.upkeep();
        upkeep.validate().map_err(|error| Problem::new("retention", error.to_string()))
    }

    fn validate_workers(&self) -> Result<(), Problem> {
        let consumers = self.consumer.iter().map(|consumer| &*consumer.name).chain([&*self.sagas.consumer]);
        let mut names: Vec<&str> = consumers.collect();
        let mut calls = 0;
        for (n, worker) in self.worker.iter().enumerate() {
            worker.validate(n)?;
            if names.contains(&&*worker.name) {
                let message = format!("there is another worker or consumer named {:?}", worker.name);
                return Err(Problem::new(format!("worker[{n}].name"), message));
            }
            names.push(&worker.name);
            calls += worker.concurrency;
            if calls >= self.database.connections {
                let message = format!(
                    "the workers make up to {calls} calls at once, and each holds a connection: raise \
                     database.connections ({}) above that",
                    self.database.connections
                );
                return Err(Problem::new(format!("worker[{n}].concurrency"), message));
            }
        }
        Ok(())
    }

    pub(crate) fn upkeep(&self) -> UpkeepOptions {
        let retry_span = self.consumer.iter().map(|consumer| consumer.retry.policy().span()).max();
        self.retention.options(self.node.name(), retry_span)
    }
}

#[cfg(test)]
mod tests;
