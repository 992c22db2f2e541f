//! Sets of ids as sorted, disjoint, half-open ranges. Ids are never listed one by one: once a day the
//! sequence jumps by up to 2^36, and such a jump is one range here.

use std::fmt::Write as _;

use crate::error::{Error, ErrorKind, Result};

/// Ascending `[low, high)` pairs that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn contains(&self, id: i64) -> bool {
        self.position(id).is_some()
    }

    /// Adds a range that begins at or after the end of the last one, as listings deliver them.
    pub(crate) fn push(&mut self, low: i64, high: i64) {
        assert!(low < high, "a range holds at least one id");
        match self.0.last_mut() {
            Some(last) if last.1 == low => last.1 = high,
            Some(last) => {
                assert!(last.1 < low, "ranges are added in ascending order");
                self.0.push((low, high));
            }
            None => self.0.push((low, high)),
        }
    }

    /// Adds everything of `other`, wherever it lies.
    pub(crate) fn merge(&mut self, other: &Ranges) {
        let appends = match (self.0.last(), other.0.first()) {
            (Some(last), Some(first)) => last.1 <= first.0,
            _ => true,
        };
        if appends {
            other.iter().for_each(|(low, high)| self.push(low, high));
            return;
        }
        let mut all: Vec<(i64, i64)> = self.iter().chain(other.iter()).collect();
        all.sort_unstable();
        self.0.clear();
        for (low, high) in all {
            match self.0.last_mut() {
                Some(last) if last.1 >= low => last.1 = last.1.max(high),
                _ => self.0.push((low, high)),
            }
        }
    }

    /// The part in `(after, upto]`.
    pub(crate) fn within(&self, after: i64, upto: i64) -> Ranges {
        let start = self.0.partition_point(|range| range.1 <= after + 1);
        let cut = self.0[start..].iter().take_while(|range| range.0 <= upto);
        Ranges(cut.map(|range| (range.0.max(after + 1), range.1.min(upto + 1))).collect())
    }

    pub(crate) fn remove(&mut self, id: i64) {
        let Some(at) = self.position(id) else { return };
        let (low, high) = self.0[at];
        match (low == id, high == id + 1) {
            (true, true) => drop(self.0.remove(at)),
            (true, false) => self.0[at].0 = id + 1,
            (false, true) => self.0[at].1 = id,
            (false, false) => {
                self.0[at].1 = id;
                self.0.insert(at + 1, (id + 1, high));
            }
        }
    }

    fn position(&self, id: i64) -> Option<usize> {
        let at = self.0.partition_point(|range| range.1 <= id);
        self.0.get(at).is_some_and(|range| range.0 <= id).then_some(at)
    }

    /// As PostgreSQL writes an `int8multirange`.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from("{");
        for (n, (low, high)) in self.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let _ = write!(text, "{comma}[{low},{high})");
        }
        text.push('}');
        text
    }

    /// Reads what the server prints; it always prints int8 ranges in the canonical `[low,high)` form.
    pub(crate) fn from_text(text: &str) -> Result<Ranges> {
        let wrong = || Error::new(ErrorKind::Bug, format!("not a bounded int8multirange: {text:?}"));
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(wrong)?;
        let mut ranges = Ranges::default();
        for part in inner.split_inclusive(')').map(|p| p.trim_start_matches(',')) {
            let pair = part.strip_prefix('[').and_then(|p| p.strip_suffix(')')).and_then(|p| p.split_once(','));
            let (low, high) = pair.ok_or_else(wrong)?;
            ranges.push(low.parse().map_err(|_| wrong())?, high.parse().map_err(|_| wrong())?);
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(i64, i64)]) -> Ranges {
        let mut ranges = Ranges::default();
        pairs.iter().for_each(|(low, high)| ranges.push(*low, *high));
        ranges
    }

    #[test]
    fn text_reads_back_what_it_prints() {
        for set in [ranges(&[]), ranges(&[(1, 2)]), ranges(&[(1, 5), (7, 8), (1 << 50, 1 << 51)])] {
            assert_eq!(Ranges::from_text(&set.to_text()).unwrap(), set);
        }
        for text in ["", "{", "{[1,)}", "{(1,2]}", "{[a,b)}"] {
            assert!(Ranges::from_text(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn removing_an_id_splits_shrinks_or_drops_its_range() {
        let mut set = ranges(&[(1, 6), (10, 11)]);
        for id in [3, 1, 5, 10, 42] {
            set.remove(id);
        }
        assert_eq!(set, ranges(&[(2, 3), (4, 5)]));
    }

    #[test]
    fn a_cut_keeps_the_ids_after_the_first_and_up_to_the_second() {
        let set = ranges(&[(1, 6), (10, 20)]);
        assert_eq!(set.within(3, 10), ranges(&[(4, 6), (10, 11)]));
        assert_eq!(set.within(0, 100), set);
        assert_eq!(set.within(5, 9), ranges(&[]));
        assert_eq!(set.within(19, 30), ranges(&[]));
    }

    #[test]
    fn merging_joins_what_touches() {
        let mut set = ranges(&[(1, 3), (10, 12)]);
        set.merge(&ranges(&[(3, 5), (11, 20)]));
        assert_eq!(set, ranges(&[(1, 5), (10, 20)]));
        set.merge(&ranges(&[(20, 21), (30, 31)]));
        assert_eq!(set, ranges(&[(1, 5), (10, 21), (30, 31)]));
        assert!(set.contains(20) && !set.contains(21) && !set.contains(0));
    }
}
