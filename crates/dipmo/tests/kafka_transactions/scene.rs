//! Topics, events, publishers with one transactional id, and what a reader sees at this moment.

use std::sync::Arc;
use std::time::Duration;

use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use dipmo::transport::{Outcome, Outgoing, Publisher};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::kafka::{Topic, bootstrap, client};

/// More than anything here takes, less than a test may hang.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const SHARD: i16 = 17;

/// A row of the outbox.
#[derive(Clone)]
pub struct Event {
    pub id: i64,
    pub shard: i16,
    pub transaction: u64,
    pub topic: String,
    pub key: String,
    pub body: Vec<u8>,
    pub at: OffsetDateTime,
}

impl Event {
    pub fn new(id: i64, transaction: u64, topic: &str, key: &str) -> Self {
        let (topic, key) = (topic.to_owned(), key.to_owned());
        Self {
            id,
            shard: SHARD,
            transaction,
            topic,
            key,
            body: id.to_string().into_bytes(),
            at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    /// Random, so that compression does not help it; more than a topic of small messages takes.
    pub fn oversized(self) -> Self {
        Self { body: (0..40_000).map(|_| rand::random::<u8>()).collect(), ..self }
    }

    fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            id: self.id,
            shard: self.shard,
            transaction: self.transaction,
            message_id: Uuid::from_u128(self.id.unsigned_abs().into()),
            topic: &self.topic,
            key: &self.key,
            tenant: "",
            aggregate_type: "order",
            aggregate_id: &self.key,
            aggregate_version: None,
            event_type: "Placed",
            event_version: 1,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            payload: Some(&self.body),
            occurred_at: self.at,
        }
    }
}

pub async fn publish(publisher: &KafkaPublisher, events: &[Event]) -> Vec<Outcome> {
    let rows: Vec<Outgoing<'_>> = events.iter().map(Event::outgoing).collect();
    publisher.publish(&rows).await
}

/// Short names of outcomes, with the codes of those that have one.
pub fn names(outcomes: &[Outcome]) -> Vec<String> {
    let name = |outcome: &Outcome| match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::Held => "held".to_owned(),
        Outcome::Retry(refusal) => format!("retry {}", refusal.code),
        Outcome::Rejected(refusal) => format!("rejected {}", refusal.code),
        Outcome::Unknown(refusal) => format!("unknown {}", refusal.code),
    };
    outcomes.iter().map(name).collect()
}

/// A transactional id of its own for every test; all topics are transactional.
pub struct Scene {
    pub bootstrap: String,
    pub id: String,
}

impl Scene {
    pub fn new() -> Self {
        Self::on(&bootstrap())
    }

    pub fn on(bootstrap: &str) -> Self {
        Self { bootstrap: bootstrap.to_owned(), id: format!("test-{}", Uuid::now_v7()) }
    }

    pub fn options(&self, send_timeout: Duration) -> KafkaOptions {
        let mut options = KafkaOptions::new(&self.bootstrap);
        options.transactional_topics = vec!["*".to_owned()];
        options.transactional_id = self.id.clone();
        options.send_timeout = send_timeout;
        options
    }

    pub fn publisher(&self, send_timeout: Duration) -> Arc<KafkaPublisher> {
        Arc::new(KafkaPublisher::new(self.options(send_timeout)).unwrap())
    }

    pub async fn topic(&self) -> Topic {
        Topic::on(&self.bootstrap, 1).await
    }

    /// With a limit for messages that only the broker knows.
    pub async fn topic_of_small_messages(&self, partitions: i32) -> Topic {
        let topic = Topic::on(&self.bootstrap, partitions).await;
        let admin: AdminClient<DefaultClientContext> = client(&self.bootstrap).create().unwrap();
        let small = AlterConfig::new(ResourceSpecifier::Topic(&topic.name)).set("max.message.bytes", "20000");
        admin.alter_configs([&small], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        topic
    }

    async fn visible(&self, topic: &str, isolation: &str) -> Vec<String> {
        self.records(topic, isolation).await.into_iter().map(|(_, body)| body).collect()
    }

    /// The offsets and bodies that a reader who begins now and reads to the end sees.
    pub async fn records(&self, topic: &str, isolation: &str) -> Vec<(i64, String)> {
        let (mut config, topic) = (client(&self.bootstrap), topic.to_owned());
        config.set("group.id", "unused").set("enable.partition.eof", "true").set("isolation.level", isolation);
        let read = move || {
            let consumer: BaseConsumer = config.create().unwrap();
            let known = consumer.fetch_metadata(Some(&topic), PATIENCE).unwrap();
            let mut left = known.topics()[0].partitions().len();
            let mut from = TopicPartitionList::new();
            for partition in known.topics()[0].partitions() {
                from.add_partition_offset(&topic, partition.id(), Offset::Beginning).unwrap();
            }
            consumer.assign(&from).unwrap();
            let mut records = Vec::new();
            while left > 0 {
                match consumer.poll(PATIENCE).expect("the reader gets to the end") {
                    Ok(message) => {
                        let body = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
                        records.push((message.offset(), body));
                    }
                    Err(KafkaError::PartitionEOF(_)) => left -= 1,
                    Err(error) => panic!("{error}"),
                }
            }
            records
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    pub async fn committed(&self, topic: &str) -> Vec<String> {
        self.visible(topic, "read_committed").await
    }

    pub async fn uncommitted(&self, topic: &str) -> Vec<String> {
        self.visible(topic, "read_uncommitted").await
    }

    /// Waits until the broker has this much, committed or not.
    pub async fn holds(&self, topic: &str, count: usize) {
        let reached = async { while self.uncommitted(topic).await.len() < count {} };
        tokio::time::timeout(PATIENCE, reached).await.expect("the records get to the broker");
    }
}
