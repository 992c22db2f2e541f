//! The protocol: connections, and the links of queues on them.
//!
//! The library lets some waits hang for ever when a connection dies: every wait here ends when the connection
//! has, and whoever calls puts a limit to the rest.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::{DeliveryFut, DeliveryInfo};
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::link::{RecvError, SendError, SenderAttachError};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{self, AmqpError};
use fe2o3_amqp::types::messaging::{Body, Message, Outcome as Answered, Source, Target};
use fe2o3_amqp::types::primitives::{Symbol, Value};
use fe2o3_amqp::{Receiver, Sender, Session};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use super::amqp::AmqpOptions;
pub(super) use super::amqp_trouble::Trouble;
use super::amqp_trouble::{judge_outcome, judge_send, lost, not_opened, refusal, stopped};
use super::{Outcome, Refusal};
use crate::tls;

/// Whether the connection has died is looked at this often while an answer is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A broker that gives a queue no room for this long does not want more there: other queues go on.
const CREDIT_WAIT: Duration = Duration::from_secs(2);
const FRAME_BYTES_MAX: u32 = 128 * 1024;
/// An orderly end is polite and no more.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for S {}

/// One connection with one session on it, and a link for each queue that was sent to.
pub(super) struct Connection {
    handle: ConnectionHandle<()>,
    session: SessionHandle<()>,
    senders: HashMap<String, Sender>,
    /// The broker has ended a link: the library may take what still comes for it for the next link's.
    unfit: bool,
}

impl Connection {
    /// `role` makes the connection known to operators of the broker.
    pub(super) async fn open(options: &AmqpOptions, role: &str) -> Result<Self, Refusal> {
        let stream = connect(options).await?;
        let container_id = format!("{}.{role}.{}", options.container_id, Uuid::now_v7().simple());
        let mut builder = fe2o3_amqp::Connection::builder()
            .container_id(container_id)
            .hostname(options.host.as_str())
            .scheme("amqp")
            .max_frame_size(FRAME_BYTES_MAX)
            // Half of it is what the broker is told.
            .idle_time_out(u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX));
        if let Some(user) = &options.user {
            let (username, password) = (user.clone(), options.password.clone().unwrap_or_default());
            builder = builder.sasl_profile(SaslProfile::Plain { username, password });
        }
        let mut handle = builder.open_with_stream(stream).await.map_err(|error| not_opened(options, &error))?;
        let session = Session::begin(&mut handle).await;
        let session = session.map_err(|error| Refusal::new("AMQP_SESSION", format!("opening a session: {error}")))?;
        Ok(Self { handle, session, senders: HashMap::new(), unfit: false })
    }

    /// Not for anything new.
    pub(super) fn is_unfit(&self) -> bool {
        self.unfit || self.handle.is_closed()
    }

    /// Hands a message to the link of its queue; the answer comes later.
    pub(super) async fn send(&mut self, queue: &str, message: Message<Body<Value>>) -> Result<Answer, Trouble> {
        self.attach(queue).await?;
        let sender = self.senders.get_mut(queue).expect("the link was just attached");
        let sent = tokio::time::timeout(CREDIT_WAIT, until_closed(&self.handle, sender.send_batchable(message))).await;
        let failed = match sent {
            Ok(Some(Ok(future))) => return Ok(Answer(Box::pin(future))),
            Ok(Some(Err(error))) => judge_send(error, queue),
            Ok(None) => Trouble::Connection(lost()),
            Err(_) => {
                let why = format!("queue {queue}: the broker takes no more messages for it at the moment");
                Trouble::Row(Outcome::Retry(Refusal::new("AMQP_NO_CREDIT", why)))
            }
        };
        // What was cut off in the middle, or refused, is attached anew.
        self.senders.remove(queue);
        self.unfit = true;
        Err(failed)
    }

    /// The broker's answer.
    pub(super) async fn wait(&mut self, answer: &mut Answer) -> Result<Outcome, Trouble> {
        match until_closed(&self.handle, &mut answer.0).await {
            Some(Ok(answered)) => Ok(judge_outcome(answered)),
            Some(Err(error)) => {
                self.unfit = true;
                Err(judge_send(error, ""))
            }
            None => Err(Trouble::Connection(lost())),
        }
    }

    pub(super) async fn attach(&mut self, queue: &str) -> Result<(), Trouble> {
        if self.senders.contains_key(queue) {
            return Ok(());
        }
        let target = Target::builder().address(queue).capabilities(vec![Symbol::from("queue")]).build();
        let attaching = Sender::builder().name(link_name(queue)).target(target).attach(&mut self.session);
        let attached = until_closed(&self.handle, attaching).await.ok_or_else(|| Trouble::Connection(lost()))?;
        self.unfit |= attached.is_err();
        let sender = attached.map_err(|error| match error {
            SenderAttachError::RemoteClosedWithError(error) => {
                Trouble::Row(Outcome::Retry(refusal(&error, &format!("queue {queue} cannot be sent to"))))
            }
            SenderAttachError::SessionStopped(_) | SenderAttachError::SessionNotMapped => {
                Trouble::Connection(Refusal::new("AMQP_SESSION", format!("attaching to queue {queue}: {error}")))
            }
            other => {
                let why = format!("queue {queue} cannot be sent to: {other}");
                Trouble::Row(Outcome::Retry(Refusal::new("AMQP_ATTACH", why)))
            }
        })?;
        self.senders.insert(queue.to_owned(), sender);
        Ok(())
    }

    /// Ends in order, as far as the broker takes part.
    async fn close(mut self) {
        self.senders.clear();
        let _ = tokio::time::timeout(CLOSE_WAIT, self.handle.close()).await;
    }
}

