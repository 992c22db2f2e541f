//! Looks for what is wrong before it hurts: each check has a verdict, what was found, and advice.

use std::time::Duration;

use serde::Serialize;

use super::doctor_readers::readers;
use super::relay;
use crate::error::Result;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_doctor::{self as facts, Holder, Setting};
use crate::store::postgres::operator_status::{self, LaneStatus, NodeStatus};
use crate::store::postgres::{Db, Tx, schema};
use crate::upkeep::UpkeepOptions;

/// How a check came out. Only `Degraded` asks for action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Worth knowing; nothing is wrong yet.
    Note,
    Degraded,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    pub degraded: bool,
    pub checks: Vec<Check>,
}

/// From when on something counts as wrong.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    pub relay_silent_max: Duration,
    pub pending_age_max: Duration,
    /// An insert into the outbox left open for longer is named.
    pub transaction_age_max: Duration,
    pub prepared_age_max: Duration,
    /// Retention to be judged, where it is known.
    pub upkeep: Option<UpkeepOptions>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self {
            relay_silent_max: Duration::from_secs(30),
            pending_age_max: Duration::from_secs(60),
            transaction_age_max: Duration::from_secs(60),
            prepared_age_max: Duration::from_secs(3_600),
            upkeep: None,
        }
    }
}

/// Runs every check. An error means that the database could not be asked, not that it is well.
pub async fn doctor(db: &Db, options: &DoctorOptions) -> Result<Diagnosis> {
    let mut checks = Vec::new();
    let known = match schema::check(db).await {
        Ok(()) => Check::ok("schema", format!("schema {} is the one this version knows", db.schema())),
        Err(error) if error.is_unavailable() => return Err(error),
        Err(error) => {
            Check::degraded("schema", error.to_string(), "run `dipmo schema plan`, then `dipmo schema migrate`")
        }
    };
    let usable = known.verdict == Verdict::Ok;
    checks.push(known);
    checks.extend(at_one_moment(db, usable, options).await?);
    // A standby cannot say how far its WAL is written; what it is has been said already.
    if usable && checks.iter().all(|check| check.name != "primary") {
        checks.extend(readers(&relay::status(db).await?, options.relay_silent_max));
    }
    checks.extend(options.upkeep.as_ref().map(retention));
    let degraded = checks.iter().any(|check| check.verdict == Verdict::Degraded);
    Ok(Diagnosis { degraded, checks })
}

/// What one snapshot shows.
async fn at_one_moment(db: &Db, usable: bool, options: &DoctorOptions) -> Result<Vec<Check>> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let mut checks = server(&facts::settings(db, &tx).await?);
    if usable {
        checks.extend(tables(db, &tx).await?);
        checks.extend(flow(db, &tx, options).await?);
        checks.extend(sessions(db, &tx, options).await?);
    }
    Ok(checks)
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, finding: impl Into<String>, advice: Option<&str>) -> Self {
        Self { name, verdict, finding: finding.into(), advice: advice.map(str::to_owned) }
    }

    pub(super) fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, finding, None)
    }

    pub(super) fn note(name: &'static str, finding: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Verdict::Note, finding, Some(advice))
    }

    pub(super) fn degraded(name: &'static str, finding: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Verdict::Degraded, finding, Some(advice))
    }
}

fn server(settings: &[Setting]) -> Vec<Check> {
    let get = |name: &str| settings.iter().find(|s| s.name == name).map_or("", |s| s.value.as_str());
    let version: i32 = get("server_version_num").parse().unwrap_or(0);
    let mut checks = vec![if version >= 150_000 {
        Check::ok("server", format!("PostgreSQL {}", get("server_version")))
    } else {
        Check::degraded("server", format!("PostgreSQL {} is too old", get("server_version")), "use 15 or later")
    }];
    if get("in_recovery") == "true" {
        checks.push(Check::degraded("primary", "this server is a standby", "point database.url at the primary"));
    }
    let off: Vec<&str> =
        ["fsync", "full_page_writes", "synchronous_commit"].into_iter().filter(|name| get(name) == "off").collect();
    checks.push(if off.is_empty() {
        Check::ok("durability", format!("fsync on, synchronous_commit {}", get("synchronous_commit")))
    } else {
        let advice = "switch it on: what was committed can be lost, and with it the promise of exactly-once effects";
        Check::degraded("durability", format!("{} is off", off.join(", ")), advice)
    });
    checks.push(match (get("wal_level"), get("max_slot_wal_keep_size")) {
        ("minimal", _) => Check::note("wal", "wal_level is minimal", "replica or logical allows standbys and backups"),
        ("logical", "-1") => Check::note(
            "wal",
            "wal_level is logical and max_slot_wal_keep_size is unlimited",
            "limit it, or a slot that nobody reads fills the disk",
        ),
        (level, _) => Check::ok("wal", format!("wal_level {level}")),
    });
    if get("autovacuum") == "off" {
        checks.push(Check::degraded("autovacuum", "autovacuum is off", "switch it on: open work and leases bloat"));
    }
    checks
}

