//! One transport's share of the relay: its shards, its connection, and what every lane does alike.
//!
//! A lane works on one view of the horizon at a time and in this order: gaps in which something may have
//! appeared, then new rows, then the send, then one transaction under the epochs of its shards. An error
//! makes the caller forget the lane as a whole; a lost lease drops the shard alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::horizon::View;
use super::leases::Leases;
use super::publish::Sender;
use super::shard::Shard;
use super::RelayOptions;
use crate::error::Result;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_rows::{BatchLog, Cursors, ExceptionRow, LateRanges};

/// Cursors that moved over nothing are stored at this pace; retention looks at them, nobody else.
const IDLE_FLUSH: Duration = Duration::from_secs(1);
/// Late rows are read at most this many at a time.
pub(super) const LATE_MAX: i64 = 10_000;

pub(crate) struct Lane {
    pub(super) name: &'static str,
    pub(super) link: Link,
    pub(super) options: Arc<RelayOptions>,
    pub(super) shards: BTreeMap<i16, Shard>,
    /// What sends, unless the lane hands over inside the database.
    pub(super) sender: Option<Sender>,
    leases: Leases,
    flushed: Instant,
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
}

/// Reads what appeared below the cursors, then what is new; both in id order within a shard.
pub(super) struct Found<R> {
    pub(super) late: Vec<R>,
    pub(super) fresh: Vec<R>,
    /// All late ranges were looked at to their end.
    late_complete: bool,
    /// Shards whose new rows were read, and where their cursors come to stand.
    ends: BTreeMap<i16, i64>,
    pub(super) more: bool,
}

impl<R> Found<R> {
    /// The same with only the places of the rows, for when the rows themselves move on.
    pub(super) fn places(&self, place: impl Fn(&R) -> (i16, i64)) -> Found<(i16, i64)> {
        Found {
            late: self.late.iter().map(&place).collect(),
            fresh: self.fresh.iter().map(&place).collect(),
            late_complete: self.late_complete,
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
        Ok(Self { name, link, options, shards: BTreeMap::new(), sender, leases, flushed: Instant::now() })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) async fn step(&mut self, view: &View) -> Result<LaneStep> {
        self.follow_leases(view);
        if self.shards.is_empty() {
            return Ok(LaneStep::default());
        }
        let mut step = match self.sender {
            None => self.hand_over(view).await?,
            Some(_) => self.publish(view).await?,
        };
        step.behind = view.safe - self.shards.values().map(Shard::cursor).min().unwrap_or(view.safe);
        self.flush_idle().await?;
        Ok(step)
    }

    pub(crate) fn uses(&self, shard: i16) -> bool {
        self.shards.contains_key(&shard)
    }

    pub(crate) fn open_ranges(&self) -> usize {
        self.shards.values().map(Shard::open_ranges).sum()
    }

    /// Takes in new shards, lets go of those that are lost, leaving, or may have lost their lease.
    fn follow_leases(&mut self, view: &View) {
        let (leases, lease) = (&self.leases, self.options.lease);
        self.shards.retain(|shard, state| leases.holds(*shard, state.epoch(), lease));
        for taken in self.leases.arrivals(self.name) {
            self.shards.insert(taken.shard, Shard::new(taken));
            if let Some(sender) = &mut self.sender {
                sender.forget_keys();
            }
        }
        self.shards.values_mut().for_each(|shard| shard.adopt_orphans(view));
    }

    /// False when a lease may have ended since the step began: then nothing more may be sent.
    pub(super) fn still_leased(&self) -> bool {
        self.shards.iter().all(|(shard, state)| self.leases.holds(*shard, state.epoch(), self.options.lease))
    }

    /// Where something may have appeared, by shard and id.
    pub(super) fn late_ranges(&self, view: &View) -> LateRanges {
        let mut ranges = LateRanges::default();
        for (shard, state) in self.shards.iter().filter(|(_, state)| state.is_ready(view)) {
            for (low, high) in state.late(view).iter() {
                ranges.0.push(*shard);
                ranges.1.push(low);
                ranges.2.push(high);
            }
        }
        ranges
    }

    /// The shards whose new rows may be read now. Where late rows were not read to their end, new ones
    /// have to wait: they may come after them in the order of a key.
    pub(super) fn cursors(&self, view: &View, late: &LateRanges, late_complete: bool) -> Cursors {
        let waits = |shard: &i16| !late_complete && late.0.contains(shard);
        let ready = self.shards.iter().filter(|(shard, state)| state.is_ready(view) && !waits(shard));
        ready.filter(|(_, state)| state.cursor() < view.safe).map(|(shard, state)| (*shard, state.cursor())).unzip()
    }

    pub(super) fn found<R>(
        &self,
        view: &View,
        (late, late_complete): (Vec<R>, bool),
        (cursors, fresh, limit): (&Cursors, Vec<R>, usize),
        place: impl Fn(&R) -> (i16, i64),
    ) -> Found<R> {
        assert!(fresh.is_sorted_by(|a, b| place(a).0 != place(b).0 || place(a).1 < place(b).1), "rows come in id order");
        assert!(late.is_sorted_by(|a, b| place(a).0 != place(b).0 || place(a).1 < place(b).1), "rows come in id order");
        let mut read: BTreeMap<i16, (usize, i64)> = BTreeMap::new();
        for row in &fresh {
            let (shard, id) = place(row);
            let entry = read.entry(shard).or_default();
            *entry = (entry.0 + 1, id);
        }
        let end = |shard: &i16| match read.get(shard) {
            Some((count, last)) if *count == limit => *last,
            _ => view.safe,
        };
        let ends: BTreeMap<i16, i64> = cursors.0.iter().map(|shard| (*shard, end(shard))).collect();
        let more = !late_complete || ends.values().any(|end| *end < view.safe);
        Found { late, fresh, late_complete, ends, more }
    }

    /// Notes in memory what was dealt with and tells what the batch log gets. Late rows are logged one by
    /// one: a range would change the publish times of the rows between them.
    pub(super) fn advance<R>(&mut self, view: &View, found: &Found<R>, place: impl Fn(&R) -> (i16, i64)) -> Vec<BatchLog> {
        let mut logs = Vec::new();
        for (shard, id) in found.late.iter().map(&place) {
            logs.push(BatchLog { shard, from_id: id, to_id: id, sent: 1 });
            self.shards.get_mut(&shard).expect("rows are read of own shards").found(id);
        }
        if found.late_complete {
            self.shards.values_mut().filter(|shard| shard.is_ready(view)).for_each(|shard| shard.rechecked(view));
        }
        let mut rest = &found.fresh[..];
        while let Some(first) = rest.first() {
            let shard = place(first).0;
            let (own, others) = rest.split_at(rest.partition_point(|row| place(row).0 == shard));
            rest = others;
            let ids = own.iter().map(|row| place(row).1);
            let (from_id, to_id) = (place(first).1, ids.clone().next_back().unwrap_or_default());
            logs.push(BatchLog { shard, from_id, to_id, sent: i32::try_from(own.len()).unwrap_or(i32::MAX) });
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
        if self.shards.values().any(|shard| !shard.is_stored()) {
            self.settle(&[], &[]).await?;
        }
        Ok(())
    }

    /// Writes what is only in memory; before the shards are given back.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if self.shards.values().any(|shard| !shard.is_stored()) {
            self.settle(&[], &[]).await?;
        }
        Ok(())
    }
}
