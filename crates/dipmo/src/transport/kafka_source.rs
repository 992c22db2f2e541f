//! Reads topics as a consumer group, with commits by hand.
//!
//! Promise: a record is handed out only while its partition is assigned; offsets are committed only by
//! [`KafkaSource::settled`], and once more, synchronously, before a partition is given up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::statistics::Statistics;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use time::OffsetDateTime;
use tracing::{info, warn};

use super::Record;
use super::kafka::KafkaOptions;
use crate::error::{Error, ErrorKind, Result};

/// How often librdkafka tells its figures, the lag among them.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

/// What applies unless the settings say otherwise. librdkafka would fetch 64 MB ahead; a few batches are
/// enough to be never without work.
const DEFAULTS: [(&str, &str); 7] = [
    ("auto.offset.reset", "earliest"),
    ("fetch.wait.max.ms", "100"),
    ("queued.min.messages", "10000"),
    ("queued.max.messages.kbytes", "8192"),
    // Having fetched enough, it would look again only after a second, long after that is used up.
    ("fetch.queue.backoff.ms", "10"),
    ("fetch.max.bytes", "2097152"),
    // Where larger messages come, librdkafka raises it by itself.
    ("fetch.message.max.bytes", "262144"),
];

const SEEK_TIMEOUT: Duration = Duration::from_secs(5);

/// A topic and a partition.
pub(crate) type Partition = (String, i32);

/// A record, and which assignment of its partition it came under.
#[derive(Debug, Clone)]
pub(crate) struct Polled {
    pub(crate) record: Record,
    pub(crate) generation: u64,
}

pub(crate) struct KafkaSource {
    consumer: StreamConsumer<Context>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// What is assigned, with the number of the assignment.
    assigned: HashMap<Partition, u64>,
    generation: u64,
    /// The offset after the last settled record.
    settled: HashMap<Partition, i64>,
}

struct Context {
    consumer: String,
    state: Arc<Mutex<State>>,
}

impl KafkaSource {
    pub(crate) fn new(options: &KafkaOptions, consumer: &str, group: &str, topics: &[String]) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let context = Context { consumer: consumer.to_owned(), state: state.clone() };
        let mut config = options.client_config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("statistics.interval.ms", STATISTICS_INTERVAL.as_millis().to_string());
        for (name, default) in DEFAULTS {
            if config.get(name).is_none() {
                config.set(name, default);
            }
        }
        let failed = |error| Error::invalid(format!("consumer {consumer}: kafka")).source(error);
        let kafka: StreamConsumer<Context> = config.create_with_context(context).map_err(failed)?;
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        kafka.subscribe(&topics).map_err(failed)?;
        Ok(Self { consumer: kafka, state })
    }

    /// Waits for a record, then takes what else is there already, up to `max`.
    pub(crate) async fn next_batch(&self, max: usize) -> Result<Vec<Polled>> {
        let away = |error| Error::new(ErrorKind::Unavailable, "reading from Kafka").source(error);
        let first = self.consumer.recv().await.map_err(away)?;
        let mut batch = vec![first.detach_record()];
        while batch.len() < max {
            match self.consumer.recv().now_or_never() {
                Some(Ok(message)) => batch.push(message.detach_record()),
                // What has been read is handled first; the next call meets the error again or gets past it.
                Some(Err(error)) => {
                    warn!(%error, "reading from Kafka");
                    break;
                }
                None => break,
            }
        }
        let state = lock(&self.state);
        let polled = batch.into_iter().filter_map(|record| {
            let generation = *state.assigned.get(&(record.topic.clone(), record.partition))?;
            Some(Polled { record, generation })
        });
        Ok(polled.collect())
    }

    /// False once the partition was given up, or was assigned anew: its record comes again.
    pub(crate) fn still_assigned(&self, polled: &Polled) -> bool {
        let partition = (polled.record.topic.clone(), polled.record.partition);
        lock(&self.state).assigned.get(&partition) == Some(&polled.generation)
    }

    /// Everything in the batch is durable: its offsets may be committed.
    pub(crate) fn settled(&self, batch: &[Polled]) {
        let mut offsets: HashMap<Partition, i64> = HashMap::new();
        {
            let mut state = lock(&self.state);
            for polled in batch {
                let partition = (polled.record.topic.clone(), polled.record.partition);
                if state.assigned.get(&partition) == Some(&polled.generation) {
                    state.settled.insert(partition.clone(), polled.record.offset + 1);
                    offsets.insert(partition, polled.record.offset + 1);
                }
            }
        }
        if let Err(error) = self.consumer.commit(&offset_list(&offsets), CommitMode::Async) {
            // Nothing is lost: the records come again and are known.
            warn!(%error, "committing offsets");
        }
    }

    /// Records that came too early are fetched again.
    pub(crate) fn rewind(&self, batch: &[Polled]) {
        for polled in batch {
            let Record { topic, partition, offset, .. } = &polled.record;
            if let Err(error) = self.consumer.seek(topic, *partition, Offset::Offset(*offset), SEEK_TIMEOUT) {
                warn!(%error, topic, partition, "rewinding");
            }
        }
    }

    /// Stops fetching, but stays in the group.
    pub(crate) fn pause(&self, paused: bool) {
        let Ok(assignment) = self.consumer.assignment() else { return };
        let list = rebuilt(&assignment);
        let outcome = if paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) };
        if let Err(error) = outcome {
            warn!(%error, paused, "pausing or resuming");
        }
    }

    /// Commits what is settled and leaves the group.
    pub(crate) async fn close(self) {
        let offsets = lock(&self.state).settled.clone();
        let consumer = self.consumer;
        let closed = tokio::task::spawn_blocking(move || {
            if !offsets.is_empty()
                && let Err(error) = consumer.commit(&offset_list(&offsets), CommitMode::Sync)
            {
                warn!(%error, "committing offsets at the end");
            }
            drop(consumer);
        });
        if closed.await.is_err() {
            warn!("closing the Kafka consumer panicked");
        }
    }
}

