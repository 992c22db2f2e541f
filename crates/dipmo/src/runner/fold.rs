//! Folds a batch, in order, into one settlement. Pure: no clock, no database, no effects.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use time::OffsetDateTime;
use uuid::Uuid;

use super::dlq::dead_letter;
use super::{Foreknown, Report};
use crate::consumer::{Consumer, DeadPolicy, Mode, VersionPolicy};
use crate::inbox::{
    Arrival, Disposition, Fault, Fence, FiredTimer, Held, InboxState, Park, RELAY_SCOPE, Settlement, Stored, TimerWrite,
};
use crate::message::Message;
use crate::process::{Address, Decision, Failure, Input, Instance, Process, Stage};
use crate::runner::instances::Instances;
use crate::runner::spans::Spans;
use crate::store::{ClaimedMessage, InstanceKey, Loaded};

/// Something to handle.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// From a broker; the store has not seen it. The fault says why it cannot be decoded.
    Fresh {
        message: Arc<Message>,
        fault: Option<Fault>,
    },
    /// Open work from the store.
    Stored(ClaimedMessage),
    Timer(FiredTimer, Instance),
}

impl Delivery {
    pub(super) fn message(&self) -> Option<&Message> {
        match self {
            Delivery::Fresh { message, .. } => Some(message),
            Delivery::Stored(ClaimedMessage { message, .. }) => Some(message),
            Delivery::Timer(..) => None,
        }
    }

    fn key(&self) -> &str {
        match self {
            Delivery::Timer(_, instance) => &instance.business_key,
            Delivery::Fresh { message, .. } => &message.key,
            Delivery::Stored(ClaimedMessage { message, .. }) => &message.key,
        }
    }
}

/// What earlier tries at the same batch have found out.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) duplicates: HashSet<Uuid>,
    /// By index of the delivery.
    pub(super) failures: HashMap<usize, Failure>,
    /// Keys that an earlier part of the same batch has parked.
    pub(super) blocked: HashSet<String>,
}

/// A batch, folded.
#[derive(Debug, Default)]
pub(super) struct Folded {
    pub(super) settlement: Settlement,
    /// The deliveries that count as processed, in order.
    pub(super) handled: Vec<usize>,
    /// Keys that this batch parks.
    pub(super) blocked: HashSet<String>,
    pub(super) report: Report,
    /// Which delivery emitted which version key.
    emitted: HashMap<Uuid, usize>,
}

impl Folded {
    /// All of these are written, and so held against what the database has by then.
    pub(super) fn writes_all(&self, instances: &HashSet<Uuid>) -> bool {
        let written: HashSet<Uuid> = self.settlement.processes.iter().map(|process| process.instance.id).collect();
        instances.is_subset(&written)
    }

    /// Whoever emits a version that is taken fails for good.
    pub(super) fn blame_versions(&self, taken: &HashSet<Uuid>, known: &mut Known) {
        for at in taken.iter().filter_map(|key| self.emitted.get(key)) {
            let failure = Failure::permanent("VERSION_TAKEN", "this version of the aggregate has emitted that event");
            known.failures.insert(*at, failure);
        }
    }
}

/// What is folded, and for whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) fence: &'a Fence,
    pub(super) spans: &'a Spans<'a>,
    pub(super) deliveries: &'a [Delivery],
    pub(super) foreknown: Foreknown,
}

/// Folds with a process deciding on every message.
pub(super) fn fold_process(batch: Batch<'_>, process: &dyn Process, loaded: &Loaded, known: &Known) -> Folded {
    let Batch { spans, deliveries, .. } = batch;
    let mut fold = Fold::new(batch, loaded, known);
    let mut instances = Instances::new(loaded);
    for (at, delivery) in deliveries.iter().enumerate() {
        let decide = |current: Option<&Instance>, input: Input<'_>| decide(process, current, input, loaded.now);
        match (delivery, delivery.message()) {
            (Delivery::Timer(timer, instance), _) => fold.timer((at, timer), instance, &mut instances, decide),
            (_, None) => {}
            (_, Some(message)) => {
                fold.message(at, delivery, message, |folded| {
                    let address = spans.within(message, || address(process, message))?;
                    let key = instances.key(address, &message.tenant);
                    let current = key.as_ref().and_then(|key| instances.get(key));
                    let mut decision = spans.within(message, || decide(current, Input::Message(message)))?;
                    let new_id = if current.is_none() { process.new_id(message) } else { None };
                    spans.continued_by(message, &mut decision.emit);
                    let effects = instances.apply(message, key, new_id, decision)?;
                    folded.note_emitted(at, &effects);
                    effects.add_to(&mut folded.settlement);
                    Ok(())
                });
            }
        }
    }
    let mut folded = fold.finish();
    instances.into_settlement(&mut folded.settlement);
    folded.report.sent = folded.settlement.outbox.len();
    folded
}

