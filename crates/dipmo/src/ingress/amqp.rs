//! From a queue of an AMQP 1.0 broker into the inbox.
//!
//! Promise: a message is accepted only after a transaction that holds it, or its duplicate's, has committed.
//! While the database is away nothing is accepted: the link is closed and the broker keeps what it sent.
//! Any number of nodes may read one queue; the messages are handled by workers, who own the keys.
//! Not promised: the order in which the broker gives messages of one key to several nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::counter;
use tracing::{info, warn};

use super::letter::{decode_letter, envelope_of};
use crate::consumer::{Consumer, Envelope};
use crate::error::{Error, ErrorKind, Result};
use crate::runner::{Delivery, Runner};
use crate::shutdown::Shutdown;
use crate::store::postgres::Db;
use crate::store::postgres::inbox::PgInbox;
use crate::transport::Refusal;
use crate::transport::amqp::{AmqpOptions, Profile};
use crate::transport::amqp_message::{incoming, put_away};
use crate::transport::amqp_wire::{Arrived, Inlet};
use crate::wake::Wake;

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// A connection that is not open by then is given up.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How long a batch that has begun waits for the next message that is on its way.
const LINGER: Duration = Duration::from_millis(2);
/// How often a full backlog is looked at again.
const BACKLOG_CHECK: Duration = Duration::from_millis(500);

/// One queue of one consumer on this node.
#[derive(Debug)]
pub struct AmqpIngress {
    runner: Runner,
    options: AmqpOptions,
    queue: String,
    envelope: Envelope,
    wake: Wake,
    /// How much may still be taken in before the backlog is counted again.
    room: usize,
}

impl AmqpIngress {
    /// Registers the consumer; the broker is connected to when it runs.
    pub async fn new(db: Db, consumer: Arc<Consumer>, options: AmqpOptions, queue: &str, wake: Wake) -> Result<Self> {
        let clock = db.clock().clone();
        let store = Arc::new(PgInbox::register(db, &consumer).await?);
        Self::with(Runner::new(store, consumer, clock), options, queue, wake)
    }

    /// An ingress over any store.
    pub fn with(runner: Runner, options: AmqpOptions, queue: &str, wake: Wake) -> Result<Self> {
        options.validate()?;
        if options.profile == Profile::IbmMq && options.backout_queue.is_none() {
            let why = "profile ibm-mq needs a backout_queue: what can never be stored is put there";
            return Err(Error::invalid(format!("consumer {}: {why}", runner.consumer().name)));
        }
        let envelope = envelope_of(&runner.consumer().envelope);
        Ok(Self { runner, options, queue: queue.to_owned(), envelope, wake, room: 0 })
    }

