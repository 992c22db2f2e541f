//! Operator statements on commands: lists, one command with its saga, dead letters.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::operator::{rfc3339, rfc3339_option};
use super::{Db, Tx, query};
use crate::error::Result;

/// A command in a list. Its fields are named as in the envelope.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandRow {
    pub command_id: Uuid,
    pub name: String,
    pub tenant: String,
    pub key: String,
    pub status: String,
    /// The saga it belongs to; its own id when it came from outside.
    pub process_id: Uuid,
    /// The step of the saga that issued it.
    pub step: String,
    pub attempts: i32,
    #[serde(serialize_with = "rfc3339")]
    pub requested_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339_option")]
    pub completed_at: Option<OffsetDateTime>,
    pub error_code: Option<String>,
    pub error: Option<String>,
}

/// Everything about one command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandDetail {
    #[serde(flatten)]
    pub row: CommandRow,
    pub destination: Option<String>,
    pub idempotency_key: String,
    /// By then an answer is due.
    #[serde(serialize_with = "rfc3339_option")]
    pub lease_until: Option<OffsetDateTime>,
    pub result: Option<Value>,
    /// How its saga stands; none until it has begun.
    pub process: Option<CommandProcess>,
    /// Since when it is among the dead letters.
    #[serde(serialize_with = "rfc3339_option")]
    pub parked_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandProcess {
    pub status: String,
    /// The step it is at, or how it ended.
    pub state: String,
    pub version: i64,
    #[serde(serialize_with = "rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A command that was given up.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterRow {
    #[serde(flatten)]
    pub command: CommandRow,
    #[serde(serialize_with = "rfc3339")]
    pub parked_at: OffsetDateTime,
    pub parked_by: String,
}

/// What a list of commands is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandFilter {
    pub status: Option<String>,
    pub name: Option<String>,
    /// All commands of this saga, instead of those that came from outside.
    pub process_id: Option<Uuid>,
}

const LIST: &str = "
-- operator.command_list
select id, name, tenant, business_key, status, process_id, step, attempts, requested_at, completed_at,
       error_code, last_error
from dipmo.command
where process_id = id
  and process_id < $1
  and ($2::text is null or status = $2)
  and ($3::text is null or name = $3)
order by process_id desc
limit $4";

const LIST_OF_PROCESS: &str = "
-- operator.command_list_of_process
select id, name, tenant, business_key, status, process_id, step, attempts, requested_at, completed_at,
       error_code, last_error
from dipmo.command
where process_id = $5
  and id < $1
  and ($2::text is null or status = $2)
  and ($3::text is null or name = $3)
order by id desc
limit $4";

const SHOW: &str = "
-- operator.command_show
select c.id, c.name, c.tenant, c.business_key, c.status, c.process_id, c.step, c.attempts, c.requested_at,
       c.completed_at, c.error_code, c.last_error,
       c.destination, c.idempotency_key, c.lease_until, c.result,
       p.status, p.state, p.version, p.updated_at, d.parked_at
from dipmo.command c
left join dipmo.process p on p.id = c.process_id
left join dipmo.command_dlq d on d.command_id = c.id
where c.id = $1";

const DEAD_LETTERS: &str = "
-- operator.command_dead_letters
select c.id, c.name, c.tenant, c.business_key, c.status, c.process_id, c.step, d.attempts, c.requested_at,
       c.completed_at, c.error_code, d.error, d.parked_at, d.parked_by
from dipmo.command_dlq d
join dipmo.command c on c.id = d.command_id
where d.command_id > $1
  and ($2::text is null or c.name = $2)
order by d.command_id
limit $3";

/// Those below the id `before`, the highest first.
pub(crate) async fn list(
    db: &Db,
    tx: &Tx<'_>,
    filter: &CommandFilter,
    before: Uuid,
    limit: i64,
) -> Result<Vec<CommandRow>> {
    let CommandFilter { status, name, process_id } = filter;
    let rows = match process_id {
        None => query(db, tx, LIST, &[&before, status, name, &limit]).await?,
        Some(process) => query(db, tx, LIST_OF_PROCESS, &[&before, status, name, &limit, process]).await?,
    };
    Ok(rows.iter().map(command_row).collect())
}

pub(crate) async fn show(db: &Db, tx: &Tx<'_>, id: Uuid) -> Result<Option<CommandDetail>> {
    let rows = query(db, tx, SHOW, &[&id]).await?;
    let process = |r: &tokio_postgres::Row| {
        let status: Option<String> = r.get(16);
        status.map(|status| CommandProcess { status, state: r.get(17), version: r.get(18), updated_at: r.get(19) })
    };
    Ok(rows.first().map(|r| CommandDetail {
        row: command_row(r),
        destination: r.get(12),
        idempotency_key: r.get(13),
        lease_until: r.get(14),
        result: r.get(15),
        process: process(r),
        parked_at: r.get(20),
    }))
}

pub(crate) async fn dead_letters(
    db: &Db,
    tx: &Tx<'_>,
    name: Option<&str>,
    after: Uuid,
    limit: i64,
) -> Result<Vec<DeadLetterRow>> {
    let rows = query(db, tx, DEAD_LETTERS, &[&after, &name, &limit]).await?;
    let letter =
        |r: &tokio_postgres::Row| DeadLetterRow { command: command_row(r), parked_at: r.get(12), parked_by: r.get(13) };
    Ok(rows.iter().map(letter).collect())
}

fn command_row(r: &tokio_postgres::Row) -> CommandRow {
    CommandRow {
        command_id: r.get(0),
        name: r.get(1),
        tenant: r.get(2),
        key: r.get(3),
        status: r.get(4),
        process_id: r.get(5),
        step: r.get(6),
        attempts: r.get(7),
        requested_at: r.get(8),
        completed_at: r.get(9),
        error_code: r.get(10),
        error: r.get(11),
    }
}