/// Folds for an enlisted handler: whatever is not known to fail is taken to succeed.
pub(super) fn fold_enlisted(batch: Batch<'_>, loaded: &Loaded, known: &Known) -> Folded {
    let mut fold = Fold::new(batch, loaded, known);
    for (at, delivery) in batch.deliveries.iter().enumerate() {
        if let Some(message) = delivery.message() {
            fold.message(at, delivery, message, |_| Ok(()));
        }
    }
    fold.finish()
}

/// Stores everything as received; only what cannot be decoded is settled at once.
pub(super) fn store_only(batch: Batch<'_>, known: &Known) -> Folded {
    let loaded = Loaded::nothing(OffsetDateTime::UNIX_EPOCH);
    let mut fold = Fold::new(batch, &loaded, known);
    for delivery in batch.deliveries {
        if let Delivery::Fresh { message, fault } = delivery
            && !fold.is_duplicate(message)
        {
            match fault {
                Some(fault) => fold.undecodable(delivery, message, fault.clone()),
                // In inline mode later messages of the partition must not overtake what is only stored.
                None if batch.consumer.mode == Mode::Inline && message.partition.is_some() => {
                    fold.settle(delivery, message, Disposition::Parked, Some(Park::Draining));
                }
                None => fold.settle(delivery, message, Disposition::Received, None),
            }
        }
    }
    fold.finish()
}

/// Keeps what the database refuses in any other form.
pub(super) fn keep_raw(batch: Batch<'_>) -> Folded {
    let (loaded, known) = (Loaded::nothing(OffsetDateTime::UNIX_EPOCH), Known::default());
    let mut fold = Fold::new(batch, &loaded, &known);
    for delivery in batch.deliveries {
        let Some(message) = delivery.message() else { continue };
        let why = "the database refuses what the message holds or what was decided on it";
        if matches!(delivery, Delivery::Fresh { .. }) {
            let fault = Fault::new(Stage::ConsumerSerde, "NOT_STORABLE", why);
            fold.is_duplicate(message);
            fold.arrive(Arc::new(message.bare()), Disposition::SerdeError { fault }, None);
        } else {
            let fault = Fault::new(Stage::Business, "NOT_STORABLE", why);
            fold.settle(delivery, message, Disposition::Dead { fault }, Some(Park::ForHead));
        }
    }
    fold.finish()
}

/// The part of the fence that these deliveries rely on: locking less leaves other groups alone.
fn narrow(fence: &Fence, deliveries: &[Delivery]) -> Fence {
    fence.iter().filter(|held| deliveries.iter().any(|delivery| relies(delivery, held))).cloned().collect()
}

/// Every delivery has a part of the fence to rely on; without one nothing would keep a late node out.
pub(super) fn covers(fence: &Fence, deliveries: &[Delivery]) -> bool {
    deliveries.iter().all(|delivery| fence.iter().any(|held| relies(delivery, held)))
}

fn relies(delivery: &Delivery, held: &Held) -> bool {
    match delivery {
        Delivery::Fresh { message, .. } if held.scope == RELAY_SCOPE => {
            message.source == "INTERNAL" && message.partition == Some(held.bucket)
        }
        Delivery::Fresh { message, .. } => {
            message.partition == Some(held.bucket)
                && held.scope.strip_suffix(message.topic.as_str()).is_some_and(|rest| rest.ends_with(':'))
        }
        Delivery::Stored(claimed) => claimed.bucket == held.bucket,
        Delivery::Timer(timer, _) => timer.bucket == held.bucket,
    }
}

/// A panic in user code is a failure of the message, not of the runner.
fn decide(
    process: &dyn Process,
    current: Option<&Instance>,
    input: Input<'_>,
    now: OffsetDateTime,
) -> Result<Decision, Failure> {
    catch_unwind(AssertUnwindSafe(|| process.decide(current, input, now))).unwrap_or_else(|_| Err(Failure::panicked()))
}

