//! The readers of the relay: which one a lane has, how its slot is, and changing both.
//!
//! The relay makes and drops its slots itself. What is here is for the cases in which it cannot: a slot that
//! must be there before the first relay starts, and one that no relay will ever read again.
//! Promise: nothing here touches the account of what was sent; a slot that is gone is noticed by the relay,
//! which then catches up from the table.

pub use crate::store::postgres::operator_relay::{LaneReader, RelayNode};

use serde::Serialize;
use serde_json::json;

use super::{Change, Changed, audit, conflict, moved};
use crate::error::{Error, Result};
use crate::relay::{ForeignTable, KAFKA, Reader};
use crate::store::postgres::Db;
use crate::store::postgres::operator::{change, look};
use crate::store::postgres::operator_relay::{self as store, LockedLane};
use crate::store::postgres::wal::slot::{self, SlotStatus, WalSettings};

/// A relay that was heard of within this many seconds is alive: several times its pace.
const ALIVE_SECONDS: f64 = 30.0;

/// Everything that says from where the outbox is read, and whether that works.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayStatus {
    pub lanes: Vec<LaneReader>,
    /// Those of this schema's relays that are there.
    pub slots: Vec<RelaySlot>,
    pub relays: Vec<RelayNode>,
    pub server: WalServer,
    /// What stands in the way of reading the WAL, or will, and what to do; also while the table is read.
    pub problems: Vec<String>,
}

/// A replication slot of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelaySlot {
    pub name: String,
    /// The reader that it is for: `wal` or `verify`.
    pub reader: &'static str,
    /// Of another database of the same server, if not the one that was asked.
    pub database: Option<String>,
    pub active: bool,
    pub active_pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    pub confirmed_position: Option<String>,
    /// WAL is kept from here on.
    pub restart_position: Option<String>,
    pub kept_bytes: Option<i64>,
    /// WAL written since the confirmed position, of whatever tables.
    pub behind_bytes: Option<i64>,
    /// What may still be written before the slot is in danger; none without a limit.
    pub safe_bytes: Option<i64>,
}

/// What the server allows the role that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WalServer {
    pub database: String,
    pub wal_level: String,
    pub max_slot_wal_keep_size: String,
    pub slots_free: i64,
    pub senders_free: i64,
    pub role: String,
    pub role_may_replicate: bool,
}

impl RelayStatus {
    /// The lane that can be read in more than one way.
    pub fn kafka(&self) -> Option<&LaneReader> {
        self.lanes.iter().find(|lane| lane.lane == KAFKA)
    }

    /// The slot for this reader, if it is there.
    pub fn slot(&self, reader: &str) -> Option<&RelaySlot> {
        self.slots.iter().find(|slot| slot.reader == reader)
    }
}

pub async fn status(db: &Db) -> Result<RelayStatus> {
    let settings = slot::wal_settings(db).await?;
    let found = store::slots(db).await?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let (lanes, relays) = (store::lanes(db, &tx).await?, store::nodes(db, &tx).await?);
    let database = store::database(db, &tx).await?;
    let verifies = lanes.iter().any(|lane| lane.lane == KAFKA && lane.reader == Reader::Verify.name());
    let name = &store::slot_names(db)[usize::from(verifies)];
    let judged = found.iter().find(|(found, _)| found == name).map(|(_, status)| status);
    let mut problems = slot::check(&settings, name, judged);
    problems.extend(judged.and_then(|slot| elsewhere(name, slot, &database)));
    let slots = found.iter().map(|(name, status)| relay_slot(db, name, status)).collect();
    Ok(RelayStatus { lanes, slots, relays, server: server(settings, database), problems })
}

