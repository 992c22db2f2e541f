//! Kafka: how to reach it, and the producer.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;

/// How to reach a Kafka cluster.
#[derive(Clone, Default)]
pub struct KafkaOptions {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// Further settings of librdkafka, secrets among them; never printed.
    pub settings: BTreeMap<String, String>,
}

impl KafkaOptions {
    pub fn new(brokers: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), settings: BTreeMap::new() }
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}
