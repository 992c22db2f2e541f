//! One transport's share of the relay: its shards, its connection, and what every lane does alike.
//!
//! A lane works on one view of the horizon at a time and in this order: gaps in which something may have
//! appeared, then new rows, then the send, then one transaction under the epochs of its shards. While there
//! are gaps, all reads of a step share one snapshot: a transaction that ends between two reads would show
//! its later rows and not its earlier ones. An error makes the caller forget the lane as a whole; a lost
//! lease drops the shard alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::RelayOptions;
use super::horizon::{Snapshot, View};
use super::leases::{LANE_SHARDS, Leases};
use super::publish::Sender;
use super::read_size::ReadSize;
use super::reader::{Source, Turn};
use super::shard::Shard;
use crate::error::Result;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_rows::{BatchLog, Cursors, ExceptionRow, LateRanges};

/// Cursors that are only in memory are stored at this pace: those that moved over nothing, which only retention
/// looks at, and those over rows that were handled in this process.
const IDLE_FLUSH: Duration = Duration::from_secs(1);
/// Late rows are read at most this many at a time.
const LATE_MAX: i64 = 10_000;

pub(crate) struct Lane {
    pub(super) name: &'static str,
    pub(super) link: Link,
    pub(super) options: Arc<RelayOptions>,
    pub(super) shards: BTreeMap<i16, Shard>,
    /// What sends, unless the lane hands over inside the database.
    pub(super) sender: Option<Sender>,
    /// For INTERNAL with consumers in this process.
    pub(super) local_reads: ReadSize,
    pub(super) source: Source,
    /// When the server last refused the reader that is wanted, and why.
    pub(super) refused: Option<(Instant, String)>,
    /// Batches that are to be logged with the next move of the cursors.
    pub(super) unlogged: Vec<BatchLog>,
    leases: Leases,
    pub(super) flushed: Instant,
}

/// What one step of a lane did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaneStep {
    /// Rows that left the outbox.
    pub(crate) sent: usize,
    /// Rows that became or stayed exceptions.
    pub(crate) excepted: usize,
    /// More was waiting than one step takes.
    pub(crate) more: bool,
    pub(crate) breaker_until: Option<Instant>,
    /// The oldest rows are beyond the cursors by this many ids.
    pub(crate) behind: i64,
    /// Rows that one reader has seen and the other has not.
    pub(crate) differences: usize,
    /// How far the WAL has been written beyond what was dealt with, in bytes.
    pub(crate) wal_lag: Option<u64>,
    /// The lane waits for what no poll finds, and wants to go on at once.
    pub(crate) again: bool,
    /// Rows were handled in this process, and have sent something on, as a rule.
    pub(crate) local: bool,
    /// The lane has changed hands or readers: the leases need a look.
    pub(crate) tend: bool,
}

/// What appeared below the cursors, and what is new; both by shard and in id order.
pub(super) struct Found<R> {
    pub(super) late: Vec<R>,
    pub(super) fresh: Vec<R>,
    /// All late ranges were looked at to their end.
    late_complete: bool,
    /// What the rows were read in; `None` where there were no gaps.
    snapshot: Option<Snapshot>,
    /// Shards whose new rows were read, where their cursors stood, and where they come to stand.
    from: BTreeMap<i16, i64>,
    ends: BTreeMap<i16, i64>,
    pub(super) more: bool,
}

/// A kind of row that a lane reads: with its content or without.
pub(super) trait ReadRow: Sized {
    async fn late(link: &Link, ranges: &LateRanges, limit: i64) -> Result<Vec<Self>>;
    async fn fresh(link: &Link, cursors: &Cursors, upto: i64, limit: i64) -> Result<Vec<Self>>;
    /// Shard and id.
    fn place(&self) -> (i16, i64);
}

fn in_order<R: ReadRow>(rows: &[R]) -> bool {
    rows.is_sorted_by(|a, b| a.place() < b.place())
}