async fn tables(db: &Db, tx: &Tx<'_>) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let reach = facts::partitions(db, tx).await?;
    let short: Vec<String> = reach
        .iter()
        .filter(|r| r.days_ahead.is_none_or(|days| days < 1))
        .map(|r| match r.days_ahead {
            None => format!("{} has no partition", r.table),
            Some(days) if days < 0 => format!("{} ended {} days ago", r.table, -days),
            Some(_) => format!("{} ends today", r.table),
        })
        .collect();
    checks.push(if short.is_empty() {
        let least = reach.iter().filter_map(|r| r.days_ahead).min().unwrap_or(0);
        Check::ok("partitions", format!("made {least} days ahead"))
    } else {
        let advice = "run the upkeep role (`dipmo run --role upkeep`): it makes the partitions of the coming days";
        Check::degraded("partitions", short.join(", "), advice)
    });
    let astray: Vec<String> = facts::sequences(db, tx)
        .await?
        .iter()
        .filter(|s| s.days_from_today != 0)
        .map(|s| format!("{} is {} days from today", s.sequence, s.days_from_today))
        .collect();
    checks.push(if astray.is_empty() {
        Check::ok("sequences", "in today's range")
    } else {
        let advice =
            "run the upkeep role: it moves the sequences once a day; until then partitions hold more than a day";
        Check::degraded("sequences", astray.join(", "), advice)
    });
    checks.push(none_of("unlogged", facts::not_durable(db, tx).await?, "every table is logged", |names| {
        (format!("not logged: {names}"), "alter table ... set logged: a crash empties these tables")
    }));
    checks.push(none_of("triggers", facts::triggers_off(db, tx).await?, "all triggers are enabled", |names| {
        (
            format!("disabled: {names}"),
            "alter table ... enable trigger: the journal and the audit must stay append-only",
        )
    }));
    Ok(checks)
}

