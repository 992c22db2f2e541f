//! The sending lanes: rows go to a broker outside any database transaction, then one transaction says
//! what became of them.
//!
//! Promise: a committed row is sent at least once, in order within (destination, key). A row that fails
//! parks its key and nothing else; a broker that does not answer stops the lane and marks nothing.
//! Not promised: order against rows that were on their way when the broker, not the client, refused an
//! earlier one of their key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};
use tracing::{info, warn};

use super::RelayOptions;
use super::breaker::Breaker;
use super::horizon::View;
use super::keys::{Key, OpenKeys};
use super::lane::{Found, Lane, LaneStep, ReadRow};
use super::read_size::ReadSize;
use super::reader::Source;
use super::spans::PublishSpans;
use super::state::{OutboxEvent, OutboxState};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_out::OutRow;
use crate::store::postgres::relay_rows::{Cursors, ExceptionRow, LateRanges};
use crate::transport::{Outcome, Outgoing, Publisher, Refusal};

/// More failures than this at once are the destination's trouble, not the rows': nothing is marked.
const EXCEPTIONS_MAX: usize = 1_000;

/// The broker side of a lane.
pub(crate) struct Sender {
    pub(super) publisher: Arc<dyn Publisher>,
    breaker: Breaker,
    pub(super) keys: OpenKeys,
    keys_read: Option<Instant>,
    read_size: ReadSize,
    /// Read while the rows before were being sent.
    ahead: Option<Found<OutRow>>,
}

/// A row in the batch, with what is known of it.
pub(super) struct Candidate {
    pub(super) row: OutRow,
    /// Shard and id; a message without a row in the outbox gets one when it has to be kept.
    pub(super) place: (i16, i64),
    /// The database transaction it was written in, 0 where that is not known.
    pub(super) transaction: u64,
    /// PENDING unless the row is an exception already.
    state: OutboxState,
    attempts: i32,
}

impl Candidate {
    pub(super) fn new(row: OutRow, transaction: u64) -> Self {
        Self { place: row.place(), row, transaction, state: OutboxState::Pending, attempts: 0 }
    }
}

/// What one step sends, and what has to wait.
#[derive(Default)]
pub(super) struct Delivery {
    /// First the rows that are exceptions already, then new ones; in order within a key.
    pub(super) candidates: Vec<Candidate>,
    /// New rows of keys that are open.
    pub(super) parked: Vec<Candidate>,
    /// Exceptions whose messages are no longer there.
    gone: Vec<ExceptionRow>,
    /// How many of the candidates are exceptions already.
    reopened: usize,
}

impl Delivery {
    /// Where the new rows are that have a row in the outbox.
    pub(super) fn new_places(&self) -> Vec<(i16, i64)> {
        let new = self.candidates[self.reopened..].iter().chain(&self.parked);
        new.map(|candidate| candidate.place).filter(|(_, id)| *id != 0).collect()
    }

    /// Everything was simply sent.
    pub(super) fn is_clean(&self, outcomes: &[Outcome]) -> bool {
        let nothing_open = self.reopened == 0 && self.gone.is_empty() && self.parked.is_empty();
        nothing_open && outcomes.iter().all(|outcome| *outcome == Outcome::Done)
    }

    /// Whether a row is unknown that readers are to see together with others. As an exception it would go
    /// out alone.
    pub(super) fn has_unknown_group(&self, outcomes: &[Outcome], publisher: &dyn Publisher) -> bool {
        let whole = |candidate: &Candidate| publisher.keeps_whole(candidate.row.outgoing(0).topic);
        let new = self.candidates.iter().zip(outcomes).skip(self.reopened);
        publisher.keeps_any_whole()
            && new.into_iter().any(|(row, told)| matches!(told, Outcome::Unknown(_)) && whole(row))
    }

