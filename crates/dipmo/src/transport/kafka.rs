//! Kafka: how to reach it, and the sending side. The receiving side is `kafka_source`.
//!
//! Promise: rows leave in the order given, pipelined, with acks=all from an idempotent producer, and every
//! call ends within the send timeout and a little. Rows of transactional topics are visible together with
//! those of their database transaction, or not at all (`kafka_transactions`). A row that the broker refuses
//! is found among those that it refused with it (`kafka_refused`). Not promised: that a row whose outcome is
//! unknown did not arrive, and, while a producer is new to a partition, order against rows that were on
//! their way when an earlier one of their key was refused.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::kafka_deliveries::{Deliveries, Told, opaque};
use super::kafka_headers::headers;
use super::kafka_polled::Polled;
use super::kafka_refused::Search;
use super::kafka_transactions::Transactions;
use super::{Outcome, Outgoing, Publisher, Refusal};
use crate::error::{Error, Result};

/// After a purge librdkafka reports what it dropped within moments; this is only a bound.
const PURGE_WAIT: Duration = Duration::from_secs(2);
/// Each refusal uses one up, and the next has had time to begin when it is needed.
const CAREFUL_CLIENTS: usize = 4;
/// Whether the producer has broken is looked at this often while its reports are waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long to let the queue of librdkafka empty before the next try.
pub(super) const QUEUE_FULL_WAIT: Duration = Duration::from_millis(2);
/// Other tasks of the thread get a turn after this many rows.
pub(super) const YIELD_ROWS: usize = 512;

/// How to reach a Kafka cluster, and how to send to it.
#[derive(Clone)]
pub struct KafkaOptions {
    /// `host:port,host:port`.
    pub brokers: String,
    pub client_id: String,
    /// The `producer` header of every message, when given.
    pub producer: Option<String>,
    /// How long a broker request waits for company.
    pub linger: Duration,
    /// What has not been acknowledged after this long counts as unknown.
    pub send_timeout: Duration,
    /// Topics that are written in Kafka transactions: names, or `*` for all.
    pub transactional_topics: Vec<String>,
    /// What the transactional ids begin with; `-` and the shard follow. Whatever sends from the same outbox
    /// must have the same, whatever does not must have another.
    pub transactional_id: String,
    /// A transaction that its relay has left open hides what follows it from readers for this long at
    /// most. Not more than `transaction.max.timeout.ms` of the brokers.
    pub transaction_timeout: Duration,
    /// Any librdkafka setting, secrets included; only the names are ever printed.
    pub settings: BTreeMap<String, String>,
}

