//! Moves messages from the outbox to their destinations.
//!
//! Promise: a committed message is sent at least once, in order within (destination, key); INTERNAL ones
//! are handed over exactly once. No row of the outbox is touched. A transaction that is left open holds up
//! only its own messages.
//! Not promised: order between keys, or that a broker gets a message only once; a relay that dies between
//! the broker's answer and the cursor sends again.

mod ahead;
mod breaker;
mod follow;
mod horizon;
mod internal;
mod keys;
mod lane;
mod leases;
mod pace;
mod publish;
mod ranges;
mod read_size;
mod reader;
mod session;
mod shard;
mod spans;
mod state;
mod verify;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::counter;
use tokio::sync::{Mutex, Notify};
use tracing::warn;

pub use horizon::HorizonOptions;
pub(crate) use horizon::{Holder, Snapshot};
pub use internal::{HeldShard, LocalConsumers, Offer};
pub(crate) use ranges::Ranges;
pub use reader::Reader;
pub use state::{IllegalTransition, OutboxEvent, OutboxState};

use crate::backoff::RetryPolicy;
use crate::error::{Error, Result};
use crate::shutdown::Shutdown;
use crate::store::postgres::Db;
use crate::store::postgres::listen::{Channel, Listener};
pub use crate::store::postgres::wal::ForeignTable;
use crate::trace::TraceContext;
use crate::transport::Publisher;
use crate::wake::Wake;
use lane::LaneStep;
use pace::{Pace, Woken};
use session::Session;

/// The lane of messages for consumers in the same database.
pub const INTERNAL: &str = "INTERNAL";
/// The lane of messages for Kafka topics.
pub const KAFKA: &str = "KAFKA";
/// The lane of messages for queues of an AMQP 1.0 broker.
pub const AMQP: &str = "AMQP";

/// While the horizon waits for a transaction to end, it looks this often.
const WAITING_POLL: Duration = Duration::from_millis(4);
/// A session that cannot be opened is tried again after this long, and ever longer up to the second.
const REOPEN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The table is read this often where nobody waits for what is found: to keep the cursors near.
const UNWANTED_POLL: Duration = Duration::from_secs(1);
/// Under load, what is handled in this process is taken in batches of this much time: each has its price,
/// however small it is.
const LOCAL_BATCH: Duration = Duration::from_millis(10);
/// While every lane is at work nobody could use what a poll finds; the leases are looked after all the same.
const ALL_AT_WORK: Duration = Duration::from_millis(50);
/// How often a busy relay repeats to the writers that they need not notify.
const REPEAT_BUSY: Duration = Duration::from_secs(1);

/// How a relay works. `node` must be unique among the running processes.
#[derive(Clone)]
pub struct RelayOptions {
    /// The name of this process among the relays.
    pub node: String,
    /// A shard whose owner has been silent for this long may be taken by another.
    pub lease: Duration,
    /// The most rows of a shard that one step takes.
    pub batch_rows: usize,
    /// Under load the outbox is read at most this often.
    pub poll_min: Duration,
    /// The outbox is read this often even when nobody announces anything.
    pub poll_fallback: Duration,
    /// Whether writers may wake the relays by NOTIFY while little happens. PostgreSQL refuses to PREPARE a
    /// transaction that has notified, so a database with two-phase writers turns this off on all relays;
    /// then a quiet outbox is read at the fallback interval.
    pub notify: bool,
    /// Whether this relay serves INTERNAL.
    pub internal: bool,
    /// Consumers of this process that take INTERNAL from memory; the others get it by their inbox.
    pub local: Option<Arc<dyn LocalConsumers>>,
    /// What sends to Kafka; without it this relay leaves that lane to others.
    pub kafka: Option<Arc<dyn Publisher>>,
    /// What sends to the queues of an AMQP 1.0 broker; without it this relay leaves that lane to others.
    pub amqp: Option<Arc<dyn Publisher>>,
    /// For a row that fails while others pass.
    pub retry: RetryPolicy,
    /// A destination that does not answer is probed after this long, then ever later ...
    pub probe_after: Duration,
    /// ... up to this.
    pub probe_after_max: Duration,
    /// How long an operator's change of an exception may go unseen.
    pub exceptions_refresh: Duration,
    /// How often leases and shares are looked after; a third of the lease unless given.
    pub tend_every: Option<Duration>,
    pub horizon: HorizonOptions,
    /// Outbox tables of another layout that the WAL's reader sends too.
    pub foreign_tables: Vec<ForeignTable>,
    /// Where spans are exported; without it none are opened.
    pub trace: Option<Arc<dyn TraceContext>>,
    /// Fired by writers in this process after they committed outbox rows.
    pub outbox_wake: Arc<Notify>,
    /// Fired by the relay when consumers got something from INTERNAL.
    pub inbox_wake: Wake,
}