pub(super) fn address(process: &dyn Process, message: &Message) -> Result<Address, Failure> {
    catch_unwind(AssertUnwindSafe(|| process.address(message))).map_err(|_| Failure::panicked())
}

#[derive(Debug, Default)]
struct KeyState {
    blocked: bool,
    /// The rest of the group goes with the one that died.
    group_dead: bool,
    version: Option<i64>,
    /// Success of its head or of the version it waited for: the key may go on.
    released: Option<Option<i64>>,
}

struct Fold<'a> {
    consumer: &'a Consumer,
    spans: &'a Spans<'a>,
    loaded: &'a Loaded,
    known: &'a Known,
    keys: HashMap<&'a str, KeyState>,
    seen: HashSet<Uuid>,
    /// The dedupe key of the fresh message at hand: hashed once.
    dedupe_key: Uuid,
    folded: Folded,
}

impl<'a> Fold<'a> {
    fn new(batch: Batch<'a>, loaded: &'a Loaded, known: &'a Known) -> Self {
        let Batch { consumer, fence, spans, deliveries, .. } = batch;
        let state = |key: &str| KeyState {
            blocked: known.blocked.contains(key),
            version: loaded.versions.get(key).copied(),
            ..KeyState::default()
        };
        let keys = deliveries.iter().map(|delivery| (delivery.key(), state(delivery.key()))).collect();
        let mut folded = Folded::default();
        folded.settlement.fence = narrow(fence, deliveries);
        Self { consumer, spans, loaded, known, keys, seen: HashSet::new(), dedupe_key: Uuid::nil(), folded }
    }

    fn key(&mut self, key: &str) -> &mut KeyState {
        self.keys.get_mut(key).expect("every delivery's key was put there by new")
    }

    fn is_duplicate(&mut self, message: &Message) -> bool {
        let key = message.dedupe_key(&self.consumer.name);
        self.dedupe_key = key;
        let duplicate = self.known.duplicates.contains(&key) || !self.seen.insert(key);
        self.folded.report.duplicates += usize::from(duplicate);
        duplicate
    }

    fn message(
        &mut self,
        at: usize,
        delivery: &Delivery,
        message: &Message,
        handle: impl FnOnce(&mut Folded) -> Result<(), Failure>,
    ) {
        if let Delivery::Fresh { fault, .. } = delivery {
            if self.is_duplicate(message) {
                return;
            }
            if let Some(fault) = fault {
                return self.undecodable(delivery, message, fault.clone());
            }
        }
        if self.waits(delivery, message) {
            return self.settle(delivery, message, Disposition::Parked, None);
        }
        if self.key(&message.key).group_dead {
            let fault = Fault::new(Stage::Business, "GROUP_DEAD", "an earlier message of its group is dead");
            return self.dead_letter(delivery, message, fault);
        }
        if let Some(disposition) = self.check_version(message) {
            let parks =
                matches!(disposition, Disposition::Parked).then(|| Park::ForVersion(self.expected_version(message)));
            self.key(&message.key).blocked |= parks.is_some();
            return match disposition {
                Disposition::Dead { fault } => self.dead(delivery, message, fault),
                other => self.settle(delivery, message, other, parks),
            };
        }
        let outcome = match self.known.failures.get(&at) {
            Some(failure) => Err(failure.clone()),
            None if message.attempt > self.consumer.retry.attempts_max => Err(Failure::permanent(
                "ATTEMPTS_EXHAUSTED",
                format!("taken up {} times without an outcome", message.attempt - 1),
            )),
            None => handle(&mut self.folded),
        };
        match outcome {
            Ok(()) => self.succeeded(at, delivery, message),
            Err(failure) => self.failed(delivery, message, failure),
        }
    }

    /// True if the message must wait behind an earlier one of its key.
    fn waits(&mut self, delivery: &Delivery, message: &Message) -> bool {
        let key = &message.key;
        if self.key(key).blocked {
            return true;
        }
        // The worker has put stored work behind its key when it claimed it.
        if !matches!(delivery, Delivery::Fresh { .. }) || self.key(key).released.is_some() {
            return false;
        }
        match self.loaded.parked.get(key) {
            None => false,
            Some(awaits) if awaits.is_some() && *awaits == message.aggregate_version => {
                self.key(key).released = Some(None);
                false
            }
            Some(awaits) => {
                let parked = (key.clone(), *awaits);
                if !self.folded.settlement.still_parked.contains(&parked) {
                    self.folded.settlement.still_parked.push(parked);
                }
                true
            }
        }
    }

