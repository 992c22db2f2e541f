//! The id horizon: up to which id everything in the outbox is decided, without touching its rows.
//!
//! Ids come from a sequence before the commit, so a row can appear below ids that were already sent.
//! This is the rule that nothing is overtaken and nothing is lost, free of I/O: readings go in, the safe
//! id and the open gaps come out. The caller takes the readings of one poll in exactly this order: last
//! id with a transaction id taken after it, snapshot, locks (if asked for), visible ids (if asked for);
//! only then rows. Why it is right is told in docs/decisions.
//!
//! Three levels, each used only when the one before is held up: everything older than a mark has ended;
//! everything older that holds a lock on the outbox has ended; what has not ended is a *staller*, and the
//! ids that may be its are remembered as gaps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ranges::Ranges;
use crate::error::{Error, ErrorKind, Result};

/// When the horizon asks for more than the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HorizonOptions {
    /// Locks are read when the oldest running transaction has not changed for this long.
    pub locks_after: Duration,
    /// Who still holds up a mark of this age is a staller.
    pub stall_after: Duration,
    /// With more open ranges than this the horizon waits for its stallers.
    pub gap_ranges_max: usize,
    /// A staller of this age is named in the log and in the heartbeat.
    pub name_after: Duration,
}

impl Default for HorizonOptions {
    fn default() -> Self {
        Self {
            locks_after: Duration::from_millis(20),
            stall_after: Duration::from_millis(25),
            gap_ranges_max: 1_000,
            name_after: Duration::from_secs(1),
        }
    }
}

/// Which transactions were running at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) xmin: u64,
    pub(crate) xmax: u64,
    /// Ascending, between xmin and xmax.
    pub(crate) running: Vec<u64>,
}

/// A running transaction that holds a lock on the outbox, as the lock table shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The lock table knows only the low 32 bits.
    pub(crate) xid_low: u32,
    /// Null for a prepared transaction.
    pub(crate) pid: Option<i32>,
}

/// Ids that may still appear, and the transactions one of which may own them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) ranges: Ranges,
    pub(crate) stallers: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Staller {
    pub(crate) pid: Option<i32>,
    pub(crate) since: Instant,
}

/// What a poll found; rows may be read up to `safe`, in statements that begin after it was made.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// Ids at or below were never looked at: a cursor below `base` has to wait for another view.
    pub(crate) base: i64,
    pub(crate) safe: i64,
    pub(crate) gaps: Arc<Vec<Gap>>,
    /// All who held a lock on the outbox, when the locks were read.
    pub(crate) lockers: Option<Arc<Vec<u64>>>,
}

/// The last id at some moment, and a transaction id taken after it: whoever owns an id up to `last` is older.
#[derive(Debug, Clone, Copy)]
struct Mark {
    last: i64,
    xid: u64,
    since: Instant,
}

#[derive(Debug)]
pub(crate) struct Horizon {
    options: HorizonOptions,
    base: i64,
    safe: i64,
    marked: i64,
    marks: VecDeque<Mark>,
    xmin: (u64, Option<Instant>),
    stallers: BTreeMap<u64, Staller>,
    gaps: Arc<Vec<Gap>>,
    snapshot: Snapshot,
    lockers: Option<Arc<Vec<u64>>>,
    /// Marks with a transaction id at or below are decided, but for what the stallers own.
    bound: u64,
    level: u8,
    capped: bool,
}

impl Horizon {
    /// Everything at or below `base` is the business of whoever moved a cursor there.
    pub(crate) fn new(options: HorizonOptions, base: i64) -> Self {
        Self {
            options,
            base,
            safe: base,
            marked: base,
            marks: VecDeque::new(),
            xmin: (0, None),
            stallers: BTreeMap::new(),
            gaps: Arc::default(),
            snapshot: Snapshot { xmin: 0, xmax: 0, running: Vec::new() },
            lockers: None,
            bound: 0,
            level: 1,
            capped: false,
        }
    }