impl RelayOptions {
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            lease: Duration::from_secs(15),
            batch_rows: 500,
            poll_min: Duration::from_millis(2),
            poll_fallback: Duration::from_millis(250),
            notify: true,
            internal: true,
            local: None,
            kafka: None,
            amqp: None,
            retry: RetryPolicy::default(),
            probe_after: Duration::from_secs(1),
            probe_after_max: Duration::from_secs(30),
            exceptions_refresh: Duration::from_secs(1),
            tend_every: None,
            horizon: HorizonOptions::default(),
            foreign_tables: Vec::new(),
            trace: None,
            outbox_wake: Arc::default(),
            inbox_wake: Wake::default(),
        }
    }

    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("relay {:?}: {what}", self.node)));
        match () {
            () if self.node.is_empty() => wrong("the node needs a name"),
            () if self.lease < Duration::from_secs(1) => wrong("lease must be at least 1 s"),
            () if self.batch_rows == 0 || self.batch_rows > 10_000 => wrong("batch_rows must be 1 to 10000"),
            () if self.retry.attempts_max == 0 => wrong("retry.attempts_max must be at least 1"),
            () if !self.internal && self.kafka.is_none() && self.amqp.is_none() => wrong("it serves no lane"),
            () => Ok(()),
        }
    }
}

/// Sends what the outbox holds, together with the other relays of the database.
pub struct Relay {
    db: Db,
    options: Arc<RelayOptions>,
    session: Mutex<Option<Session>>,
}

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayStep {
    /// Rows handed over to consumers in the same database.
    pub handed_over: usize,
    /// Rows that a broker acknowledged.
    pub published: usize,
    /// Rows that became exceptions, or changed as such.
    pub excepted: usize,
    /// Shards owned.
    pub shards: usize,
    /// More was waiting than one step takes.
    pub more: bool,
    /// A broker does not answer and is left alone for a while.
    pub breaker_open: bool,
    /// Rows that one reader has seen and the other has not, while both look.
    pub differences: usize,
}

impl Relay {
    pub fn new(db: Db, options: RelayOptions) -> Result<Self> {
        options.validate()?;
        Ok(Self { db, options: Arc::new(options), session: Mutex::new(None) })
    }

    /// Relays until asked to stop, then finishes the step it is in and gives its shards back.
    pub async fn run(&self, mut shutdown: Shutdown) {
        let woken = Arc::clone(&self.options.outbox_wake);
        let _listener = Listener::spawn(self.db.clone(), Channel::Outbox, move || woken.notify_one());
        let mut delay = REOPEN.0;
        while !shutdown.requested() {
            let begun = Instant::now();
            if let Err(error) = self.run_session(&mut shutdown).await {
                counter!("dipmo_relay_reloads_total").increment(1);
                warn!(%error, "the relay starts over");
                delay = if begun.elapsed() > REOPEN.1 { REOPEN.0 } else { (delay * 2).min(REOPEN.1) };
                shutdown.wait_up_to(delay).await;
            }
        }
        if let Err(error) = self.stop().await {
            warn!(%error, "the relay could not give its shards back: their leases will end");
        }
    }

    /// One step: tends the leases when due, reads the horizon, lets every lane work on it, and waits for
    /// all of them. After an error everything is forgotten, and the next step begins from the database.
    pub async fn run_once(&self) -> Result<RelayStep> {
        let mut guard = self.session.lock().await;
        let mut session = match guard.take() {
            Some(session) => session,
            None => Session::open(&self.db, &self.options).await?,
        };
        let mut step = RelayStep::default();
        session.turn(&mut step, true).await?;
        while let Some(done) = session.next_done().await {
            step.add(done?);
        }
        *guard = Some(session);
        Ok(step)
    }