    fn expected_version(&mut self, message: &Message) -> i64 {
        self.key(&message.key).version.unwrap_or(0) + 1
    }

    /// What becomes of a message whose version is not the next one.
    fn check_version(&mut self, message: &Message) -> Option<Disposition> {
        let version = message.aggregate_version?;
        let expected = match self.consumer.versions {
            VersionPolicy::Unchecked => return None,
            VersionPolicy::ParkOnGap | VersionPolicy::FailOnGap => self.expected_version(message),
        };
        if version < expected {
            metrics::counter!("dipmo_inbox_stale_total", "consumer" => self.consumer.name.clone()).increment(1);
            let reason = format!("STALE_VERSION: has {version}, {} is applied", expected - 1);
            return Some(Disposition::Ignored { reason });
        }
        if version == expected {
            return None;
        }
        metrics::counter!("dipmo_inbox_gaps_total", "consumer" => self.consumer.name.clone()).increment(1);
        let fault = Fault::new(Stage::Business, "VERSION_GAP", &format!("has version {version}, {expected} is next"));
        Some(match self.consumer.versions {
            VersionPolicy::FailOnGap => Disposition::Dead { fault },
            _ => Disposition::Parked,
        })
    }

    fn succeeded(&mut self, at: usize, delivery: &Delivery, message: &Message) {
        self.folded.handled.push(at);
        if self.consumer.versions != VersionPolicy::Unchecked
            && let Some(version) = message.aggregate_version
        {
            self.key(&message.key).version = Some(version);
        }
        self.passed(delivery, message);
        self.settle(delivery, message, Disposition::Processed, None);
    }

    fn failed(&mut self, delivery: &Delivery, message: &Message, failure: Failure) {
        let fault = |code: &str, text: &str| Fault::new(Stage::Business, code, text);
        match failure {
            Failure::Stale { reason } => {
                self.passed(delivery, message);
                self.settle(delivery, message, Disposition::Ignored { reason }, None);
            }
            Failure::Undecodable { code, message: text } => {
                self.passed(delivery, message);
                self.undecodable(delivery, message, Fault::new(Stage::ConsumerSerde, &code, &text));
            }
            Failure::Transient { code, message: text } => match self.consumer.retry.delay_after(message.attempt) {
                Some(after) => {
                    self.key(&message.key).blocked = true;
                    let retry = Disposition::Retry { after, fault: fault(&code, &text) };
                    self.settle(delivery, message, retry, Some(Park::ForHead));
                }
                None => self.dead(delivery, message, fault(&code, &text)),
            },
            Failure::Permanent { code, message: text } => self.dead(delivery, message, fault(&code, &text)),
        }
    }

    fn undecodable(&mut self, delivery: &Delivery, message: &Message, fault: Fault) {
        self.mirror(message, &fault);
        self.settle(delivery, message, Disposition::SerdeError { fault }, None);
    }

    fn dead(&mut self, delivery: &Delivery, message: &Message, fault: Fault) {
        match self.consumer.on_dead {
            DeadPolicy::Park => {
                self.key(&message.key).blocked = true;
                self.mirror(message, &fault);
                self.settle(delivery, message, Disposition::Dead { fault }, Some(Park::ForHead));
            }
            DeadPolicy::Skip => self.dead_letter(delivery, message, fault),
            DeadPolicy::Group => {
                self.key(&message.key).group_dead = true;
                self.dead_letter(delivery, message, fault);
            }
        }
    }

    fn dead_letter(&mut self, delivery: &Delivery, message: &Message, fault: Fault) {
        self.passed(delivery, message);
        self.mirror(message, &fault);
        self.settle(delivery, message, Disposition::Dead { fault }, None);
    }

    fn mirror(&mut self, message: &Message, fault: &Fault) {
        let mut letter = dead_letter(self.consumer, message, fault);
        self.spans.continued_by(message, letter.as_mut_slice());
        letter.iter_mut().for_each(|out| out.caused_by(message));
        self.folded.settlement.outbox.extend(letter);
    }

