//! What `doctor` says of the relay's readers: is the one that is wanted at work, and does a slot keep WAL
//! that nobody will ever read?

use std::time::Duration;

use super::doctor::Check;
use super::relay::{LaneReader, RelayNode, RelaySlot, RelayStatus};
use crate::relay::Reader;

/// The verdicts on the lane that can be read in several ways, and on each slot of ours.
pub(super) fn readers(status: &RelayStatus, silent_max: Duration) -> Vec<Check> {
    let Some(lane) = status.kafka() else { return Vec::new() };
    let mut checks = vec![reader(status, lane, silent_max)];
    checks.extend(status.slots.iter().filter_map(|slot| judge_slot(status, lane, slot)));
    checks
}

fn reader(status: &RelayStatus, lane: &LaneReader, silent_max: Duration) -> Check {
    let alive = |relay: &&RelayNode| relay.heartbeat_age_seconds <= silent_max.as_secs_f64();
    let refused = status.relays.iter().filter(alive).find_map(|r| Some((&r.name, r.reader_problem.as_ref()?)));
    if let Some((relay, problem)) = refused {
        let advice = "mend what it says: the relay asks again every 10 s, and reads the table meanwhile";
        return Check::degraded("reader", format!("{relay} cannot read the WAL: {problem}"), advice);
    }
    let wanted = lane.reader.as_str();
    // On the way back to the table the slot is read to its end.
    let leaving = wanted != Reader::Wal.name() && lane.slot.is_some();
    if wanted == Reader::Poll.name() && !leaving {
        return Check::ok("reader", "poll: the outbox is read from its table");
    }
    let reads = if leaving { Reader::Wal.name() } else { wanted };
    let slot = status.slot(reads);
    if let Some(slot) = slot.filter(|slot| slot.active) {
        let behind = slot.behind_bytes.unwrap_or(0);
        let still = if leaving { ", after the slot is read to its end" } else { "" };
        return Check::ok("reader", format!("{wanted}{still}: slot {} is {behind} bytes behind", slot.name));
    }
    let state = if slot.is_some() { "no relay reads its slot" } else { "its slot is not there" };
    let finding = format!("{wanted} is wanted, and {state}");
    if lane.changed_age_seconds <= silent_max.as_secs_f64() {
        return Check::note("reader", finding, "it was changed just now: look again in a minute");
    }
    if status.relays.iter().any(|relay| alive(&relay)) {
        let advice = "see the relay's log, and sessions and prepared in this list: a slot is made only when the \
                      transactions that are open have ended; the table is read meanwhile";
        return Check::degraded("reader", finding, advice);
    }
    Check::degraded("reader", finding, "start a relay (`dipmo run --role relay`)")
}

