//! A consumer: a name, where its messages come from, what handles them, and its rules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::RetryPolicy;
use crate::error::{Error, Result};
use crate::handler::EnlistedHandler;
use crate::message::Destination;
use crate::process::Process;

/// How many shares a consumer's keys are hashed into; a share is worked on by one node at a time.
pub const BUCKETS: i32 = 16;

#[derive(Clone)]
pub struct Consumer {
    /// Part of the dedupe key: never change it once used. Also the Kafka group unless one is given.
    pub name: String,
    pub sources: Vec<Source>,
    pub handler: Handler,
    pub mode: Mode,
    pub retry: RetryPolicy,
    pub on_dead: DeadPolicy,
    pub versions: VersionPolicy,
    /// Where SERDE_ERROR and DEAD messages are mirrored to, with the same key and in order.
    pub dlq_topic: Option<String>,
    pub envelope: Envelope,
    /// The most messages one transaction takes.
    pub batch_max: usize,
    /// How many key groups of an enlisted handler run side by side.
    pub concurrency: usize,
    /// In store mode, no more is taken from the broker while this much waits.
    pub backlog_max: usize,
    /// A bucket whose owner has been silent for this long may be taken by another.
    pub lease: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Kafka {
        topics: Vec<String>,
        group: Option<String>,
        /// The source system of the dedupe key; the topic unless given.
        system: Option<String>,
    },
    /// Messages of the outbox with destination INTERNAL; `*` takes every event type.
    Internal { event_types: Vec<String> },
    /// Messages of the outbox with destination `INTERNAL:<queue>`, of whatever event type.
    InternalQueue { queues: Vec<String> },
}

impl Source {
    fn event_types(&self) -> &[String] {
        match self {
            Source::Internal { event_types } => event_types,
            _ => &[],
        }
    }

    fn queues(&self) -> &[String] {
        match self {
            Source::InternalQueue { queues } => queues,
            _ => &[],
        }
    }

    fn topics(&self) -> Option<&Vec<String>> {
        match self {
            Source::Kafka { topics, .. } => Some(topics),
            Source::Internal { .. } | Source::InternalQueue { .. } => None,
        }
    }
}

#[derive(Clone)]
pub enum Handler {
    /// Decides purely; many steps commit in one transaction.
    Process(Arc<dyn Process>),
    /// Writes its own tables in the open transaction.
    Enlisted { handler: Arc<dyn EnlistedHandler>, grouping: Grouping },
}

/// What shares one transaction of an enlisted handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    Record,
    /// The messages of one key that arrived together; a failure stays inside its key.
    #[default]
    Key,
    /// Everything that arrived together; a failure sends the batch through per-key groups.
    Batch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Dedupe, handle and commit in one go; only what fails goes through the table.
    #[default]
    Inline,
    /// Store, commit the offset, and let workers handle it from the table.
    Store,
}

/// What happens to the rest of a key when one of its messages is DEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeadPolicy {
    /// The rest waits, in order, until an operator acts.
    #[default]
    Park,
    /// The rest goes on.
    Skip,
    /// What arrived together with it for the same key is DEAD too (and mirrored); the rest goes on.
    Group,
}

/// What is done with the aggregate version of a message, where it carries one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionPolicy {
    #[default]
    Unchecked,
    /// Stale is IGNORED; after a gap the key waits for the missing version.
    ParkOnGap,
    /// Stale is IGNORED; a gap is DEAD.
    FailOnGap,
}

/// The form of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Must be valid JSON, or the message is a SERDE_ERROR.
    #[default]
    Json,
    /// Any bytes.
    Bytes,
}

/// Where the fields of the envelope are found in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    pub format: Format,
    /// Field to header name; fields left out keep their default.
    pub headers: BTreeMap<Field, String>,
    /// Field to JSON pointer into the payload, looked at when the header is absent.
    pub pointers: BTreeMap<Field, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
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

impl Field {
    pub const ALL: [(Field, &'static str); 9] = [
        (Field::MessageId, "event-id"),
        (Field::EventType, "event-type"),
        (Field::EventVersion, "event-version"),
        (Field::Tenant, "tenant-id"),
        (Field::AggregateId, "aggregate-id"),
        (Field::AggregateVersion, "aggregate-version"),
        (Field::CorrelationId, "correlation-id"),
        (Field::CausationId, "causation-id"),
        (Field::Traceparent, "traceparent"),
    ];
}

impl Default for Envelope {
    fn default() -> Self {
        let headers = Field::ALL.iter().map(|(field, header)| (*field, (*header).to_owned())).collect();
        Self { format: Format::default(), headers, pointers: BTreeMap::new() }
    }
}

impl Consumer {
    pub fn new(name: impl Into<String>, handler: Handler) -> Self {
        Self {
            name: name.into(),
            sources: Vec::new(),
            handler,
            mode: Mode::default(),
            retry: RetryPolicy::default(),
            on_dead: DeadPolicy::default(),
            versions: VersionPolicy::default(),
            dlq_topic: None,
            envelope: Envelope::default(),
            batch_max: 500,
            concurrency: 4,
            backlog_max: 1_000_000,
            lease: Duration::from_secs(15),
        }
    }

    /// A consumer whose messages advance a process.
    pub fn process(name: impl Into<String>, process: impl Process) -> Self {
        Self::new(name, Handler::Process(Arc::new(process)))
    }

