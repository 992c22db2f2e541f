//! What is left to send of one shard, in groups that are visible together or not at all, and what became
//! of every row. No broker here: the rules of who is to blame, and who waits behind whom.
//!
//! A group is the rows of one database transaction; where that is unknown, a row is a group of its own.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Outcome, Outgoing, Refusal};

/// How many rows a reason names when it is not known which of them is to blame.
const NAMED_MAX: usize = 4;

/// Places of the rows of one database transaction, in order.
type Group = Vec<usize>;

/// A row that the broker, or the client, does not take.
pub(super) struct Fault {
    /// Its place among the rows of the attempt.
    pub(super) place: usize,
    pub(super) outcome: Outcome,
    /// Whether it is this very row. A broker refuses whole batches, and healthy rows with the bad one.
    pub(super) exact: bool,
}

pub(super) struct Work<'a> {
    rows: Vec<Outgoing<'a>>,
    outcomes: Vec<Option<Outcome>>,
    /// Each is to be tried in a Kafka transaction of its own, the first one first.
    attempts: VecDeque<Vec<Group>>,
    /// The (topic, key) of what failed: nothing may follow it.
    failed: HashSet<(&'a str, &'a str)>,
}

/// The groups of one Kafka transaction.
pub(super) struct Attempt<'a> {
    groups: Vec<Group>,
    pub(super) rows: Vec<Outgoing<'a>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(rows: Vec<Outgoing<'a>>) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for (n, row) in rows.iter().enumerate() {
            let place = match row.transaction {
                0 => groups.len(),
                number => *places.entry(number).or_insert(groups.len()),
            };
            if place == groups.len() {
                groups.push(Group::new());
            }
            groups[place].push(n);
        }
        let outcomes = vec![None; rows.len()];
        Self { rows, outcomes, attempts: VecDeque::from([groups]), failed: HashSet::new() }
    }

    /// What to try next. Groups behind something that failed are held, whole.
    pub(super) fn next(&mut self) -> Option<Attempt<'a>> {
        loop {
            let mut groups = self.attempts.pop_front()?;
            groups.retain(|group| !self.holds(group));
            if !groups.is_empty() {
                let rows = groups.iter().flatten().map(|n| self.rows[*n]).collect();
                return Some(Attempt { groups, rows });
            }
        }
    }

    pub(super) fn committed(&mut self, attempt: Attempt<'a>) {
        for n in attempt.groups.into_iter().flatten() {
            self.outcomes[n] = Some(Outcome::Done);
        }
    }

    /// The attempt was aborted because of some rows. Blames their groups, or narrows the search down; the
    /// others are tried again.
    pub(super) fn refused(&mut self, mut attempt: Attempt<'a>, faults: &[Fault]) {
        let starts = starts(&attempt.groups);
        let group_of = |place: usize| starts.partition_point(|start| *start <= place) - 1;
        let mut suspects: HashMap<usize, Vec<&Fault>> = HashMap::new();
        let some_exact = faults.iter().any(|fault| fault.exact);
        for fault in faults.iter().filter(|fault| fault.exact || !some_exact) {
            suspects.entry(group_of(fault.place)).or_default().push(fault);
        }
        if !some_exact && suspects.len() > 1 {
            let second = attempt.groups.split_off(attempt.groups.len() / 2);
            self.attempts.push_front(second);
            self.attempts.push_front(attempt.groups);
            return;
        }
        let mut rest = Vec::new();
        for (n, group) in attempt.groups.into_iter().enumerate() {
            match suspects.get(&n) {
                Some(faults) => self.blame(&group, &reason(&attempt.rows, group.len(), faults)),
                None if self.holds(&group) => {}
                None => rest.push(group),
            }
        }
        self.attempts.push_front(rest);
    }

    /// The broker did not answer: what has no outcome yet stays unknown.
    pub(super) fn finish(self, unknown: &Refusal) -> Vec<Outcome> {
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Outcome::Unknown(unknown.clone()))).collect()
    }

    /// The first row of each (topic, key) of the group tells the reason, because that is where the relay
    /// stops a key; the rest is held behind it.
    fn blame(&mut self, group: &Group, reason: &Outcome) {
        let mut told = HashSet::new();
        for n in group {
            let key = (self.rows[*n].topic, self.rows[*n].key);
            self.failed.insert(key);
            self.outcomes[*n] = Some(if told.insert(key) { reason.clone() } else { Outcome::Held });
        }
    }

    fn holds(&mut self, group: &Group) -> bool {
        let behind = |n: &usize| self.failed.contains(&(self.rows[*n].topic, self.rows[*n].key));
        if self.failed.is_empty() || !group.iter().any(behind) {
            return false;
        }
        for n in group {
            self.failed.insert((self.rows[*n].topic, self.rows[*n].key));
            self.outcomes[*n] = Some(Outcome::Held);
        }
        true
    }
}

/// At which place each group begins.
fn starts(groups: &[Group]) -> Vec<usize> {
    let mut next = 0;
    let mut start = |group: &Group| {
        next += group.len();
        next - group.len()
    };
    groups.iter().map(&mut start).collect()
}

