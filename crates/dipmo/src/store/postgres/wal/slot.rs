//! What the server must have before its log can be streamed: settings, a publication, a slot.
//!
//! A slot keeps the log from its position on until a reader confirms it. So a slot without a reader fills the
//! disk: [`check`] says what stands between that and the operator.

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::{ForeignTable, Lsn};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::{Db, Tx, failed, look_up, query};

/// What PostgreSQL cuts names to.
const NAME_MAX: usize = 63;
/// The first server version whose standbys can take a slot over.
const FAILOVER_SINCE: i32 = 170_000;

// Two nodes may start at once.
const LOCK_PUBLICATION: &str = "
-- wal.lock_publication
select pg_advisory_xact_lock(hashtextextended('dipmo.publication', 0))";

const PUBLICATION: &str = "
-- wal.publication
select pubinsert and pubviaroot as fine from pg_publication where pubname = $1";

const PUBLISHED: &str = "
-- wal.published
select n.nspname::text, c.relname::text
from pg_publication p
join pg_publication_rel r on r.prpubid = p.oid
join pg_class c on c.oid = r.prrelid
join pg_namespace n on n.oid = c.relnamespace
where p.pubname = $1";

const CREATE_SLOT: &str = "
-- wal.create_slot
select lsn::text from pg_create_logical_replication_slot($1::text, 'pgoutput')";

// Standbys keep a copy, so that a failover does not lose the place.
const CREATE_SLOT_FAILOVER: &str = "
-- wal.create_slot_failover since 170000
select lsn::text from pg_create_logical_replication_slot($1::text, 'pgoutput', failover => true)";

const DROP_SLOT: &str = "
-- wal.drop_slot
select pg_drop_replication_slot($1::text)";

const SLOT_STATUS: &str = "
-- wal.slot_status
select plugin::text, database::text, active, active_pid, restart_lsn::text, confirmed_flush_lsn::text, wal_status,
       safe_wal_size, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
from pg_replication_slots
where slot_name = $1";

const SETTINGS: &str = "
-- wal.settings
select current_setting('server_version_num')::integer, current_setting('wal_level'),
       current_setting('max_slot_wal_keep_size'),
       current_setting('max_replication_slots')::bigint - (select count(*) from pg_replication_slots),
       current_setting('max_wal_senders')::bigint - (select count(*) from pg_stat_replication),
       (select r.rolreplication or r.rolsuper from pg_roles r where r.rolname = current_user), current_user::text";

const INSERT_LSN: &str = "
-- wal.insert_lsn
select pg_current_wal_insert_lsn()::text";

/// A slot as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotStatus {
    pub(crate) plugin: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) active: bool,
    pub(crate) active_pid: Option<i32>,
    /// The log is kept from here on; none when the slot is lost.
    pub(crate) restart_lsn: Option<Lsn>,
    pub(crate) confirmed_flush_lsn: Option<Lsn>,
    /// reserved, extended, unreserved or lost.
    pub(crate) wal_status: Option<String>,
    /// How much more may be written before the slot is in danger of being lost; none without a limit.
    pub(crate) safe_wal_size: Option<i64>,
    /// How much log is kept for it.
    pub(crate) kept_bytes: Option<i64>,
    /// How much log was written since the confirmed position.
    pub(crate) lag_bytes: Option<i64>,
}

/// What the server allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalSettings {
    pub(crate) server_version: i32,
    pub(crate) wal_level: String,
    /// As the server prints it; `-1` is no limit.
    pub(crate) max_slot_wal_keep_size: String,
    pub(crate) slots_free: i64,
    pub(crate) senders_free: i64,
    pub(crate) role: String,
    pub(crate) role_may_replicate: bool,
}

pub(crate) fn publication_name(schema: &str) -> String {
    format!("{schema}_outbox")
}

