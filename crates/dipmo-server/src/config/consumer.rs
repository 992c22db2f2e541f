//! `[[consumer]]`: where messages come from, which SQL function handles them, and the rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipmo::backoff::RetryPolicy;
use dipmo::consumer::{Consumer, DeadPolicy, Envelope, Field, Format, Grouping, Handler, Mode, Source, VersionPolicy};
use dipmo::handler::EnlistedHandler;
use serde::Deserialize;

use super::{Problem, Span};
use crate::handler::FunctionName;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConfig {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) topics: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) system: Option<String>,
    #[serde(default)]
    pub(crate) internal: Vec<String>,
    #[serde(default)]
    pub(crate) internal_queues: Vec<String>,
    pub(crate) handler: HandlerConfig,
    #[serde(default)]
    pub(crate) mode: ModeName,
    #[serde(default)]
    pub(crate) retry: RetryConfig,
    #[serde(default)]
    pub(crate) on_dead: OnDead,
    #[serde(default)]
    pub(crate) versions: Versions,
    pub(crate) dlq_topic: Option<String>,
    #[serde(default)]
    pub(crate) format: FormatName,
    #[serde(default)]
    pub(crate) headers: BTreeMap<FieldName, String>,
    #[serde(default)]
    pub(crate) pointers: BTreeMap<FieldName, String>,
    pub(crate) batch_max: Option<usize>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) backlog_max: Option<usize>,
    pub(crate) lease: Option<Span>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandlerConfig {
    /// A function that takes one jsonb, called inside the inbox transaction.
    pub(crate) sql: FunctionName,
    #[serde(default)]
    pub(crate) grouping: GroupingName,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetryConfig {
    pub(crate) attempts_max: u32,
    pub(crate) delay_max: Span,
    pub(crate) jitter_max: Span,
}

impl Default for RetryConfig {
    fn default() -> Self {
        let RetryPolicy { attempts_max, delay_max, jitter_max } = RetryPolicy::default();
        Self { attempts_max, delay_max: Span(delay_max), jitter_max: Span(jitter_max) }
    }
}

impl RetryConfig {
    pub(crate) fn policy(&self) -> RetryPolicy {
        RetryPolicy { attempts_max: self.attempts_max, delay_max: self.delay_max.0, jitter_max: self.jitter_max.0 }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModeName {
    #[default]
    Inline,
    Store,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupingName {
    Record,
    #[default]
    Key,
    Batch,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnDead {
    #[default]
    Park,
    Skip,
    Group,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Versions {
    #[default]
    Unchecked,
    ParkOnGap,
    FailOnGap,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FormatName {
    #[default]
    Json,
    Bytes,
}

/// The fields of the envelope, as the file names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FieldName {
    MessageId,
    EventType,
    EventVersion,
    Tenant,
    AggregateId,
    AggregateVersion,
    CorrelationId,
    CausationId,
    Traceparent,
}

impl FieldName {
    fn field(self) -> Field {
        match self {
            FieldName::MessageId => Field::MessageId,
            FieldName::EventType => Field::EventType,
            FieldName::EventVersion => Field::EventVersion,
            FieldName::Tenant => Field::Tenant,
            FieldName::AggregateId => Field::AggregateId,
            FieldName::AggregateVersion => Field::AggregateVersion,
            FieldName::CorrelationId => Field::CorrelationId,
            FieldName::CausationId => Field::CausationId,
            FieldName::Traceparent => Field::Traceparent,
        }
    }
}

impl ConsumerConfig {
    pub(super) fn validate(&self, n: usize, has_kafka: bool) -> Result<(), Problem> {
        let wrong = |key: &str, message: &str| Err(Problem::new(format!("consumer[{n}].{key}"), message));
        if self.topics.is_empty() && self.internal.is_empty() && self.internal_queues.is_empty() {
            return wrong("topics", "the consumer has no source: give topics, internal or internal_queues");
        }
        if !self.topics.is_empty() && !has_kafka {
            return wrong("topics", "topics need a [kafka] section");
        }
        if self.topics.iter().chain(&self.internal).any(String::is_empty) {
            return wrong("topics", "a topic or event type is empty");
        }
        if self.dlq_topic.is_some() && !has_kafka {
            return wrong("dlq_topic", "a dlq_topic needs a [kafka] section");
        }
        if let Some(pointer) = self.pointers.values().find(|p| !p.starts_with('/')) {
            return wrong("pointers", &format!("{pointer:?} is not a JSON pointer: it begins with /"));
        }
        if !self.pointers.is_empty() && self.format == FormatName::Bytes {
            return wrong("pointers", "pointers look into JSON: use format = \"json\"");
        }
        // The library has the last word on its own limits.
        let checked = self.consumer(Arc::new(Unused));
        checked.validate().map_err(|error| Problem::new(format!("consumer[{n}]"), error.to_string()))
    }

    pub(crate) fn consumer(&self, handler: Arc<dyn EnlistedHandler>) -> Consumer {
        let grouping = match self.handler.grouping {
            GroupingName::Record => Grouping::Record,
            GroupingName::Key => Grouping::Key,
            GroupingName::Batch => Grouping::Batch,
        };
        let mut consumer = Consumer::new(self.name.clone(), Handler::Enlisted { handler, grouping });
        consumer.sources = self.sources();
        consumer.mode = match self.mode {
            ModeName::Inline => Mode::Inline,
            ModeName::Store => Mode::Store,
        };
        consumer.retry = self.retry.policy();
        consumer.on_dead = match self.on_dead {
            OnDead::Park => DeadPolicy::Park,
            OnDead::Skip => DeadPolicy::Skip,
            OnDead::Group => DeadPolicy::Group,
        };
        consumer.versions = match self.versions {
            Versions::Unchecked => VersionPolicy::Unchecked,
            Versions::ParkOnGap => VersionPolicy::ParkOnGap,
            Versions::FailOnGap => VersionPolicy::FailOnGap,
        };
        consumer.dlq_topic = self.dlq_topic.clone();
        consumer.envelope = self.envelope();
        consumer.batch_max = self.batch_max.unwrap_or(consumer.batch_max);
        consumer.concurrency = self.concurrency.unwrap_or(consumer.concurrency);
        consumer.backlog_max = self.backlog_max.unwrap_or(consumer.backlog_max);
        consumer.lease = self.lease.map_or(consumer.lease, |lease| lease.0);
        consumer
    }

    /// Where the fields of the envelope are found; what is not named keeps its default header.
    pub(crate) fn envelope(&self) -> Envelope {
        let format = match self.format {
            FormatName::Json => Format::Json,
            FormatName::Bytes => Format::Bytes,
        };
        let mut envelope = Envelope { format, ..Envelope::default() };
        envelope.headers.extend(self.headers.iter().map(|(field, header)| (field.field(), header.clone())));
        envelope.pointers.extend(self.pointers.iter().map(|(field, pointer)| (field.field(), pointer.clone())));
        envelope
    }

    fn sources(&self) -> Vec<Source> {
        let mut sources = Vec::new();
        if !self.topics.is_empty() {
            let (topics, group, system) = (self.topics.clone(), self.group.clone(), self.system.clone());
            sources.push(Source::Kafka { topics, group, system });
        }
        if !self.internal.is_empty() {
            sources.push(Source::Internal { event_types: self.internal.clone() });
        }
        if !self.internal_queues.is_empty() {
            sources.push(Source::InternalQueue { queues: self.internal_queues.clone() });
        }
        sources
    }
}

/// Stands in for the handler while the file is checked; it is never called.
struct Unused;

#[async_trait::async_trait]
impl EnlistedHandler for Unused {
    async fn handle(
        &self,
        _: &mut dipmo::handler::Enlisted<'_>,
        _: &dipmo::Message,
    ) -> Result<(), dipmo::process::Failure> {
        Err(dipmo::process::Failure::permanent("NO_HANDLER", "the configuration was only being checked"))
    }
}
