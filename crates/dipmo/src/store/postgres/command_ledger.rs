//! The ledger of answered commands: one look-up and one insert for a group of commands.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::column;
use super::{Db, Tx, execute, query};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::handler::GroupFailure;

// The time comes along, so that answers can be dated without another round trip.
const LOOK_UP: &str = "
-- command_ledger.look_up
select coalesce($2, now()), l.key, l.answer, l.payload
from (values (1)) as one
left join dipmo.command_ledger l on l.key = any($1)";

macro_rules! record {
    ($name:literal, $on_conflict:literal) => {
        concat!(
            "\n-- ",
            $name,
            "
insert into dipmo.command_ledger as l (key, name, idempotency_key, command_id, answer, payload, answered_at)
select e.key, e.name, e.idempotency_key, e.command_id, e.answer, e.payload::json, coalesce($7, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[])
    as e (key, name, idempotency_key, command_id, answer, payload)
-- In order, so that two nodes with the same commands wait for each other instead of deadlocking.
order by e.key",
            $on_conflict
        )
    };
}

const RECORD_NEW: &str = record!("command_ledger.record_new", "");
// A failure that an operator had tried again gives way, an effect never does.
const RECORD_AGAIN: &str = record!(
    "command_ledger.record_again",
    "
on conflict (key) do update
    set answer = excluded.answer, payload = excluded.payload, command_id = excluded.command_id,
        answered_at = excluded.answered_at
    where l.answer = 'CommandFailed' and l.key = any($8)"
);

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
pub(crate) async fn look_up(db: &Db, tx: &Tx<'_>, keys: &[Uuid]) -> Result<(OffsetDateTime, HashMap<Uuid, Recorded>)> {
    let rows = query(db, tx, LOOK_UP, &[&keys, &db.clock().for_statement()]).await?;
    let now = rows[0].get(0);
    let recorded = rows.iter().filter_map(|row| {
        let key: Option<Uuid> = row.get(1);
        Some((key?, Recorded { answer: row.get(2), payload: row.get(3) }))
    });
    Ok((now, recorded.collect()))
}

/// Answers to be kept, and the keys of those that an operator had tried again.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub entries: Vec<Entry>,
    pub again: HashSet<Uuid>,
}

impl Answers {
    pub(crate) fn extend(&mut self, other: Answers) {
        self.entries.extend(other.entries);
        self.again.extend(other.again);
    }

    /// Before the answers are kept beside something else: what is prepared is on the wire as soon as it is polled,
    /// and so before it.
    pub(crate) async fn prepare(&self, db: &Db, tx: &Tx<'_>) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let statement = if self.again.is_empty() { RECORD_NEW } else { RECORD_AGAIN };
        tx.prepare_cached(&db.sql(statement)).await.map(drop).map_err(|e| super::failed(statement, e))
    }

    /// Keeps the answers; false when somebody else has answered one of them meanwhile, and then the transaction
    /// is to be given up. Failures under the keys of `again` are written over.
    pub(crate) async fn keep(&self, db: &Db, tx: &Tx<'_>) -> Result<bool> {
        let Self { entries, again } = self;
        if entries.is_empty() {
            return Ok(true);
        }
        let again: Vec<Uuid> = again.iter().copied().collect();
        let (keys, names) = (column(entries, |e| e.key), column(entries, |e| e.name.as_str()));
        let (given, commands) = (column(entries, |e| e.idempotency_key.as_str()), column(entries, |e| e.command_id));
        let (answers, payloads) = (column(entries, |e| e.answer), column(entries, |e| e.payload.to_string()));
        let now = db.clock().for_statement();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&keys, &names, &given, &commands, &answers, &payloads, &now];
        if again.is_empty() {
            return match execute(db, tx, RECORD_NEW, &params).await {
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
                kept => kept.map(|_| true),
            };
        }
        params.push(&again);
        let kept = execute(db, tx, RECORD_AGAIN, &params).await?;
        Ok(kept == entries.len() as u64)
    }

    /// The same for a group of messages of which any may be at fault.
    pub(crate) async fn keep_for_group(&self, db: &Db, tx: &Tx<'_>) -> Result<(), GroupFailure> {
        let failure = match self.keep(db, tx).await {
            Ok(true) => return Ok(()),
            Ok(false) => Failure::transient("LEDGER_RACE", "the same command was answered by another node meanwhile"),
            Err(error) => failure(&error),
        };
        Err(GroupFailure { at: 0, failure })
    }
}

/// What the ledger's trouble means for a command.
pub(crate) fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::Poison => Failure::permanent("NOT_STORABLE", error.to_string()),
        _ => Failure::transient("LEDGER", error.to_string()),
    }
}