    /// The message is out of the way: if its key waited behind it, the key may go on.
    fn passed(&mut self, delivery: &Delivery, message: &Message) {
        if let Delivery::Stored(ClaimedMessage { is_head: true, .. }) = delivery {
            // A version that was waited for is not the head itself.
            let head = (!self.loaded.parked.get(&message.key).is_some_and(Option::is_some)).then_some(message.inbox_id);
            self.key(&message.key).released = Some(head);
        }
    }

    fn settle(&mut self, delivery: &Delivery, message: &Message, disposition: Disposition, parks: Option<Park>) {
        match delivery {
            Delivery::Fresh { message, .. } => self.arrive(Arc::clone(message), disposition, parks),
            Delivery::Stored(claimed) => {
                self.count(disposition.state());
                if let Some(event) = disposition.event() {
                    claimed
                        .state
                        .next(event)
                        .expect("what is claimed is open, and every outcome of open work is legal");
                }
                self.folded.settlement.stored.push(Stored {
                    inbox_id: message.inbox_id,
                    key: message.key.clone(),
                    disposition,
                    parks,
                });
            }
            Delivery::Timer(..) => {}
        }
    }

    fn arrive(&mut self, message: Arc<Message>, disposition: Disposition, parks: Option<Park>) {
        self.count(disposition.state());
        let dedupe_key = self.dedupe_key;
        self.folded.settlement.arrivals.push(Arrival { dedupe_key, message, disposition, parks });
    }

    fn timer(
        &mut self,
        (at, timer): (usize, &FiredTimer),
        instance: &Instance,
        instances: &mut Instances<'_>,
        decide: impl FnOnce(Option<&Instance>, Input<'_>) -> Result<Decision, Failure>,
    ) {
        let is_this = |change: &TimerWrite| change.process_id == timer.process_id && change.name == timer.name;
        let current = instances.get(&InstanceKey::of(instance));
        let ended = current.unwrap_or(instance).status.is_final();
        if ended || self.folded.settlement.timers.iter().any(is_this) {
            // Nothing waits for it: or a decision before it in this batch has cancelled it or set it anew.
            return self.folded.settlement.fired.push(timer.clone());
        }
        let outcome = match self.known.failures.get(&at) {
            Some(failure) => Err(failure.clone()),
            None => decide(current, Input::Timer { name: &timer.name })
                .and_then(|decision| instances.apply_timer(timer, instance, decision)),
        };
        match outcome {
            Ok(effects) => {
                self.folded.note_emitted(at, &effects);
                effects.add_to(&mut self.folded.settlement);
                self.folded.settlement.fired.push(timer.clone());
                self.folded.report.timers += 1;
            }
            Err(Failure::Stale { .. }) => self.folded.settlement.fired.push(timer.clone()),
            Err(failure) => {
                // A timer has no one to send it again: it is never given up.
                let delay = self.consumer.retry.delay(timer.attempts.max(0) as u32 + 1);
                tracing::warn!(consumer = self.consumer.name, timer = timer.name, process = %timer.process_id,
                    %failure, ?delay, "timer failed, trying again later");
                self.folded.settlement.postponed.push((timer.clone(), delay));
            }
        }
    }

    fn count(&mut self, state: InboxState) {
        let report = &mut self.folded.report;
        *match state {
            InboxState::Received => &mut report.received,
            InboxState::Processed => &mut report.processed,
            InboxState::Ignored => &mut report.ignored,
            InboxState::Retry => &mut report.retried,
            InboxState::Parked => &mut report.parked,
            InboxState::Dead => &mut report.dead,
            InboxState::SerdeError => &mut report.undecodable,
        } += 1;
    }

    fn finish(mut self) -> Folded {
        let settlement = &mut self.folded.settlement;
        for (key, state) in self.keys {
            if state.blocked {
                self.folded.blocked.insert(key.to_owned());
            } else if let Some(head) = state.released {
                settlement.released.push((key.to_owned(), head));
            }
            if let Some(version) = state.version
                && self.loaded.versions.get(key) != Some(&version)
            {
                settlement.versions.push((key.to_owned(), version));
            }
        }
        self.folded.report.sent = settlement.outbox.len();
        self.folded
    }
}

impl Folded {
    fn note_emitted(&mut self, at: usize, effects: &super::instances::Effects) {
        self.emitted.extend(effects.outbox.iter().filter_map(|m| m.version_key()).map(|key| (key, at)));
    }
}