    /// Gives the shards back, so that other relays need not wait for the leases to end.
    pub async fn stop(&self) -> Result<()> {
        match self.session.lock().await.take() {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }

    /// Works until asked to stop or until something fails; then the session is gone.
    async fn run_session(&self, shutdown: &mut Shutdown) -> Result<()> {
        let mut guard = self.session.lock().await;
        let mut session = match guard.take() {
            Some(session) => session,
            None => Session::open(&self.db, &self.options).await?,
        };
        let mut pace = Pace::new(Instant::now());
        let mut told = Instant::now();
        let mut woken = Woken::Signal;
        session.set_quiet(self.options.notify).await?;
        while !shutdown.requested() {
            let begun = Instant::now();
            let mut step = RelayStep::default();
            let moved = session.turn(&mut step, !pace.is_loaded()).await?;
            let changed = pace.polled(moved, woken, Instant::now());
            let wants_notify = self.options.notify && session.needs_polls() && !pace.is_busy();
            if changed || (!wants_notify && told.elapsed() >= REPEAT_BUSY) {
                session.set_quiet(wants_notify).await?;
                told = Instant::now();
            }
            // A change of the flag takes effect later than it is made: look once more before sleeping.
            let pause = if changed { Duration::ZERO } else { self.pause(&pace, &session, begun) };
            woken = self.wait(&mut session, pause, pace.is_loaded(), shutdown).await?;
        }
        *guard = Some(session);
        Ok(())
    }

    fn pause(&self, pace: &Pace, session: &Session, begun: Instant) -> Duration {
        let until = match () {
            () if !session.needs_polls() => UNWANTED_POLL,
            () if pace.is_loaded() && self.options.local.is_some() => self.options.poll_min.max(LOCAL_BATCH),
            () if pace.is_busy() => self.options.poll_min,
            () if session.is_waiting() => self.options.poll_min.max(WAITING_POLL),
            () => self.options.poll_fallback,
        };
        until.saturating_sub(begun.elapsed())
    }

    /// Waits for the time to pass, a writer, a lane with more to do, or the stop.
    async fn wait(
        &self,
        session: &mut Session,
        pause: Duration,
        loaded: bool,
        shutdown: &mut Shutdown,
    ) -> Result<Woken> {
        let quiet = !loaded && pause > self.options.poll_min.max(WAITING_POLL);
        let sleep = tokio::time::sleep(pause);
        let all_at_work = tokio::time::sleep(pause.max(ALL_AT_WORK));
        tokio::pin!(sleep, all_at_work);
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return Ok(Woken::Signal),
                Some(done) = session.next_done(), if session.is_working() => {
                    let (_, step) = done?;
                    // What came in while the lane was at work waits for it, or for company.
                    let patient = loaded && step.local && !step.more;
                    if (step.more || step.sent > 0 || step.again) && !patient {
                        return Ok(Woken::Signal);
                    }
                }
                () = self.options.outbox_wake.notified(), if quiet && session.is_idle() => return Ok(Woken::Signal),
                () = &mut sleep, if session.is_idle() => {
                    return Ok(if quiet { Woken::Fallback } else { Woken::Signal });
                }
                () = &mut all_at_work, if !session.is_idle() => return Ok(Woken::Signal),
            }
        }
    }
}

impl RelayStep {
    fn add(&mut self, (lane, step): (&'static str, LaneStep)) {
        if lane == INTERNAL {
            self.handed_over += step.sent
        } else {
            self.published += step.sent
        }
        self.excepted += step.excepted;
        self.more |= step.more;
        self.breaker_open |= step.breaker_until.is_some();
        self.differences += step.differences;
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for RelayOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayOptions")
            .field("node", &self.node)
            .field("lease", &self.lease)
            .field("batch_rows", &self.batch_rows)
            .field("internal", &self.internal)
            .field("kafka", &self.kafka.is_some())
            .field("amqp", &self.amqp.is_some())
            .finish_non_exhaustive()
    }
}