    /// Takes messages in until asked to stop; then finishes the batch in hand.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        let mut delay = RETRY_MIN;
        while !shutdown.requested() {
            let began = Instant::now();
            let Err(error) = self.read(&mut shutdown).await else { continue };
            if began.elapsed() > RETRY_MAX {
                delay = RETRY_MIN;
            }
            warn!(consumer = self.runner.consumer().name, queue = self.queue, %error,
                "nothing more is accepted: connecting again");
            shutdown.wait_up_to(delay).await;
            delay = (delay * 2).min(RETRY_MAX);
        }
    }

    /// Reads over one connection, until a stop or the first trouble.
    async fn read(&mut self, shutdown: &mut Shutdown) -> Result<()> {
        self.wait_for_room(shutdown).await?;
        let opening = tokio::time::timeout(OPEN_MAX, Inlet::open(&self.options, &self.queue));
        let mut inlet = tokio::select! {
            opened = opening => opened.map_err(|_| unavailable(&slow()))?.map_err(|refusal| unavailable(&refusal))?,
            () = shutdown.wait() => return Ok(()),
        };
        info!(consumer = self.runner.consumer().name, queue = self.queue, "reading");
        let ended = self.read_from(&mut inlet, shutdown).await;
        inlet.close().await;
        ended
    }

    async fn read_from(&mut self, inlet: &mut Inlet, shutdown: &mut Shutdown) -> Result<()> {
        while !shutdown.requested() {
            self.wait_for_room(shutdown).await?;
            let batch = tokio::select! {
                // A stop comes first: it also ends the wait for room, and then there is none.
                biased;
                () = shutdown.wait() => break,
                batch = next_batch(inlet, self.runner.consumer().batch_max) => batch.map_err(|r| unavailable(&r))?,
            };
            self.settle(inlet, batch).await?;
        }
        Ok(())
    }

    /// First the commit, then the broker.
    async fn settle(&mut self, inlet: &mut Inlet, batch: Vec<Arrived>) -> Result<()> {
        let count = batch.len();
        let (mut deliveries, mut taken, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        for arrived in batch {
            match self.decode(&arrived) {
                Ok(delivery) => {
                    deliveries.push(delivery);
                    taken.push(arrived);
                }
                Err(why) => unreadable.push((arrived, why.to_owned())),
            }
        }
        let stored = self.store(&deliveries).await?;
        let mut accepted = Vec::with_capacity(taken.len());
        for (arrived, stored) in taken.into_iter().zip(stored) {
            match stored {
                None => accepted.push(arrived.ticket),
                Some(why) => unreadable.push((arrived, why)),
            }
        }
        if !accepted.is_empty() {
            self.wake.fire();
            inlet.accept(accepted).await.map_err(|refusal| unavailable(&refusal))?;
        }
        for (arrived, why) in unreadable {
            self.put_away(inlet, arrived, &why).await?;
        }
        self.room = self.room.saturating_sub(count);
        Ok(())
    }

    /// For each delivery nothing, or why the database will never hold it.
    async fn store(&self, deliveries: &[Delivery]) -> Result<Vec<Option<String>>> {
        match self.runner.take_in(deliveries).await {
            Ok(_) => return Ok(vec![None; deliveries.len()]),
            Err(error) if error.kind() != ErrorKind::Poison => return Err(error),
            Err(_) => {}
        }
        let mut told = Vec::with_capacity(deliveries.len());
        for alone in deliveries.chunks(1) {
            told.push(match self.runner.take_in(alone).await {
                Ok(_) => None,
                Err(error) if error.kind() == ErrorKind::Poison => Some(error.to_string()),
                Err(error) => return Err(error),
            });
        }
        Ok(told)
    }

    /// The error says why the message cannot be kept byte for byte.
    fn decode(&self, arrived: &Arrived) -> Result<Delivery, &'static str> {
        let message = arrived.message.as_ref().ok_or("the sections of the message cannot be decoded")?;
        let (message, fault) = decode_letter(incoming(&self.queue, message)?, &self.envelope);
        Ok(Delivery::Fresh { message: Arc::new(message), fault })
    }

    /// What can never be stored is left with the broker, where somebody will look for it.
    async fn put_away(&self, inlet: &mut Inlet, arrived: Arrived, why: &str) -> Result<()> {
        warn!(consumer = self.runner.consumer().name, queue = self.queue, why, "a message can never be stored");
        counter!("dipmo_amqp_unstorable_total", "queue" => self.queue.clone()).increment(1);
        let done = match (self.options.profile, &self.options.backout_queue, arrived.message) {
            (Profile::Artemis, ..) => inlet.reject(arrived.ticket, why).await,
            (Profile::IbmMq, Some(backout), Some(message)) => match inlet.copy(backout, put_away(message, why)).await {
                Ok(()) => inlet.accept(vec![arrived.ticket]).await,
                Err(refusal) => Err(refusal),
            },
            // It stays with this link, unsettled, and in nobody's way.
            (Profile::IbmMq, ..) => Ok(()),
        };
        done.map_err(|refusal| unavailable(&refusal))
    }

    /// Waits while the workers are too far behind. Counting costs as much as the backlog is long, so half of
    /// the room that a count finds is used before the next one.
    async fn wait_for_room(&mut self, shutdown: &mut Shutdown) -> Result<()> {
        let backlog_max = self.runner.consumer().backlog_max;
        let mut told = false;
        while self.room == 0 && !shutdown.requested() {
            let waiting = self.runner.store().backlog(backlog_max).await?;
            if waiting < backlog_max {
                self.room = (backlog_max - waiting).div_ceil(2);
                break;
            }
            if !std::mem::replace(&mut told, true) {
                warn!(consumer = self.runner.consumer().name, backlog_max, "backlog is full, reading stops");
            }
            shutdown.wait_up_to(BACKLOG_CHECK).await;
        }
        Ok(())
    }
}

/// The next message, and those that are there already.
async fn next_batch(inlet: &mut Inlet, max: usize) -> Result<Vec<Arrived>, Refusal> {
    let mut batch = vec![inlet.next().await?];
    while batch.len() < max {
        match tokio::time::timeout(LINGER, inlet.next()).await {
            Ok(arrived) => batch.push(arrived?),
            Err(_) => break,
        }
    }
    Ok(batch)
}

fn slow() -> Refusal {
    Refusal::new("AMQP_TIMEOUT", "the broker did not answer in time")
}

fn unavailable(refusal: &Refusal) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: {}", refusal.code, refusal.message))
}
