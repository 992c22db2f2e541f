//! One shard in the hands of its owner: the cursor, the gaps below it, and when a gap is looked at again.

use super::horizon::{Gap, Snapshot, View, push_gap};
use super::ranges::Ranges;
use crate::store::postgres::relay_lease::TakenShard;
use crate::store::postgres::relay_rows::ShardMove;

#[derive(Debug)]
pub(crate) struct Shard {
    shard: i16,
    epoch: i64,
    cursor: i64,
    gaps: Vec<Gap>,
    /// Gaps as found when the shard was taken: who may own them is told by the next reading of the locks.
    orphans: Ranges,
    /// The orphans have got stallers and have not been looked at since.
    recheck: bool,
    stored_cursor: i64,
    stored_gaps: bool,
    stalled: i32,
}

impl Shard {
    pub(crate) fn new(taken: TakenShard) -> Self {
        Self {
            shard: taken.shard,
            epoch: taken.epoch,
            cursor: taken.cursor,
            gaps: Vec::new(),
            orphans: taken.gaps,
            recheck: false,
            stored_cursor: taken.cursor,
            stored_gaps: true,
            stalled: taken.stalled,
        }
    }

    pub(crate) fn number(&self) -> i16 {
        self.shard
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// How often it was taken since anything was last settled for it.
    pub(crate) fn stalled(&self) -> i32 {
        self.stalled
    }

    pub(crate) fn cursor(&self) -> i64 {
        self.cursor
    }

    pub(crate) fn open_ranges(&self) -> usize {
        self.orphans.len() + self.gaps.iter().map(|gap| gap.ranges.len()).sum::<usize>()
    }

    /// Any of the lockers may own what was found missing; whoever else did has ended.
    pub(crate) fn adopt_orphans(&mut self, view: &View) {
        let Some(lockers) = view.lockers.as_ref().filter(|_| !self.orphans.is_empty()) else { return };
        let ranges = std::mem::take(&mut self.orphans);
        push_gap(&mut self.gaps, Gap { ranges, stallers: lockers.to_vec() });
        self.recheck = true;
    }

    /// Rows may be read with this view.
    pub(crate) fn is_ready(&self, view: &View) -> bool {
        view.base <= self.cursor && self.orphans.is_empty()
    }

    /// Who may own the gaps that came with the shard is not known yet.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The account says that the row is sent, or an exception.
    pub(crate) fn has_sent(&self, id: i64) -> bool {
        let open = self.orphans.contains(id) || self.gaps.iter().any(|gap| gap.ranges.contains(id));
        id <= self.cursor && !open
    }

    pub(crate) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Ranges in which something may have appeared: one who may own them has ended, by the snapshot that
    /// the rows are read in.
    pub(crate) fn late(&self, snapshot: &Snapshot) -> Ranges {
        let mut late = Ranges::default();
        for gap in self.gaps.iter().filter(|gap| self.recheck || gap.has_ended(snapshot)) {
            late.merge(&gap.ranges);
        }
        late
    }

    /// Everything in [`Shard::late`] was looked at: what was found leaves the gaps, those who have ended
    /// are forgotten, and a gap that waits for nobody was aborted.
    pub(crate) fn rechecked(&mut self, snapshot: &Snapshot) {
        self.recheck = false;
        self.gaps.iter_mut().for_each(|gap| gap.stallers.retain(|xid| snapshot.is_running(*xid)));
        let before = self.gaps.len();
        self.gaps.retain(|gap| !gap.stallers.is_empty() && !gap.ranges.is_empty());
        self.stored_gaps &= before == self.gaps.len();
        let gaps = std::mem::take(&mut self.gaps);
        gaps.into_iter().for_each(|gap| push_gap(&mut self.gaps, gap));
    }

    /// A row was dealt with that the cursor had passed.
    pub(crate) fn found(&mut self, id: i64) {
        if self.orphans.contains(id) {
            self.orphans.remove(id);
            self.stored_gaps = false;
        }
        for gap in self.gaps.iter_mut().filter(|gap| gap.ranges.contains(id)) {
            gap.ranges.remove(id);
            self.stored_gaps = false;
        }
    }

    /// Moves the cursor; `ids` are all rows of the shard that were dealt with on the way.
    pub(crate) fn advance(&mut self, view: &View, to: i64, ids: impl Iterator<Item = i64> + Clone) {
        assert!(to >= self.cursor && to <= view.safe, "a cursor moves forward and not beyond the safe id");
        for gap in view.gaps.iter() {
            let mut ranges = gap.ranges.within(self.cursor, to);
            ids.clone().for_each(|id| ranges.remove(id));
            if !ranges.is_empty() {
                push_gap(&mut self.gaps, Gap { ranges, stallers: gap.stallers.clone() });
                self.stored_gaps = false;
            }
        }
        self.cursor = to;
    }

    /// Moves the cursor over ids that may still appear, for the next owner to look at.
    pub(crate) fn jump(&mut self, to: i64, missing: &Ranges) {
        assert!(to >= self.cursor, "a cursor moves forward");
        self.orphans.merge(missing);
        self.cursor = to;
        self.stored_gaps &= missing.is_empty();
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.stored_gaps && self.stored_cursor == self.cursor
    }

    /// What the database is told; call [`Shard::stored`] when it is.
    pub(crate) fn to_move(&self) -> ShardMove {
        let gaps = (!self.stored_gaps).then(|| {
            let mut all = self.orphans.clone();
            self.gaps.iter().for_each(|gap| all.merge(&gap.ranges));
            all.to_text()
        });
        ShardMove { shard: self.shard, epoch: self.epoch, cursor: self.cursor, gaps }
    }

    pub(crate) fn stored(&mut self) {
        self.stalled = 0;
        self.stored_cursor = self.cursor;
        self.stored_gaps = true;
    }
}

impl Gap {
    fn has_ended(&self, snapshot: &Snapshot) -> bool {
        self.stallers.is_empty() || self.stallers.iter().any(|xid| !snapshot.is_running(*xid))
    }
}
