//! `[kafka]`: brokers, and settings that are passed on to librdkafka.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dipmo::transport::kafka::KafkaOptions;
use serde::Deserialize;

use super::value::{from_env, from_file};
use super::{Problem, Secret, Span};

/// Settings that the daemon's promises rest on.
const RESERVED: [&str; 6] =
    ["bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "acks"];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KafkaConfig {
    pub(crate) brokers: String,
    pub(crate) client_id: Option<String>,
    /// The `producer` header of every message that is sent.
    pub(crate) producer: Option<String>,
    pub(crate) linger: Option<Span>,
    pub(crate) send_timeout: Option<Span>,
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
        Ok(())
    }

    /// Looks the secrets up.
    pub(crate) fn options(&self) -> Result<KafkaOptions, Problem> {
        let mut options = KafkaOptions::new(self.brokers.clone());
        options.client_id = self.client_id.clone().unwrap_or(options.client_id);
        options.producer = self.producer.clone();
        options.linger = self.linger.map_or(options.linger, |span| span.0);
        options.send_timeout = self.send_timeout.map_or(options.send_timeout, |span| span.0);
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