/// What the broker will say of a message.
pub(super) struct Answer(Pin<Box<DeliveryFut<Result<Answered, SendError>>>>);

impl Answer {
    /// What has been said already.
    pub(super) fn now(&mut self) -> Option<Outcome> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(answered)) => Some(judge_outcome(answered)),
            _ => None,
        }
    }
}

/// A queue that is read, over a connection of its own.
pub(crate) struct Inlet {
    connection: Connection,
    receiver: Receiver,
}

/// A message as it came; its number settles it.
pub(crate) struct Arrived {
    pub(crate) ticket: Ticket,
    /// `None` where not even the sections of the message can be told apart.
    pub(crate) message: Option<Message<Body<Value>>>,
}

/// What a message is settled by.
#[derive(Debug, Clone)]
pub(crate) struct Ticket(DeliveryInfo);

impl Inlet {
    pub(crate) async fn open(options: &AmqpOptions, queue: &str) -> Result<Self, Refusal> {
        let mut connection = Connection::open(options, "ingress").await?;
        let source = Source::builder().address(queue).capabilities(vec![Symbol::from("queue")]).build();
        let attached = Receiver::builder()
            .name(link_name(queue))
            .source(source)
            .credit_mode(CreditMode::Auto(options.credit))
            .attach(&mut connection.session)
            .await;
        let receiver =
            attached.map_err(|error| Refusal::new("AMQP_ATTACH", format!("reading queue {queue}: {error}")))?;
        Ok(Self { connection, receiver })
    }

    /// The next message; none is lost when this is given up in the middle.
    pub(crate) async fn next(&mut self) -> Result<Arrived, Refusal> {
        let coming = until_closed(&self.connection.handle, self.receiver.recv::<Body<Value>>());
        match coming.await.ok_or_else(lost)? {
            Ok(delivery) => {
                let (info, message) = delivery.into_parts();
                Ok(Arrived { ticket: Ticket(info), message: Some(message) })
            }
            Err(RecvError::MessageDecode(broken)) => Ok(Arrived { ticket: Ticket(broken.info), message: None }),
            Err(RecvError::LinkStateError(error)) => Err(stopped(error)),
            Err(error) => Err(Refusal::new("AMQP_RECEIVE", error.to_string())),
        }
    }

    pub(crate) async fn accept(&self, tickets: Vec<Ticket>) -> Result<(), Refusal> {
        let accepted = self.receiver.accept_all(tickets.into_iter().map(|ticket| ticket.0)).await;
        accepted.map_err(|error| Refusal::new("AMQP_ACCEPT", format!("accepting: {error}")))
    }

    /// Makes the message a dead letter of the broker's.
    pub(crate) async fn reject(&self, ticket: Ticket, why: &str) -> Result<(), Refusal> {
        let error = definitions::Error::new(AmqpError::DecodeError, Some(why.to_owned()), None);
        let rejected = self.receiver.reject(ticket.0, error).await;
        rejected.map_err(|error| Refusal::new("AMQP_REJECT", format!("rejecting: {error}")))
    }

    /// Sends a copy to another queue and returns when that has it.
    pub(crate) async fn copy(&mut self, queue: &str, copy: Message<Body<Value>>) -> Result<(), Refusal> {
        let told = match self.connection.send(queue, copy).await {
            Ok(mut answer) => self.connection.wait(&mut answer).await,
            Err(trouble) => Err(trouble),
        };
        match told {
            Ok(Outcome::Done) => Ok(()),
            Ok(Outcome::Retry(refusal) | Outcome::Rejected(refusal) | Outcome::Unknown(refusal)) => Err(refusal),
            Ok(Outcome::Held) => Err(lost()),
            Err(Trouble::Connection(refusal)) => Err(refusal),
            Err(Trouble::Row(Outcome::Retry(refusal) | Outcome::Rejected(refusal))) => Err(refusal),
            Err(Trouble::Row(_)) => Err(lost()),
        }
    }

    /// What was not settled goes back to the queue.
    pub(crate) async fn close(self) {
        drop(self.receiver);
        self.connection.close().await;
    }
}

async fn connect(options: &AmqpOptions) -> Result<Box<dyn Stream>, Refusal> {
    let address = format!("{}:{}", options.host, options.port);
    let unreachable =
        |error: &dyn fmt::Display| Refusal::new("AMQP_UNREACHABLE", format!("connecting to {address}: {error}"));
    let stream = TcpStream::connect(&address).await.map_err(|error| unreachable(&error))?;
    // Frames are small and answers are waited for.
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let Some(wanted) = &options.tls else { return Ok(Box::new(stream)) };
    let config = tls::roots(wanted.ca_file.as_deref()).and_then(tls::client_config);
    let config = config.map_err(|error| Refusal::new("AMQP_TLS", error.to_string()))?;
    let name =
        ServerName::try_from(options.host.clone()).map_err(|error| Refusal::new("AMQP_TLS", error.to_string()))?;
    let encrypted = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let encrypted = encrypted.map_err(|error| Refusal::new("AMQP_TLS", format!("encrypting to {address}: {error}")))?;
    Ok(Box::new(encrypted))
}

/// Ends when the connection has; then there is nothing.
async fn until_closed<T>(handle: &ConnectionHandle<()>, waiting: impl Future<Output = T>) -> Option<T> {
    let mut waiting = pin!(waiting);
    loop {
        match tokio::time::timeout(LOOK_EVERY, &mut waiting).await {
            Ok(done) => return Some(done),
            Err(_) if handle.is_closed() => return None,
            Err(_) => {}
        }
    }
}

/// Names of links are unique among the links of two containers in one direction.
fn link_name(queue: &str) -> String {
    format!("{queue}.{}", Uuid::now_v7().simple())
}
