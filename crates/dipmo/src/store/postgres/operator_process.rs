//! Operator statements on process instances: lists, one instance with its journal and timers.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::operator::{rfc3339, rfc3339_option};
use super::{Db, Tx, query};
use crate::error::Result;

/// A process instance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessRow {
    pub id: Uuid,
    #[serde(rename = "type")]
    pub process_type: String,
    pub tenant: String,
    pub business_key: String,
    pub state: String,
    pub status: String,
    pub version: i64,
    #[serde(serialize_with = "rfc3339_option")]
    pub deadline: Option<OffsetDateTime>,
    pub correlation_id: Option<String>,
    #[serde(serialize_with = "rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One line of a process's history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JournalRow {
    pub id: i64,
    pub version: i64,
    #[serde(serialize_with = "rfc3339")]
    pub at: OffsetDateTime,
    pub kind: String,
    pub from_state: Option<String>,
    pub to_state: String,
    pub status: String,
    pub message_id: Option<String>,
    pub detail: Option<Value>,
    pub actor: Option<String>,
    pub reason: Option<String>,
}

/// A timer that is set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimerRow {
    pub name: String,
    #[serde(serialize_with = "rfc3339")]
    pub due_at: OffsetDateTime,
    pub attempts: i32,
}

/// An instance, its data, what it waits for and what it did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessDetail {
    #[serde(flatten)]
    pub row: ProcessRow,
    pub data: Value,
    pub timers: Vec<TimerRow>,
    /// The newest lines, oldest of them first.
    pub journal: Vec<JournalRow>,
}

/// What a list of processes is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    pub process_type: Option<String>,
    pub status: Option<String>,
    pub state: Option<String>,
    pub tenant: Option<String>,
    pub business_key: Option<String>,
}

const LIST: &str = "
-- operator.process_list
select id, type, tenant, business_key, state, status, version, deadline, correlation_id, created_at, updated_at
from dipmo.process
where id > $1
  and ($2::text is null or type = $2)
  and ($3::text is null or status = $3)
  and ($4::text is null or state = $4)
  and ($5::text is null or tenant = $5)
  and ($6::text is null or business_key = $6)
order by id
limit $7";

const SHOW: &str = "
-- operator.process_show
select id, type, tenant, business_key, state, status, version, deadline, correlation_id, created_at, updated_at,
       data
from dipmo.process
where id = $1";

const TIMERS: &str = "
-- operator.process_timers
select name, due_at, attempts from dipmo.timer where process_id = $1 order by due_at, name";

const JOURNAL: &str = "
-- operator.process_journal
select id, version, at, kind, from_state, to_state, status, message_id, detail, actor, reason
from dipmo.journal
where process_id = $1
order by id desc
limit $2";

pub(crate) async fn list(
    db: &Db,
    tx: &Tx<'_>,
    filter: &ProcessFilter,
    after: Uuid,
    limit: i64,
) -> Result<Vec<ProcessRow>> {
    let ProcessFilter { process_type, status, state, tenant, business_key } = filter;
    let rows = query(db, tx, LIST, &[&after, process_type, status, state, tenant, business_key, &limit]).await?;
    Ok(rows.iter().map(process_row).collect())
}

pub(crate) async fn show(db: &Db, tx: &Tx<'_>, id: Uuid, journal_max: i64) -> Result<Option<ProcessDetail>> {
    let rows = query(db, tx, SHOW, &[&id]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let timers = query(db, tx, TIMERS, &[&id]).await?;
    let mut journal = query(db, tx, JOURNAL, &[&id, &journal_max]).await?;
    journal.reverse();
    let timer = |r: &tokio_postgres::Row| TimerRow { name: r.get(0), due_at: r.get(1), attempts: r.get(2) };
    Ok(Some(ProcessDetail {
        row: process_row(found),
        data: found.get(11),
        timers: timers.iter().map(timer).collect(),
        journal: journal.iter().map(journal_row).collect(),
    }))
}

fn process_row(r: &tokio_postgres::Row) -> ProcessRow {
    ProcessRow {
        id: r.get(0),
        process_type: r.get(1),
        tenant: r.get(2),
        business_key: r.get(3),
        state: r.get(4),
        status: r.get(5),
        version: r.get(6),
        deadline: r.get(7),
        correlation_id: r.get(8),
        created_at: r.get(9),
        updated_at: r.get(10),
    }
}

fn journal_row(r: &tokio_postgres::Row) -> JournalRow {
    JournalRow {
        id: r.get(0),
        version: r.get(1),
        at: r.get(2),
        kind: r.get(3),
        from_state: r.get(4),
        to_state: r.get(5),
        status: r.get(6),
        message_id: r.get(7),
        detail: r.get(8),
        actor: r.get(9),
        reason: r.get(10),
    }
}