/// `dipmo_<schema>_outbox`, of the letters that a slot's name may have.
pub(crate) fn default_slot_name(schema: &str) -> String {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '_' };
    let schema: String = schema.to_lowercase().chars().map(plain).collect();
    const AROUND: usize = "dipmo__outbox".len();
    format!("dipmo_{}_outbox", &schema[..schema.len().min(NAME_MAX - AROUND)])
}

/// The slot that is only looked at, to compare the readers.
pub(crate) fn verifying_slot_name(schema: &str) -> String {
    default_slot_name(&format!("{schema}_verify"))
}

/// Makes the publication of the outbox if there is none, and adds foreign tables that it lacks. The
/// server leaves out the shards of other lanes. Says whether it was made.
pub(crate) async fn ensure_publication(db: &Db, foreign: &[ForeignTable]) -> Result<bool> {
    let name = publication_name(db.schema());
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    query(db, &tx, LOCK_PUBLICATION, &[]).await?;
    let found = query(db, &tx, PUBLICATION, &[&name]).await?;
    if found.first().is_some_and(|row| !row.get::<_, bool>(0)) {
        return Err(Error::invalid(format!(
            "publication {name} exists with other settings: drop it, and it will be made again \
             with publish = 'insert', publish_via_partition_root = true"
        )));
    }
    if found.is_empty() {
        let schema = db.schema();
        let create = format!(
            "create publication {} for table {schema}.outbox where (shard >= 16 and shard < 32) \
             with (publish = 'insert', publish_via_partition_root = true)",
            quoted(&name)
        );
        tx.batch_execute(&create).await.map_err(|error| failed("-- wal.create_publication", error))?;
    }
    let published: Vec<(String, String)> =
        query(db, &tx, PUBLISHED, &[&name]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    for table in foreign.iter().filter(|table| !published.iter().any(|(s, t)| *s == table.schema && *t == table.table))
    {
        let add =
            format!("alter publication {} add table {}.{}", quoted(&name), quoted(&table.schema), quoted(&table.table));
        tx.batch_execute(&add).await.map_err(|error| failed("-- wal.add_to_publication", error))?;
    }
    tx.commit().await?;
    Ok(found.is_empty())
}

/// Makes a slot; what commits from now on will be in its stream. Waits for the transactions that are open.
pub(crate) async fn create_slot(db: &Db, name: &str) -> Result<Lsn> {
    let settings = wal_settings(db).await?;
    if let Some(refusal) = settings.refusal() {
        return Err(Error::invalid(refusal));
    }
    let statement = if settings.server_version >= FAILOVER_SINCE { CREATE_SLOT_FAILOVER } else { CREATE_SLOT };
    let client = db.client().await?;
    let made = client.query_one(statement, &[&name]).await.map_err(|error| match error.code() {
        Some(code) if *code == SqlState::DUPLICATE_OBJECT => {
            Error::new(ErrorKind::Conflict, format!("replication slot {name} exists already"))
        }
        _ => failed(statement, error),
    })?;
    lsn(&made, 0)?
        .ok_or_else(|| Error::new(ErrorKind::Bug, format!("replication slot {name} was made without a position")))
}

/// Drops a slot that nobody reads.
pub(crate) async fn drop_slot(db: &Db, name: &str) -> Result<()> {
    let client = db.client().await?;
    client.query(DROP_SLOT, &[&name]).await.map(drop).map_err(|error| match error.code() {
        Some(code) if *code == SqlState::UNDEFINED_OBJECT => {
            Error::not_found(format!("there is no replication slot {name}"))
        }
        Some(code) if *code == SqlState::OBJECT_IN_USE => Error::new(
            ErrorKind::Conflict,
            format!("replication slot {name} is being read: stop the relay that reads it, then drop it"),
        ),
        _ => failed(DROP_SLOT, error),
    })
}

pub(crate) async fn slot_status(db: &Db, name: &str) -> Result<Option<SlotStatus>> {
    let client = db.client().await?;
    let rows = look_up(db, &client, SLOT_STATUS, &[&name]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(SlotStatus {
        plugin: row.get(0),
        database: row.get(1),
        active: row.get(2),
        active_pid: row.get(3),
        restart_lsn: lsn(row, 4)?,
        confirmed_flush_lsn: lsn(row, 5)?,
        wal_status: row.get(6),
        safe_wal_size: row.get(7),
        kept_bytes: row.get(8),
        lag_bytes: row.get(9),
    }))
}

pub(crate) async fn wal_settings(db: &Db) -> Result<WalSettings> {
    let client = db.client().await?;
    let rows = look_up(db, &client, SETTINGS, &[]).await?;
    let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Bug, "the server has no settings"))?;
    Ok(WalSettings {
        server_version: row.get(0),
        wal_level: row.get(1),
        max_slot_wal_keep_size: row.get(2),
        slots_free: row.get(3),
        senders_free: row.get(4),
        role_may_replicate: row.get::<_, Option<bool>>(5).unwrap_or(false),
        role: row.get(6),
    })
}