impl KafkaOptions {
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            client_id: "dipmo".to_owned(),
            producer: None,
            linger: Duration::ZERO,
            send_timeout: Duration::from_secs(10),
            transactional_topics: Vec::new(),
            transactional_id: "dipmo".to_owned(),
            transaction_timeout: Duration::from_secs(60),
            settings: BTreeMap::new(),
        }
    }

    /// Whether the topic is written in Kafka transactions.
    pub fn is_transactional(&self, topic: &str) -> bool {
        self.transactional_topics.iter().any(|name| name == "*" || name == topic)
    }

    pub(super) fn transactional_id_of(&self, shard: i16) -> String {
        format!("{}-{shard}", self.transactional_id)
    }

    /// What producers and consumers have in common.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", &self.client_id);
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config
    }

    fn producer_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("compression.type", "zstd")
            // The partitioner of the Java clients, so that a key has one partition whoever produces.
            .set("partitioner", "murmur2_random")
            .set("linger.ms", (self.linger.as_secs_f64() * 1e3).to_string())
            .set("queue.buffering.max.messages", "200000")
            // A topic that was just made may not be known to every broker for this long.
            .set("topic.metadata.propagation.max.ms", (self.send_timeout.as_millis() * 2 / 5).to_string());
        for (name, value) in self.client_config().config_map() {
            config.set(name, value);
        }
        // Not for settings to change: order and durability rest on them. The timeout of librdkafka comes
        // after ours, because it drops messages one by one, and a later one might still get through.
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", (self.send_timeout.as_millis() * 3).to_string());
        config
    }

    fn plain_config(&self) -> ClientConfig {
        let mut config = self.producer_config();
        // A row that the broker refuses breaks the producer: otherwise librdkafka would close the gap by
        // itself and send what stands behind it in its key.
        config.set("enable.gapless.guarantee", "true");
        config
    }

    /// For rows that were refused. A broker takes batches with a hole before them from a producer that is
    /// new to a partition, so nothing may be on its way behind something that may be refused.
    fn careful_config(&self) -> ClientConfig {
        let mut config = self.plain_config();
        config.set("max.in.flight.requests.per.connection", "1");
        config
    }

    pub(super) fn transactional_config(&self, id: &str) -> ClientConfig {
        let mut config = self.producer_config();
        // librdkafka refuses messages that outlive their transaction.
        let message_timeout = (self.send_timeout * 3).min(self.transaction_timeout);
        config
            .set("transactional.id", id)
            .set("transaction.timeout.ms", self.transaction_timeout.as_millis().to_string())
            .set("message.timeout.ms", message_timeout.as_millis().to_string())
            // There is one for each shard, so each holds little.
            .set("queue.buffering.max.messages", "20000")
            .set("queue.buffering.max.kbytes", "16384");
        config
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("linger", &self.linger)
            .field("send_timeout", &self.send_timeout)
            .field("transactional_topics", &self.transactional_topics)
            .field("transactional_id", &self.transactional_id)
            .field("transaction_timeout", &self.transaction_timeout)
            .field("settings", &self.settings.keys())
            .finish_non_exhaustive()
    }
}

type Client = Polled<Deliveries>;

/// Sends to one cluster.
pub struct KafkaPublisher {
    options: KafkaOptions,
    deliveries: Deliveries,
    client: Mutex<Arc<Client>>,
    batches: AtomicU32,
    transactions: Transactions,
}

