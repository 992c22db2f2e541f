//! A peer that refuses what IBM documents that its AMQP channels refuse. It is not a queue manager and shares
//! no code with one: it stands for the documentation, not for the product.
//!
//! Refused: ids that are not text, annotations, a terminus without the capability `queue`, every outcome but
//! accepted, a container id of other letters than IBM allows, a second session on a connection, a correlation
//! id of more than 24 bytes. As on a queue manager, every message that is delivered has a new message id.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use dipmo::transport::amqp::{AmqpOptions, Profile};
use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, ListenerConnectionHandle, ListenerSessionHandle,
    SaslPlainMechanism, SessionAcceptor,
};
use fe2o3_amqp::types::definitions::{self, AmqpError};
use fe2o3_amqp::types::messaging::{Body, MessageId, TargetArchetype};
use fe2o3_amqp::types::performatives::Attach;
use fe2o3_amqp::types::primitives::{Array, Symbol, Value};
use fe2o3_amqp::{Receiver, Sender};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::client::Any;

const CORRELATION_BYTES_MAX: usize = 24;

#[derive(Default)]
struct Inner {
    queues: Mutex<HashMap<String, VecDeque<Any>>>,
    refused: Mutex<Vec<String>>,
    changed: Notify,
}

/// Listens until it is dropped.
pub struct Peer {
    inner: Arc<Inner>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let inner = Arc::<Inner>::default();
        let task = tokio::spawn(listen(listener, inner.clone()));
        Self { inner, port, task }
    }

    pub fn options(&self, profile: Profile) -> AmqpOptions {
        AmqpOptions {
            user: Some("app".into()),
            password: Some("word".into()),
            profile,
            backout_queue: Some("BACKOUT".into()),
            ..AmqpOptions::new("127.0.0.1", self.port)
        }
    }

    pub fn refused(&self) -> Vec<String> {
        self.inner.refused.lock().unwrap().clone()
    }

    /// Waits until something is refused for this reason.
    pub async fn refuses(&self, what: &str) {
        let refused = async {
            while !self.refused().iter().any(|refused| refused.contains(what)) {
                self.inner.changed.notified().await;
            }
        };
        let in_time = tokio::time::timeout(crate::PATIENCE, refused).await;
        assert!(in_time.is_ok(), "{what} is not among {:?}", self.refused());
    }

    pub fn put(&self, queue: &str, message: Any) {
        self.inner.put(queue, message);
    }

    /// What is in the queue when something is.
    pub async fn content(&self, queue: &str) -> Vec<Any> {
        let content = async {
            loop {
                let found: Vec<Any> = self.inner.peek(queue);
                if !found.is_empty() {
                    return found;
                }
                self.inner.changed.notified().await;
            }
        };
        tokio::time::timeout(crate::PATIENCE, content).await.unwrap()
    }

    pub fn is_empty(&self, queue: &str) -> bool {
        self.inner.peek(queue).is_empty()
    }
}

impl Inner {
    fn put(&self, queue: &str, message: Any) {
        self.queues.lock().unwrap().entry(queue.to_owned()).or_default().push_back(message);
        self.tell();
    }

    fn peek(&self, queue: &str) -> Vec<Any> {
        self.queues.lock().unwrap().get(queue).map(|queue| queue.iter().cloned().collect()).unwrap_or_default()
    }

    /// Every waiter looks, those that begin to wait just now too.
    fn tell(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    fn refuse(&self, what: impl Into<String>) -> definitions::Error {
        let what = what.into();
        self.refused.lock().unwrap().push(what.clone());
        self.tell();
        definitions::Error::new(AmqpError::NotImplemented, what, None)
    }
}

async fn listen(listener: TcpListener, inner: Arc<Inner>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        tokio::spawn(serve(stream, inner.clone()));
    }
}

async fn serve(stream: TcpStream, inner: Arc<Inner>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let login = SaslPlainMechanism::new("app", "word");
    let acceptor = ConnectionAcceptor::builder().container_id("PEER").sasl_acceptor(login).build();
    let Ok(mut connection) = acceptor.accept(Overheard { stream, seen: seen.clone() }).await else { return };
    let id = container_id(&seen.lock().unwrap()).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "%/._".contains(c);
    if id.is_empty() || !id.chars().all(plain) {
        let _ = connection.close_with_error(inner.refuse(format!("container id {id:?}"))).await;
        return;
    }
    one_session(&mut connection, inner).await;
}

async fn one_session(connection: &mut ListenerConnectionHandle, inner: Arc<Inner>) {
    let acceptor = SessionAcceptor::new();
    let Ok(session) = acceptor.accept(connection).await else { return };
    let links = tokio::spawn(accept_links(session, inner.clone()));
    if connection.next_incoming_session().await.is_some() {
        let _ = connection.close_with_error(inner.refuse("second session")).await;
    }
    links.abort();
}