/// How far the server has written by now.
pub(crate) async fn insert_lsn(db: &Db) -> Result<Lsn> {
    let client = db.client().await?;
    let rows = look_up(db, &client, INSERT_LSN, &[]).await?;
    let found = rows.first().map(|row| lsn(row, 0)).transpose()?.flatten();
    found.ok_or_else(|| Error::new(ErrorKind::Bug, "the server has no WAL position"))
}

impl WalSettings {
    /// Why nothing can be streamed from this server, if so.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.wal_level != "logical" {
            return Some(format!(
                "wal_level is {}: set wal_level = logical in postgresql.conf and restart PostgreSQL",
                self.wal_level
            ));
        }
        let role = &self.role;
        (!self.role_may_replicate).then(|| {
            format!("role {role} may not read the log: alter role {role} replication (on Amazon RDS: grant rds_replication to {role})")
        })
    }
}

/// What an operator should change, the worst first; empty when all is well. `slot` is `None` before it is made.
pub(crate) fn check(settings: &WalSettings, name: &str, slot: Option<&SlotStatus>) -> Vec<String> {
    let mut found: Vec<String> = settings.refusal().into_iter().collect();
    match slot {
        None => found.extend(shortage("max_replication_slots", "replication slot", settings.slots_free)),
        Some(slot) => found.extend(check_slot(name, slot)),
    }
    if !slot.is_some_and(|slot| slot.active) {
        found.extend(shortage("max_wal_senders", "wal sender", settings.senders_free));
    }
    if settings.max_slot_wal_keep_size == "-1" {
        found.push(
            "max_slot_wal_keep_size is -1: a stopped relay lets the log grow until the disk is full; \
             set it to what the disk can spare (a lost slot is resynchronised from the table)"
                .to_owned(),
        );
    }
    found
}

fn check_slot(name: &str, slot: &SlotStatus) -> Option<String> {
    let lag = slot.lag_bytes.unwrap_or(0);
    if slot.plugin.as_deref() != Some("pgoutput") {
        return Some(format!("replication slot {name} is not one of pgoutput: drop it or choose another name"));
    }
    match slot.wal_status.as_deref() {
        Some("lost") => Some(format!(
            "replication slot {name} is lost, its log was removed: drop it and create it again, \
             the rows are still in the table"
        )),
        Some("unreserved") => Some(format!(
            "replication slot {name} is about to be lost, {lag} bytes behind: start or speed up the relay now, \
             or raise max_slot_wal_keep_size"
        )),
        Some("extended") => Some(format!(
            "replication slot {name} keeps more log than max_wal_size, {lag} bytes behind: see that a relay reads it"
        )),
        _ => None,
    }
}

fn shortage(setting: &str, what: &str, free: i64) -> Option<String> {
    (free <= 0).then(|| format!("no {what} is free: raise {setting} and restart PostgreSQL, or remove unused ones"))
}

fn lsn(row: &Row, column: usize) -> Result<Option<Lsn>> {
    row.get::<_, Option<&str>>(column).map(str::parse).transpose()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
#[path = "tests/slot.rs"]
mod tests;