impl KafkaPublisher {
    /// Makes the producer; brokers are connected to in the background.
    pub fn new(options: KafkaOptions) -> Result<Self> {
        if !options.transactional_topics.is_empty() && options.transaction_timeout < options.send_timeout {
            return Err(Error::invalid("the transaction timeout of Kafka is shorter than the send timeout"));
        }
        let deliveries = Deliveries::default();
        let client = make(options.plain_config(), &deliveries)?;
        Ok(Self {
            options,
            deliveries,
            client: Mutex::new(Arc::new(client)),
            batches: AtomicU32::new(0),
            transactions: Transactions::new(),
        })
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.lock().expect("no code panics while it holds the producer"))
    }

    /// A producer with a fatal error never works again, and a row that the broker refuses is such an error.
    fn replace_if_broken(&self, broken: Arc<Client>) {
        let Some((code, reason)) = broken.client().fatal_error() else { return };
        let mut client = self.client.lock().expect("no code panics while it holds the producer");
        if Arc::ptr_eq(&client, &broken) {
            warn!(?code, %reason, "the Kafka producer is broken and gets replaced");
            match make(self.options.plain_config(), &self.deliveries) {
                Ok(made) => *client = Arc::new(made),
                Err(error) => warn!(%error, "replacing the Kafka producer"),
            }
        }
        drop_aside(broken);
    }

    /// Hands a row to librdkafka, which copies it.
    async fn enqueue(
        &self,
        client: &Client,
        row: &Outgoing<'_>,
        (batch, n): (u32, usize),
        deadline: Instant,
    ) -> Result<(), Failed> {
        let mut record = record(row, self.options.producer.as_deref(), opaque(batch, n)).map_err(Failed::Here)?;
        loop {
            match client.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(Code::QueueFull), again)) if Instant::now() < deadline => {
                    record = again;
                    tokio::time::sleep(QUEUE_FULL_WAIT).await;
                }
                Err((error, _)) if error.rdkafka_error_code() == Some(Code::Fatal) => {
                    return Err(Failed::Broken(error));
                }
                Err((error, _)) => return Err(Failed::Here(judge(&error))),
            }
        }
    }

    /// Sends the rows once, and tells what became of each.
    async fn send(&self, client: &Client, rows: &[Outgoing<'_>], deadline: Instant) -> Told {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let done = self.deliveries.open(batch, rows.len());
        let mut failed: HashSet<(&str, &str)> = HashSet::new();
        for (n, row) in rows.iter().enumerate() {
            if n % YIELD_ROWS == YIELD_ROWS - 1 {
                tokio::task::yield_now().await;
            }
            if !failed.is_empty() && failed.contains(&(row.topic, row.key)) {
                self.deliveries.tell(batch, n, Outcome::Held);
                continue;
            }
            match self.enqueue(client, row, (batch, n), deadline).await {
                Ok(()) => {}
                Err(Failed::Here(outcome)) => {
                    failed.insert((row.topic, row.key));
                    self.deliveries.tell(batch, n, outcome);
                }
                Err(Failed::Broken(error)) => self.deliveries.tell_failed(batch, n, &error),
            }
        }
        await_reports(client, done, deadline).await;
        self.deliveries.close(batch)
    }

    /// Rows of topics that are not transactional.
    async fn publish_plain(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        if rows.is_empty() {
            // A batch of nothing is never told to be done.
            return Vec::new();
        }
        let deadline = Instant::now() + self.options.send_timeout;
        let client = self.client();
        let told = self.send(&client, rows, deadline).await;
        self.replace_if_broken(client);
        let late = Instant::now() >= deadline;
        if told.suspects.is_empty() && (told.unsent.is_empty() || late) {
            return told.outcomes();
        }
        self.search(Search::new(rows, told), deadline).await
    }

    /// Sends again what the broker refused, in smaller and smaller groups.
    async fn search(&self, mut search: Search<'_>, deadline: Instant) -> Vec<Outcome> {
        let mut clients: VecDeque<Arc<Client>> = VecDeque::new();
        while let Some(attempt) = search.next() {
            while clients.len() < CAREFUL_CLIENTS
                && let Ok(client) = make(self.options.careful_config(), &self.deliveries)
            {
                clients.push_back(Arc::new(client));
            }
            let Some(client) = clients.front().filter(|_| Instant::now() < deadline) else { break };
            let told = self.send(client, &search.rows(&attempt), deadline).await;
            if client.client().fatal_error().is_some() {
                clients.drain(..1).for_each(drop_aside);
            }
            if !search.ended(&attempt, told) {
                break;
            }
        }
        clients.into_iter().for_each(drop_aside);
        search.finish()
    }
}

/// Why librdkafka does not take a row.
enum Failed {
    /// Because of the row.
    Here(Outcome),
    /// The producer takes nothing any more.
    Broken(KafkaError),
}

/// Until all reports are in, or the time is over and a little.
async fn await_reports(client: &Client, done: oneshot::Receiver<()>, deadline: Instant) {
    let mut done = std::pin::pin!(done);
    while Instant::now() < deadline {
        if tokio::time::timeout_at(deadline.min(Instant::now() + LOOK_EVERY), &mut done).await.is_ok() {
            return;
        }
        if client.client().fatal_error().is_some() {
            // librdkafka purges its queue when it breaks. What the broker sends back after that, because
            // something before it is missing, would stay in the queue.
            client.purge(PurgeConfig::default().queue());
        }
    }
    // Everything that is still under way ends at once and together: nothing later of a key can get
    // through after something earlier has been given up.
    client.purge(PurgeConfig::default().queue().inflight());
    let _ = tokio::time::timeout(PURGE_WAIT, &mut done).await;
}

/// Dropping a producer waits for its threads.
fn drop_aside(client: Arc<Client>) {
    tokio::task::spawn_blocking(move || drop(client));
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        let whole = |row: &&Outgoing<'_>| self.options.is_transactional(row.topic);
        if !rows.iter().any(|row| whole(&row)) {
            return self.publish_plain(rows).await;
        }
        let (transactional, plain): (Vec<Outgoing<'_>>, Vec<Outgoing<'_>>) = rows.iter().partition(whole);
        let together = self.transactions.publish(&self.options, &transactional);
        let (plain, together) = tokio::join!(self.publish_plain(&plain), together);
        let (mut plain, mut together) = (plain.into_iter(), together.into_iter());
        let outcome = |row| if whole(&row) { together.next() } else { plain.next() };
        rows.iter().map(outcome).map(|outcome| outcome.expect("every row has its outcome")).collect()
    }

    fn keeps_whole(&self, topic: &str) -> bool {
        self.options.is_transactional(topic)
    }

    fn keeps_any_whole(&self) -> bool {
        !self.options.transactional_topics.is_empty()
    }

    fn forget(&self, shards: &[i16]) {
        self.transactions.forget(shards);
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher").field("options", &self.options).finish_non_exhaustive()
    }
}