fn judge_slot(status: &RelayStatus, lane: &LaneReader, slot: &RelaySlot) -> Option<Check> {
    let (name, kept) = (&slot.name, slot.kept_bytes.unwrap_or(0));
    let wanted = lane.reader == slot.reader || (slot.reader == Reader::Wal.name() && lane.slot.is_some());
    if let Some(other) = slot.database.as_ref().filter(|other| **other != status.server.database) {
        let advice = "names of slots are shared by all databases of a server: give the schema of one another name";
        return wanted.then(|| Check::degraded("slot", format!("{name} belongs to database {other}"), advice));
    }
    if !wanted && !slot.active {
        let advice = format!("nobody will read it, drop it: dipmo relay slot drop {name} --reason \"left behind\"");
        return Some(Check::degraded("slot", format!("{name} was left behind and keeps {kept} bytes of WAL"), &advice));
    }
    match slot.wal_status.as_deref() {
        Some("lost") => Some(Check::degraded(
            "slot",
            format!("{name} is lost: the server has removed WAL that it needed"),
            "start a relay: it makes a new one and reads the rows from the table, but messages that were only emitted \
             are gone; then raise max_slot_wal_keep_size",
        )),
        Some("unreserved") => Some(Check::degraded(
            "slot",
            format!("{name} is about to be lost, {kept} bytes are kept for it"),
            "start or speed up the relay now, or raise max_slot_wal_keep_size",
        )),
        Some("extended") => Some(Check::note(
            "slot",
            format!("{name} keeps {kept} bytes, more than max_wal_size"),
            "see that a relay reads it and that Kafka takes what is sent",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::doctor::Verdict;
    use super::super::relay::WalServer;
    use super::*;

    fn slot(reader: &'static str, active: bool, wal_status: &str) -> RelaySlot {
        RelaySlot {
            name: format!("dipmo_{reader}"),
            reader,
            database: Some("app".to_owned()),
            active,
            active_pid: active.then_some(7),
            wal_status: Some(wal_status.to_owned()),
            confirmed_position: None,
            restart_position: None,
            kept_bytes: Some(9),
            behind_bytes: Some(5),
            safe_bytes: None,
        }
    }

    /// A lane that has been so for a minute, with a relay that lives.
    fn status(reader: Reader, in_account: bool, slots: Vec<RelaySlot>) -> RelayStatus {
        let lane = LaneReader {
            lane: "KAFKA".to_owned(),
            reader: reader.name().to_owned(),
            slot: in_account.then(|| "dipmo_wal".to_owned()),
            position: None,
            changed_age_seconds: 60.0,
        };
        let relay = RelayNode {
            name: "n1".to_owned(),
            heartbeat_age_seconds: 1.0,
            lanes: vec!["KAFKA".to_owned()],
            shards: Some(16),
            wal_lag_bytes: None,
            reader_problem: None,
        };
        let server = WalServer {
            database: "app".to_owned(),
            wal_level: "logical".to_owned(),
            max_slot_wal_keep_size: "-1".to_owned(),
            slots_free: 1,
            senders_free: 1,
            role: "app".to_owned(),
            role_may_replicate: true,
        };
        RelayStatus { lanes: vec![lane], slots, relays: vec![relay], server, problems: Vec::new() }
    }

    fn verdicts(status: &RelayStatus) -> Vec<(&'static str, Verdict)> {
        readers(status, Duration::from_secs(30)).iter().map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn a_reader_at_work_is_well_and_one_that_is_only_wanted_is_not() {
        use Verdict::{Degraded, Note, Ok};
        assert_eq!(verdicts(&status(Reader::Poll, false, vec![])), [("reader", Ok)]);
        assert_eq!(verdicts(&status(Reader::Wal, true, vec![slot("wal", true, "reserved")])), [("reader", Ok)]);
        assert_eq!(verdicts(&status(Reader::Verify, false, vec![slot("verify", true, "reserved")])), [("reader", Ok)]);
        assert_eq!(verdicts(&status(Reader::Wal, true, vec![])), [("reader", Degraded)]);
        let idle = status(Reader::Wal, true, vec![slot("wal", false, "reserved")]);
        assert_eq!(verdicts(&idle), [("reader", Degraded)]);
        let leaving = status(Reader::Poll, true, vec![slot("wal", false, "reserved")]);
        assert_eq!(verdicts(&leaving), [("reader", Degraded)], "it may hold messages that are nowhere else");
        let mut fresh = idle;
        fresh.lanes[0].changed_age_seconds = 2.0;
        assert_eq!(verdicts(&fresh), [("reader", Note)], "a relay needs a moment");
        fresh.relays[0].reader_problem = Some("wal_level is replica".to_owned());
        assert_eq!(verdicts(&fresh), [("reader", Degraded)]);
        fresh.relays[0].heartbeat_age_seconds = 31.0;
        assert_eq!(verdicts(&fresh), [("reader", Note)], "what a dead relay said is past");
    }

    #[test]
    fn each_trouble_of_a_slot_is_told_apart() {
        use Verdict::{Degraded, Note, Ok};
        let with = |state: &str| verdicts(&status(Reader::Wal, true, vec![slot("wal", true, state)]));
        assert_eq!(with("lost"), [("reader", Ok), ("slot", Degraded)]);
        assert_eq!(with("unreserved"), [("reader", Ok), ("slot", Degraded)]);
        assert_eq!(with("extended"), [("reader", Ok), ("slot", Note)]);
        for left in ["wal", "verify"] {
            let left = status(Reader::Poll, false, vec![slot(left, false, "reserved")]);
            assert_eq!(verdicts(&left), [("reader", Ok), ("slot", Degraded)], "keeps WAL for ever");
        }
        let going = status(Reader::Poll, false, vec![slot("verify", true, "reserved")]);
        assert_eq!(verdicts(&going), [("reader", Ok)], "a relay is still about to drop it");
        let mut foreign = status(Reader::Poll, false, vec![slot("wal", false, "reserved")]);
        foreign.server.database = "other".to_owned();
        assert_eq!(verdicts(&foreign), [("reader", Ok)], "another database's slot is not ours to judge");
    }
}
