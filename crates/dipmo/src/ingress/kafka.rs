//! From Kafka into the inbox.
//!
//! Promise: every record is durable, handled or not, decodable or not, before its offset is committed.
//! One batch at a time: while one is being settled nothing else is in flight, so a partition is never
//! given up in the middle of a batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::decode::decode;
use crate::consumer::{Consumer, Mode, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::Fence;
use crate::runner::{Delivery, Report, Runner};
use crate::shutdown::Shutdown;
use crate::store::TakenPartition;
use crate::store::postgres::Db;
use crate::store::postgres::inbox::PgInbox;
use crate::trace::TraceContext;
use crate::transport::kafka::KafkaOptions;
use crate::transport::kafka_source::{KafkaSource, Partition, Polled};
use crate::wake::Wake;

/// A partition that changed hands this often without any commit may hold a message that kills its
/// process: it is stored first and handled by workers, who count attempts before they begin.
const STALLED_MAX: i32 = 3;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pausing throws fetched records away, so it is done only when the trouble lasts.
const PAUSE_AFTER: Duration = Duration::from_secs(1);
/// How often a full backlog is looked at again.
const BACKLOG_CHECK: Duration = Duration::from_millis(500);

/// The Kafka side of one consumer on this node.
pub struct KafkaIngress {
    runner: Runner,
    subscription: Subscription,
    source: KafkaSource,
    owner: String,
    wake: Wake,
    taken: HashMap<Partition, (u64, TakenPartition)>,
    /// How much may still be taken in before the backlog is counted again.
    room: usize,
}

struct Subscription {
    options: KafkaOptions,
    group: String,
    topics: Vec<String>,
    system: Option<String>,
}

impl std::fmt::Debug for KafkaIngress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaIngress").field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl KafkaIngress {
    /// Registers the consumer and joins its group. `wake` is fired when workers have something to do.
    pub async fn new(
        db: Db,
        consumer: Arc<Consumer>,
        options: KafkaOptions,
        owner: String,
        wake: Wake,
    ) -> Result<Self> {
        let clock = db.clock().clone();
        let store = Arc::new(PgInbox::register(db, &consumer).await?);
        Self::with(Runner::new(store, consumer, clock), options, owner, wake)
    }

    /// An ingress over any store.
    pub fn with(runner: Runner, options: KafkaOptions, owner: String, wake: Wake) -> Result<Self> {
        let consumer = runner.consumer();
        let subscription = consumer.sources.iter().find_map(|source| match source {
            Source::Kafka { topics, group, system } => Some(Subscription {
                options: options.clone(),
                group: group.clone().unwrap_or_else(|| consumer.name.clone()),
                topics: topics.clone(),
                system: system.clone(),
            }),
            _ => None,
        });
        let Some(subscription) = subscription else {
            return Err(Error::invalid(format!("consumer {} takes nothing from Kafka", consumer.name)));
        };
        let source = subscription.join(&consumer.name)?;
        Ok(Self { runner, subscription, source, owner, wake, taken: HashMap::new(), room: 0 })
    }

    /// Opens a span for each message, tied to other systems' by this context.
    #[must_use]
    pub fn traced(mut self, trace: Option<Arc<dyn TraceContext>>) -> Self {
        self.runner = self.runner.traced(trace);
        self
    }

    /// Consumes until asked to stop; then commits what is settled and leaves the group.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        while !shutdown.requested() {
            self.wait_for_room(&mut shutdown).await;
            let batch_max = self.runner.consumer().batch_max;
            let batch = tokio::select! {
                batch = self.source.next_batch(batch_max) => batch,
                () = shutdown.wait() => break,
            };
            match batch {
                Ok(batch) => self.settle(batch, &mut shutdown).await,
                Err(error) => {
                    // The client recovers by itself and tells of every step on the way: go on soon.
                    warn!(consumer = self.runner.consumer().name, %error, "reading failed, trying again");
                    shutdown.wait_up_to(RETRY_MIN).await;
                }
            }
        }
        self.source.close().await;
    }

    /// Tries until the batch is durable, or is no longer ours, or a stop is requested.
    async fn settle(&mut self, mut batch: Vec<Polled>, shutdown: &mut Shutdown) {
        let began = Instant::now();
        let mut delay = RETRY_MIN;
        let mut paused = false;
        loop {
            batch.retain(|polled| self.source.still_assigned(polled));
            if batch.is_empty() || shutdown.requested() {
                break;
            }
            match self.try_settle(&batch).await {
                Ok(report) => {
                    self.source.settled(&batch);
                    self.room = self.room.saturating_sub(batch.len());
                    if report.received + report.retried + report.parked > 0 {
                        self.wake.fire();
                    }
                    break;
                }
                Err(error) if error.kind() == ErrorKind::LeaseLost => {
                    warn!(consumer = self.runner.consumer().name, %error, "joining the group anew");
                    return self.rejoin(shutdown).await;
                }
                Err(error) => {
                    warn!(consumer = self.runner.consumer().name, %error, records = batch.len(),
                        "a batch is not durable yet, trying again");
                }
            }
            if !paused && began.elapsed() > PAUSE_AFTER {
                self.source.pause(true);
                paused = true;
            }
            self.stay_in_group(delay, paused, shutdown).await;
            delay = (delay * 2).min(RETRY_MAX);
        }
        if paused {
            self.source.pause(false);
            info!(consumer = self.runner.consumer().name, "consuming again");
        }
    }

    async fn try_settle(&mut self, batch: &[Polled]) -> Result<Report> {
        let fence = self.take_partitions(batch).await?;
        let cautious = self.is_stalled(batch);
        let consumer = self.runner.consumer();
        let deliveries: Vec<Delivery> = batch
            .iter()
            .map(|polled| decode(&polled.record, self.subscription.system.as_deref(), &consumer.envelope))
            .map(|(message, fault)| Delivery::Fresh { message: Arc::new(message), fault })
            .collect();
        let report = if cautious || consumer.mode == Mode::Store {
            self.runner.store_only(&fence, &deliveries).await?
        } else {
            self.runner.handle(&fence, &deliveries).await?
        };
        self.clear_stalls(batch).await?;
        Ok(report)
    }

    /// The fence of the batch. A partition is taken when its first record of an assignment is seen.
    async fn take_partitions(&mut self, batch: &[Polled]) -> Result<Fence> {
        let mut fence = Fence::new();
        for polled in batch {
            let partition = (polled.record.topic.clone(), polled.record.partition);
            let known = self.taken.get(&partition).filter(|(generation, _)| *generation == polled.generation);
            let held = match known {
                Some((_, taken)) => taken.held.clone(),
                None => {
                    let taken = self.runner.store().take_partition(&partition.0, partition.1, &self.owner).await?;
                    let held = taken.held.clone();
                    self.taken.insert(partition, (polled.generation, taken));
                    held
                }
            };
            if !fence.contains(&held) {
                fence.push(held);
            }
        }
        Ok(fence)
    }

    fn taken_of<'a>(&'a self, batch: &'a [Polled]) -> impl Iterator<Item = &'a TakenPartition> {
        let partition = |polled: &Polled| (polled.record.topic.clone(), polled.record.partition);
        batch.iter().filter_map(move |polled| self.taken.get(&partition(polled))).map(|(_, taken)| taken)
    }

    fn is_stalled(&self, batch: &[Polled]) -> bool {
        let stalled = self.taken_of(batch).any(|taken| taken.stalled >= STALLED_MAX);
        if stalled {
            warn!(
                consumer = self.runner.consumer().name,
                "nothing was committed since the last starts: storing first, workers will handle it"
            );
        }
        stalled
    }

    async fn clear_stalls(&mut self, batch: &[Polled]) -> Result<()> {
        let mut stalled: Vec<_> = self.taken_of(batch).filter(|taken| taken.stalled > 0).cloned().collect();
        stalled.dedup();
        for taken in &stalled {
            self.runner.store().clear_stall(&taken.held).await?;
        }
        for (_, taken) in self.taken.values_mut() {
            if stalled.iter().any(|cleared| cleared.held == taken.held) {
                taken.stalled = 0;
            }
        }
        Ok(())
    }

    /// Waits; while paused, lets the client answer the group meanwhile.
    async fn stay_in_group(&self, limit: Duration, paused: bool, shutdown: &mut Shutdown) {
        let polling = async {
            loop {
                match self.source.next_batch(1).await {
                    // Fetched before the pause took hold: it must come again.
                    Ok(early) => self.source.rewind(&early),
                    Err(_) => tokio::time::sleep(limit).await,
                }
            }
        };
        tokio::select! {
            () = polling, if paused => {}
            () = shutdown.wait_up_to(limit) => {}
        }
    }

    /// In store mode, waits while the workers are too far behind. Counting costs as much as the backlog is
    /// long, so half of the room that a count finds is used before the next one.
    async fn wait_for_room(&mut self, shutdown: &mut Shutdown) {
        let (mode, backlog_max) = (self.runner.consumer().mode, self.runner.consumer().backlog_max);
        if mode != Mode::Store || self.room > 0 {
            return;
        }
        let mut paused = false;
        while !shutdown.requested() {
            match self.runner.store().backlog(backlog_max).await {
                Ok(waiting) if waiting < backlog_max => {
                    self.room = (backlog_max - waiting).div_ceil(2);
                    break;
                }
                Ok(_) if !paused => {
                    warn!(consumer = self.runner.consumer().name, backlog_max, "backlog is full, consuming stops");
                    self.source.pause(true);
                    paused = true;
                }
                Ok(_) => {}
                // The batch that follows meets the trouble itself, and waits there.
                Err(_) => break,
            }
            self.stay_in_group(BACKLOG_CHECK, paused, shutdown).await;
        }
        if paused {
            self.source.pause(false);
        }
    }

    /// Another node committed under our feet: only a new assignment tells what is ours.
    async fn rejoin(&mut self, shutdown: &mut Shutdown) {
        self.taken.clear();
        while !shutdown.requested() {
            match self.subscription.join(&self.runner.consumer().name) {
                Ok(source) => {
                    std::mem::replace(&mut self.source, source).close().await;
                    return;
                }
                Err(error) => {
                    warn!(%error, "joining the group");
                    shutdown.wait_up_to(RETRY_MAX).await;
                }
            }
        }
    }
}

impl Subscription {
    fn join(&self, consumer: &str) -> Result<KafkaSource> {
        KafkaSource::new(&self.options, consumer, &self.group, &self.topics)
    }
}