    /// Takes the new rows out, in order: those that were sent, and those that are to be offered again.
    pub(super) fn take_new(&mut self, outcomes: &mut Vec<Outcome>) -> (Vec<Candidate>, Vec<Candidate>) {
        let (mut sent, mut again) = (Vec::new(), Vec::new());
        let new = self.candidates.drain(self.reopened..).zip(outcomes.drain(self.reopened..));
        for (candidate, outcome) in new {
            if outcome == Outcome::Done { sent.push(candidate) } else { again.push(candidate) }
        }
        again.append(&mut self.parked);
        (sent, again)
    }

    /// Takes the new rows out again, to be offered later.
    pub(super) fn into_new(mut self) -> Vec<Candidate> {
        self.candidates.drain(..self.reopened);
        self.candidates.append(&mut self.parked);
        self.candidates
    }
}

impl Sender {
    pub(crate) fn new(publisher: Arc<dyn Publisher>, options: &RelayOptions) -> Self {
        Self {
            publisher,
            breaker: Breaker::new(options.probe_after, options.probe_after_max),
            keys: OpenKeys::default(),
            keys_read: None,
            read_size: ReadSize::default(),
            ahead: None,
        }
    }

    /// Another's exceptions came with a shard: read before anything is sent.
    pub(crate) fn forget_keys(&mut self) {
        self.keys_read = None;
    }

    fn keys_stale(&self, refresh: Duration) -> bool {
        self.keys_read.is_none_or(|at| at.elapsed() >= refresh)
    }
}

impl Lane {
    pub(super) fn sender(&mut self) -> &mut Sender {
        self.sender.as_mut().expect("only lanes with a sender publish")
    }

    /// One step of the table's reader.
    pub(super) async fn publish(&mut self, view: &View) -> Result<LaneStep> {
        if let Some(until) = self.closed_until() {
            return Ok(LaneStep { breaker_until: Some(until), ..LaneStep::default() });
        }
        let mut delivery = self.begin_delivery().await?;
        let found = self.read_new(view).await?;
        let places = found.places();
        for row in found.late.into_iter().chain(found.fresh) {
            self.offer(&mut delivery, Candidate::new(row, 0));
        }
        let mut step = LaneStep { more: places.more, ..LaneStep::default() };
        let limit = self.sender().read_size.rows();
        let (sent, ahead) = tokio::join!(self.send(&delivery.candidates), self.read_ahead(view, &places, limit));
        let Some(outcomes) = self.delivered(&delivery, sent?, &mut step) else { return Ok(step) };
        self.sender().ahead = ahead?;
        let exceptions = self.judge(&mut delivery, outcomes)?;
        step.excepted = exceptions.len();
        step.more |= delivery.reopened > 0 && !exceptions.is_empty();
        self.settle_sent(view, &places, &exceptions).await?;
        if let Source::Verify(verifier) = &mut self.source {
            verifier.table_has(places.late.iter().chain(&places.fresh).map(|(_, id)| *id));
        }
        Ok(step)
    }

    /// While the destination is left alone: until when.
    pub(super) fn closed_until(&mut self) -> Option<Instant> {
        let breaker = &self.sender().breaker;
        breaker.until().filter(|_| !breaker.allows(Instant::now()))
    }

    /// Begins with the exceptions whose time has come.
    pub(super) async fn begin_delivery(&mut self) -> Result<Delivery> {
        self.refresh_keys().await?;
        let (candidates, gone) = self.read_reopened().await?;
        Ok(Delivery { reopened: candidates.len(), candidates, gone, parked: Vec::new() })
    }

    /// A new row is sent, or waits behind what is open of its key.
    pub(super) fn offer(&mut self, delivery: &mut Delivery, candidate: Candidate) {
        let blocked = self.sender().keys.blocks(candidate.row.destination(), candidate.row.key());
        if blocked { delivery.parked.push(candidate) } else { delivery.candidates.push(candidate) }
    }

