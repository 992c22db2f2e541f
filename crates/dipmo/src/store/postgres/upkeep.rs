//! Statements that keep the tables in shape: new partitions, old partitions, old memory.
//!
//! A partition is detached concurrently, looked at once more when nothing can be written to it any
//! longer, and only then dropped; an inserter that has been left open delays this and blocks nobody.

use std::time::Duration;

use deadpool_postgres::Object;
use time::{Date, OffsetDateTime};

use super::{Db, Tx, execute, failed, query};
use crate::error::{Error, ErrorKind, Result};

/// How far the detaching of a partition has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attachment {
    Attached,
    /// Detaching was begun and waits for transactions that were open at the time.
    Pending,
    Detached,
}

/// One day of a partitioned table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub table: String,
    pub name: String,
    pub day: Date,
    pub ids: (i64, i64),
    pub attachment: Attachment,
}

/// What an attempt to drop a partition came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dropped {
    Gone,
    /// Something unresolved is in it.
    Kept(String),
}

/// Which memory is forgotten, in batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    InboxDedupe,
    OutboxVersions,
    RelayBatches,
    CommandRequests,
    EndedCommands,
    CommandLedger,
    TakenCommands,
}

// Waiting behind an open transaction would make every insert wait behind us.
const CUT_LIMITS: &str = "
-- upkeep.cut_limits
set local lock_timeout = '2s'";

const CUT: &str = "
-- upkeep.cut
select dipmo.cut_partitions((coalesce($1, now()) at time zone 'utc')::date, $2)";

const HEARTBEAT: &str = "
-- upkeep.heartbeat
insert into dipmo.node (name, role, started_at, seen_at)
values ($1, 'upkeep', coalesce($2, now()), coalesce($2, now()))
on conflict (name, role) do update set seen_at = excluded.seen_at";

const PARTITIONS: &str = "
-- upkeep.partitions
select t.parent, c.relname::text, t.day, dipmo.day_base(t.day), dipmo.day_base(t.day + 1),
       c.relispartition, coalesce(i.inhdetachpending, false)
from pg_class c
cross join lateral (select regexp_replace(c.relname, '_[0-9]{8}$', '') as parent,
                           to_date(right(c.relname, 8), 'YYYYMMDD') as day) t
left join pg_inherits i on i.inhrelid = c.oid
where c.relnamespace = (select relnamespace from pg_class where oid = 'dipmo.inbox'::regclass)
  and c.relkind = 'r'
  and c.relname ~ '^(inbox|inbox_done|journal|outbox)_[12][0-9]{3}(0[1-9]|1[0-2])([0-2][0-9]|3[01])$'
order by t.day, t.parent";

const TODAY: &str = "
-- upkeep.today
select (coalesce($1, now()) at time zone 'utc')::date";

const FORGET_DEDUPE: &str = "
-- upkeep.forget_dedupe
delete from dipmo.inbox_dedupe where key in (
    select key from dipmo.inbox_dedupe
    where seen_at < coalesce($1, now()) - $2 * interval '1 second' limit $3)";

const FORGET_VERSIONS: &str = "
-- upkeep.forget_versions
delete from dipmo.outbox_version where key in (
    select key from dipmo.outbox_version
    where seen_at < coalesce($1, now()) - $2 * interval '1 second' limit $3)";

const FORGET_BATCHES: &str = "
-- upkeep.forget_batches
delete from dipmo.relay_batch where ctid = any (array(
    select ctid from dipmo.relay_batch
    where at < coalesce($1, now()) - $2 * interval '1 second' limit $3))";

const FORGET_REQUESTS: &str = "
-- upkeep.forget_requests
delete from dipmo.command_request where ctid = any (array(
    select ctid from dipmo.command_request
    where requested_at < coalesce($1, now()) - $2 * interval '1 second' limit $3))";

