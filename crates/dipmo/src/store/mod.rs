//! Where state lives. One database so far: PostgreSQL 15 and later.
//!
//! The traits are cut by who uses them; each method is one transaction over a batch, so that a test
//! can fail any of them, before or after it took effect.

pub mod postgres;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::Result;
use crate::handler::{EnlistedHandler, GroupFailure};
use crate::inbox::{Fence, FiredTimer, Held, InboxState, Settled, Settlement};
use crate::message::Message;
use crate::process::Instance;

/// What makes an instance the one it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey {
    pub process_type: String,
    pub tenant: String,
    pub business_key: String,
}

impl InstanceKey {
    pub fn of(instance: &Instance) -> Self {
        Self {
            process_type: instance.process_type.clone(),
            tenant: instance.tenant.clone(),
            business_key: instance.business_key.clone(),
        }
    }
}

/// What a batch needs to know before it decides.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The time of the database, which decisions are made by.
    pub now: OffsetDateTime,
    pub instances: HashMap<InstanceKey, Instance>,
    /// Those that were asked for by their id.
    pub by_id: HashMap<Uuid, InstanceKey>,
    /// Keys that wait, with the version they wait for.
    pub parked: HashMap<String, Option<i64>>,
    /// The last version applied, by key.
    pub versions: HashMap<String, i64>,
}

impl Loaded {
    /// Nothing is known yet.
    pub fn nothing(now: OffsetDateTime) -> Self {
        Self { now, instances: HashMap::new(), by_id: HashMap::new(), parked: HashMap::new(), versions: HashMap::new() }
    }
}

/// What to load.
#[derive(Debug, Clone, Default)]
pub struct LoadRequest {
    pub instances: Vec<InstanceKey>,
    pub ids: Vec<Uuid>,
    pub keys: Vec<String>,
    pub with_versions: bool,
}

impl LoadRequest {
    /// There is nothing to ask for but the time.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.ids.is_empty() && self.keys.is_empty()
    }
}

/// Which kinds of work there are for the buckets held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    pub received: bool,
    pub due: bool,
    pub draining: bool,
    pub timers: bool,
}

/// Open work that a worker has taken up.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    pub work: Vec<ClaimedMessage>,
    /// Messages that were moved behind their parked key on the way.
    pub parked: usize,
}

#[derive(Debug, Clone)]
pub struct ClaimedMessage {
    pub message: Message,
    /// The state it was claimed in.
    pub state: InboxState,
    pub bucket: i32,
    /// Its key is parked behind it: success lets the key go on.
    pub is_head: bool,
}

/// A partition of a broker that an ingress has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenPartition {
    pub held: Held,
    /// How often it was taken since anything was last committed for it.
    pub stalled: i32,
}

/// How the work of an enlisted handler ended.
#[derive(Debug)]
pub enum Enlistment {
    Settled(Settled),
    /// The handler refused a message; everything was rolled back.
    Refused(GroupFailure),
}

/// What ingress and workers need of the database for one consumer.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    async fn load(&self, request: &LoadRequest) -> Result<Loaded>;

    async fn settle(&self, settlement: &Settlement) -> Result<Settled>;

    /// Settles, with the handler's own writes in the same transaction.
    async fn enlist(
        &self,
        settlement: &Settlement,
        handler: &dyn EnlistedHandler,
        messages: &[&Message],
    ) -> Result<Enlistment>;

    /// Takes a broker partition over from whoever had it.
    async fn take_partition(&self, topic: &str, partition: i32, owner: &str) -> Result<TakenPartition>;

    /// Notes that work on the partition gets through again.
    async fn clear_stall(&self, held: &Held) -> Result<()>;

    /// Renews what is held, takes a fair share of what is free, gives back what is too much.
    async fn lease_buckets(&self, owner: &str, held: &Fence, lease: Duration) -> Result<Fence>;

    /// Gives everything back.
    async fn release_buckets(&self, held: &Fence) -> Result<()>;

    /// Looks for work without taking any up.
    async fn probe(&self, fence: &Fence) -> Result<Work>;

    /// Takes up messages that wait for their first attempt. Counts the attempt.
    async fn claim_received(&self, fence: &Fence, max: usize) -> Result<Claimed>;

    /// Takes up failed messages whose time has come. Counts the attempt.
    async fn claim_due(&self, fence: &Fence, max: usize) -> Result<Claimed>;

    /// Takes up what waits behind keys that may go on. Counts the attempt.
    async fn claim_draining(&self, fence: &Fence, max: usize) -> Result<Claimed>;

    /// Frees the drained keys that nothing waits behind any more. Says how many.
    async fn free_drained(&self, fence: &Fence) -> Result<usize>;

    /// Due timers, by process.
    async fn due_timers(&self, fence: &Fence, max: usize) -> Result<Vec<(FiredTimer, Instance)>>;

    /// How much waits for its first attempt, counted up to `max`.
    async fn backlog(&self, max: usize) -> Result<usize>;
}