/// Changes who reads the outbox for Kafka; the relays follow within a second. Refused where the server does
/// not let its WAL be read: the relays would only go on with the table.
pub async fn set_reader(db: &Db, reader: Reader, by: &Change) -> Result<Changed> {
    let target = format!("lane {KAFKA}");
    if reader != Reader::Poll {
        must_allow_wal(db).await?;
    }
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let before = store::lock(db, &tx, KAFKA).await?.ok_or_else(|| no_lane(&target))?;
    if before.reader == reader.name() {
        return Err(conflict(format!("{target} has the reader {} already", reader.name())));
    }
    let alive = store::nodes(db, &tx).await?.iter().any(is_alive);
    if store::set_reader(db, &tx, KAFKA, (&before.reader, reader.name())).await? == 0 {
        return Err(moved(&target));
    }
    let note = what_follows(reader, &before, alive);
    let detail = json!({ "from": before.reader, "to": reader.name(), "slot": before.slot });
    let changed = Changed { action: "relay.reader", target, note, detail };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Makes publication and slot before a relay does, so that WAL is kept from now on. Waits for the
/// transactions that are open. Only for a lane that is to be read from the WAL: with any other reader a
/// relay would read the slot to its end and drop it.
pub async fn create_slot(db: &Db, foreign: &[ForeignTable], by: &Change) -> Result<Changed> {
    let [name, _] = store::slot_names(db);
    let target = format!("slot {name}");
    must_allow_wal(db).await?;
    let reader = reader_of_kafka(db).await?;
    if reader != Reader::Wal.name() {
        return Err(not_for_wal(&target, &reader));
    }
    if slot::slot_status(db, &name).await?.is_some() {
        return Err(conflict(format!("{target} is there already: a relay goes on from it as it is")));
    }
    slot::ensure_publication(db, foreign).await?;
    // No transaction of ours may be open meanwhile: the server waits for it too.
    let position = slot::create_slot(db, &name).await?.to_string();
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    if store::set_slot(db, &tx, KAFKA, &name).await? == 0 {
        slot::drop_slot(db, &name).await?;
        return Err(moved(&format!("the reader of lane {KAFKA}")));
    }
    let note = format!("WAL is kept from {position} on; a relay goes on from there");
    let changed = Changed { action: "relay.create_slot", target, note, detail: json!({ "position": position }) };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Drops a slot of ours: the one that is sent from, unless another is named. One that is being read is left
/// alone, and one that a relay still has to read goes only by `force`.
pub async fn drop_slot(db: &Db, name: Option<&str>, force: bool, by: &Change) -> Result<Changed> {
    let [sends, verifies] = store::slot_names(db);
    let name = name.unwrap_or(&sends);
    if name != sends && name != verifies {
        return Err(Error::invalid(format!(
            "slot {name} is none of schema {}: its slots are {sends} and {verifies}",
            db.schema()
        )));
    }
    let target = format!("slot {name}");
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let lane = store::lock(db, &tx, KAFKA).await?.ok_or_else(|| no_lane(&target))?;
    let gone = || Error::not_found(format!("there is no replication slot {name}"));
    let slot = slot::slot_status(db, name).await?.ok_or_else(gone)?;
    let needed = name == sends && needs_slot(&lane);
    if let Some(why) = drop_refusal(&slot, &lane, needed && !force) {
        return Err(conflict(format!("{target} {why}")));
    }
    let note = match needed {
        true => "messages that were only emitted are gone; a relay reads the table for all others",
        false => "its WAL can be removed",
    };
    let detail = json!({ "reader": lane.reader, "needed": needed, "wal_status": slot.wal_status,
                         "confirmed_position": slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()) });
    let changed = Changed { action: "relay.drop_slot", target, note: note.to_owned(), detail };
    // Written down first: no rollback brings a slot back.
    audit::write(db, &tx, by, &changed).await?;
    slot::drop_slot(db, name).await?;
    tx.commit().await?;
    Ok(changed)
}

async fn must_allow_wal(db: &Db) -> Result<()> {
    match slot::wal_settings(db).await?.refusal() {
        Some(why) => Err(conflict(format!("the WAL cannot be read: {why}"))),
        None => Ok(()),
    }
}

async fn reader_of_kafka(db: &Db) -> Result<String> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let lane = store::lanes(db, &tx).await?.into_iter().find(|lane| lane.lane == KAFKA);
    lane.map(|lane| lane.reader).ok_or_else(|| no_lane(&format!("lane {KAFKA}")))
}

