//! Drives user code over batches of messages and settles each batch in one transaction.
//!
//! Promise: what `handle` settled has happened exactly once and in order within its key; what it could
//! not settle has not happened at all. Not promised: order between keys.

mod dlq;
mod enlisted;
mod fold;
pub(crate) mod instances;
mod memory;
mod spans;
mod worker;

pub use fold::Delivery;
pub use worker::{Worker, WorkerStep};

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::clock::Clock;
use crate::consumer::{Consumer, Handler, VersionPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::{Fence, Settled, Settlement};
use crate::process::{Address, Failure, Process};
use crate::store::{InboxStore, InstanceKey, LoadRequest, Loaded};
use crate::trace::TraceContext;
use fold::{Batch, Folded, Known};
use memory::Memory;
use spans::Spans;

/// A batch that loses this many races in a row gives its place up and is tried again later.
const CONFLICTS_MAX: usize = 20;

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub processed: usize,
    pub duplicates: usize,
    pub ignored: usize,
    pub retried: usize,
    pub parked: usize,
    pub dead: usize,
    pub undecodable: usize,
    /// Stored for workers, untouched.
    pub received: usize,
    pub timers: usize,
    pub sent: usize,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.processed += other.processed;
        self.duplicates += other.duplicates;
        self.ignored += other.ignored;
        self.retried += other.retried;
        self.parked += other.parked;
        self.dead += other.dead;
        self.undecodable += other.undecodable;
        self.received += other.received;
        self.timers += other.timers;
        self.sent += other.sent;
    }
}

/// What is known about the database before anything is read for a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Foreknown {
    /// Keys of the consumer may be parked. If not, whoever says so keeps others from parking one.
    pub(crate) parked: bool,
    /// The time, as of just now.
    pub(crate) now: Option<OffsetDateTime>,
}

/// Handles batches of one consumer.
#[derive(Clone)]
pub struct Runner {
    store: Arc<dyn InboxStore>,
    consumer: Arc<Consumer>,
    clock: Clock,
    trace: Option<Arc<dyn TraceContext>>,
    /// Of the process, if that is what handles.
    memory: Arc<Memory>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("consumer", &self.consumer.name).finish_non_exhaustive()
    }
}

impl Runner {
    pub fn new(store: Arc<dyn InboxStore>, consumer: Arc<Consumer>, clock: Clock) -> Self {
        Self { store, consumer, clock, trace: None, memory: Arc::default() }
    }

    /// Opens a span for each message, tied to other systems' by this context.
    #[must_use]
    pub fn traced(mut self, trace: Option<Arc<dyn TraceContext>>) -> Self {
        self.trace = trace;
        self
    }

    pub fn store(&self) -> &Arc<dyn InboxStore> {
        &self.store
    }

    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Handles the deliveries, in order within each key, and settles them. The fence may hold more
    /// than these deliveries need.
    pub async fn handle(&self, fence: &Fence, deliveries: &[Delivery]) -> Result<Report> {
        self.handle_knowing(fence, deliveries, Foreknown { parked: true, now: None }).await
    }

    /// The same for one who knows what would have to be asked for otherwise.
    pub(crate) async fn handle_knowing(
        &self,
        fence: &Fence,
        deliveries: &[Delivery],
        foreknown: Foreknown,
    ) -> Result<Report> {
        if deliveries.is_empty() {
            return Ok(Report::default());
        }
        if !fold::covers(fence, deliveries) {
            return Err(Error::lease_lost("a bucket of this batch is not held"));
        }
        let spans = Spans::new(self.trace.as_ref(), &self.consumer.name);
        let batch = Batch { foreknown, ..self.batch(fence, &spans, deliveries) };
        let handled = match &self.consumer.handler {
            Handler::Process(process) => self.decide(process.as_ref(), batch).await,
            Handler::Enlisted { handler, grouping } => self.enlist(handler.as_ref(), *grouping, batch).await,
        };
        let report = handled.inspect_err(|error| spans.unsettled(error))?;
        self.count(&report);
        self.time(deliveries);
        Ok(report)
    }