    /// A consumer whose handler writes its own tables.
    pub fn enlisted(name: impl Into<String>, handler: impl EnlistedHandler) -> Self {
        Self::new(name, Handler::Enlisted { handler: Arc::new(handler), grouping: Grouping::default() })
    }

    /// What shares one transaction; a process always takes the whole batch.
    #[must_use]
    pub fn grouped(mut self, by: Grouping) -> Self {
        if let Handler::Enlisted { grouping, .. } = &mut self.handler {
            *grouping = by;
        }
        self
    }

    /// Take these topics, as a consumer group of the consumer's name. Called again, it adds to them.
    #[must_use]
    pub fn from_kafka(mut self, topics: &[&str]) -> Self {
        let more = topics.iter().map(|topic| (*topic).to_owned());
        match self.sources.iter_mut().find(|source| matches!(source, Source::Kafka { .. })) {
            Some(Source::Kafka { topics, .. }) => topics.extend(more),
            _ => self.sources.push(Source::Kafka { topics: more.collect(), group: None, system: None }),
        }
        self
    }

    /// Take these event types from INTERNAL.
    #[must_use]
    pub fn from_internal(mut self, event_types: &[&str]) -> Self {
        let event_types = event_types.iter().map(|event| (*event).to_owned()).collect();
        self.sources.push(Source::Internal { event_types });
        self
    }

    /// Take what is sent to these queues of INTERNAL.
    #[must_use]
    pub fn from_internal_queues(mut self, queues: &[&str]) -> Self {
        self.sources.push(Source::InternalQueue { queues: queues.iter().map(|queue| (*queue).to_owned()).collect() });
        self
    }

    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("consumer {:?}: {what}", self.name)));
        let kafka: Vec<&Vec<String>> = self.sources.iter().filter_map(Source::topics).collect();
        let text = |s: &str| !s.is_empty() && s.len() <= 200 && !s.contains('\0');
        let internal = |pick: fn(&Source) -> &[String]| self.sources.iter().flat_map(pick);
        match () {
            () if !text(&self.name) => wrong("the name must have 1 to 200 characters"),
            () if self.sources.is_empty() => {
                wrong("it has no source: name topics, internal event types or internal queues")
            }
            () if kafka.len() > 1 => wrong("it has two Kafka sources: name all its topics in one"),
            () if kafka.iter().any(|topics| topics.is_empty()) => wrong("its Kafka source names no topics"),
            () if internal(Source::queues).any(|queue| !text(queue)) => wrong("an internal queue is empty or too long"),
            // Told apart from queues by this in the table of subscriptions.
            () if internal(Source::event_types).any(|event| event.starts_with("INTERNAL:")) => {
                wrong("an event type begins with INTERNAL: - queues are named apart, and without it")
            }
            () if self.batch_max == 0 || self.batch_max > 10_000 => wrong("batch_max must be 1 to 10000"),
            () if self.concurrency == 0 || self.concurrency > 64 => wrong("concurrency must be 1 to 64"),
            () if self.retry.attempts_max == 0 => wrong("retry.attempts_max must be at least 1"),
            () if self.lease < Duration::from_secs(1) => wrong("lease must be at least 1 s"),
            () if self.dlq_topic.as_deref() == Some("") => wrong("dlq_topic is empty"),
            () => Ok(()),
        }
    }

    /// What the consumer takes from INTERNAL: event types, and queues as `INTERNAL:<queue>`.
    pub fn subscriptions(&self) -> Vec<String> {
        let types = self.sources.iter().flat_map(Source::event_types).cloned();
        let queues = self.sources.iter().flat_map(Source::queues);
        types.chain(queues.map(|queue| Destination::InternalQueue { queue: queue.clone() }.to_string())).collect()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("sources", &self.sources)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handler::Process(process) => write!(f, "Process({})", process.name()),
            Handler::Enlisted { grouping, .. } => write!(f, "Enlisted({grouping:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::tests::Nothing;

    #[test]
    fn every_topic_named_is_read_or_the_consumer_is_refused() {
        let consumer = Consumer::enlisted("c", Nothing).from_kafka(&["a"]).from_internal(&["E"]).from_kafka(&["b"]);
        assert_eq!(consumer.sources[0].topics(), Some(&vec!["a".to_owned(), "b".to_owned()]));
        consumer.validate().unwrap();
        let mut twice = consumer.clone();
        twice.sources.push(consumer.sources[0].clone());
        assert!(twice.validate().unwrap_err().to_string().contains("two Kafka sources"));
        let none = Consumer::enlisted("c", Nothing).from_kafka(&[]);
        assert!(none.validate().unwrap_err().to_string().contains("no topics"));
    }

    #[test]
    fn queues_and_event_types_are_told_apart() {
        let consumer = Consumer::enlisted("c", Nothing).from_internal(&["E"]).from_internal_queues(&["Q.CMD"]);
        consumer.validate().unwrap();
        assert_eq!(consumer.subscriptions(), ["E", "INTERNAL:Q.CMD"]);
        let unnamed = Consumer::enlisted("c", Nothing).from_internal_queues(&[""]);
        assert!(unnamed.validate().unwrap_err().to_string().contains("internal queue"));
        let mixed = Consumer::enlisted("c", Nothing).from_internal(&["INTERNAL:Q.CMD"]);
        assert!(mixed.validate().unwrap_err().to_string().contains("queues are named apart"));
    }
}