    /// Sends; `None` when the destination is away and nothing is to be marked.
    pub(super) async fn deliver(&mut self, delivery: &Delivery, step: &mut LaneStep) -> Result<Option<Vec<Outcome>>> {
        let outcomes = self.send(&delivery.candidates).await?;
        Ok(self.delivered(delivery, outcomes, step))
    }

    fn delivered(&mut self, delivery: &Delivery, outcomes: Vec<Outcome>, step: &mut LaneStep) -> Option<Vec<Outcome>> {
        if self.is_away(&outcomes) {
            step.breaker_until = self.sender().breaker.until();
            step.more = false;
            return None;
        }
        step.sent += outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count();
        self.measure(&delivery.candidates, &outcomes);
        Some(outcomes)
    }

    /// Keys are read again now and then, because operators change them.
    async fn refresh_keys(&mut self) -> Result<()> {
        let refresh = self.options.exceptions_refresh;
        if !self.sender().keys_stale(refresh) {
            return Ok(());
        }
        let shards: Vec<i16> = self.shards.keys().copied().collect();
        let heads = self.link.read_open_keys(&shards, OpenKeys::READ_MAX).await?;
        let sender = self.sender();
        sender.keys = OpenKeys::new(heads);
        sender.keys_read = Some(Instant::now());
        Ok(())
    }

    /// Rows that are exceptions and may be sent now: failed ones that are due, and those that waited
    /// behind one which is settled.
    async fn read_reopened(&mut self) -> Result<(Vec<Candidate>, Vec<ExceptionRow>)> {
        let keys = &self.sender.as_ref().expect("only lanes with a sender publish").keys;
        let due = keys.due();
        let released = keys.released();
        if due.is_empty() && released.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut wanted: HashMap<i64, (i16, OutboxState, i32)> =
            due.iter().map(|head| (head.id, (head.shard, OutboxState::Retry, head.attempts))).collect();
        let mut drained: HashSet<Key> = HashSet::new();
        if !released.is_empty() {
            let rows = self.link.read_parked(&released, OpenKeys::DRAIN_MAX).await?;
            for head in released {
                let own: Vec<_> = rows.iter().filter(|row| row.is_of(head)).collect();
                let parked = own.iter().take_while(|row| row.state == OutboxState::Parked.name());
                let count =
                    parked.map(|row| wanted.insert(row.id, (row.shard, OutboxState::Parked, row.attempts))).count();
                // All of the key is on its way in this batch, so what is new may follow in the same.
                if count == own.len() && i64::try_from(own.len()).is_ok_and(|len| len < OpenKeys::DRAIN_MAX) {
                    drained.insert(Key::of(head));
                }
            }
        }
        let ids: Vec<(i16, i64)> = wanted.iter().map(|(id, (shard, ..))| (*shard, *id)).collect();
        let mut rows = self.link.read_by_id(&ids).await?;
        rows.sort_unstable_by_key(|row| row.place().1);
        let sender = self.sender();
        sender.keys.drained = drained;
        // Whatever comes of them, the keys are not as they were read.
        sender.forget_keys();
        let candidate = |row: OutRow| {
            let (_, state, attempts) = wanted.remove(&row.place().1).expect("only rows that are wanted are read");
            Candidate { state, attempts, ..Candidate::new(row, 0) }
        };
        let candidates = rows.into_iter().map(candidate).collect();
        Ok((
            candidates,
            wanted.into_iter().map(|(id, (shard, state, attempts))| gone(id, shard, state, attempts)).collect(),
        ))
    }

    /// What was read ahead, else what the table has now.
    async fn read_new(&mut self, view: &View) -> Result<Found<OutRow>> {
        let full = self.sender().keys.is_full();
        if full {
            warn!(lane = self.name, "too many keys are parked: new rows wait until some are settled");
        }
        let limit = self.sender().read_size.rows();
        let ahead = self.sender().ahead.take();
        let found = match ahead.filter(|ahead| !full && self.fits(ahead)) {
            Some(found) => found,
            None => self.read(view, limit, full).await?,
        };
        let (shards, batch_rows) = (self.shards.len(), self.options.batch_rows);
        self.sender().read_size.adapt(&found.fresh, shards, batch_rows);
        Ok(found)
    }