fn make(config: ClientConfig, deliveries: &Deliveries) -> Result<Client> {
    let failed = |error: KafkaError| Error::invalid("making the Kafka producer").source(error);
    let producer: BaseProducer<Deliveries> = config.create_with_context(deliveries.clone()).map_err(failed)?;
    Polled::new(producer).map_err(|error| Error::invalid("starting a thread for the Kafka producer").source(error))
}

/// A row as librdkafka takes it.
pub(super) fn record<'a>(
    row: &Outgoing<'a>,
    producer: Option<&str>,
    opaque: usize,
) -> Result<BaseRecord<'a, str, [u8], usize>, Outcome> {
    let millis = (row.occurred_at.unix_timestamp_nanos() / 1_000_000).try_into().unwrap_or(0);
    let mut record = BaseRecord::with_opaque_to(row.topic, opaque).key(row.key).timestamp(millis);
    record.headers = Some(headers(row, producer)?);
    record.payload = row.payload;
    Ok(record)
}

/// What a failure means for the row.
pub(super) fn judge(error: &KafkaError) -> Outcome {
    let code = error.rdkafka_error_code();
    let name = code.map_or_else(|| "KAFKA".to_owned(), |code| format!("KAFKA_{code:?}"));
    let refusal = Refusal::new(name, code.map_or_else(|| error.to_string(), |code| code.to_string()));
    match code {
        Some(
            Code::MessageSizeTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::MessageBatchTooLarge
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::InvalidTimestamp
            | Code::InvalidRecord
            | Code::PolicyViolation
            | Code::InvalidArgument,
        ) => Outcome::Rejected(refusal),
        Some(
            Code::MessageTimedOut
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::QueueFull
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::NetworkException
            | Code::RequestTimedOut
            | Code::OperationTimedOut
            | Code::Fatal
            | Code::Resolve,
        ) => Outcome::Unknown(refusal),
        _ => Outcome::Retry(refusal),
    }
}

/// Whatever is in the row, its topic does not take it.
pub(super) fn is_of_the_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::TopicAuthorizationFailed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_the_settings_are_never_printed() {
        let mut options = KafkaOptions::new("127.0.0.1:9092");
        options.settings.insert("sasl.password".to_owned(), "hunter2".to_owned());
        let printed = format!("{options:?}");
        assert!(printed.contains("sasl.password") && !printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn settings_cannot_weaken_durability_or_order() {
        let mut options = KafkaOptions::new("127.0.0.1:9092");
        for (name, value) in [("acks", "0"), ("enable.idempotence", "false"), ("linger.ms", "50")] {
            options.settings.insert(name.to_owned(), value.to_owned());
        }
        let config = options.producer_config();
        assert_eq!(config.get("acks"), Some("all"));
        assert_eq!(config.get("enable.idempotence"), Some("true"));
        assert_eq!(config.get("linger.ms"), Some("50"));
    }

    #[test]
    fn failures_of_the_broker_are_not_the_rows() {
        let production = |code| judge(&KafkaError::MessageProduction(code));
        assert!(matches!(production(Code::MessageSizeTooLarge), Outcome::Rejected(_)));
        assert!(matches!(production(Code::UnknownTopic), Outcome::Rejected(_)));
        assert!(matches!(production(Code::MessageTimedOut), Outcome::Unknown(_)));
        assert!(matches!(production(Code::PurgeInflight), Outcome::Unknown(_)));
        assert!(matches!(production(Code::TopicAuthorizationFailed), Outcome::Retry(_)));
    }
}