    /// The last id that has a mark; the next reading takes a transaction id only when it finds more.
    pub(crate) fn marked(&self) -> i64 {
        self.marked
    }

    /// Step 1. `xid` was taken after `last` was read, and only because `last` had moved.
    pub(crate) fn mark(&mut self, last: i64, xid: Option<u64>, now: Instant) {
        if let Some(xid) = xid {
            assert!(last > self.marked, "a mark is made only for a last id that moved");
            self.marked = last;
            self.marks.push_back(Mark { last, xid, since: now });
        }
    }

    /// Step 2 and level 1: marks older than everything that runs are decided.
    pub(crate) fn snapshot(&mut self, snapshot: Snapshot, now: Instant) {
        if snapshot.xmin != self.xmin.0 || self.xmin.1.is_none() {
            self.xmin = (snapshot.xmin, Some(now));
        }
        self.stallers.retain(|xid, _| snapshot.is_running(*xid));
        if self.gaps.iter().any(|gap| gap.is_settled(&snapshot)) {
            Arc::make_mut(&mut self.gaps).retain(|gap| !gap.is_settled(&snapshot));
        }
        self.lockers = None;
        self.capped = false;
        self.level = if self.stallers.is_empty() { 1 } else { 3 };
        let clean = self.marks.iter().take_while(|mark| mark.xid <= snapshot.xmin).last().map(|mark| mark.last);
        if let Some(last) = clean {
            self.move_to(last);
        }
        // Known stallers hold nobody up, whether or not they are the oldest.
        let mut others = snapshot.running.iter().filter(|xid| !self.stallers.contains_key(xid));
        self.bound = others.next().copied().unwrap_or(snapshot.xmax);
        self.snapshot = snapshot;
    }

    /// Level 2 is due: something is held up, and not by transactions that come and go.
    pub(crate) fn wants_locks(&self, now: Instant) -> bool {
        let held_up = self.marks.front().is_some_and(|mark| mark.xid > self.bound);
        let stuck = self.xmin.1.is_some_and(|since| now.duration_since(since) >= self.options.locks_after);
        held_up && stuck
    }

    /// Levels 2 and 3. The locks were read after the snapshot: who ran then and holds none now either
    /// never had an id or has ended.
    pub(crate) fn locks(&mut self, holders: &[Holder], now: Instant) {
        let mut lockers: Vec<(u64, Option<i32>)> = Vec::new();
        for xid in &self.snapshot.running {
            #[allow(clippy::cast_possible_truncation)] // The lock table knows only the low 32 bits.
            let low = *xid as u32;
            if let Some(holder) = holders.iter().find(|holder| holder.xid_low == low) {
                lockers.push((*xid, holder.pid));
            }
        }
        let stalled = |mark: &&Mark| now.duration_since(mark.since) >= self.options.stall_after;
        if let Some(oldest) = self.marks.front().filter(stalled) {
            for (xid, pid) in lockers.iter().filter(|(xid, _)| *xid < oldest.xid) {
                self.stallers.entry(*xid).or_insert(Staller { pid: *pid, since: now });
            }
        }
        let mut others = lockers.iter().filter(|(xid, _)| !self.stallers.contains_key(xid));
        self.bound = others.next().map_or(self.snapshot.xmax, |(xid, _)| *xid);
        self.lockers = Some(Arc::new(lockers.iter().map(|(xid, _)| *xid).collect()));
        if !self.marks.is_empty() {
            self.level = if self.stallers.is_empty() { 2 } else { 3 };
        }
    }