impl ClientContext for Context {
    fn stats(&self, statistics: Statistics) {
        for topic in statistics.topics.values() {
            for partition in topic.partitions.values().filter(|p| p.partition >= 0 && p.consumer_lag >= 0) {
                metrics::gauge!("dipmo_consumer_lag", "consumer" => self.consumer.clone(),
                    "topic" => topic.topic.clone(), "partition" => partition.partition.to_string())
                .set(partition.consumer_lag as f64);
            }
        }
    }
}

impl ConsumerContext for Context {
    /// Called from within `recv`, so no batch is being handled: all that is settled is committed here.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else { return };
        let mut offsets = HashMap::new();
        {
            let mut state = lock(&self.state);
            for element in partitions.elements() {
                let partition = (element.topic().to_owned(), element.partition());
                state.assigned.remove(&partition);
                if let Some(offset) = state.settled.remove(&partition) {
                    offsets.insert(partition, offset);
                }
            }
        }
        info!(consumer = self.consumer, partitions = partitions.count(), "partitions are given up");
        if !offsets.is_empty()
            && let Err(error) = consumer.commit(&offset_list(&offsets), CommitMode::Sync)
        {
            warn!(%error, "committing offsets of partitions that are given up");
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Assign(partitions) = rebalance else { return };
        let mut state = lock(&self.state);
        for element in partitions.elements() {
            state.generation += 1;
            let generation = state.generation;
            state.assigned.insert((element.topic().to_owned(), element.partition()), generation);
        }
        info!(consumer = self.consumer, partitions = partitions.count(), "partitions are assigned");
    }
}

trait DetachRecord {
    fn detach_record(&self) -> Record;
}

impl DetachRecord for BorrowedMessage<'_> {
    fn detach_record(&self) -> Record {
        let headers = self
            .headers()
            .map(|headers| headers.iter().map(|h| (h.key.to_owned(), h.value.map(Bytes::copy_from_slice))).collect());
        let timestamp = self.timestamp().to_millis().filter(|ms| *ms >= 0);
        Record {
            topic: self.topic().to_owned(),
            partition: self.partition(),
            offset: self.offset(),
            key: self.key().map(Bytes::copy_from_slice),
            headers: headers.unwrap_or_default(),
            payload: self.payload().map(Bytes::copy_from_slice),
            timestamp: timestamp
                .and_then(|ms| OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no code panics while it holds the assignment")
}

fn offset_list(offsets: &HashMap<Partition, i64>) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for ((topic, partition), offset) in offsets {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))
            .expect("an offset that was read is valid");
    }
    list
}

/// A list of our own: one taken from the consumer and kept alive would block its drop.
fn rebuilt(list: &TopicPartitionList) -> TopicPartitionList {
    let mut own = TopicPartitionList::with_capacity(list.count());
    for element in list.elements() {
        own.add_partition(element.topic(), element.partition());
    }
    own
}