// A dead letter waits for an operator, and so may the saga of a command that has ended.
const FORGET_COMMANDS: &str = "
-- upkeep.forget_commands
delete from dipmo.command where id = any (array(
    select c.id from dipmo.command c
    where c.requested_at < coalesce($1, now()) - $2 * interval '1 second'
      and c.completed_at < coalesce($1, now()) - $2 * interval '1 second'
      and not exists (select from dipmo.command_dlq d where d.command_id = c.id)
      and not exists (select from dipmo.process p where p.id = c.process_id
                      and p.status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED'))
    limit $3))";

const FORGET_LEDGER: &str = "
-- upkeep.forget_ledger
delete from dipmo.command_ledger where key in (
    select key from dipmo.command_ledger
    where answered_at < coalesce($1, now()) - $2 * interval '1 second' limit $3)";

const FORGET_TAKEN: &str = "
-- upkeep.forget_taken
delete from dipmo.command_taken where command_id in (
    select command_id from dipmo.command_taken
    where taken_at < coalesce($1, now()) - $2 * interval '1 second' limit $3)";

const FORGET_NODES: &str = "
-- upkeep.forget_nodes
delete from dipmo.node where seen_at < coalesce($1, now()) - $2 * interval '1 second'";

// A settled exception is part of its row's history: it goes when the row is gone.
const FORGET_EXCEPTIONS: &str = "
-- upkeep.forget_exceptions
delete from dipmo.outbox_exception
where state in ('PUBLISHED', 'DISCARDED')
  and id < $1";

/// Makes the partitions of the coming days; answers with how many.
pub(crate) async fn cut(db: &Db, days_ahead: i32) -> Result<i32> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    tx.batch_execute(CUT_LIMITS).await.map_err(|e| failed(CUT_LIMITS, e))?;
    let rows = query(db, &tx, CUT, &[&db.clock().for_statement(), &days_ahead]).await?;
    tx.commit().await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

pub(crate) async fn heartbeat(db: &Db, node: &str) -> Result<()> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, HEARTBEAT, &[&node, &db.clock().for_statement()]).await?;
    tx.commit().await
}

/// Every partition, oldest first, those that are half or wholly detached included.
pub(crate) async fn partitions(db: &Db) -> Result<(Date, Vec<Partition>)> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let today = query(db, &tx, TODAY, &[&db.clock().for_statement()]).await?;
    let today = today.first().expect("a select without a table gives one row").get(0);
    let rows = query(db, &tx, PARTITIONS, &[]).await?;
    let partition = |r: &tokio_postgres::Row| Partition {
        table: r.get(0),
        name: r.get(1),
        day: r.get(2),
        ids: (r.get(3), r.get(4)),
        attachment: match (r.get(5), r.get(6)) {
            (_, true) => Attachment::Pending,
            (true, false) => Attachment::Attached,
            (false, false) => Attachment::Detached,
        },
    };
    let found = rows.iter().map(partition).collect();
    tx.commit().await?;
    Ok((today, found))
}

/// Deletes one batch of what is older than the window; fewer than `max` means that it was the last.
pub(crate) async fn forget(db: &Db, memory: Memory, window: Duration, max: i64) -> Result<u64> {
    let statement = match memory {
        Memory::InboxDedupe => FORGET_DEDUPE,
        Memory::OutboxVersions => FORGET_VERSIONS,
        Memory::RelayBatches => FORGET_BATCHES,
        Memory::CommandRequests => FORGET_REQUESTS,
        Memory::EndedCommands => FORGET_COMMANDS,
        Memory::CommandLedger => FORGET_LEDGER,
        Memory::TakenCommands => FORGET_TAKEN,
    };
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let window = window.as_secs_f64();
    let gone = execute(db, &tx, statement, &[&db.clock().for_statement(), &window, &max]).await?;
    tx.commit().await?;
    Ok(gone)
}

pub(crate) async fn forget_nodes(db: &Db, silent_for: Duration) -> Result<u64> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let now = db.clock().for_statement();
    let gone = execute(db, &tx, FORGET_NODES, &[&now, &silent_for.as_secs_f64()]).await?;
    tx.commit().await?;
    Ok(gone)
}

/// Deletes settled exceptions of rows that are gone: those below the first id that is left.
pub(crate) async fn forget_exceptions(db: &Db, first_id: i64) -> Result<u64> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let gone = execute(db, &tx, FORGET_EXCEPTIONS, &[&first_id]).await?;
    tx.commit().await?;
    Ok(gone)
}

/// A connection that may drop partitions; one in the whole database at a time.
#[derive(Debug)]
pub(crate) struct Dropper {
    client: deadpool_postgres::ClientWrapper,
    schema: String,
    now: Option<OffsetDateTime>,
}

impl Dropper {
    /// `None` when another node is at it. The connection leaves the pool, so that the lock and the
    /// settings end with it.
    pub(crate) async fn begin(db: &Db) -> Result<Option<Self>> {
        let client = Object::take(db.client().await?);
        let setup = "set lock_timeout = '3s'; set statement_timeout = '5min'";
        client.batch_execute(setup).await.map_err(|e| failed("upkeep.dropper_limits", e))?;
        let lock = format!("select pg_try_advisory_lock(hashtextextended('{}.retention', 0))", db.schema());
        let row = client.query_one(&lock, &[]).await.map_err(|e| failed("upkeep.dropper_lock", e))?;
        let held: bool = row.get(0);
        Ok(held.then(|| Self { client, schema: db.schema().to_owned(), now: db.clock().for_statement() }))
    }