    /// Stores the deliveries for workers, without handling them.
    pub async fn store_only(&self, fence: &Fence, deliveries: &[Delivery]) -> Result<Report> {
        if !fold::covers(fence, deliveries) {
            return Err(Error::lease_lost("a partition of this batch is not held"));
        }
        let spans = Spans::new(None, &self.consumer.name);
        let batch = self.batch(fence, &spans, deliveries);
        let report = self.in_parts(batch, |part| self.store_part(part)).await?;
        self.count(&report);
        Ok(report)
    }

    /// Stores deliveries of a source that several nodes read at once, without handling them. Nothing of such
    /// a source is owned, so there is no fence: what two nodes were given is told apart by its id alone.
    pub async fn take_in(&self, deliveries: &[Delivery]) -> Result<Report> {
        let (spans, fence) = (Spans::new(None, &self.consumer.name), Fence::new());
        let batch = self.batch(&fence, &spans, deliveries);
        let report = self.in_parts(batch, |part| self.store_part(part)).await?;
        self.count(&report);
        Ok(report)
    }

    fn batch<'a>(&'a self, fence: &'a Fence, spans: &'a Spans<'a>, deliveries: &'a [Delivery]) -> Batch<'a> {
        Batch { consumer: &self.consumer, fence, spans, deliveries, foreknown: Foreknown { parked: true, now: None } }
    }

    async fn decide(&self, process: &dyn Process, batch: Batch<'_>) -> Result<Report> {
        self.in_parts(batch, |part| self.decide_part(process, part)).await
    }

    /// Takes a batch apart that holds something the database refuses, until only the culprit is left,
    /// and keeps that as raw bytes. Halves follow each other, which keeps the order of every key.
    async fn in_parts<'a, F>(&self, batch: Batch<'a>, handle: impl Fn(Batch<'a>) -> F) -> Result<Report>
    where
        F: Future<Output = Result<Report>>,
    {
        let mut report = Report::default();
        let mut parts = vec![batch.deliveries];
        while let Some(part) = parts.pop() {
            match handle(Batch { deliveries: part, ..batch }).await {
                Ok(done) => report += done,
                Err(error) if error.kind() == ErrorKind::Poison && part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(error) if error.kind() == ErrorKind::Poison => {
                    warn!(consumer = self.consumer.name, %error, "a message cannot be stored as it is");
                    report += self.keep_raw(Batch { deliveries: part, ..batch }).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// The last resort: position and bytes only, as SERDE_ERROR, or DEAD where it is stored already.
    async fn keep_raw(&self, batch: Batch<'_>) -> Result<Report> {
        let folded = fold::keep_raw(batch);
        match self.store.settle(&folded.settlement).await? {
            Settled::Committed => {
                batch.spans.settled(batch.deliveries, &folded.settlement);
                Ok(folded.report)
            }
            Settled::Duplicates(_) => {
                batch.spans.settled(batch.deliveries, &Settlement::default());
                Ok(Report { duplicates: batch.deliveries.len(), ..Report::default() })
            }
            Settled::VersionsTaken(_) | Settled::Conflict => Err(self.too_many_conflicts()),
        }
    }

    async fn store_part(&self, batch: Batch<'_>) -> Result<Report> {
        let mut known = Known::default();
        for _ in 0..CONFLICTS_MAX {
            let folded = fold::store_only(batch, &known);
            if self.settle(&folded, &mut known).await? {
                return Ok(folded.report);
            }
        }
        Err(self.too_many_conflicts())
    }

    async fn decide_part(&self, process: &dyn Process, mut batch: Batch<'_>) -> Result<Report> {
        let Batch { spans, deliveries, .. } = batch;
        spans.open(deliveries);
        let mut known = Known::default();
        let mut from_memory = true;
        for _ in 0..CONFLICTS_MAX {
            let (loaded, remembered) = self.load_or_recall(process, batch, from_memory).await?;
            from_memory = false;
            let mut folded = fold::fold_process(batch, process, &loaded, &known);
            if !folded.writes_all(&remembered) {
                continue;
            }
            match self.settle(&folded, &mut known).await {
                Ok(true) => {
                    spans.settled(deliveries, &folded.settlement);
                    self.memory.keep(std::mem::take(&mut folded.settlement.processes));
                    return Ok(folded.report);
                }
                Ok(false) => batch.foreknown.parked = true,
                // It is the decision that cannot be stored: the message fails, with its envelope intact.
                Err(error)
                    if error.kind() == ErrorKind::Poison && deliveries.len() == 1 && known.failures.is_empty() =>
                {
                    known.failures.insert(0, Failure::permanent("NOT_STORABLE", error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.too_many_conflicts())
    }

    /// True when it is done, false when it must be folded again.
    async fn settle(&self, folded: &Folded, known: &mut Known) -> Result<bool> {
        match self.store.settle(&folded.settlement).await? {
            Settled::Committed => return Ok(true),
            Settled::Duplicates(keys) => known.duplicates.extend(keys),
            Settled::VersionsTaken(keys) => folded.blame_versions(&keys, known),
            Settled::Conflict => debug!(consumer = self.consumer.name, "changed since it was loaded"),
        }
        Ok(false)
    }

    /// What is remembered of the instances need not be read. Returns which they are.
    async fn load_or_recall(
        &self,
        process: &dyn Process,
        batch: Batch<'_>,
        from_memory: bool,
    ) -> Result<(Loaded, HashSet<Uuid>)> {
        let mut request = self.request(Some(process), batch);
        if !from_memory {
            return Ok((self.store.load(&request).await?, HashSet::new()));
        }
        let recalled = self.memory.recall(&mut request);
        let mut loaded = match batch.foreknown.now {
            Some(now) if request.is_empty() => Loaded::nothing(now),
            _ => self.store.load(&request).await?,
        };
        let remembered = recalled.add_to(&mut loaded);
        Ok((loaded, remembered))
    }

    /// What handlers without instances need to know.
    async fn load(&self, batch: Batch<'_>) -> Result<Loaded> {
        let request = self.request(None, batch);
        match request.is_empty() {
            true => Ok(Loaded::nothing(OffsetDateTime::UNIX_EPOCH)),
            false => self.store.load(&request).await,
        }
    }

    fn request(&self, process: Option<&dyn Process>, batch: Batch<'_>) -> LoadRequest {
        let with_versions = self.consumer.versions != VersionPolicy::Unchecked;
        let mut keys = BTreeSet::new();
        let (mut instances, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for delivery in batch.deliveries {
            if let Some(message) = delivery.message() {
                if batch.foreknown.parked || with_versions {
                    keys.insert(message.key.clone());
                }
                // One that panics fails its message when that is folded.
                match process.map(|process| fold::address(process, message)) {
                    Some(Ok(Address::Key { process_type, business_key })) => {
                        instances.insert(InstanceKey { process_type, tenant: message.tenant.clone(), business_key });
                    }
                    Some(Ok(Address::Id(id))) => drop(ids.insert(id)),
                    Some(Err(_)) | None => {}
                }
            }
            if let Delivery::Timer(_, instance) = delivery {
                instances.insert(InstanceKey::of(instance));
            }
        }
        LoadRequest {
            ids: ids.into_iter().collect(),
            instances: instances.into_iter().collect(),
            keys: keys.into_iter().collect(),
            with_versions,
        }
    }

    fn too_many_conflicts(&self) -> Error {
        Error::new(ErrorKind::Conflict, format!("consumer {}: too many conflicts in a row", self.consumer.name))
    }

    /// From the event to its effect, for what has been settled just now.
    fn time(&self, deliveries: &[Delivery]) {
        let now = self.clock.now();
        let histogram = metrics::histogram!("dipmo_end_to_end_latency_seconds",
            "consumer" => self.consumer.name.clone());
        for at in deliveries.iter().filter_map(|delivery| delivery.message()?.event_time) {
            histogram.record((now - at).as_seconds_f64().max(0.0));
        }
    }

    fn count(&self, report: &Report) {
        let outcomes = [
            ("processed", report.processed),
            ("duplicate", report.duplicates),
            ("ignored", report.ignored),
            ("retry", report.retried),
            ("parked", report.parked),
            ("dead", report.dead),
            ("serde_error", report.undecodable),
            ("received", report.received),
        ];
        if report.duplicates > 0 {
            metrics::counter!("inbox_dedupe_hits_total", "consumer" => self.consumer.name.clone())
                .increment(report.duplicates as u64);
        }
        for (outcome, count) in outcomes.into_iter().filter(|(_, count)| *count > 0) {
            metrics::counter!("dipmo_inbox_messages_total",
                "consumer" => self.consumer.name.clone(), "outcome" => outcome)
            .increment(count as u64);
        }
    }
}
