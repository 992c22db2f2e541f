//! A plain client of the broker, as another program would be.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use dipmo::transport::amqp::AmqpOptions;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{
    AmqpSequence, AmqpValue, ApplicationProperties, Body, Data, Message, MessageId, Properties, Source, Target,
};
use fe2o3_amqp::types::primitives::{Binary, SimpleValue, Symbol, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use testbed::{Artemis, ArtemisOptions};
use uuid::Uuid;

use crate::PATIENCE;

/// How long an empty queue is waited at to be sure that it is.
const EMPTY_AFTER: Duration = Duration::from_millis(300);

pub type Any = Message<Body<Value>>;

/// The shared Artemis of this test run; one is started where none is given.
pub fn artemis() -> AmqpOptions {
    static URL: OnceLock<(String, Option<Mutex<Artemis>>)> = OnceLock::new();
    let (url, _) = URL.get_or_init(|| match std::env::var("DIPMO_TEST_ARTEMIS") {
        Ok(url) => (url, None),
        Err(_) => {
            let broker = Artemis::start(ArtemisOptions::default()).unwrap();
            (broker.url(), Some(Mutex::new(broker)))
        }
    });
    AmqpOptions::from_url(url).unwrap()
}

pub struct Client {
    _connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
}

impl Client {
    pub async fn open(options: &AmqpOptions) -> Self {
        let url = format!(
            "amqp://{}:{}@{}:{}",
            options.user.as_deref().unwrap(),
            options.password.as_deref().unwrap(),
            options.host,
            options.port
        );
        let mut connection = Connection::open(format!("test.{}", Uuid::now_v7().simple()), url.as_str()).await.unwrap();
        let session = Session::begin(&mut connection).await.unwrap();
        Self { _connection: connection, session }
    }

    pub async fn put(&mut self, queue: &str, messages: impl IntoIterator<Item = Any>) {
        let target = Target::builder().address(queue).capabilities(vec![Symbol::from("queue")]).build();
        let name = Uuid::now_v7().to_string();
        let mut sender = Sender::builder().name(name).target(target).attach(&mut self.session).await.unwrap();
        let mut answers = Vec::new();
        for message in messages {
            answers.push(sender.send_batchable(message).await.unwrap());
        }
        for answer in answers {
            assert!(answer.await.unwrap().is_accepted());
        }
        sender.close().await.unwrap();
    }

    /// Takes that many messages off the queue.
    pub async fn take(&mut self, queue: &str, count: usize) -> Vec<Any> {
        let mut receiver = self.reader(queue).await;
        let mut taken = Vec::new();
        while taken.len() < count {
            let delivery = tokio::time::timeout(PATIENCE, receiver.recv::<Body<Value>>()).await;
            let delivery = delivery.unwrap_or_else(|_| panic!("{queue}: {} of {count} came", taken.len())).unwrap();
            receiver.accept(&delivery).await.unwrap();
            taken.push(delivery.into_message());
        }
        receiver.close().await.unwrap();
        taken
    }

    /// Takes what is there until nothing more comes.
    pub async fn take_rest(&mut self, queue: &str) -> Vec<Any> {
        let mut receiver = self.reader(queue).await;
        let mut taken = Vec::new();
        while let Ok(delivery) = tokio::time::timeout(EMPTY_AFTER, receiver.recv::<Body<Value>>()).await {
            let delivery = delivery.unwrap();
            receiver.accept(&delivery).await.unwrap();
            taken.push(delivery.into_message());
        }
        receiver.close().await.unwrap();
        taken
    }

    /// The dead letter with this id; others are given back.
    pub async fn find_dead(&mut self, id: &str) -> Any {
        let mut receiver = self.reader(testbed::DEAD_LETTERS).await;
        let mut others = Vec::new();
        let found = loop {
            let delivery = tokio::time::timeout(PATIENCE, receiver.recv::<Body<Value>>()).await.unwrap().unwrap();
            if id_of(delivery.message()) == id {
                receiver.accept(&delivery).await.unwrap();
                break delivery.into_message();
            }
            others.push(delivery);
        };
        receiver.release_all(&others).await.unwrap();
        receiver.close().await.unwrap();
        found
    }

    async fn reader(&mut self, queue: &str) -> Receiver {
        let source = Source::builder().address(queue).capabilities(vec![Symbol::from("queue")]).build();
        let name = Uuid::now_v7().to_string();
        Receiver::builder().name(name).source(source).attach(&mut self.session).await.unwrap()
    }
}

/// A message with a string id and these application properties.
pub fn message(id: &str, properties: &[(&str, &str)], body: Body<Value>) -> Any {
    let mut map = ApplicationProperties::builder().build();
    for (name, value) in properties {
        map.insert((*name).to_owned(), SimpleValue::String((*value).to_owned()));
    }
    let properties = Properties { message_id: Some(MessageId::String(id.to_owned())), ..Properties::default() };
    Message {
        header: None,
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: Some(map),
        body,
        footer: None,
    }
}

pub fn data(bytes: &[u8]) -> Body<Value> {
    Body::from(Data(Binary::from(bytes.to_vec())))
}

pub fn text(text: &str) -> Body<Value> {
    Body::Value(AmqpValue(Value::String(text.to_owned())))
}

pub fn sequence() -> Body<Value> {
    Body::from(AmqpSequence(vec![Value::Int(1), Value::Int(2)]))
}

pub fn id_of(message: &Any) -> String {
    match message.properties.as_ref().and_then(|properties| properties.message_id.as_ref()) {
        Some(MessageId::String(id)) => id.clone(),
        other => format!("{other:?}"),
    }
}

pub fn correlation_of(message: &Any) -> Option<&str> {
    match message.properties.as_ref()?.correlation_id.as_ref()? {
        MessageId::String(id) => Some(id),
        _ => Some("not a string"),
    }
}

/// An application property, as text.
pub fn property(message: &Any, name: &str) -> String {
    match message.application_properties.as_ref().and_then(|map| map.get(name)) {
        Some(SimpleValue::String(text)) => text.clone(),
        Some(SimpleValue::Int(number)) => number.to_string(),
        Some(SimpleValue::Long(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

pub fn bytes_of(message: &Any) -> Vec<u8> {
    match &message.body {
        Body::Data(sections) => sections.iter().flat_map(|data| data.0.to_vec()).collect(),
        other => panic!("{other:?} is no data"),
    }
}
