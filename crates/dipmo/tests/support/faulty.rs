//! A store that fails its n-th call, before it does anything or after it did everything: the two ways
//! in which a connection can die under a caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::handler::EnlistedHandler;
use dipmo::inbox::{Fence, FiredTimer, Held, Settled, Settlement};
use dipmo::process::Instance;
use dipmo::store::{Claimed, Enlistment, InboxStore, LoadRequest, Loaded, TakenPartition, Work};
use dipmo::{Error, ErrorKind, Message, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

pub struct Faulty {
    inner: Arc<dyn InboxStore>,
    calls: AtomicUsize,
    fails_at: usize,
    when: When,
}

impl Faulty {
    pub fn new(inner: Arc<dyn InboxStore>, fails_at: usize, when: When) -> Self {
        Self { inner, calls: AtomicUsize::new(0), fails_at, when }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn call<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let fails = self.calls.fetch_add(1, Ordering::SeqCst) == self.fails_at;
        let away = || Err(Error::new(ErrorKind::Unavailable, "the connection died"));
        if fails && self.when == When::Before {
            return away();
        }
        let outcome = work.await;
        if fails { outcome.and_then(|_| away()) } else { outcome }
    }
}

#[async_trait]
impl InboxStore for Faulty {
    async fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        self.call(self.inner.load(request)).await
    }
    async fn settle(&self, settlement: &Settlement) -> Result<Settled> {
        self.call(self.inner.settle(settlement)).await
    }
    async fn enlist(&self, s: &Settlement, handler: &dyn EnlistedHandler, messages: &[Message]) -> Result<Enlistment> {
        self.call(self.inner.enlist(s, handler, messages)).await
    }
    async fn take_partition(&self, topic: &str, partition: i32, owner: &str) -> Result<TakenPartition> {
        self.inner.take_partition(topic, partition, owner).await
    }
    async fn clear_stall(&self, held: &Held) -> Result<()> {
        self.call(self.inner.clear_stall(held)).await
    }
    async fn lease_buckets(&self, owner: &str, held: &Fence, lease: Duration) -> Result<Fence> {
        self.call(self.inner.lease_buckets(owner, held, lease)).await
    }
    async fn release_buckets(&self, held: &Fence) -> Result<()> {
        self.call(self.inner.release_buckets(held)).await
    }
    async fn probe(&self, fence: &Fence) -> Result<Work> {
        self.call(self.inner.probe(fence)).await
    }
    async fn claim_received(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call(self.inner.claim_received(fence, max)).await
    }
    async fn claim_due(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call(self.inner.claim_due(fence, max)).await
    }
    async fn claim_draining(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        self.call(self.inner.claim_draining(fence, max)).await
    }
    async fn free_drained(&self, fence: &Fence) -> Result<usize> {
        self.call(self.inner.free_drained(fence)).await
    }
    async fn due_timers(&self, fence: &Fence, max: usize) -> Result<Vec<(FiredTimer, Instance)>> {
        self.call(self.inner.due_timers(fence, max)).await
    }
    async fn backlog(&self, max: usize) -> Result<usize> {
        self.call(self.inner.backlog(max)).await
    }
}