    async fn send(&self, candidates: &[Candidate]) -> Result<Vec<Outcome>> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        if !self.still_leased() {
            return Err(Error::lease_lost("a lease ended before its rows were sent"));
        }
        let mut rows: Vec<Outgoing<'_>> =
            candidates.iter().map(|candidate| candidate.row.outgoing(candidate.transaction)).collect();
        let spans = PublishSpans::open(self.options.trace.as_ref(), &rows);
        spans.continue_in(&mut rows);
        let publisher = &self.sender.as_ref().expect("only lanes with a sender publish").publisher;
        let outcomes = publisher.publish(&rows).await;
        if outcomes.len() != rows.len() {
            return Err(Error::new(ErrorKind::Bug, "a publisher tells the outcome of every row"));
        }
        spans.end(&outcomes);
        Ok(outcomes)
    }

    /// The destination did not answer for anything, or failed too much for the rows to be the reason.
    fn is_away(&mut self, outcomes: &[Outcome]) -> bool {
        let silent = |outcome: &Outcome| matches!(outcome, Outcome::Unknown(_) | Outcome::Held);
        let passing = outcomes.iter().filter(|o| matches!(o, Outcome::Unknown(_) | Outcome::Retry(_))).count();
        let away = !outcomes.is_empty() && (outcomes.iter().all(silent) || passing > EXCEPTIONS_MAX);
        let name = self.name;
        let breaker = &mut self.sender().breaker;
        if away {
            let reason = outcomes.iter().find_map(|outcome| match outcome {
                Outcome::Unknown(refusal) | Outcome::Retry(refusal) => Some(refusal.message.as_str()),
                _ => None,
            });
            if breaker.silent(Instant::now()) {
                warn!(lane = name, reason, "the destination does not answer: sending stops until a probe succeeds");
            }
        } else if !outcomes.is_empty() {
            if breaker.is_open() {
                info!(lane = name, "the destination answers again");
            }
            breaker.answered();
        }
        gauge!("dipmo_relay_breaker_open", "lane" => name).set(f64::from(u8::from(breaker.is_open())));
        away
    }

    /// What the outcomes make of rows that are not simply done.
    pub(super) fn judge(&self, delivery: &mut Delivery, outcomes: Vec<Outcome>) -> Result<Vec<ExceptionRow>> {
        let mut exceptions = std::mem::take(&mut delivery.gone);
        let mut failed: HashSet<(&str, &str)> = HashSet::new();
        for (candidate, outcome) in delivery.candidates.iter().zip(outcomes) {
            let key = (candidate.row.destination(), candidate.row.key());
            // Behind one that failed, a row that failed as well is only in its way.
            let behind = failed.contains(&key);
            let (event, refusal) = match outcome {
                Outcome::Done if candidate.state == OutboxState::Pending => continue,
                Outcome::Done => (OutboxEvent::Acknowledged, None),
                _ if behind && candidate.state == OutboxState::Retry => continue,
                _ if behind => (OutboxEvent::Blocked, None),
                Outcome::Held if candidate.state == OutboxState::Retry => continue,
                Outcome::Held => (OutboxEvent::Blocked, None),
                Outcome::Rejected(refusal) => (OutboxEvent::GivenUp, Some(refusal)),
                Outcome::Retry(refusal) | Outcome::Unknown(refusal) => (OutboxEvent::Failed, Some(refusal)),
            };
            if !matches!(event, OutboxEvent::Acknowledged | OutboxEvent::Blocked) {
                failed.insert(key);
            }
            exceptions.push(exception(candidate, event, refusal, Some(&self.options))?);
        }
        for candidate in &delivery.parked {
            exceptions.push(exception(candidate, OutboxEvent::Blocked, None, None)?);
        }
        Ok(exceptions)
    }

    async fn settle_sent(
        &mut self,
        view: &View,
        places: &Found<(i16, i64)>,
        exceptions: &[ExceptionRow],
    ) -> Result<()> {
        let logs = self.advance(view, places);
        if exceptions.is_empty() {
            if !logs.is_empty() {
                self.settle(&logs, &[]).await?;
            }
            return Ok(());
        }
        self.link.begin().await?;
        self.settle(&logs, exceptions).await?;
        self.link.commit().await?;
        self.sender().forget_keys();
        Ok(())
    }

    fn measure(&self, candidates: &[Candidate], outcomes: &[Outcome]) {
        let done = outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count();
        if done == 0 {
            return;
        }
        counter!("dipmo_outbox_published_total", "lane" => self.name).increment(done as u64);
        let latency = histogram!("dipmo_outbox_publish_latency_seconds");
        let latency_ms = histogram!("outbox_publish_latency_ms");
        let now = self.link.db().clock().now();
        for (candidate, _) in candidates.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done) {
            let seconds = (now - candidate.row.created_at()).as_seconds_f64();
            latency.record(seconds);
            latency_ms.record(seconds * 1_000.0);
        }
    }
}

