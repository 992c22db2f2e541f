//! The topic that all relays write to: how far they are, and whether everything came once and in order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use uuid::Uuid;

use super::outbox::{Load, Outbox, message};
use crate::ingest::PATIENCE;
use crate::servers::{KAFKA_TIMEOUT, Servers};

pub(crate) const PARTITIONS: i32 = 4;
/// Between two looks at the ends of the partitions.
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct Topic {
    name: String,
    consumer: Arc<BaseConsumer>,
}

/// The offsets at which the partitions end.
pub(crate) type Ends = Vec<i64>;

/// Some records are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) records: usize,
    pub(crate) at: Instant,
}

/// What is wrong with what came; all zero on a clean run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
    pub(crate) out_of_order: usize,
}

impl Topic {
    pub(crate) async fn create(servers: &Servers, name: &str, settings: &[(&str, &str)]) -> Result<Self> {
        servers.create_topic(name, PARTITIONS, settings).await?;
        let mut config = servers.kafka_client();
        config.set("group.id", name).set("enable.auto.commit", "false").set("fetch.wait.max.ms", "500");
        Ok(Self { name: name.to_owned(), consumer: Arc::new(config.create()?) })
    }

    pub(crate) async fn ends(&self) -> Result<Ends> {
        let (name, consumer) = (self.name.clone(), Arc::clone(&self.consumer));
        tokio::task::spawn_blocking(move || ends(&consumer, &name)).await?
    }

    /// Waits until at least so many records came after `start`.
    pub(crate) async fn reach(&self, start: &Ends, records: usize) -> Result<Arrived> {
        let began = Instant::now();
        loop {
            let end: i64 = self.ends().await?.iter().sum();
            let arrived = Arrived { records: usize::try_from(end - start.iter().sum::<i64>())?, at: Instant::now() };
            if arrived.records >= records {
                return Ok(arrived);
            }
            if began.elapsed() > PATIENCE {
                bail!("{} of {records} records in {} after {} s", arrived.records, self.name, PATIENCE.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts reading at the offsets given.
    pub(crate) fn read_from(&self, start: &Ends) -> Result<Arc<BaseConsumer>> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in (0..).zip(start) {
            list.add_partition_offset(&self.name, partition, Offset::Offset(*offset))?;
        }
        self.consumer.assign(&list)?;
        Ok(Arc::clone(&self.consumer))
    }

    /// Reads back what came after `start` and holds it against the rows: every id once, its own key and
    /// bytes, and the rows of a key in the order in which they were committed.
    pub(crate) async fn audit(
        &self,
        start: &Ends,
        outbox: Outbox,
        load: &Load,
        ids: HashMap<Uuid, usize>,
    ) -> Result<Faults> {
        let end = self.ends().await?;
        let records = usize::try_from(end.iter().sum::<i64>() - start.iter().sum::<i64>())?;
        let (consumer, load) = (self.read_from(start)?, load.clone());
        let faults = tokio::task::spawn_blocking(move || {
            let faults = audit(&consumer, records, outbox, &load, &ids);
            consumer.unassign()?;
            faults
        });
        faults.await?
    }
}

fn ends(consumer: &BaseConsumer, topic: &str) -> Result<Ends> {
    let end = |partition| Ok(consumer.fetch_watermarks(topic, partition, KAFKA_TIMEOUT)?.1);
    (0..PARTITIONS).map(end).collect()
}

fn audit(
    consumer: &BaseConsumer,
    records: usize,
    outbox: Outbox,
    load: &Load,
    ids: &HashMap<Uuid, usize>,
) -> Result<Faults> {
    ensure!(ids.len() == load.numbers.len(), "the table holds {} of {} rows", ids.len(), load.numbers.len());
    let mut tally = Tally::new(load.numbers.clone());
    for _ in 0..records {
        let record = consumer.poll(KAFKA_TIMEOUT).context("no record came for too long")?.context("reading back")?;
        let id = id_of(&record, outbox.id_header())?;
        let n = *ids.get(&id).with_context(|| format!("event {id} is not one of the rows"))?;
        let (key, payload) = message(n, load);
        ensure!(record.key() == Some(key.as_bytes()), "event {id} has the key of another row");
        ensure!(record.payload() == Some(payload.as_bytes()), "event {id} has other bytes than its row");
        tally.add(n, key);
    }
    Ok(tally.faults())
}

/// Counts what came; the rows of a key were committed in the order of their numbers.
struct Tally {
    numbers: Range<usize>,
    times: Vec<u32>,
    last_of_key: HashMap<String, usize>,
    faults: Faults,
}

impl Tally {
    fn new(numbers: Range<usize>) -> Self {
        Self { times: vec![0; numbers.len()], numbers, last_of_key: HashMap::new(), faults: Faults::default() }
    }

    fn add(&mut self, n: usize, key: String) {
        let times = &mut self.times[n - self.numbers.start];
        *times += 1;
        if *times > 1 {
            self.faults.duplicated += 1;
            return;
        }
        let last = self.last_of_key.entry(key).or_insert(n);
        if n < *last {
            self.faults.out_of_order += 1;
        }
        *last = n.max(*last);
    }

    fn faults(self) -> Faults {
        Faults { lost: self.times.iter().filter(|times| **times == 0).count(), ..self.faults }
    }
}

fn id_of(record: &BorrowedMessage<'_>, name: &str) -> Result<Uuid> {
    let headers = record.headers().context("a record without headers")?;
    let header = headers.iter().find(|header| header.key == name);
    let value = header.and_then(|header| header.value).with_context(|| format!("a record without header {name}"))?;
    Uuid::try_parse_ascii(value).with_context(|| format!("header {name} is no id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(came: &[(usize, &str)]) -> Faults {
        let mut tally = Tally::new(10..14);
        for (n, key) in came {
            tally.add(*n, (*key).to_owned());
        }
        tally.faults()
    }

    #[test]
    fn keys_may_overtake_each_other() {
        assert_eq!(faults_of(&[(12, "b"), (10, "a"), (13, "b"), (11, "a")]), Faults::default());
    }

    #[test]
    fn lost_duplicated_and_out_of_order_are_counted_apart() {
        let faults = faults_of(&[(12, "a"), (10, "a"), (12, "a")]);
        assert_eq!(faults, Faults { lost: 2, duplicated: 1, out_of_order: 1 });
    }
}
