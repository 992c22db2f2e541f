//! Which shards this relay owns, shared between the loop that tends the leases and the lanes that use them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::store::postgres::relay_lease::TakenShard;

/// Every lane has this many shards.
pub(crate) const LANE_SHARDS: usize = 16;

#[derive(Debug, Clone, Default)]
pub(crate) struct Leases(Arc<Mutex<BTreeMap<i16, Lease>>>);

#[derive(Debug)]
struct Lease {
    lane: &'static str,
    epoch: i64,
    renewed: Instant,
    /// What was found when it was taken, until the lane has it.
    arrival: Option<TakenShard>,
    /// The lane works on it.
    in_use: bool,
    /// To be given back as soon as the lane has let go of it.
    leaving: bool,
}

impl Leases {
    pub(crate) fn add(&self, lane: &'static str, taken: Vec<TakenShard>, now: Instant) {
        let mut held = self.lock();
        for shard in taken {
            let (number, epoch) = (shard.shard, shard.epoch);
            let arrival = Some(shard);
            held.insert(number, Lease { lane, epoch, renewed: now, arrival, in_use: false, leaving: false });
        }
    }

    /// Everything held, as shard and epoch.
    pub(crate) fn held(&self) -> Vec<(i16, i64)> {
        self.lock().iter().map(|(shard, lease)| (*shard, lease.epoch)).collect()
    }

    pub(crate) fn shards_of(&self, lane: &str) -> Vec<i16> {
        self.lock().iter().filter(|(_, lease)| lease.lane == lane).map(|(shard, _)| *shard).collect()
    }

    /// Notes which leases were renewed; the others are lost. Asked for before the statement was sent.
    pub(crate) fn renewed(&self, asked: &[(i16, i64)], renewed: &[i16], at: Instant) {
        let mut held = self.lock();
        for (shard, epoch) in asked {
            match held.get_mut(shard) {
                Some(lease) if lease.epoch == *epoch && renewed.contains(shard) => lease.renewed = at,
                Some(lease) if lease.epoch == *epoch => drop(held.remove(shard)),
                _ => {}
            }
        }
    }

    /// Whether the shard is held that stands for the lane as a whole: the one with the lowest number.
    pub(crate) fn has_first(&self, lane: &str) -> bool {
        #[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation)] // Lanes have few shards.
        let size = LANE_SHARDS as i16;
        let held = self.lock();
        held.iter().any(|(shard, lease)| lease.lane == lane && shard % size == 0 && !lease.leaving)
    }

    /// Marks the highest `surplus` shards of the lane as leaving.
    pub(crate) fn leave(&self, lane: &str, surplus: usize) {
        let mut held = self.lock();
        let of_lane = held.values_mut().rev().filter(|lease| lease.lane == lane);
        of_lane.take(surplus).for_each(|lease| lease.leaving = true);
    }

    /// Takes out what is leaving and no lane works on.
    pub(crate) fn take_left(&self) -> Vec<(i16, i64)> {
        let mut held = self.lock();
        let free = held.iter().filter(|(_, lease)| lease.leaving && !lease.in_use);
        let left: Vec<(i16, i64)> = free.map(|(shard, lease)| (*shard, lease.epoch)).collect();
        left.iter().for_each(|(shard, _)| drop(held.remove(shard)));
        left
    }

    /// The lane does no more with the shard.
    pub(crate) fn let_go(&self, shard: i16, epoch: i64) {
        if let Some(lease) = self.lock().get_mut(&shard).filter(|lease| lease.epoch == epoch) {
            lease.in_use = false;
        }
    }

    /// True while the lease cannot have ended, and the shard is to be worked on.
    pub(crate) fn holds(&self, shard: i16, epoch: i64, lease: Duration) -> bool {
        let held = self.lock();
        held.get(&shard).is_some_and(|l| l.epoch == epoch && !l.leaving && l.renewed.elapsed() < lease)
    }

    /// Shards of the lane that it has not seen yet.
    pub(crate) fn arrivals(&self, lane: &str) -> Vec<TakenShard> {
        let mut held = self.lock();
        let waiting = held.values_mut().filter(|lease| lease.lane == lane && !lease.leaving && lease.arrival.is_some());
        let arrive = |lease: &mut Lease| {
            lease.in_use = true;
            lease.arrival.take()
        };
        waiting.filter_map(arrive).collect()
    }

    /// The lowest cursor among the arrivals.
    pub(crate) fn floor(&self) -> Option<i64> {
        self.lock().values().filter_map(|lease| lease.arrival.as_ref()).map(|shard| shard.cursor).min()
    }

    /// An arrival has gaps, whose owners can be known only from the locks.
    pub(crate) fn wants_lockers(&self) -> bool {
        self.lock().values().filter_map(|lease| lease.arrival.as_ref()).any(|shard| !shard.gaps.is_empty())
    }

    pub(crate) fn lose(&self, shard: i16) {
        self.lock().remove(&shard);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i16, Lease>> {
        self.0.lock().expect("no code panics while it holds the leases")
    }
}
