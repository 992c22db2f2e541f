//! A real Kafka: topics, records in, records out, and what the group has committed.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use dipmo::transport::kafka::KafkaOptions;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use uuid::Uuid;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The shared Kafka of this test run.
pub fn bootstrap() -> String {
    std::env::var("DIPMO_TEST_KAFKA").expect("run the tests by `cargo xtask test`, which starts the servers")
}

/// A topic of its own for every test.
pub struct Topic {
    pub name: String,
    bootstrap: String,
    producer: FutureProducer,
}

impl Topic {
    pub async fn new(partitions: i32) -> Self {
        Self::on(&bootstrap(), partitions).await
    }

    pub async fn on(bootstrap: &str, partitions: i32) -> Self {
        Self::made(bootstrap, partitions, &[]).await
    }

    /// With one partition, and settings of its own.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        Self::made(&self::bootstrap(), 1, settings).await
    }

    async fn made(bootstrap: &str, partitions: i32, settings: &[(&str, &str)]) -> Self {
        let name = format!("t-{}", Uuid::now_v7());
        let config = client(bootstrap);
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let mut topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        admin.create_topics([&topic], &options).await.unwrap()[0].as_ref().unwrap();
        let producer = config.clone().set("acks", "all").create().unwrap();
        Self { name, bootstrap: bootstrap.to_owned(), producer }
    }

    pub fn options(&self) -> KafkaOptions {
        let mut options = KafkaOptions::new(&self.bootstrap);
        // A node that dies is missed sooner than by default, so that tests wait less.
        options.settings.insert("session.timeout.ms".into(), "2000".into());
        options.settings.insert("heartbeat.interval.ms".into(), "300".into());
        options
    }

    pub async fn send(&self, key: &str, payload: &[u8], id: Option<&str>) {
        let mut record = FutureRecord::to(&self.name).key(key).payload(payload);
        if let Some(id) = id {
            record = record.headers(OwnedHeaders::new().insert(Header { key: "event-id", value: Some(id) }));
        }
        self.producer.send(record, TIMEOUT).await.map_err(|(error, _)| error).unwrap();
    }

    /// Sends many at once, in order within each key.
    pub async fn send_all(&self, records: impl IntoIterator<Item = (String, String)>) {
        let mut acks = Vec::new();
        for (key, payload) in records {
            let record = FutureRecord::to(&self.name).key(&key).payload(payload.as_bytes());
            acks.push(self.producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        for ack in acks {
            ack.await.unwrap().map_err(|(error, _)| error).unwrap();
        }
    }

    /// What the group has committed, summed over the partitions.
    pub async fn committed(&self, group: &str, partitions: i32) -> i64 {
        let config = client(&self.bootstrap).set("group.id", group).clone();
        let topic = self.name.clone();
        let committed = move || {
            let consumer: BaseConsumer = config.create().unwrap();
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions {
                list.add_partition(&topic, partition);
            }
            let offsets = consumer.committed_offsets(list, TIMEOUT).unwrap();
            offsets.elements().iter().map(|e| if let Offset::Offset(offset) = e.offset() { offset } else { 0 }).sum()
        };
        tokio::task::spawn_blocking(committed).await.unwrap()
    }
}

pub fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

/// Reads a topic from its beginning.
pub struct Reader {
    consumer: StreamConsumer,
}

impl Topic {
    pub fn reader(&self) -> Reader {
        let mut config = client(&self.bootstrap);
        config.set("group.id", format!("reader-{}", Uuid::now_v7())).set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = config.create().unwrap();
        consumer.subscribe(&[&self.name]).unwrap();
        Reader { consumer }
    }
}

impl Reader {
    /// Reads until that many different event-ids of the keys that count have come by. The payloads of each
    /// key in the order of their first arrival, and how many repeats there were.
    pub async fn first_arrivals(
        &mut self,
        wanted: usize,
        counts: impl Fn(&str) -> bool,
        (patience, label): (Duration, &str),
    ) -> (BTreeMap<String, Vec<i64>>, usize) {
        let (mut by_key, mut ids, mut repeats) = (BTreeMap::<String, Vec<i64>>::new(), HashSet::new(), 0);
        let reading = async {
            while ids.len() < wanted {
                let (key, id, payload) = self.next().await;
                if !counts(&key) {
                    continue;
                }
                if ids.insert(id) {
                    by_key.entry(key).or_default().push(payload.parse().unwrap());
                } else {
                    repeats += 1;
                }
            }
        };
        let finished = tokio::time::timeout(patience, reading).await.is_ok();
        assert!(finished, "{label}: {} of {wanted} arrived", ids.len());
        (by_key, repeats)
    }

    /// The key, the event-id and the payload of the next record, as text.
    pub async fn next(&mut self) -> (String, String, String) {
        let message = self.consumer.recv().await.unwrap();
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let id = message
            .headers()
            .and_then(|headers| headers.iter().find(|h| h.key == "event-id")?.value.map(<[u8]>::to_vec));
        (text(message.key()), text(id.as_deref()), text(message.payload()))
    }
}