fn none_of(
    name: &'static str,
    found: Vec<String>,
    fine: &str,
    wrong: impl Fn(String) -> (String, &'static str),
) -> Check {
    if found.is_empty() {
        return Check::ok(name, fine);
    }
    let (finding, advice) = wrong(found.join(", "));
    Check::degraded(name, finding, advice)
}

async fn flow(db: &Db, tx: &Tx<'_>, options: &DoctorOptions) -> Result<Vec<Check>> {
    let orphans = facts::orphans(db, tx).await?;
    let orphans = orphans.iter().map(|o| format!("{} buckets of {}", o.buckets, o.scope)).collect();
    let lanes = operator_status::lanes(db, tx).await?;
    let nodes = operator_status::nodes(db, tx).await?;
    Ok(vec![
        none_of("leases", orphans, "every bucket with work has an owner", |what| {
            (
                format!("work waits in buckets that nobody holds: {what}"),
                "start a worker for the consumer (`dipmo run`)",
            )
        }),
        relay_alive(&nodes, &lanes, options.relay_silent_max),
        pending(&lanes, options.pending_age_max),
        upkeep_alive(&nodes),
    ])
}

fn relay_alive(nodes: &[NodeStatus], lanes: &[LaneStatus], silent_max: Duration) -> Check {
    let youngest = heartbeat(nodes, "relay");
    let waiting = lanes.iter().any(|lane| lane.pending.n > 0);
    let advice = "start a relay (`dipmo run --role relay`)";
    match youngest {
        Some(age) if age <= silent_max.as_secs_f64() => Check::ok("relay", format!("last heartbeat {age:.0} s ago")),
        Some(age) if waiting => {
            Check::degraded("relay", format!("silent for {age:.0} s with messages to send"), advice)
        }
        None if waiting => Check::degraded("relay", "messages to send and no relay has ever run", advice),
        Some(age) => Check::note("relay", format!("silent for {age:.0} s, nothing to send"), advice),
        None => Check::note("relay", "no relay has run, nothing to send", advice),
    }
}

fn pending(lanes: &[LaneStatus], age_max: Duration) -> Check {
    let late: Vec<String> = lanes
        .iter()
        .filter_map(|lane| lane.oldest_age_seconds.map(|age| (lane, age)))
        .filter(|(_, age)| *age > age_max.as_secs_f64())
        .map(|(lane, age)| format!("{}: {} pending, the oldest for {age:.0} s", lane.lane, lane.pending))
        .collect();
    none_of("pending", late, "nothing waits for long", |what| {
        (what, "see docs/operating.md, outbox pending age high: relay alive, broker reachable, sessions below")
    })
}

/// Upkeep beats every few seconds; partitions are made days ahead, so a short silence is no harm.
fn upkeep_alive(nodes: &[NodeStatus]) -> Check {
    const SILENT_MAX: f64 = 3_600.0;
    let advice = "run the upkeep role on one node at least: partitions, retention and gauges depend on it";
    match heartbeat(nodes, "upkeep") {
        Some(age) if age <= SILENT_MAX => Check::ok("upkeep", format!("last heartbeat {age:.0} s ago")),
        Some(age) => Check::degraded("upkeep", format!("silent for {age:.0} s"), advice),
        None => Check::note("upkeep", "has never run", advice),
    }
}

fn heartbeat(nodes: &[NodeStatus], role: &str) -> Option<f64> {
    let of_role = nodes.iter().filter(|node| node.role == role || node.role.starts_with(&format!("{role}:")));
    of_role.map(|node| node.heartbeat_age_seconds).min_by(f64::total_cmp)
}

async fn sessions(db: &Db, tx: &Tx<'_>, options: &DoctorOptions) -> Result<Vec<Check>> {
    let named = |holders: Vec<Holder>| -> Vec<String> {
        holders.iter().map(|h| format!("{} (open for {:.0} s)", h.who, h.age_seconds)).collect()
    };
    let holders = facts::holders(db, tx, options.transaction_age_max.as_secs_f64()).await?;
    let prepared = facts::prepared(db, tx, options.prepared_age_max.as_secs_f64()).await?;
    Ok(vec![
        none_of("sessions", named(holders), "no transaction holds the outbox for long", |who| {
            (
                who,
                "end the transaction in its application, or with pg_terminate_backend(pid): what it wrote cannot be sent",
            )
        }),
        none_of("prepared", named(prepared), "no prepared transaction is forgotten", |who| {
            (who, "COMMIT PREPARED or ROLLBACK PREPARED: it holds its locks, and vacuum, for ever")
        }),
    ])
}

fn retention(upkeep: &UpkeepOptions) -> Check {
    match upkeep.validate() {
        Ok(()) => Check::ok("retention", "the dedupe window covers every way a message can come back"),
        Err(error) => Check::degraded("retention", error.to_string(), "see docs/configuration.md, [retention]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(changed: &[(&str, &str)]) -> Vec<Setting> {
        let base = [
            ("server_version_num", "150018"),
            ("server_version", "15.18"),
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("wal_level", "replica"),
            ("autovacuum", "on"),
            ("max_slot_wal_keep_size", "-1"),
            ("in_recovery", "false"),
        ];
        let value =
            |name: &str, value: &str| changed.iter().find(|(n, _)| *n == name).map_or(value, |(_, v)| v).to_owned();
        base.iter().map(|(name, v)| Setting { name: (*name).to_owned(), value: value(name, v) }).collect()
    }

    fn faults(changed: &[(&str, &str)]) -> Vec<&'static str> {
        let checks = server(&settings(changed));
        checks.iter().filter(|c| c.verdict == Verdict::Degraded).map(|c| c.name).collect()
    }

    #[test]
    fn each_fault_of_the_server_is_found() {
        assert_eq!(faults(&[]), Vec::<&str>::new());
        assert_eq!(faults(&[("server_version_num", "140002")]), ["server"]);
        assert_eq!(faults(&[("fsync", "off")]), ["durability"]);
        assert_eq!(faults(&[("synchronous_commit", "off")]), ["durability"]);
        assert_eq!(faults(&[("autovacuum", "off")]), ["autovacuum"]);
        assert_eq!(faults(&[("in_recovery", "true")]), ["primary"]);
        assert_eq!(faults(&[("wal_level", "logical")]), Vec::<&str>::new(), "a note is not a fault");
    }
}
