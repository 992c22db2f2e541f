//! Operator statements on the readers of the relay's lanes. The rules are in `operator::relay`.

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Row;

use super::wal::slot::{self, SlotStatus};
use super::{Db, Tx, execute, query};
use crate::error::Result;

/// Who reads the outbox for a lane, and what is kept about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaneReader {
    pub lane: String,
    /// `poll`, `wal` or `verify`.
    pub reader: String,
    /// The slot that must be read to its end before anything else; it may be gone from the server.
    pub slot: Option<String>,
    /// Everything that was committed before was sent or is an exception.
    pub position: Option<String>,
    /// Since the reader was changed or the position last moved.
    pub changed_age_seconds: f64,
}

/// A relay by its last heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayNode {
    pub name: String,
    pub heartbeat_age_seconds: f64,
    pub lanes: Vec<String>,
    /// Of all its lanes; a relay without any stands by.
    pub shards: Option<i64>,
    /// How far it was behind the end of the WAL, where it reads it.
    pub wal_lag_bytes: Option<i64>,
    /// Why it reads the table although it should read the WAL.
    pub reader_problem: Option<String>,
}

/// A lane, locked for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockedLane {
    pub reader: String,
    pub slot: Option<String>,
    /// Slots belong to one database, but share their names with all of the server.
    pub database: String,
}

const LANES: &str = "
-- operator.relay_lanes
select lane, reader, slot, position::text, extract(epoch from coalesce($1, now()) - changed_at)::float8
from dipmo.relay_lane
order by lane desc";

const NODES: &str = "
-- operator.relay_nodes
select name, extract(epoch from coalesce($1, now()) - seen_at)::float8, detail
from dipmo.node
where role = 'relay'
order by name
limit 500";

const DATABASE: &str = "
-- operator.relay_database
select current_database()::text";

const LOCK: &str = "
-- operator.relay_lock
select reader, slot, current_database()::text
from dipmo.relay_lane
where lane = $1
for update";

const SET_READER: &str = "
-- operator.relay_set_reader
update dipmo.relay_lane
set reader = $2, changed_at = coalesce($4, now())
where lane = $1 and reader = $3";

// From here on messages may be emitted: the slot keeps them. The position stays: one that is older than the
// slot tells the relay what it has to read from the table first.
const SET_SLOT: &str = "
-- operator.relay_set_slot
update dipmo.relay_lane
set slot = $2, changed_at = coalesce($3, now())
where lane = $1 and reader = 'wal'";

/// The sending lane first.
pub(crate) async fn lanes(db: &Db, tx: &Tx<'_>) -> Result<Vec<LaneReader>> {
    let rows = query(db, tx, LANES, &[&db.clock().for_statement()]).await?;
    let row = |r: &Row| LaneReader {
        lane: r.get(0),
        reader: r.get(1),
        slot: r.get(2),
        position: r.get(3),
        changed_age_seconds: r.get(4),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn nodes(db: &Db, tx: &Tx<'_>) -> Result<Vec<RelayNode>> {
    let rows = query(db, tx, NODES, &[&db.clock().for_statement()]).await?;
    let row = |r: &Row| {
        let detail: Value = r.get(2);
        let lanes = detail["lanes"].as_array().map(Vec::as_slice).unwrap_or_default();
        RelayNode {
            name: r.get(0),
            heartbeat_age_seconds: r.get(1),
            lanes: lanes.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            shards: detail["shards"].as_i64(),
            wal_lag_bytes: detail["wal_lag_bytes"].as_i64(),
            reader_problem: detail["reader_problem"].as_str().map(str::to_owned),
        }
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn database(db: &Db, tx: &Tx<'_>) -> Result<String> {
    Ok(query(db, tx, DATABASE, &[]).await?[0].get(0))
}

/// The slots that relays of this schema make, by name: the one that is sent from, then the one of `verify`.
pub(crate) fn slot_names(db: &Db) -> [String; 2] {
    [slot::default_slot_name(db.schema()), slot::verifying_slot_name(db.schema())]
}

/// Those of them that are there.
pub(crate) async fn slots(db: &Db) -> Result<Vec<(String, SlotStatus)>> {
    let mut found = Vec::new();
    for name in slot_names(db) {
        if let Some(status) = slot::slot_status(db, &name).await? {
            found.push((name, status));
        }
    }
    Ok(found)
}

pub(crate) async fn lock(db: &Db, tx: &Tx<'_>, lane: &str) -> Result<Option<LockedLane>> {
    let rows = query(db, tx, LOCK, &[&lane]).await?;
    Ok(rows.first().map(|r| LockedLane { reader: r.get(0), slot: r.get(1), database: r.get(2) }))
}

pub(crate) async fn set_reader(db: &Db, tx: &Tx<'_>, lane: &str, (from, to): (&str, &str)) -> Result<u64> {
    execute(db, tx, SET_READER, &[&lane, &to, &from, &db.clock().for_statement()]).await
}

/// Zero when the lane is not to be read from the WAL any more.
pub(crate) async fn set_slot(db: &Db, tx: &Tx<'_>, lane: &str, slot: &str) -> Result<u64> {
    execute(db, tx, SET_SLOT, &[&lane, &slot, &db.clock().for_statement()]).await
}