async fn accept_links(mut session: ListenerSessionHandle, inner: Arc<Inner>) {
    let acceptor = LinkAcceptor::new();
    while let Some(attach) = session.next_incoming_attach().await {
        let capable = is_for_queue(&attach);
        let Ok(link) = acceptor.accept_incoming_attach(attach, &mut session).await else { continue };
        let inner = inner.clone();
        tokio::spawn(async move {
            match link {
                LinkEndpoint::Sender(sender) if capable => deliver(sender, inner).await,
                LinkEndpoint::Receiver(receiver) if capable => receive(receiver, inner).await,
                LinkEndpoint::Sender(sender) => {
                    let _ = sender.close_with_error(inner.refuse("source without capability queue")).await;
                }
                LinkEndpoint::Receiver(receiver) => {
                    let _ = receiver.close_with_error(inner.refuse("target without capability queue")).await;
                }
            }
        });
    }
}

/// A queue manager would take any other for a topic.
fn is_for_queue(attach: &Attach) -> bool {
    let has = |found: Option<&Array<Symbol>>| found.is_some_and(|all| all.0.iter().any(|one| one.as_str() == "queue"));
    match attach.role {
        definitions::Role::Sender => match attach.target.as_deref() {
            Some(TargetArchetype::Target(target)) => has(target.capabilities.as_ref()),
            _ => false,
        },
        definitions::Role::Receiver => has(attach.source.as_ref().and_then(|source| source.capabilities.as_ref())),
    }
}

async fn receive(mut receiver: Receiver, inner: Arc<Inner>) {
    let queue = receiver.target().as_ref().and_then(|target| target.address.clone()).unwrap_or_default();
    while let Ok(delivery) = receiver.recv::<Body<Value>>().await {
        if let Some(what) = fault(delivery.message()) {
            let _ = receiver.close_with_error(inner.refuse(what)).await;
            return;
        }
        inner.put(&queue, delivery.message().clone());
        if receiver.accept(&delivery).await.is_err() {
            return;
        }
    }
}

fn fault(message: &Any) -> Option<&'static str> {
    let properties = message.properties.clone().unwrap_or_default();
    let is_text = |id: &Option<MessageId>| matches!(id, None | Some(MessageId::String(_) | MessageId::Binary(_)));
    match &properties.correlation_id {
        _ if message.message_annotations.is_some() || message.delivery_annotations.is_some() => Some("annotations"),
        _ if !is_text(&properties.message_id) => Some("message id that is not text"),
        _ if !is_text(&properties.correlation_id) => Some("correlation id that is not text"),
        Some(MessageId::String(id)) if id.len() > CORRELATION_BYTES_MAX => Some("correlation id of more than 24 bytes"),
        _ => None,
    }
}

async fn deliver(mut sender: Sender, inner: Arc<Inner>) {
    let queue = sender.source().as_ref().and_then(|source| source.address.clone()).unwrap_or_default();
    loop {
        let next = inner.queues.lock().unwrap().get_mut(&queue).and_then(VecDeque::pop_front);
        let Some(message) = next else {
            inner.changed.notified().await;
            continue;
        };
        let mut given = message.clone();
        let properties = given.properties.get_or_insert_default();
        properties.message_id = Some(MessageId::String(format!("ID:{}", Uuid::now_v7().simple())));
        let told = sender.send(given).await;
        if let Ok(outcome) = &told
            && outcome.is_accepted()
        {
            inner.tell();
            continue;
        }
        inner.queues.lock().unwrap().entry(queue).or_default().push_front(message);
        if let Ok(outcome) = told {
            let _ = sender.close_with_error(inner.refuse(format!("outcome {outcome:?}"))).await;
        }
        return;
    }
}

/// Keeps a copy of what the client says first: the library does not tell the client's container id.
#[derive(Debug)]
struct Overheard {
    stream: TcpStream,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Overheard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let mut seen = self.seen.lock().unwrap();
        if seen.len() < 4096 {
            seen.extend_from_slice(&buf.filled()[before..]);
        }
        read
    }
}

impl AsyncWrite for Overheard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The first field of the performative `open`: a described list, then a short string.
fn container_id(seen: &[u8]) -> Option<String> {
    let open = seen.windows(3).position(|bytes| bytes == [0x00, 0x53, 0x10])? + 3;
    let list = seen.get(open..)?;
    let fields = match list.first()? {
        0xc0 => &list[3..],
        0xd0 => &list[9..],
        _ => return None,
    };
    let length = usize::from(*fields.get(1).filter(|_| fields[0] == 0xa1)?);
    String::from_utf8(fields.get(2..2 + length)?.to_vec()).ok()
}
