//! The ledger of answered commands: one look-up and one insert for a group of commands.

use std::collections::{HashMap, HashSet};

use deadpool_postgres::Transaction;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::columns::column;
use super::{Db, execute, query};
use crate::error::Result;

// The time comes along, so that answers can be dated without another round trip.
const LOOK_UP: &str = "
-- command_ledger.look_up
select coalesce($2, now()), l.key, l.answer, l.payload
from (values (1)) as one
left join dipmo.command_ledger l on l.key = any($1)";

const RECORD: &str = "
-- command_ledger.record
insert into dipmo.command_ledger as l (key, name, idempotency_key, command_id, answer, payload, answered_at)
select e.key, e.name, e.idempotency_key, e.command_id, e.answer, e.payload::json, coalesce($7, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[])
    as e (key, name, idempotency_key, command_id, answer, payload)
-- In order, so that two nodes with the same commands wait for each other instead of deadlocking.
order by e.key
-- A failure that an operator had tried again gives way, an effect never does.
on conflict (key) do update
    set answer = excluded.answer, payload = excluded.payload, command_id = excluded.command_id,
        answered_at = excluded.answered_at
    where l.answer = 'CommandFailed' and l.key = any($8)";

/// What was answered before.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recorded {
    pub answer: String,
    pub payload: Value,
}

/// An answer to keep.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: Uuid,
    pub name: String,
    pub idempotency_key: String,
    pub command_id: Uuid,
    pub answer: &'static str,
    pub payload: Value,
}

/// The time of the transaction, and what was answered to which of the keys.
pub(crate) async fn look_up(
    db: &Db,
    tx: &Transaction<'_>,
    keys: &[Uuid],
) -> Result<(OffsetDateTime, HashMap<Uuid, Recorded>)> {
    let rows = query(db, tx, LOOK_UP, &[&keys, &db.clock().for_statement()]).await?;
    let now = rows[0].get(0);
    let recorded = rows.iter().filter_map(|row| {
        let key: Option<Uuid> = row.get(1);
        Some((key?, Recorded { answer: row.get(2), payload: row.get(3) }))
    });
    Ok((now, recorded.collect()))
}

/// Keeps the answers; false when somebody else has answered one of them meanwhile. Failures under the keys
/// of `again` are written over.
pub(crate) async fn record(db: &Db, tx: &Transaction<'_>, entries: &[Entry], again: &HashSet<Uuid>) -> Result<bool> {
    if entries.is_empty() {
        return Ok(true);
    }
    let again: Vec<Uuid> = again.iter().copied().collect();
    let kept = execute(
        db,
        tx,
        RECORD,
        &[
            &column(entries, |e| e.key),
            &column(entries, |e| e.name.as_str()),
            &column(entries, |e| e.idempotency_key.as_str()),
            &column(entries, |e| e.command_id),
            &column(entries, |e| e.answer),
            &column(entries, |e| e.payload.to_string()),
            &db.clock().for_statement(),
            &again,
        ],
    )
    .await?;
    Ok(kept == entries.len() as u64)
}