impl<R: ReadRow> Found<R> {
    /// New rows alone, read from the cursors up to the safe id or the limit.
    pub(super) fn fresh(fresh: Vec<R>, cursors: Cursors, view: &View, limit: usize) -> Self {
        assert!(in_order(&fresh), "rows come by shard and in id order");
        let mut read: BTreeMap<i16, (usize, i64)> = BTreeMap::new();
        for (shard, id) in fresh.iter().map(R::place) {
            let entry = read.entry(shard).or_default();
            *entry = (entry.0 + 1, id);
        }
        let end = |shard: &i16| match read.get(shard) {
            Some((count, last)) if *count == limit => *last,
            _ => view.safe,
        };
        let ends: BTreeMap<i16, i64> = cursors.0.iter().map(|shard| (*shard, end(shard))).collect();
        let more = ends.values().any(|end| *end < view.safe);
        let from = cursors.0.into_iter().zip(cursors.1).collect();
        Self { late: Vec::new(), fresh, late_complete: true, snapshot: None, from, ends, more }
    }

    /// The same with only the places of the rows, for when the rows themselves move on.
    pub(super) fn places(&self) -> Found<(i16, i64)> {
        self.map(R::place)
    }

    /// The same with something else for each row.
    pub(super) fn map<T>(&self, value: impl Fn(&R) -> T) -> Found<T> {
        Found {
            late: self.late.iter().map(&value).collect(),
            fresh: self.fresh.iter().map(&value).collect(),
            late_complete: self.late_complete,
            snapshot: self.snapshot.clone(),
            from: self.from.clone(),
            ends: self.ends.clone(),
            more: self.more,
        }
    }
}

impl Lane {
    pub(crate) async fn open(
        name: &'static str,
        leases: Leases,
        options: Arc<RelayOptions>,
        db: &crate::store::postgres::Db,
        sender: Option<Sender>,
    ) -> Result<Self> {
        let link = Link::open(db, &format!("relay {name}")).await?;
        let (shards, source, unlogged) = (BTreeMap::new(), Source::Table, Vec::new());
        let flushed = Instant::now();
        let local_reads = ReadSize::default();
        Ok(Self { name, link, options, shards, sender, local_reads, source, refused: None, unlogged, leases, flushed })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) async fn step(&mut self, turn: Turn) -> Result<LaneStep> {
        let view = Arc::clone(&turn.view);
        self.follow_leases(&view);
        if self.shards.is_empty() {
            return Ok(LaneStep::default());
        }
        let mut step = match self.sender {
            None => self.hand_over(&view, turn.ahead).await?,
            Some(_) => self.relay(&turn).await?,
        };
        step.behind = view.safe - self.shards.values().map(Shard::cursor).min().unwrap_or(view.safe);
        self.flush_idle().await?;
        Ok(step)
    }

    pub(crate) fn problem(&self) -> Option<String> {
        self.refused.as_ref().map(|(_, problem)| problem.clone())
    }

    pub(crate) fn open_ranges(&self) -> usize {
        self.shards.values().map(Shard::open_ranges).sum()
    }

    /// Takes in new shards, lets go of those that are lost, leaving, or may have lost their lease.
    fn follow_leases(&mut self, view: &View) {
        let (leases, lease) = (&self.leases, self.options.lease);
        self.shards.retain(|shard, state| {
            let holds = leases.holds(*shard, state.epoch(), lease);
            if !holds {
                leases.let_go(*shard, state.epoch());
            }
            holds
        });
        for taken in self.leases.arrivals(self.name) {
            if let Some(sender) = &mut self.sender {
                sender.forget_keys();
                sender.publisher.forget(&[taken.shard]);
            }
            self.shards.insert(taken.shard, Shard::new(taken));
        }
        self.shards.values_mut().for_each(|shard| shard.adopt_orphans(view));
    }

    /// False when a lease may have ended since the step began: then nothing more may be sent.
    pub(super) fn still_leased(&self) -> bool {
        self.shards.iter().all(|(shard, state)| self.leases.holds(*shard, state.epoch(), self.options.lease))
    }

    /// All cursors stand where the view ends, and nothing can appear below them.
    pub(super) fn has_nothing_to_read(&self, view: &View) -> bool {
        let done = |shard: &Shard| !shard.has_gaps() && !shard.has_orphans() && shard.cursor() >= view.safe;
        view.gaps.is_empty() && self.shards.values().all(done)
    }