fn is_alive(relay: &RelayNode) -> bool {
    relay.heartbeat_age_seconds <= ALIVE_SECONDS && relay.lanes.iter().any(|lane| lane == KAFKA)
}

fn what_follows(reader: Reader, before: &LockedLane, alive: bool) -> String {
    let what = match reader {
        Reader::Poll if before.slot.is_some() => {
            "the WAL is read to its end, then the slot is dropped and the table is read"
        }
        Reader::Poll => "the table is read",
        Reader::Wal => "the slot is made if there is none, the table is read up to it, then the WAL",
        Reader::Verify => "the table is sent from, and the WAL is read beside it",
    };
    if alive { what.to_owned() } else { format!("{what}; no relay for {KAFKA} is alive: when one is started") }
}

/// A relay would read it, and it may hold messages that are nowhere else.
fn needs_slot(lane: &LockedLane) -> bool {
    lane.reader == Reader::Wal.name() || lane.slot.is_some()
}

fn drop_refusal(slot: &SlotStatus, lane: &LockedLane, needed: bool) -> Option<String> {
    if slot.database.as_ref().is_some_and(|database| *database != lane.database) {
        return Some(format!("belongs to database {}: ask there", slot.database.as_deref().unwrap_or_default()));
    }
    if slot.active {
        let reader = slot.active_pid.map_or("somebody".to_owned(), |pid| format!("pid {pid}"));
        let advice = "stop the relay that reads it (pg_stat_activity shows where that runs), or let it drop the slot \
                      itself: dipmo relay reader poll";
        return Some(format!("is being read by {reader}: {advice}"));
    }
    let advice = "a relay reads it to its end and drops it after: dipmo relay reader poll; --force loses messages that \
                  were only emitted";
    needed.then(|| format!("may hold messages that are nowhere else: {advice}"))
}

fn not_for_wal(target: &str, reader: &str) -> Error {
    conflict(format!(
        "{target} is not wanted while the reader is {reader}, and a relay would drop it: \
         change it first with dipmo relay reader wal"
    ))
}

fn no_lane(target: &str) -> Error {
    Error::not_found(format!("{target}: the table relay_lane has no row for it"))
}

/// Names of slots are shared by all databases of a server.
fn elsewhere(name: &str, slot: &SlotStatus, database: &str) -> Option<String> {
    let other = slot.database.as_deref().filter(|other| *other != database)?;
    Some(format!("replication slot {name} belongs to database {other}: give the schema of one of the two another name"))
}

fn relay_slot(db: &Db, name: &str, slot: &SlotStatus) -> RelaySlot {
    let [sends, _] = store::slot_names(db);
    RelaySlot {
        name: name.to_owned(),
        reader: if name == sends { Reader::Wal.name() } else { Reader::Verify.name() },
        database: slot.database.clone(),
        active: slot.active,
        active_pid: slot.active_pid,
        wal_status: slot.wal_status.clone(),
        confirmed_position: slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
        restart_position: slot.restart_lsn.map(|lsn| lsn.to_string()),
        kept_bytes: slot.kept_bytes,
        behind_bytes: slot.lag_bytes,
        safe_bytes: slot.safe_wal_size,
    }
}

fn server(settings: WalSettings, database: String) -> WalServer {
    let WalSettings { wal_level, max_slot_wal_keep_size, slots_free, senders_free, role, role_may_replicate, .. } =
        settings;
    WalServer { database, wal_level, max_slot_wal_keep_size, slots_free, senders_free, role, role_may_replicate }
}
