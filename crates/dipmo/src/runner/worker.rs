//! Works through what the table holds: first attempts in store mode, retries, released keys, timers.
//!
//! A worker owns buckets through leases. It claims in a transaction of its own, which counts the
//! attempt, then handles and settles under the fence of its leases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::fold::Delivery;
use super::{Report, Runner};
use crate::consumer::Consumer;
use crate::error::{ErrorKind, Result};
use crate::inbox::Fence;
use crate::shutdown::Shutdown;
use crate::store::postgres::Db;
use crate::store::postgres::inbox::PgInbox;
use crate::store::{Claimed, InboxStore};
use crate::trace::TraceContext;
use crate::wake::{Wake, WakeListener};

/// A worker with nothing to do looks again after this long, or when it is woken.
const IDLE_MAX: Duration = Duration::from_millis(500);
const IDLE_MIN: Duration = Duration::from_millis(20);
/// After a failure of the database.
const TROUBLE: Duration = Duration::from_millis(500);
/// Retries are few and may be slow: not more than this many in one batch.
const DUE_MAX: usize = 50;
/// The first batch, before it is known how long a message takes.
const FIRST_BATCH_MAX: usize = 50;

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerStep {
    pub report: Report,
    /// Messages moved behind their parked key, and keys freed.
    pub moved: usize,
}

impl WorkerStep {
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// One consumer's worker on this node.
#[derive(Debug)]
pub struct Worker {
    runner: Runner,
    owner: String,
    wake: WakeListener,
    held: Fence,
    renewed: Option<Instant>,
    /// Claimed, but the database went away before it was settled: tried again under the same fence.
    unsettled: Option<(Fence, Vec<Delivery>)>,
    /// How many messages a batch may have so that the leases outlive it.
    batch: usize,
}

impl Worker {
    /// Registers the consumer and makes its worker. `owner` names this node in leases.
    pub async fn new(db: Db, consumer: Arc<Consumer>, owner: String, wake: &Wake) -> Result<Self> {
        let clock = db.clock().clone();
        let store = Arc::new(PgInbox::register(db, &consumer).await?);
        Ok(Self::with(Runner::new(store, consumer, clock), owner, wake))
    }

    /// What handles the messages.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// A worker over any store.
    pub fn with(runner: Runner, owner: String, wake: &Wake) -> Self {
        let batch = FIRST_BATCH_MAX.min(runner.consumer().batch_max);
        Self { runner, owner, wake: wake.listen(), held: Fence::new(), renewed: None, unsettled: None, batch }
    }

    /// Opens a span for each message, tied to other systems' by this context.
    #[must_use]
    pub fn traced(mut self, trace: Option<Arc<dyn TraceContext>>) -> Self {
        self.runner = self.runner.traced(trace);
        self
    }

    /// Works until asked to stop, then gives its buckets back.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        let mut idle = IDLE_MIN;
        while !shutdown.requested() {
            match self.run_once().await {
                Ok(step) if step.is_idle() => {
                    self.pause(idle, &mut shutdown).await;
                    idle = (idle * 2).min(IDLE_MAX);
                }
                Ok(_) => idle = IDLE_MIN,
                Err(error) => {
                    warn!(consumer = self.consumer().name, %error, "worker step failed");
                    self.pause(TROUBLE, &mut shutdown).await;
                }
            }
        }
        if let Err(error) = self.store().release_buckets(&self.held).await {
            debug!(%error, "leases were not given back; they expire");
        }
    }

