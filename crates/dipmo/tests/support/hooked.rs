//! A store that passes every call on, with a hook before and after it: the points at which a connection or
//! a whole process can die under a caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::handler::EnlistedHandler;
use dipmo::inbox::{Fence, FiredTimer, Held, Settled, Settlement};
use dipmo::process::Instance;
use dipmo::store::{Claimed, Enlistment, InboxStore, LoadRequest, Loaded, TakenPartition, Work};
use dipmo::{Error, ErrorKind, Message, Result};

/// Which call: the name of the method, and how many calls came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub name: &'static str,
    pub number: usize,
}

/// What happens around a call.
pub trait Hook: Send + Sync + 'static {
    fn before(&self, call: Call) -> Result<()>;

    /// Once the call has taken effect.
    fn after(&self, call: Call) -> Result<()>;
}

pub struct Hooked<H> {
    inner: Arc<dyn InboxStore>,
    hook: H,
    calls: AtomicUsize,
}

impl<H: Hook> Hooked<H> {
    pub fn new(inner: impl InboxStore, hook: H) -> Self {
        Self { inner: Arc::new(inner), hook, calls: AtomicUsize::new(0) }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn call<T>(&self, name: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let call = Call { name, number: self.calls.fetch_add(1, Ordering::SeqCst) };
        self.hook.before(call)?;
        let outcome = work.await?;
        self.hook.after(call)?;
        Ok(outcome)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// Fails the call of this number, before it does anything or after it did everything.
pub struct FailsAt(pub usize, pub When);

impl FailsAt {
    fn meets(&self, call: Call, when: When) -> Result<()> {
        if call.number == self.0 && when == self.1 {
            return Err(Error::new(ErrorKind::Unavailable, "the connection died"));
        }
        Ok(())
    }
}

impl Hook for FailsAt {
    fn before(&self, call: Call) -> Result<()> {
        self.meets(call, When::Before)
    }

    fn after(&self, call: Call) -> Result<()> {
        self.meets(call, When::After)
    }
}

#[async_trait]
impl<H: Hook> InboxStore for Hooked<H> {
    async fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        self.call("load", self.inner.load(request)).await
    }
    async fn settle(&self, settlement: &Settlement) -> Result<Settled> {
        self.call("settle", self.inner.settle(settlement)).await
    }
    async fn enlist(&self, s: &Settlement, handler: &dyn EnlistedHandler, messages: &[&Message]) -> Result<Enlistment> {
        self.call("enlist", self.inner.enlist(s, handler, messages)).await
    }
    // Not hooked: it is how a test starts a node.
    async fn take_partition(&self, topic: &str, partition: i32, owner: &str) -> Result<TakenPartition> {
        self.inner.take_partition(topic, partition, owner).await
    }
    async fn clear_stall(&self, held: &Held) -> Result<()> {
        self.call("clear_stall", self.inner.clear_stall(held)).await
    }
    async fn lease_buckets(&self, owner: &str, held: &Fence, lease: Duration) -> Result<Fence> {
        self.call("lease_buckets", self.inner.lease_buckets(owner, held, lease)).await
    }
    async fn release_buckets(&self, held: &Fence) -> Result<()> {
        self.call("release_buckets", self.inner.release_buckets(held)).await
    }
    async fn probe(&self, fence: &Fence) -> Result<Work> {
        self.call("probe", self.inner.probe(fence)).await
    }
    async fn claim_received(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call("claim_received", self.inner.claim_received(fence, max)).await
    }
    async fn claim_due(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call("claim_due", self.inner.claim_due(fence, max)).await
    }
    async fn claim_draining(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call("claim_draining", self.inner.claim_draining(fence, max)).await
    }
    async fn free_drained(&self, fence: &Fence) -> Result<usize> {
        self.call("free_drained", self.inner.free_drained(fence)).await
    }
    async fn due_timers(&self, fence: &Fence, max: usize) -> Result<Vec<(FiredTimer, Instance)>> {
        self.call("due_timers", self.inner.due_timers(fence, max)).await
    }
    async fn backlog(&self, max: usize) -> Result<usize> {
        self.call("backlog", self.inner.backlog(max)).await
    }
}