/// What the first rows of a group are told: the outcome of the culprit, and which row that is.
fn reason(rows: &[Outgoing<'_>], count: usize, faults: &[&Fault]) -> Outcome {
    let about = |refusal: &Refusal| {
        let names: Vec<String> = faults.iter().take(NAMED_MAX).map(|fault| named(&rows[fault.place])).collect();
        let culprit = match faults.len() {
            1 => names.concat(),
            2..=NAMED_MAX => format!("one of {}", names.join(", ")),
            _ => format!("one of {} or others", names.join(", ")),
        };
        let because = format!("nothing of this transaction of {count} messages was sent, because of {culprit}");
        Refusal::new(&*refusal.code, format!("{because}: {}", refusal.message))
    };
    match &faults[0].outcome {
        alone if count == 1 => alone.clone(),
        Outcome::Rejected(refusal) => Outcome::Rejected(about(refusal)),
        Outcome::Retry(refusal) => Outcome::Retry(about(refusal)),
        other => other.clone(),
    }
}

fn named(row: &Outgoing<'_>) -> String {
    format!("message {} to {}", row.id, row.topic)
}

#[cfg(test)]
pub(super) mod tests {
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    pub(in crate::transport) fn row(
        id: i64,
        transaction: u64,
        topic: &'static str,
        key: &'static str,
    ) -> Outgoing<'static> {
        Outgoing {
            id,
            shard: 16,
            transaction,
            message_id: Uuid::nil(),
            topic,
            key,
            tenant: "",
            aggregate_type: "order",
            aggregate_id: key,
            aggregate_version: None,
            event_type: "Placed",
            event_version: 1,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            payload: None,
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn fault(place: usize, exact: bool) -> Fault {
        Fault { place, outcome: Outcome::Rejected(Refusal::new("TOO_LARGE", "too large")), exact }
    }

    fn ids(attempt: &Attempt<'_>) -> Vec<i64> {
        attempt.rows.iter().map(|row| row.id).collect()
    }

    fn finish(work: Work<'_>) -> Vec<&'static str> {
        let name = |outcome: &Outcome| match outcome {
            Outcome::Done => "done",
            Outcome::Rejected(_) => "rejected",
            Outcome::Held => "held",
            Outcome::Retry(_) => "retry",
            Outcome::Unknown(_) => "unknown",
        };
        work.finish(&Refusal::new("AWAY", "")).iter().map(name).collect()
    }

    #[test]
    fn the_first_row_of_a_group_tells_of_the_bad_one_and_later_rows_of_the_key_wait() {
        let rows = vec![row(1, 7, "t", "a"), row(2, 7, "t", "a"), row(3, 8, "t", "b"), row(4, 9, "t", "a")];
        let mut work = Work::new(rows);
        let attempt = work.next().unwrap();
        assert_eq!(ids(&attempt), [1, 2, 3, 4]);
        work.refused(attempt, &[fault(1, true)]);
        let rest = work.next().unwrap();
        assert_eq!(ids(&rest), [3]);
        work.committed(rest);
        assert!(work.next().is_none());
        let outcomes = work.finish(&Refusal::new("AWAY", ""));
        let Outcome::Rejected(refusal) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert!(refusal.code == "TOO_LARGE" && refusal.message.contains("message 2 to t: too large"), "{refusal:?}");
        assert_eq!(outcomes[1..], [Outcome::Held, Outcome::Done, Outcome::Held]);
    }

    #[test]
    fn every_topic_of_a_bad_group_stops_at_its_first_row_and_a_group_behind_it_waits_whole() {
        let rows = vec![row(1, 7, "t", "a"), row(2, 7, "u", "a"), row(3, 8, "u", "a"), row(4, 8, "v", "a")];
        let mut work = Work::new(rows);
        let attempt = work.next().unwrap();
        work.refused(attempt, &[fault(0, true)]);
        assert!(work.next().is_none());
        assert_eq!(finish(work), ["rejected", "rejected", "held", "held"]);
    }

    #[test]
    fn a_batch_that_was_refused_is_halved_until_the_bad_group_stands_alone() {
        let rows: Vec<_> =
            (0..8).map(|id| row(id, 0, "t", ["a", "b", "c", "d", "e", "f", "g", "h"][id as usize])).collect();
        let mut work = Work::new(rows);
        let mut attempts = 0;
        while let Some(attempt) = work.next() {
            attempts += 1;
            match ids(&attempt).contains(&5) {
                true => {
                    let faults: Vec<Fault> = (0..attempt.rows.len()).map(|place| fault(place, false)).collect();
                    work.refused(attempt, &faults);
                }
                false => work.committed(attempt),
            }
        }
        assert_eq!(
            (finish(work), attempts),
            (vec!["done", "done", "done", "done", "done", "rejected", "done", "done"], 7)
        );
    }

    #[test]
    fn a_group_that_was_refused_without_saying_why_names_its_rows() {
        let mut work = Work::new(vec![row(1, 7, "t", "a"), row(2, 7, "u", "a"), row(3, 8, "t", "b")]);
        let attempt = work.next().unwrap();
        work.refused(attempt, &[fault(0, false), fault(1, false)]);
        let rest = work.next().unwrap();
        assert_eq!(ids(&rest), [3]);
        let outcomes = work.finish(&Refusal::new("AWAY", ""));
        let text = "because of one of message 1 to t, message 2 to u: too large";
        for outcome in &outcomes[..2] {
            assert!(matches!(outcome, Outcome::Rejected(why) if why.message.ends_with(text)), "{outcome:?}");
        }
    }

    #[test]
    fn rows_whose_transaction_is_unknown_stand_alone_and_what_was_not_tried_is_unknown() {
        let mut work = Work::new(vec![row(1, 0, "t", "a"), row(2, 0, "t", "a"), row(3, 0, "t", "b")]);
        let attempt = work.next().unwrap();
        work.refused(attempt, &[fault(0, true)]);
        assert_eq!(finish(work), ["rejected", "held", "unknown"]);
    }
}
