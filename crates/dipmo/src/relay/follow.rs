//! The WAL as the source of a sending lane.
//!
//! Rows come in commit order and are sent as they come. The account that the table's reader keeps, cursors
//! with gaps, follows at checkpoints: once the WAL has been read past the moment of a reading of the horizon,
//! everything that reading calls decided has been seen. The slot moves last of all: first the broker's
//! answer, then exceptions and position on disk, then the server may forget.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::gauge;
use tracing::info;

use super::lane::{Lane, LaneStep};
use super::publish::{Candidate, Delivery};
use super::ranges::Ranges;
use super::reader::{Checkpoint, Source, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::relay_out::OutRow;
use crate::store::postgres::relay_rows::BatchLog;
use crate::store::postgres::wal::{Lsn, WalBatch, WalStream};
use crate::transport::Outcome;

/// A step follows the WAL for this long, then takes part in what the session does ...
const FOLLOW: Duration = Duration::from_millis(200);
/// ... and for this long while nothing comes, because every turn of the session costs queries.
const FOLLOW_IDLE: Duration = Duration::from_secs(1);
/// Position and cursors are stored at this pace ...
const STORE_EVERY: Duration = Duration::from_millis(500);
/// ... and at this one while only other tables are written: a position is itself a write.
const STORE_EVERY_IDLE: Duration = Duration::from_secs(5);
/// What one read may bring into memory, about.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// Rows of a foreign table that are read at once.
const FOREIGN_ROWS: i64 = 2_000;
/// At a hand-over, sent rows beyond the cursor are told apart by at most this many ranges.
const TAIL_RANGES_MAX: usize = 1_000;

pub(super) struct WalSource {
    stream: WalStream,
    /// Everything committed before was sent or is an exception.
    pub(super) position: Lsn,
    /// What the database knows of the position.
    stored: Lsn,
    stored_at: Instant,
    /// Arrived while the destination was away.
    held: Vec<Candidate>,
    /// Where the position gets to when all that arrived is sent.
    arrived: Lsn,
    /// Sent, and beyond the cursors.
    sent: Vec<(i16, i64)>,
    /// The reading of the horizon that the WAL has not been read up to yet.
    waiting: Option<Arc<Checkpoint>>,
    /// Rows that this relay wrote for messages that failed: not news.
    kept: HashSet<i64>,
    /// All transactions below had ended before the position.
    ended: Option<i64>,
    /// The last step brought nothing.
    idle: bool,
    /// The WAL is to be read up to here, and then no more.
    pub(super) leaving: Option<Lsn>,
}

impl WalSource {
    pub(super) fn new(stream: WalStream, from: Lsn) -> Self {
        Self {
            stream,
            position: from,
            stored: from,
            stored_at: Instant::now(),
            held: Vec::new(),
            arrived: from,
            sent: Vec::new(),
            waiting: None,
            kept: HashSet::new(),
            ended: None,
            idle: false,
            leaving: None,
        }
    }

    pub(super) async fn close(self) {
        self.stream.close().await;
    }
}

impl Lane {
    /// Sends what the WAL brings, for a while.
    pub(super) async fn follow(&mut self, turn: &Turn) -> Result<LaneStep> {
        if self.shards.len() < super::leases::LANE_SHARDS {
            return Err(Error::lease_lost("a shard was lost while the WAL was read"));
        }
        let source = self.wal();
        source.waiting = source.waiting.take().or_else(|| turn.checkpoint.clone());
        let patient = source.idle && source.leaving.is_none() && self.options.tend_every.is_none();
        let until = Instant::now() + if patient { FOLLOW_IDLE } else { FOLLOW };
        let mut step = LaneStep::default();
        while Instant::now() < until {
            if let Some(closed) = self.closed_until() {
                step.breaker_until = Some(closed);
                tokio::time::sleep_until(closed.min(until).into()).await;
                continue;
            }
            self.follow_once(until, &mut step).await?;
            self.pass_checkpoint();
        }
        self.wal().idle = step.sent + step.excepted == 0;
        self.store_position(false).await?;
        step.wal_lag = self.show_lag(turn);
        Ok(step)
    }

    async fn follow_once(&mut self, until: Instant, step: &mut LaneStep) -> Result<()> {
        let mut delivery = self.begin_delivery().await?;
        for candidate in self.arrivals(until).await? {
            self.offer(&mut delivery, candidate);
        }
        let Some(mut outcomes) = self.deliver(&delivery, step).await? else {
            self.wal().held = delivery.into_new();
            return Ok(());
        };
        let publisher = Arc::clone(&self.sender().publisher);
        if delivery.has_unknown_group(&outcomes, publisher.as_ref()) {
            let (sent, again) = delivery.take_new(&mut outcomes);
            step.excepted += self.settle_failed(delivery, outcomes).await?;
            self.note_sent(sent.iter().map(|candidate| candidate.place));
            self.wal().held = again;
            // Not at once: whoever did not answer would be asked without a pause.
            tokio::time::sleep_until(until.into()).await;
            return Ok(());
        }
        let places = delivery.new_places();
        step.excepted += self.settle_failed(delivery, outcomes).await?;
        self.note_sent(places.into_iter());
        let source = self.wal();
        source.position = source.arrived;
        Ok(())
    }

    /// What has no row in the outbox has no place in the account.
    fn note_sent(&mut self, places: impl Iterator<Item = (i16, i64)>) {
        for (shard, id) in places.filter(|(_, id)| *id != 0) {
            self.shards.get_mut(&shard).expect("all shards are owned").found(id);
            self.wal().sent.push((shard, id));
        }
    }

    /// What was held back, else what the WAL brings until then; without what the account says is sent.
    async fn arrivals(&mut self, until: Instant) -> Result<Vec<Candidate>> {
        let full = self.sender().keys.is_full();
        let publisher = Arc::clone(&self.sender().publisher);
        let rows_max = self.options.batch_rows * super::leases::LANE_SHARDS;
        let source = self.wal();
        if !source.held.is_empty() {
            return Ok(std::mem::take(&mut source.held));
        }
        if full {
            tokio::time::sleep_until(until.into()).await;
            return Ok(Vec::new());
        }
        let whole =
            |destination: &str| publisher.keeps_whole(destination.strip_prefix("KAFKA:").unwrap_or(destination));
        let next = source.stream.next(rows_max, READ_BYTES_MAX, &whole);
        let Ok(batch) = tokio::time::timeout_at(until.into(), next).await else { return Ok(Vec::new()) };
        let WalBatch { rows, transactions, upto, .. } = batch?;
        source.arrived = upto.unwrap_or(source.arrived);
        let shards = &self.shards;
        let Source::Wal(source) = &mut self.source else { return Ok(Vec::new()) };
        let mut is_news = |candidate: &Candidate| match candidate.place {
            (_, 0) => true,
            // All shards of the lane are owned: a row of another shard is another lane's.
            (shard, id) => !source.kept.remove(&id) && shards.get(&shard).is_some_and(|own| !own.has_sent(id)),
        };
        let all = rows.into_iter().zip(transactions).map(|(row, number)| Candidate::new(OutRow::Wal(row), number));
        if !publisher.keeps_any_whole() {
            return Ok(all.filter(is_news).collect());
        }
        let told = all.map(|candidate| (is_news(&candidate), candidate.transaction, candidate)).collect();
        let keys = &self.sender.as_ref().expect("only lanes with a sender publish").keys;
        let may_come_again = |candidate: &Candidate| {
            let (destination, key) = (candidate.row.destination(), candidate.row.key());
            whole(destination) && !keys.blocks(destination, key)
        };
        Ok(keep_groups(told, may_come_again))
    }

    /// One transaction for what was not simply sent. Messages that have no row in the outbox get one.
    async fn settle_failed(&mut self, mut delivery: Delivery, outcomes: Vec<Outcome>) -> Result<usize> {
        if delivery.is_clean(&outcomes) {
            return Ok(0);
        }
        self.link.begin().await?;
        let sent = outcomes.iter().map(|outcome| *outcome == Outcome::Done).chain(std::iter::repeat(false));
        let all = delivery.candidates.iter_mut().chain(&mut delivery.parked);
        let mut kept = Vec::new();
        for (candidate, _) in all.zip(sent).filter(|(candidate, sent)| !sent && candidate.place.1 == 0) {
            candidate.place = self.link.keep(&candidate.row.outgoing(candidate.transaction)).await?;
            kept.push(candidate.place.1);
        }
        let exceptions = self.judge(&mut delivery, outcomes)?;
        self.settle(&[], &exceptions).await?;
        self.link.commit().await?;
        self.sender().forget_keys();
        if let Source::Wal(source) = &mut self.source {
            source.kept.extend(kept);
        }
        Ok(exceptions.len())
    }

    /// Rows of foreign tables that may not have been seen in the WAL before the slot was lost. They have no
    /// ids in order, so it is told by their transactions, and some are sent again.
    pub(super) async fn resend_foreign(&mut self, ended: i64) -> Result<()> {
        for table in self.options.foreign_tables.clone() {
            let (mut after, mut resent) = (None, 0);
            loop {
                let rows = self.link.read_foreign(&table, ended, after, FOREIGN_ROWS).await?;
                let Some(last) = rows.last() else { break };
                after = Some((last.created_at(), last.outgoing(0).message_id));
                resent += rows.len();
                let mut delivery = self.begin_delivery().await?;
                rows.into_iter().for_each(|row| self.offer(&mut delivery, Candidate::new(row, 0)));
                let away = || Error::new(ErrorKind::Unavailable, "the destination is away while the relay catches up");
                let outcomes = self.deliver(&delivery, &mut LaneStep::default()).await?.ok_or_else(away)?;
                self.settle_failed(delivery, outcomes).await?;
            }
            info!(table = table.quoted(), resent, "rows were read from the foreign table again");
        }
        Ok(())
    }

    /// The WAL has been read past the reading of the horizon: the cursors follow.
    fn pass_checkpoint(&mut self) {
        let Source::Wal(source) = &mut self.source else { return };
        let Some(checkpoint) = source.waiting.take_if(|waiting| source.position >= waiting.lsn) else { return };
        let view = &checkpoint.view;
        for shard in self.shards.values_mut().filter(|shard| shard.is_ready(view)) {
            let (number, cursor) = (shard.number(), shard.cursor());
            let own = source.sent.iter().filter(|(shard, id)| *shard == number && *id > cursor).map(|(_, id)| *id);
            if cursor < view.safe {
                shard.advance(view, view.safe, own);
            }
            shard.rechecked(&checkpoint.snapshot);
        }
        let logs = batch_logs(&source.sent, view.safe);
        source.sent.retain(|(_, id)| *id > view.safe);
        source.ended = i64::try_from(checkpoint.snapshot.xmin).ok();
        self.unlogged.extend(logs);
    }

    /// Writes cursors and position, then lets the server forget what lies before.
    pub(super) async fn store_position(&mut self, now: bool) -> Result<()> {
        let moved = !self.unlogged.is_empty();
        let source = self.wal();
        let every = if moved { STORE_EVERY } else { STORE_EVERY_IDLE };
        let due = source.position > source.stored && source.stored_at.elapsed() >= every;
        if !now && !due {
            return Ok(());
        }
        let (position, ended) = (source.position, source.ended);
        self.flush_cursors().await?;
        self.link.store_position(self.name, position, ended).await?;
        let source = self.wal();
        (source.stored, source.stored_at) = (position, Instant::now());
        source.stream.confirm(position);
        Ok(())
    }

    /// Before a hand-over: what was sent beyond the cursors is told apart from what was not, so that the
    /// next reader does not send it again.
    pub(super) fn account_for_tail(&mut self) {
        let Source::Wal(source) = &mut self.source else { return };
        let mut ids: Vec<i64> = source.sent.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        let Some(last) = ids.last().copied() else { return };
        for shard in self.shards.values_mut().filter(|shard| shard.cursor() < last) {
            let mut missing = Ranges::default();
            let mut next = shard.cursor() + 1;
            for id in ids.iter().copied().filter(|id| *id > shard.cursor()) {
                if id > next {
                    missing.push(next, id);
                }
                next = id + 1;
            }
            if missing.len() <= TAIL_RANGES_MAX {
                shard.jump(last, &missing);
            }
        }
        let logs = batch_logs(&source.sent, last);
        source.sent.clear();
        self.unlogged.extend(logs);
    }

    /// In bytes, and in the age of the oldest moment that has not been reached.
    fn show_lag(&mut self, turn: &Turn) -> Option<u64> {
        let source = self.wal();
        let seconds = source.waiting.as_ref().map_or(0.0, |waiting| waiting.at.elapsed().as_secs_f64());
        let behind = turn.checkpoint.as_ref()?.lsn.0.saturating_sub(source.position.0);
        gauge!("dipmo_relay_wal_lag_seconds", "lane" => self.name).set(seconds);
        #[allow(clippy::cast_precision_loss)] // A gauge is a float; nobody minds a byte in 2^52.
        gauge!("dipmo_relay_wal_lag_bytes", "lane" => self.name).set(behind as f64);
        Some(behind)
    }
}

/// Cursors are stored before the position, and one may stand in the middle of a transaction: then its first
/// rows are no news to the next reader, and come again with the others, as a whole.
fn keep_groups<R>(told: Vec<(bool, u64, R)>, may_come_again: impl Fn(&R) -> bool) -> Vec<R> {
    let news = told.iter().filter(|(news, ..)| *news).map(|(_, transaction, _)| *transaction);
    let open: HashSet<u64> = news.collect();
    let stays =
        |(news, transaction, row): &(bool, u64, R)| *news || (open.contains(transaction) && may_come_again(row));
    told.into_iter().filter(stays).map(|(.., row)| row).collect()
}

/// One entry a shard for what was sent up to an id.
fn batch_logs(sent: &[(i16, i64)], upto: i64) -> Vec<BatchLog> {
    let mut logs: std::collections::BTreeMap<i16, BatchLog> = std::collections::BTreeMap::new();
    for (shard, id) in sent.iter().copied().filter(|(_, id)| *id <= upto) {
        let log = logs.entry(shard).or_insert(BatchLog { shard, from_id: id, to_id: id, sent: 0 });
        log.from_id = log.from_id.min(id);
        log.to_id = log.to_id.max(id);
        log.sent += 1;
    }
    logs.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_with_news_comes_whole_and_one_without_not_at_all() {
        let told = vec![(false, 7, "a1"), (false, 7, "a2"), (false, 8, "b1"), (false, 8, "parked"), (true, 8, "b2")];
        assert_eq!(keep_groups(told, |row| *row != "parked"), ["b1", "b2"]);
    }
}