    /// Moves over what is decided for good. Where a staller may own an id on the way, it asks for the
    /// visible ids in `(after, upto]` instead; the answer goes to [`Horizon::listed`].
    pub(crate) fn decide(&mut self) -> Option<(i64, i64)> {
        let decided: Vec<Mark> = self.marks.iter().take_while(|mark| mark.xid <= self.bound).copied().collect();
        let oldest_staller = self.stallers.keys().next().copied().unwrap_or(u64::MAX);
        if let Some(mark) = decided.iter().rev().find(|mark| mark.xid <= oldest_staller) {
            self.move_to(mark.last);
        }
        let upto = decided.last().map(|mark| mark.last).filter(|last| *last > self.safe)?;
        Some((self.safe, upto))
    }

    /// Level 3: what is missing in `(safe, upto]` may be a staller's.
    pub(crate) fn listed(&mut self, missing: Ranges, upto: i64) {
        let open: usize = self.gaps.iter().map(|gap| gap.ranges.len()).sum();
        if open + missing.len() > self.options.gap_ranges_max {
            self.capped = true;
            return;
        }
        if !missing.is_empty() {
            let stallers: Vec<u64> = self.stallers.keys().copied().collect();
            push_gap(Arc::make_mut(&mut self.gaps), Gap { ranges: missing, stallers });
        }
        self.move_to(upto);
    }

    pub(crate) fn view(&self) -> View {
        View { base: self.base, safe: self.safe, gaps: Arc::clone(&self.gaps), lockers: self.lockers.clone() }
    }

    /// Marks wait for somebody's end, which nobody announces.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.marks.is_empty()
    }

    pub(crate) fn base(&self) -> i64 {
        self.base
    }

    pub(crate) fn safe(&self) -> i64 {
        self.safe
    }

    /// The reading that the last view rests on.
    pub(crate) fn last_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// The last listing was refused because too many ranges are open.
    pub(crate) fn is_capped(&self) -> bool {
        self.capped
    }

    pub(crate) fn stallers(&self) -> &BTreeMap<u64, Staller> {
        &self.stallers
    }

    pub(crate) fn open_ranges(&self) -> usize {
        self.gaps.iter().map(|gap| gap.ranges.len()).sum()
    }

    pub(crate) fn oldest_mark_age(&self, now: Instant) -> Duration {
        self.marks.front().map_or(Duration::ZERO, |mark| now.duration_since(mark.since))
    }

    fn move_to(&mut self, id: i64) {
        self.safe = self.safe.max(id);
        while self.marks.front().is_some_and(|mark| mark.last <= self.safe) {
            self.marks.pop_front();
        }
    }
}

/// Adds a gap, together with one that waits for the same transactions if there is one.
pub(crate) fn push_gap(gaps: &mut Vec<Gap>, gap: Gap) {
    match gaps.iter_mut().find(|known| known.stallers == gap.stallers) {
        Some(known) => known.ranges.merge(&gap.ranges),
        None => gaps.push(gap),
    }
}

impl Gap {
    /// All who may own the ids have ended: what they committed is visible to the next statement.
    fn is_settled(&self, snapshot: &Snapshot) -> bool {
        !self.stallers.iter().any(|xid| snapshot.is_running(*xid))
    }
}

impl Snapshot {
    /// By the snapshot, never by locks: a lock may be let go before the transaction has ended.
    pub(crate) fn is_running(&self, xid: u64) -> bool {
        xid >= self.xmax || self.running.binary_search(&xid).is_ok()
    }

    /// Reads `xmin:xmax:xip,xip`, as `pg_current_snapshot` prints it.
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        let wrong = || Error::new(ErrorKind::Bug, format!("not a snapshot: {text:?}"));
        let number = |part: &str| part.parse::<u64>().map_err(|_| wrong());
        let mut parts = text.split(':');
        let (Some(xmin), Some(xmax), Some(list), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let mut running = list.split(',').filter(|part| !part.is_empty()).map(number).collect::<Result<Vec<u64>>>()?;
        running.sort_unstable();
        Ok(Self { xmin: number(xmin)?, xmax: number(xmax)?, running })
    }
}

#[cfg(test)]
#[path = "horizon_tests.rs"]
mod tests;