    /// Takes up and settles one batch of each kind of work.
    pub async fn run_once(&mut self) -> Result<WorkerStep> {
        self.hold_leases().await?;
        let mut step = WorkerStep::default();
        if let Some((fence, deliveries)) = self.unsettled.take() {
            self.handle_under(fence, deliveries, &mut step).await?;
        }
        if self.held.is_empty() {
            return Ok(step);
        }
        let work = self.store().probe(&self.held).await?;
        if work.due {
            let claimed = self.store().claim_due(&self.held, DUE_MAX.min(self.batch)).await?;
            self.handle_claimed(claimed, &mut step).await?;
        }
        if work.timers {
            self.hold_leases().await?;
            let timers = self.store().due_timers(&self.held, self.batch).await?;
            let timers = timers.into_iter().map(|(timer, instance)| Delivery::Timer(timer, instance)).collect();
            self.handle(timers, &mut step).await?;
        }
        if work.draining {
            self.hold_leases().await?;
            let claimed = self.store().claim_draining(&self.held, self.batch).await?;
            self.handle_claimed(claimed, &mut step).await?;
            step.moved += self.store().free_drained(&self.held).await?;
        }
        if work.received {
            self.hold_leases().await?;
            let claimed = self.store().claim_received(&self.held, self.batch).await?;
            self.handle_claimed(claimed, &mut step).await?;
        }
        Ok(step)
    }

    /// Renews the leases now, whether or not it is time.
    pub async fn renew(&mut self) -> Result<()> {
        self.held = self.store().lease_buckets(&self.owner, &self.held, self.consumer().lease).await?;
        self.renewed = Some(Instant::now());
        Ok(())
    }

    /// The buckets held at the moment.
    pub fn held(&self) -> &Fence {
        &self.held
    }

    fn store(&self) -> &Arc<dyn InboxStore> {
        self.runner.store()
    }

    fn consumer(&self) -> &Consumer {
        self.runner.consumer()
    }

    async fn hold_leases(&mut self) -> Result<()> {
        let lease = self.consumer().lease;
        // A third of the lease: two renewals may fail before another node takes over.
        if !self.held.is_empty() && self.renewed.is_some_and(|at| at.elapsed() < lease / 3) {
            return Ok(());
        }
        self.renew().await
    }

    async fn handle_claimed(&mut self, claimed: Claimed, step: &mut WorkerStep) -> Result<()> {
        step.moved += claimed.parked;
        let deliveries = claimed.work.into_iter().map(Delivery::Stored).collect();
        self.handle(deliveries, step).await
    }

    async fn handle(&mut self, deliveries: Vec<Delivery>, step: &mut WorkerStep) -> Result<()> {
        self.handle_under(self.held.clone(), deliveries, step).await
    }

    async fn handle_under(&mut self, fence: Fence, deliveries: Vec<Delivery>, step: &mut WorkerStep) -> Result<()> {
        let began = Instant::now();
        let handled = self.runner.handle(&fence, &deliveries).await;
        if !deliveries.is_empty() {
            let batch = batch_within(self.consumer().lease / 4, began.elapsed(), deliveries.len());
            self.batch = batch.clamp(1, self.consumer().batch_max);
        }
        match handled {
            Ok(report) => {
                step.report += report;
                Ok(())
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::LeaseLost => self.held.clear(),
                    // Someone else was quicker with one of them: the next claim shows what is left.
                    ErrorKind::Conflict => {}
                    // The claim counted an attempt that was not made: made good when the database is well.
                    _ => self.unsettled = Some((fence, deliveries)),
                }
                Err(error)
            }
        }
    }

    async fn pause(&mut self, limit: Duration, shutdown: &mut Shutdown) {
        tokio::select! {
            () = self.wake.fired() => {}
            () = shutdown.wait_up_to(limit) => {}
        }
    }
}

/// How many messages fit into the time, going by how long the last ones took.
fn batch_within(time: Duration, took: Duration, messages: usize) -> usize {
    let each = took.as_secs_f64() / messages.max(1) as f64;
    (time.as_secs_f64() / each.max(1e-6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_as_large_as_its_time_allows() {
        let batch = |took_ms, messages| batch_within(Duration::from_secs(4), Duration::from_millis(took_ms), messages);
        assert_eq!(batch(1_000, 100), 400);
        assert_eq!(batch(40_000, 500), 50);
        assert_eq!(batch(60_000, 1), 0, "which the worker raises to one");
        assert!(batch(0, 500) > 10_000);
    }
}