    /// Drops a partition unless something in it is unresolved or younger than `keep`.
    pub(crate) async fn drop_partition(&self, p: &Partition, keep: Duration) -> Result<Dropped> {
        let (schema, table, name) = (&self.schema, &p.table, &p.name);
        if p.attachment != Attachment::Detached {
            if let Some(why) = self.unresolved(p, keep).await? {
                return Ok(Dropped::Kept(why));
            }
            let how = if p.attachment == Attachment::Pending { "finalize" } else { "concurrently" };
            let detach = format!("alter table {schema}.{table} detach partition {schema}.{name} {how}");
            if let Err(error) = self.run("upkeep.detach", &detach).await {
                if error.is_unavailable() {
                    return Ok(Dropped::Kept("a transaction that uses the table is still open".to_owned()));
                }
                return Err(error);
            }
        }
        // Nothing can be written to it any more: this look is the one that counts.
        if let Some(why) = self.unresolved(p, keep).await? {
            let (from, to) = p.ids;
            let attach = format!(
                "alter table {schema}.{table} attach partition {schema}.{name} for values from ({from}) to ({to})"
            );
            self.run("upkeep.attach", &attach).await?;
            return Ok(Dropped::Kept(why));
        }
        self.run("upkeep.drop", &format!("drop table {schema}.{name}")).await?;
        Ok(Dropped::Gone)
    }

    async fn run(&self, name: &str, statement: &str) -> Result<()> {
        self.client.batch_execute(statement).await.map_err(|e| failed(name, e))
    }

    /// Why the partition must stay, if it must. Reads the partition by name: it may be detached.
    async fn unresolved(&self, p: &Partition, keep: Duration) -> Result<Option<String>> {
        for (what, statement) in self.questions(p)? {
            let (from, to) = p.ids;
            let row =
                self.client.query_one(&statement, &[&from, &to]).await.map_err(|e| failed("upkeep.unresolved", e))?;
            let count: i64 = row.get(0);
            if count > 0 {
                return Ok(Some(format!("{count} {what}")));
            }
        }
        // A partition that was cut late holds more than its day: its newest row decides, not its name.
        let newest = format!(
            "select coalesce(({}) > coalesce($1::timestamptz, now()) - $2::float8 * interval '1 second', false)",
            self.newest(p)
        );
        let row = self
            .client
            .query_one(&newest, &[&self.now, &keep.as_secs_f64()])
            .await
            .map_err(|e| failed("upkeep.newest", e))?;
        Ok(row.get::<_, bool>(0).then(|| "rows younger than the retention".to_owned()))
    }

    /// The time of the newest row, found through the primary key.
    fn newest(&self, p: &Partition) -> String {
        let part = format!("{}.{}", self.schema, p.name);
        match p.table.as_str() {
            "inbox" => format!("select received_at from {part} order by id desc limit 1"),
            "inbox_done" => format!("select processed_at from {part} order by id desc limit 1"),
            "journal" => format!("select at from {part} order by id desc limit 1"),
            _ => format!(
                "select max(n.created_at) from generate_series(0, 47) s cross join lateral \
                 (select created_at from {part} o where o.shard = s order by o.id desc limit 1) n"
            ),
        }
    }

    /// What may be unresolved in a partition, each as a count over the ids `$1 <= id < $2`.
    fn questions(&self, p: &Partition) -> Result<Vec<(&'static str, String)>> {
        let (s, name) = (&self.schema, &p.name);
        let range = "id >= $1::bigint and id < $2::bigint";
        Ok(match p.table.as_str() {
            "inbox" | "inbox_done" => {
                vec![("open messages", format!("select count(*) from {s}.inbox_work where {range}"))]
            }
            "journal" => vec![(
                "open processes with history in it",
                format!(
                    "select count(distinct j.process_id) from {s}.{name} j join {s}.process p on p.id = j.process_id \
                     where p.status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED') and j.{range_j}",
                    range_j = "id >= $1::bigint and j.id < $2::bigint"
                ),
            )],
            "outbox" => vec![
                (
                    "messages not sent yet",
                    format!(
                        "select count(*) from {s}.relay_shard r cross join lateral (select 1 from {s}.{name} o \
                         where o.shard = r.shard and o.id > r.cursor and o.{range_o} limit 1000) n",
                        range_o = "id >= $1::bigint and o.id < $2::bigint"
                    ),
                ),
                (
                    "shards with open gaps",
                    format!("select count(*) from {s}.relay_shard where gaps && int8range($1::bigint, $2::bigint)"),
                ),
                (
                    "messages that could not be sent",
                    format!(
                        "select count(*) from {s}.outbox_exception \
                         where state in ('RETRY', 'PARKED', 'DEAD') and {range}"
                    ),
                ),
            ],
            other => return Err(Error::new(ErrorKind::Bug, format!("no retention rule for table {other}"))),
        })
    }
}
