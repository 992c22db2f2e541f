//! `[kafka]`: brokers, and settings that are passed on to librdkafka.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dipmo::transport::kafka::KafkaOptions;
use serde::Deserialize;

use super::value::{from_env, from_file};
use super::{Problem, Secret, Span};

/// Settings that the daemon's promises rest on.
const RESERVED: [&str; 8] = [
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "acks",
    "transactional.id",
    "transaction.timeout.ms",
];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KafkaConfig {
    pub(crate) brokers: String,
    pub(crate) client_id: Option<String>,
    /// The `producer` header of every message that is sent.
    pub(crate) producer: Option<String>,
    pub(crate) linger: Option<Span>,
    pub(crate) send_timeout: Option<Span>,
    /// Written in Kafka transactions: names, or `*` alone for all.
    #[serde(default)]
    pub(crate) transactional_topics: Vec<String>,
    /// What the transactional ids begin with; the schema and the shard follow.
    pub(crate) transactional_id: Option<String>,
    pub(crate) transaction_timeout: Option<Span>,
    /// `name`, `name_env` (a variable that holds the value) or `name_file` (a file that does). Values
    /// are secrets as far as we know, so none is printed.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, Secret>,
}

impl KafkaConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if self.brokers.trim().is_empty() {
            return Err(Problem::new("kafka.brokers", "is empty: write host:port, separated by commas"));
        }
        for name in self.settings.keys() {
            let name = base_name(name);
            if RESERVED.contains(&name) {
                return Err(Problem::new("kafka.settings", format!("{name} is set by dipmo and cannot be changed")));
            }
            if self.settings.keys().filter(|other| base_name(other) == name).count() > 1 {
                return Err(Problem::new("kafka.settings", format!("{name} is given twice")));
            }
        }
        self.validate_transactions()
    }

    fn validate_transactions(&self) -> Result<(), Problem> {
        let topics = &self.transactional_topics;
        let wrong = |why: String| Err(Problem::new("kafka.transactional_topics", why));
        if topics.iter().any(|topic| topic.trim().is_empty()) {
            return wrong("has an empty name: write the names of topics, or \"*\" for all".to_owned());
        }
        if topics.len() > 1 && topics.iter().any(|topic| topic == "*") {
            return wrong("\"*\" is all topics and stands alone".to_owned());
        }
        if let Some(topic) = topics.iter().enumerate().find_map(|(n, name)| topics[..n].contains(name).then_some(name))
        {
            return wrong(format!("names {topic} twice"));
        }
        if self.transactional_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
            return Err(Problem::new("kafka.transactional_id", "is empty: leave it out, or give a name"));
        }
        let options = KafkaOptions::new("");
        let send = self.send_timeout.map_or(options.send_timeout, |span| span.0);
        let transaction = self.transaction_timeout.map_or(options.transaction_timeout, |span| span.0);
        if !topics.is_empty() && transaction < send * 2 {
            let why = format!("is {}: must be at least twice the send_timeout of {}", Span(transaction), Span(send));
            return Err(Problem::new("kafka.transaction_timeout", why));
        }
        Ok(())
    }

    /// Looks the secrets up. The schema is part of the transactional ids: two outboxes must not share them.
    pub(crate) fn options(&self, schema: &str) -> Result<KafkaOptions, Problem> {
        let mut options = KafkaOptions::new(self.brokers.clone());
        options.client_id = self.client_id.clone().unwrap_or(options.client_id);
        options.producer = self.producer.clone();
        options.linger = self.linger.map_or(options.linger, |span| span.0);
        options.send_timeout = self.send_timeout.map_or(options.send_timeout, |span| span.0);
        options.transactional_topics = self.transactional_topics.clone();
        let prefix = self.transactional_id.as_deref().unwrap_or(&options.transactional_id);
        options.transactional_id = format!("{prefix}-{schema}");
        options.transaction_timeout = self.transaction_timeout.map_or(options.transaction_timeout, |span| span.0);
        for (name, value) in &self.settings {
            let found = match (name.strip_suffix("_env"), name.strip_suffix("_file")) {
                (Some(_), _) => from_env(value.expose()),
                (_, Some(_)) => from_file(&PathBuf::from(value.expose())),
                _ => Ok(value.clone()),
            };
            let found = found.map_err(|why| Problem::new(format!("kafka.settings.{name}"), why))?;
            options.settings.insert(base_name(name).to_owned(), found.expose().to_owned());
        }
        Ok(options)
    }
}

fn base_name(name: &str) -> &str {
    name.strip_suffix("_env").or_else(|| name.strip_suffix("_file")).unwrap_or(name)
}