impl ReadRow for OutRow {
    async fn late(link: &Link, ranges: &LateRanges, limit: i64) -> Result<Vec<Self>> {
        link.read_late(ranges, limit).await
    }

    async fn fresh(link: &Link, cursors: &Cursors, upto: i64, limit: i64) -> Result<Vec<Self>> {
        link.read_fresh(cursors, upto, limit).await
    }

    fn place(&self) -> (i16, i64) {
        self.place()
    }
}

/// An exception whose message is no longer in the outbox can only be given up.
fn gone(id: i64, shard: i16, state: OutboxState, attempts: i32) -> ExceptionRow {
    ExceptionRow {
        id,
        shard,
        destination: String::new(),
        key: String::new(),
        was: Some(state.name()),
        state: OutboxState::Dead.name(),
        attempts,
        delay: None,
        code: Some("ROW_GONE".to_owned()),
        message: Some("the outbox no longer holds the message".to_owned()),
    }
}

/// The row of an exception after `event`. With options a failure counts as an attempt.
fn exception(
    candidate: &Candidate,
    event: OutboxEvent,
    refusal: Option<Refusal>,
    options: Option<&RelayOptions>,
) -> Result<ExceptionRow> {
    let tried = matches!(event, OutboxEvent::Failed | OutboxEvent::GivenUp | OutboxEvent::Acknowledged);
    let attempts = candidate.attempts + i32::from(tried);
    let retry_after = options.and_then(|options| options.retry.delay_after(attempts.unsigned_abs()));
    let event = if event == OutboxEvent::Failed && retry_after.is_none() { OutboxEvent::GivenUp } else { event };
    let illegal = |e| Error::new(ErrorKind::Bug, "settling a send").source(e);
    let state = candidate.state.next(event).map_err(illegal)?;
    let code = refusal.as_ref().map(|refusal| refusal.code.clone());
    if let Some(code) = &code {
        counter!("dipmo_outbox_exceptions_total", "code" => code.clone()).increment(1);
    }
    Ok(ExceptionRow {
        id: candidate.place.1,
        shard: candidate.place.0,
        destination: candidate.row.destination().to_owned(),
        key: candidate.row.key().to_owned(),
        was: (candidate.state != OutboxState::Pending).then(|| candidate.state.name()),
        state: state.name(),
        attempts,
        delay: retry_after.filter(|_| state == OutboxState::Retry),
        code,
        message: refusal.map(|refusal| refusal.message),
    })
}