    /// Opens one snapshot for all reads of the step, where there are gaps. It is younger than the view's:
    /// whoever had ended by the view has ended by it.
    async fn open_snapshot(&self, view: &View) -> Result<Option<Snapshot>> {
        let gaps = !view.gaps.is_empty() || self.shards.values().any(Shard::has_gaps);
        if gaps { self.link.begin_snapshot().await.map(Some) } else { Ok(None) }
    }

    /// Where something may have appeared, by shard and id.
    fn late_ranges(&self, view: &View, snapshot: Option<&Snapshot>) -> LateRanges {
        let mut ranges = LateRanges::default();
        let Some(snapshot) = snapshot else { return ranges };
        for (shard, state) in self.shards.iter().filter(|(_, state)| state.is_ready(view)) {
            for (low, high) in state.late(snapshot).iter() {
                ranges.0.push(*shard);
                ranges.1.push(low);
                ranges.2.push(high);
            }
        }
        ranges
    }

    /// The shards whose new rows may be read now. Where late rows were not read to their end, new ones
    /// have to wait: they may come after them in the order of a key.
    fn cursors(&self, view: &View, late: &LateRanges, late_complete: bool) -> Cursors {
        let waits = |shard: &i16| !late_complete && late.0.contains(shard);
        let ready = self.shards.iter().filter(|(shard, state)| state.is_ready(view) && !waits(shard));
        ready.filter(|(_, state)| state.cursor() < view.safe).map(|(shard, state)| (*shard, state.cursor())).unzip()
    }

    /// Reads what may have appeared below the cursors, then what is new, at most `limit` rows of a shard.
    /// `hold` keeps new rows back.
    pub(super) async fn read<R: ReadRow>(&self, view: &View, limit: usize, hold: bool) -> Result<Found<R>> {
        let snapshot = self.open_snapshot(view).await?;
        let late = self.late_ranges(view, snapshot.as_ref());
        let late_rows = if late.0.is_empty() { Vec::new() } else { R::late(&self.link, &late, LATE_MAX).await? };
        let late_complete = i64::try_from(late_rows.len()).is_ok_and(|count| count < LATE_MAX);
        let cursors = if hold { Cursors::default() } else { self.cursors(view, &late, late_complete) };
        let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
        let fresh =
            if cursors.0.is_empty() { Vec::new() } else { R::fresh(&self.link, &cursors, view.safe, rows_max).await? };
        if snapshot.is_some() {
            self.link.commit().await?;
        }
        assert!(in_order(&late_rows), "rows come by shard and in id order");
        let found = Found::fresh(fresh, cursors, view, limit);
        Ok(Found { late: late_rows, late_complete, snapshot, more: found.more || !late_complete, ..found })
    }

    /// Reads on behind what is in hand, while that is being sent. Only where nothing can appear in between.
    pub(super) async fn read_ahead<R: ReadRow>(
        &self,
        view: &View,
        in_hand: &Found<(i16, i64)>,
        limit: usize,
    ) -> Result<Option<Found<R>>> {
        let gaps = !view.gaps.is_empty() || self.shards.values().any(Shard::has_gaps);
        if gaps || !in_hand.more || !in_hand.late_complete {
            return Ok(None);
        }
        let ends = in_hand.ends.iter().filter(|(_, end)| **end < view.safe);
        let cursors: Cursors = ends.map(|(shard, end)| (*shard, *end)).unzip();
        let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
        let fresh = R::fresh(&self.link, &cursors, view.safe, rows_max).await?;
        Ok(Some(Found::fresh(fresh, cursors, view, limit)))
    }

    /// What was read ahead still begins where the cursors stand.
    pub(super) fn fits<R>(&self, found: &Found<R>) -> bool {
        let stands = |(shard, from): (&i16, &i64)| self.shards.get(shard).is_some_and(|own| own.cursor() == *from);
        found.from.iter().all(stands) && !self.shards.values().any(Shard::has_gaps)
    }

