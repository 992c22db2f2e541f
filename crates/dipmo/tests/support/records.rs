//! Topics and the raw records in them, for tests that compare two senders byte by byte.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

use std::time::Duration;

use bytes::Bytes;
use dipmo::transport::Record;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use time::OffsetDateTime;

/// Of every topic made here.
pub const PARTITIONS: i32 = 3;

/// How long a record may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The shared Kafka of this test run.
pub fn bootstrap() -> String {
    std::env::var("DIPMO_TEST_KAFKA").expect("run the tests by `cargo xtask test`, which starts the servers")
}

/// Several topics, new and followed from their beginning.
pub struct Topics {
    names: Vec<String>,
    consumer: StreamConsumer,
}

impl Topics {
    pub async fn create(names: &[&str]) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap());
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let topics: Vec<NewTopic<'_>> =
            names.iter().map(|name| NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1))).collect();
        for made in admin.create_topics(&topics, &AdminOptions::new()).await.unwrap() {
            made.unwrap();
        }
        // Required by the client, although no group is joined where partitions are assigned by hand.
        config.set("group.id", names[0]).set("enable.auto.commit", "false");
        let consumer: StreamConsumer = config.create().unwrap();
        let mut all = TopicPartitionList::new();
        for name in names {
            for partition in 0..PARTITIONS {
                all.add_partition_offset(name, partition, Offset::Beginning).unwrap();
            }
        }
        consumer.assign(&all).unwrap();
        Self { names: names.iter().map(|&name| name.to_owned()).collect(), consumer }
    }

    /// The next `count` records; of one partition they come in order. What had come by then is the error.
    pub async fn next(&self, count: usize) -> Result<Vec<Record>, Vec<Record>> {
        let mut records = Vec::new();
        while records.len() < count {
            let Ok(received) = tokio::time::timeout(PATIENCE, self.consumer.recv()).await else {
                return Err(records);
            };
            let message = received.unwrap();
            let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
            let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
            let millis = i128::from(message.timestamp().to_millis().unwrap());
            records.push(Record {
                topic: message.topic().to_owned(),
                partition: message.partition(),
                offset: message.offset(),
                key: message.key().map(bytes),
                headers: headers.map(|header| (header.key.to_owned(), header.value.map(bytes))).collect(),
                payload: message.payload().map(bytes),
                timestamp: Some(OffsetDateTime::from_unix_timestamp_nanos(millis * 1_000_000).unwrap()),
            });
        }
        Ok(records)
    }

    /// How many records the topics hold.
    pub fn count(&self) -> i64 {
        let every = self.names.iter().flat_map(|name| (0..PARTITIONS).map(move |partition| (name, partition)));
        let end =
            |(name, partition): (&String, i32)| self.consumer.fetch_watermarks(name, partition, PATIENCE).unwrap().1;
        every.map(end).sum()
    }
}
