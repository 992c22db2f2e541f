//! Finds the rows that a broker does not take among those that it refused together with them. No broker
//! here: only what to send again, in which order, and who waits behind whom.
//!
//! Promise: a row is rejected only after it was refused alone, and nothing of a key is sent again after
//! something earlier of it has failed. Not promised: that the search ends in time; what is left then is
//! unknown.

use std::collections::{HashMap, HashSet, VecDeque};

use super::kafka_deliveries::Told;
use super::{Outcome, Outgoing, Refusal};

/// What is refused is divided by this. A part that the broker takes costs a round trip, one that it refuses
/// costs a producer, which needs half a second to begin; so few steps with many parts are the quicker way.
const PARTS: usize = 16;

pub(super) struct Search<'a> {
    rows: &'a [Outgoing<'a>],
    outcomes: Vec<Option<Outcome>>,
    /// Places, each list in order, and everything of a list before everything of the next.
    attempts: VecDeque<Vec<usize>>,
    /// The (topic, key) of what failed: nothing may follow it.
    failed: HashSet<(&'a str, &'a str)>,
    /// Topics that take nothing, and why. A topic that is absent is waited for once, not in each attempt.
    closed: HashMap<&'a str, Outcome>,
}

impl<'a> Search<'a> {
    /// Begins with what was told when all rows were sent.
    pub(super) fn new(rows: &'a [Outgoing<'a>], told: Told) -> Self {
        let outcomes = vec![None; rows.len()];
        let (attempts, failed, closed) = (VecDeque::new(), HashSet::new(), HashMap::new());
        let mut search = Self { rows, outcomes, attempts, failed, closed };
        search.ended(&(0..rows.len()).collect::<Vec<_>>(), told);
        search
    }

    /// The places of what to send next, all of it before anything else.
    pub(super) fn next(&mut self) -> Option<Vec<usize>> {
        loop {
            let mut attempt = self.attempts.pop_front()?;
            attempt.retain(|n| !self.holds(*n) && !self.is_closed(*n));
            if !attempt.is_empty() {
                return Some(attempt);
            }
        }
    }

    pub(super) fn rows(&self, attempt: &[usize]) -> Vec<Outgoing<'a>> {
        attempt.iter().map(|n| self.rows[*n]).collect()
    }

    /// What became of an attempt. False when it has brought nothing to light.
    pub(super) fn ended(&mut self, attempt: &[usize], told: Told) -> bool {
        let Told { outcomes, suspects, unsent, of_the_topic } = told;
        for place in of_the_topic {
            let why = outcomes[place].clone();
            self.closed.extend(why.map(|why| (self.rows[attempt[place]].topic, why)));
        }
        // One that was refused without company is the culprit.
        let culprit = if let [alone] = suspects[..] { Some(alone) } else { None };
        let again: HashSet<usize> = suspects.iter().chain(&unsent).copied().filter(|n| Some(*n) != culprit).collect();
        let mut left = Vec::new();
        for ((place, n), outcome) in attempt.iter().enumerate().zip(outcomes) {
            match outcome {
                Some(outcome) if !again.contains(&place) => self.settle(*n, outcome),
                _ => left.push(*n),
            }
        }
        let learned = left.len() < attempt.len() || !suspects.is_empty();
        if culprit.is_none() {
            self.push_apart(left, suspects.into_iter().map(|place| attempt[place]).collect());
        } else {
            self.attempts.push_front(left);
        }
        learned
    }

    /// What has no outcome by now stays unknown.
    pub(super) fn finish(self) -> Vec<Outcome> {
        let late = "the broker refused it together with others, and the time was over before it was sent again";
        let unknown = || Outcome::Unknown(Refusal::new("KAFKA_NO_REPORT", late));
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unknown)).collect()
    }

    /// Parts with equally many suspects, yet cut by place: what was not sent may stand before what was refused.
    fn push_apart(&mut self, mut left: Vec<usize>, mut suspects: Vec<usize>) {
        suspects.sort_unstable();
        let size = suspects.len().div_ceil(PARTS).max(1);
        for first in suspects.chunks(size).skip(1).rev().map(|part| part[0]) {
            let part = left.split_off(left.partition_point(|n| *n < first));
            self.attempts.push_front(part);
        }
        self.attempts.push_front(left);
    }

    fn settle(&mut self, n: usize, outcome: Outcome) {
        if outcome != Outcome::Done {
            self.failed.insert((self.rows[n].topic, self.rows[n].key));
        }
        self.outcomes[n] = Some(outcome);
    }

    fn holds(&mut self, n: usize) -> bool {
        let held = self.failed.contains(&(self.rows[n].topic, self.rows[n].key));
        if held {
            self.outcomes[n] = Some(Outcome::Held);
        }
        held
    }

    fn is_closed(&mut self, n: usize) -> bool {
        let why = self.closed.get(self.rows[n].topic).cloned();
        why.map(|why| self.settle(n, why)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kafka_groups::tests::row;
    use super::*;

    fn rejected() -> Outcome {
        Outcome::Rejected(Refusal::new("TOO_LARGE", "too large"))
    }

    /// A broker that refuses an attempt as a whole when a culprit is in it.
    fn told(rows: &[Outgoing<'_>], culprits: &[i64]) -> Told {
        let bad = rows.iter().any(|row| culprits.contains(&row.id));
        let outcome = if bad { rejected() } else { Outcome::Done };
        let suspects = if bad { (0..rows.len()).collect() } else { Vec::new() };
        Told { outcomes: vec![Some(outcome); rows.len()], suspects, ..Told::default() }
    }

    #[test]
    fn each_culprit_is_found_and_only_its_key_waits() {
        let keys = ["a", "b", "c", "d"];
        let rows: Vec<_> = (0..64).map(|id| row(id, 0, "t", keys[id as usize % 4])).collect();
        let mut search = Search::new(&rows, told(&rows, &[5, 10]));
        let mut sent: Vec<i64> = Vec::new();
        while let Some(attempt) = search.next() {
            let rows = search.rows(&attempt);
            let told = told(&rows, &[5, 10]);
            sent.extend(rows.iter().filter(|_| told.suspects.is_empty()).map(|row| row.id));
            assert!(search.ended(&attempt, told));
        }
        let held = |id: i64| (id > 5 && id % 4 == 1) || (id > 10 && id % 4 == 2);
        let healthy = (0..64).filter(|id| ![5, 10].contains(id) && !held(*id));
        assert_eq!(sent, healthy.collect::<Vec<_>>(), "in order, and nothing behind a culprit");
        for (id, outcome) in (0..).zip(search.finish()) {
            match id {
                5 | 10 => assert_eq!(outcome, rejected()),
                id if held(id) => assert_eq!(outcome, Outcome::Held),
                _ => assert_eq!(outcome, Outcome::Done),
            }
        }
    }

    #[test]
    fn what_is_left_when_the_time_is_over_is_unknown_and_never_rejected() {
        let rows = [row(1, 0, "t", "a"), row(2, 0, "t", "b"), row(3, 0, "t", "c"), row(4, 0, "t", "d")];
        let mut search = Search::new(&rows, told(&rows, &[4]));
        let first = search.next().unwrap();
        let told = told(&search.rows(&first), &[4]);
        assert!(search.ended(&first, told));
        let outcomes = search.finish();
        assert_eq!(outcomes[0], Outcome::Done);
        assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Unknown(_))), "{outcomes:?}");
    }

    #[test]
    fn what_was_not_sent_keeps_its_place_among_what_was_refused() {
        let rows = [row(1, 0, "t", "a"), row(2, 0, "t", "b"), row(3, 0, "t", "a"), row(4, 0, "t", "b")];
        let unsent = Outcome::Unknown(Refusal::new("PURGED", ""));
        let outcomes = [rejected(), unsent.clone(), rejected(), unsent.clone()].map(Some).to_vec();
        let mut search =
            Search::new(&rows, Told { outcomes, suspects: vec![0, 2], unsent: vec![1, 3], ..Told::default() });
        assert_eq!(search.next().unwrap(), [0, 1]);
        assert_eq!(search.next().unwrap(), [2, 3]);
        let stuck = Told { outcomes: vec![Some(unsent)], unsent: vec![0], ..Told::default() };
        assert!(!search.ended(&[3], stuck), "a producer that sends nothing is not tried for ever");
    }

    #[test]
    fn a_topic_that_takes_nothing_is_asked_once() {
        let rows = [row(1, 0, "absent", "a"), row(2, 0, "t", "a"), row(3, 0, "absent", "b"), row(4, 0, "t", "b")];
        let purged = Outcome::Unknown(Refusal::new("PURGED", ""));
        let outcomes = [rejected(), purged.clone(), purged.clone(), purged].map(Some).to_vec();
        let told = Told { outcomes, unsent: vec![1, 2, 3], of_the_topic: vec![0], ..Told::default() };
        let mut search = Search::new(&rows, told);
        assert_eq!(search.next().unwrap(), [1, 3]);
        assert_eq!(search.finish()[2], rejected());
    }
}
