//! Whoever is outside and knows nothing of dipmo: a client of the broker, and a reader of the topics.

use std::collections::BTreeMap;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{Body, Data, Message, MessageId, Properties, Source, Target};
use fe2o3_amqp::types::primitives::{Binary, Symbol, Value as AmqpValue};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use payments::context::Context;
use payments::wiring::ORCHESTRATIONS;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;
use uuid::Uuid;

use crate::stage::PATIENCE;

/// As many as `setup::make_topics` makes.
const PARTITIONS: i32 = 4;

/// Sends commands, and reads the answers on a queue of its own.
pub(crate) struct Client {
    _connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
    answers: Receiver,
    pub(crate) reply_queue: String,
}

/// An answer, and the broker's own word on which command it belongs to.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) correlation: String,
    pub(crate) envelope: Value,
}

impl Client {
    pub(crate) async fn open(url: &str) -> Self {
        let mut connection = Connection::open(format!("outside.{}", Uuid::now_v7().simple()), url).await.unwrap();
        let mut session = Session::begin(&mut connection).await.unwrap();
        let reply_queue = format!("THEIRS.{}.Q", Uuid::now_v7().simple());
        let queue = Symbol::from("queue");
        let source = Source::builder().address(reply_queue.as_str()).capabilities(vec![queue]).build();
        let answers = Receiver::builder().name("answers").source(source).attach(&mut session).await.unwrap();
        Self { _connection: connection, session, answers, reply_queue }
    }

    pub(crate) async fn put(&mut self, queue: &str, envelope: &Value) {
        let target = Target::builder().address(queue).capabilities(vec![Symbol::from("queue")]).build();
        let name = Uuid::now_v7().to_string();
        let mut sender = Sender::builder().name(name).target(target).attach(&mut self.session).await.unwrap();
        let id = envelope["messageId"].as_str().unwrap();
        let properties = Properties { message_id: Some(MessageId::String(id.to_owned())), ..Properties::default() };
        let body = Data(Binary::from(envelope.to_string().into_bytes()));
        let message = Message::builder().properties(properties).data(body.0).build();
        assert!(sender.send(message).await.unwrap().is_accepted());
        sender.close().await.unwrap();
    }

    /// The next answer.
    pub(crate) async fn reply(&mut self) -> Reply {
        let delivery = tokio::time::timeout(PATIENCE, self.answers.recv::<Body<AmqpValue>>()).await;
        let delivery = delivery.expect("no answer came").unwrap();
        self.answers.accept(&delivery).await.unwrap();
        let message = delivery.into_message();
        let correlation = match message.properties.and_then(|properties| properties.correlation_id) {
            Some(MessageId::String(id)) => id,
            other => format!("{other:?}"),
        };
        let Body::Data(sections) = message.body else { panic!("an answer without data") };
        let bytes: Vec<u8> = sections.into_iter().flat_map(|data| data.0.into_vec()).collect();
        Reply { correlation, envelope: serde_json::from_slice(&bytes).unwrap() }
    }
}

/// Reads every topic of the platform from its beginning.
pub(crate) struct Events {
    consumer: StreamConsumer,
    /// Events by saga, topic and type, and by their own id: a repetition is the same event.
    seen: BTreeMap<(String, String, String), BTreeMap<String, Value>>,
}

impl Events {
    pub(crate) fn open(brokers: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", format!("outside-{}", Uuid::now_v7()));
        let consumer: StreamConsumer = config.create().unwrap();
        let mut partitions = TopicPartitionList::new();
        for topic in Context::ALL.map(Context::topic).into_iter().chain([ORCHESTRATIONS]) {
            for partition in 0..PARTITIONS {
                partitions.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
            }
        }
        consumer.assign(&partitions).unwrap();
        Self { consumer, seen: BTreeMap::new() }
    }

    /// Waits for an event of a saga; there must not be two of them.
    pub(crate) async fn one(&mut self, saga: Uuid, topic: &str, kind: &str) -> Value {
        let wanted = (saga.to_string(), topic.to_owned(), kind.to_owned());
        while !self.seen.contains_key(&wanted) {
            let read = tokio::time::timeout(PATIENCE, self.consumer.recv()).await;
            let record = read.unwrap_or_else(|_| panic!("{wanted:?} did not come, only {:?}", self.seen.keys()));
            self.note(&record.unwrap().detach());
        }
        let events = &self.seen[&wanted];
        assert_eq!(events.len(), 1, "{wanted:?}");
        let event = events.values().next().unwrap();
        assert_eq!(event["correlationId"], saga.to_string(), "the envelope says the same as the header");
        event.clone()
    }

    fn note(&mut self, record: &OwnedMessage) {
        let headers = record.headers().unwrap();
        let header = |name: &str| {
            let found = headers.iter().find(|header| header.key == name).and_then(|header| header.value);
            String::from_utf8(found.unwrap_or_default().to_vec()).unwrap()
        };
        let place = (header("correlation-id"), record.topic().to_owned(), header("event-type"));
        let event = serde_json::from_slice(record.payload().unwrap_or(b"null")).unwrap();
        self.seen.entry(place).or_default().insert(header("event-id"), event);
    }
}
