//! Statements that accept a command from outside: who asked before, the command, the memory of the request.

use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Tx, execute, query};
use crate::error::Result;

/// A command to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewCommand<'a> {
    pub id: Uuid,
    pub name: &'a str,
    pub tenant: &'a str,
    pub business_key: &'a str,
    pub idempotency_key: &'a str,
}

/// Whether something was asked for before.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Requested {
    Never,
    /// By a transaction that has not ended.
    InFlight,
    Before {
        command_id: Uuid,
        fingerprint: Vec<u8>,
        response: Value,
    },
}

// Tried, not waited for: a caller that repeats itself must not fill the pool with waiting transactions.
// The holder's commit is visible before its lock is free, so whoever gets the lock sees what it wrote.
const TRY_LOCK: &str = "
-- command.try_lock
select pg_try_advisory_xact_lock(hashtextextended($1, 0))";

const FIND_REQUEST: &str = "
-- command.find_request
select command_id, fingerprint, response from dipmo.command_request where tenant = $1 and idempotency_key = $2";

// The process outlives its command, and a second one for the key would never begin.
const FIND_COMMAND: &str = "
-- command.find_by_key
select id from dipmo.command where business_key = $3 and name = $1 and tenant = $2 and process_id = id
union all
select id from dipmo.process where type = $1 and tenant = $2 and business_key = $3
limit 1";

const INSERT: &str = "
-- command.accept
insert into dipmo.command (id, name, tenant, business_key, status, process_id, idempotency_key, requested_at)
values ($1, $2, $3, $4, 'PENDING', $1, $5, coalesce($6, now()))
returning requested_at";

const REMEMBER: &str = "
-- command.remember_request
insert into dipmo.command_request (tenant, idempotency_key, fingerprint, command_id, response, requested_at)
values ($1, $2, $3, $4, $5, coalesce($6, now()))";

/// What the idempotency key stands for; until the transaction ends nobody else can use it.
pub(crate) async fn find_request(db: &Db, tx: &Tx<'_>, tenant: &str, key: &str) -> Result<Requested> {
    if !try_lock(db, tx, &["request", tenant, key]).await? {
        return Ok(Requested::InFlight);
    }
    let rows = query(db, tx, FIND_REQUEST, &[&tenant, &key]).await?;
    Ok(rows.first().map_or(Requested::Never, |row| Requested::Before {
        command_id: row.get(0),
        fingerprint: row.get(1),
        response: row.get(2),
    }))
}

/// Whether the name has a command for the business key; until the transaction ends nobody else can make one.
pub(crate) async fn find_command(
    db: &Db,
    tx: &Tx<'_>,
    (name, tenant, business_key): (&str, &str, &str),
) -> Result<Requested> {
    if !try_lock(db, tx, &["command", name, tenant, business_key]).await? {
        return Ok(Requested::InFlight);
    }
    let rows = query(db, tx, FIND_COMMAND, &[&name, &tenant, &business_key]).await?;
    Ok(rows.first().map_or(Requested::Never, |row| Requested::Before {
        command_id: row.get(0),
        fingerprint: Vec::new(),
        response: Value::Null,
    }))
}

/// When it was accepted, by the clock of the database.
pub(crate) async fn insert(db: &Db, tx: &Tx<'_>, command: &NewCommand<'_>) -> Result<OffsetDateTime> {
    let NewCommand { id, name, tenant, business_key, idempotency_key } = command;
    let now = db.clock().for_statement();
    let rows = query(db, tx, INSERT, &[id, name, tenant, business_key, idempotency_key, &now]).await?;
    Ok(rows.first().expect("an insert of one row returns one").get(0))
}

pub(crate) async fn remember(
    db: &Db,
    tx: &Tx<'_>,
    command: &NewCommand<'_>,
    fingerprint: &[u8],
    response: &Value,
) -> Result<()> {
    let NewCommand { id, tenant, idempotency_key, .. } = command;
    let now = db.clock().for_statement();
    execute(db, tx, REMEMBER, &[tenant, idempotency_key, &fingerprint, id, response, &now]).await?;
    Ok(())
}

/// Locks are shared by the whole database, so the schema is part of their name.
async fn try_lock(db: &Db, tx: &Tx<'_>, parts: &[&str]) -> Result<bool> {
    let name = json!([db.schema(), parts]).to_string();
    let rows = query(db, tx, TRY_LOCK, &[&name]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