    /// Notes in memory what was dealt with and tells what the batch log gets. Late rows are logged one by
    /// one: a range would change the publish times of the rows between them.
    pub(super) fn advance(&mut self, view: &View, found: &Found<(i16, i64)>) -> Vec<BatchLog> {
        let mut logs = Vec::new();
        for (shard, id) in found.late.iter().copied() {
            logs.push(BatchLog { shard, from_id: id, to_id: id, sent: 1 });
            self.shards.get_mut(&shard).expect("rows are read of own shards").found(id);
        }
        if let Some(snapshot) = found.snapshot.as_ref().filter(|_| found.late_complete) {
            self.shards.values_mut().filter(|shard| shard.is_ready(view)).for_each(|shard| shard.rechecked(snapshot));
        }
        for own in found.fresh.chunk_by(|a, b| a.0 == b.0) {
            let ((shard, from_id), (_, to_id)) = (own[0], own[own.len() - 1]);
            logs.push(BatchLog { shard, from_id, to_id, sent: i32::try_from(own.len()).unwrap_or(i32::MAX) });
            let ids = own.iter().map(|(_, id)| *id);
            let state = self.shards.get_mut(&shard).expect("rows are read of own shards");
            state.advance(view, found.ends[&shard], ids);
        }
        for (shard, end) in &found.ends {
            let state = self.shards.get_mut(shard).expect("rows are read of own shards");
            if state.cursor() < *end {
                state.advance(view, *end, std::iter::empty());
            }
        }
        logs
    }

    /// Writes cursors, gaps, the batch log and exceptions, each under the epoch of its shard. What was
    /// lost is dropped; the rest stands. Returns the shards that are not lost.
    pub(super) async fn settle(&mut self, logs: &[BatchLog], exceptions: &[ExceptionRow]) -> Result<Vec<i16>> {
        let touched = |shard: &i16| {
            logs.iter().any(|log| log.shard == *shard) || exceptions.iter().any(|row| row.shard == *shard)
        };
        let of_batch = |(shard, state): &(&i16, &Shard)| touched(shard) || !state.is_stored();
        // A cursor that moved over nothing is written with the others, and by itself only now and then.
        let moves: Vec<_> = self.shards.iter().filter(of_batch).map(|(_, state)| state.to_move()).collect();
        let moved = self.link.settle(&moves, logs).await?;
        let kept: Vec<ExceptionRow> = exceptions.iter().filter(|row| moved.contains(&row.shard)).cloned().collect();
        self.link.write_exceptions(&kept).await?;
        for asked in moves {
            if moved.contains(&asked.shard) {
                self.shards.get_mut(&asked.shard).expect("a move is of an own shard").stored();
            } else {
                info!(shard = asked.shard, epoch = asked.epoch, "another relay owns the shard now");
                self.shards.remove(&asked.shard);
                self.leases.lose(asked.shard);
            }
        }
        self.flushed = Instant::now();
        Ok(moved)
    }

    async fn flush_idle(&mut self) -> Result<()> {
        if self.flushed.elapsed() < IDLE_FLUSH {
            return Ok(());
        }
        self.flushed = Instant::now();
        self.flush_cursors().await
    }

    /// Writes cursors and batches that are only in memory.
    pub(super) async fn flush_cursors(&mut self) -> Result<()> {
        let logs = std::mem::take(&mut self.unlogged);
        if !logs.is_empty() || self.shards.values().any(|shard| !shard.is_stored()) {
            self.settle(&logs, &[]).await?;
        }
        Ok(())
    }

    /// Writes what is only in memory and lets go of the source; before the shards are given back.
    pub(crate) async fn close(&mut self) -> Result<()> {
        if let Source::Wal(_) = self.source {
            self.account_for_tail();
            self.store_position(true).await?;
        }
        match std::mem::replace(&mut self.source, Source::Table) {
            Source::Wal(source) => source.close().await,
            Source::Verify(verifier) => verifier.close().await?,
            Source::Table | Source::MakingSlot(_) | Source::CatchingUp(_) => {}
        }
        self.flush_cursors().await
    }

    /// Lets another relay, or this one, take the shards anew with what is stored.
    pub(super) fn give_up_shards(&self) {
        self.leases.leave(self.name, LANE_SHARDS);
    }
}
