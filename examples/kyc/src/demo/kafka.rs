//! Topics for the demo, and what came out of them in the end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const PARTITIONS: i32 = 4;
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A record of the output topic, in the order of its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub event_id: String,
    pub event_type: String,
    pub key: String,
    pub case_id: String,
}

pub(super) async fn create_topics(brokers: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let names = [crate::NOTIFICATION_TOPIC, crate::ONBOARDING_TOPIC, crate::REVIEW_TOPIC];
    let topics = names.map(|name| NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1)));
    let made = admin.create_topics(&topics, &AdminOptions::new().operation_timeout(Some(ANSWER_MAX))).await?;
    for answer in made {
        answer.map_err(|(topic, code)| anyhow::anyhow!("creating topic {topic}: {code}"))?;
    }
    Ok(())
}

/// Reads the output topic from its beginning to its present end.
pub(super) fn read_back(brokers: &str) -> Result<Vec<Published>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "kyc-demo")
        .set("enable.auto.commit", "false")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    let mut missing = 0;
    for partition in 0..PARTITIONS {
        let (low, high) = consumer.fetch_watermarks(crate::REVIEW_TOPIC, partition, ANSWER_MAX)?;
        missing += usize::try_from(high - low).unwrap_or(0);
        assignment.add_partition_offset(crate::REVIEW_TOPIC, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let mut published = Vec::with_capacity(missing);
    let begun = Instant::now();
    while published.len() < missing {
        ensure!(begun.elapsed() < ANSWER_MAX, "{} of {missing} records came back in time", published.len());
        if let Some(record) = consumer.poll(Duration::from_millis(200)) {
            published.push(read(&record.context("reading the output topic")?));
        }
    }
    Ok(published)
}

fn read(record: &BorrowedMessage<'_>) -> Published {
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let header = |name: &str| {
        let found = record.headers().and_then(|headers| headers.iter().find(|header| header.key == name));
        text(found.and_then(|header| header.value))
    };
    Published {
        event_id: header("event-id"),
        event_type: header("event-type"),
        key: text(record.key()),
        case_id: header("aggregate-id"),
    }
}
