//! The facts that `dipmo doctor` judges: server settings, partitions, leases, sessions that hold things up.

use tokio_postgres::Row;

use super::{Db, Tx, query};
use crate::error::Result;

/// A setting of the server, as `current_setting` gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub name: String,
    pub value: String,
}

/// How far the partitions of a table reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionReach {
    pub table: String,
    /// Days beyond today; `None` without any partition.
    pub days_ahead: Option<i32>,
    pub oldest_age_days: Option<i32>,
}

/// Where a sequence stands, in days from today; 0 is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SequenceDay {
    pub sequence: String,
    pub days_from_today: i64,
}

/// Worker buckets that nobody holds although work waits in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrphanedBuckets {
    pub scope: String,
    pub buckets: i64,
}

/// A session that holds a lock on the outbox for long, or a prepared transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Holder {
    pub who: String,
    pub age_seconds: f64,
}

const SETTINGS: &str = "
-- operator.doctor_settings
select name, coalesce(current_setting(name, true), '') from unnest(array[
    'server_version_num', 'server_version', 'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level',
    'autovacuum', 'max_slot_wal_keep_size']) name
union all
select 'in_recovery', pg_is_in_recovery()::text";

const PARTITIONS: &str = "
-- operator.doctor_partitions
select parent.name,
       max(to_date(right(c.relname, 8), 'YYYYMMDD')) - today.day,
       today.day - min(to_date(right(c.relname, 8), 'YYYYMMDD'))
from unnest(array['inbox', 'inbox_done', 'journal', 'outbox']) parent (name)
cross join (select (coalesce($1, now()) at time zone 'utc')::date as day) today
left join pg_inherits i on i.inhparent = to_regclass('dipmo.' || parent.name)
left join pg_class c on c.oid = i.inhrelid and c.relname ~ '_[0-9]{8}$'
group by parent.name, today.day
order by parent.name";

const SEQUENCES: &str = "
-- operator.doctor_sequences
select s.name, case when at.day = before.day then 0 else at.day - today.day end
from unnest(array['inbox_seq', 'journal_seq', 'outbox_seq']) s (name)
cross join (select (coalesce($1, now()) at time zone 'utc')::date - date '1970-01-01' as day) today
-- Upkeep comes by every ten minutes: for a while after midnight yesterday's range is as good as today's.
cross join (select (coalesce($1, now()) at time zone 'utc' - interval '30 minutes')::date - date '1970-01-01' as day) before
cross join lateral (
    select coalesce(pg_sequence_last_value(to_regclass('dipmo.' || s.name)), 0) + 1 >> 36 as day) at
order by s.name";

// A consumer whose worker never ran has no leases at all: its buckets are nobody's too.
const ORPHANS: &str = "
-- operator.doctor_orphans
select 'worker:' || c.name, count(*)
from dipmo.consumer c
cross join generate_series(0, 15) b
left join dipmo.lease l on l.scope = 'worker:' || c.name and l.bucket = b
where (l.owner is null or l.until is null or l.until < coalesce($1, now()))
  and (exists (select 1 from dipmo.inbox_work w
               where w.consumer_id = c.id and w.bucket = b and w.state = 'RECEIVED')
       or exists (select 1 from dipmo.inbox_work w
                  where w.consumer_id = c.id and w.bucket = b and w.state = 'RETRY'
                    and w.next_attempt_at < coalesce($1, now()))
       or exists (select 1 from dipmo.timer t
                  where t.consumer_id = c.id and t.bucket = b and t.due_at < coalesce($1, now())))
group by c.name
order by c.name";

// Row exclusive is what an insert takes; it is held until the transaction ends.
const HOLDERS: &str = "
-- operator.doctor_holders
select distinct on (a.pid)
       format('pid %s, application %s, user %s, %s', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
              a.usename, a.state),
       extract(epoch from now() - a.xact_start)::float8
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation'
  and l.database = (select oid from pg_database where datname = current_database())
  and (l.relation = 'dipmo.outbox'::regclass
       or l.relation in (select inhrelid from pg_inherits where inhparent = 'dipmo.outbox'::regclass))
  and l.granted
  and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
                 'ExclusiveLock', 'AccessExclusiveLock')
  and a.xact_start < now() - $1 * interval '1 second'
order by a.pid
limit 20";

const PREPARED: &str = "
-- operator.doctor_prepared
select format('%s by %s', gid, owner), extract(epoch from now() - prepared)::float8
from pg_prepared_xacts
where database = current_database() and prepared <= now() - $1 * interval '1 second'
order by prepared
limit 20";

const NOT_DURABLE: &str = "
-- operator.doctor_not_durable
select c.relname::text
from pg_class c
where c.relnamespace = (select relnamespace from pg_class where oid = 'dipmo.inbox'::regclass)
  and c.relkind in ('r', 'p') and c.relpersistence <> 'p'
order by c.relname
limit 20";

const TRIGGERS_OFF: &str = "
-- operator.doctor_triggers_off
select format('%s on %s', t.tgname, c.relname)
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = (select relnamespace from pg_class where oid = 'dipmo.inbox'::regclass)
  and not t.tgisinternal and t.tgenabled = 'D'
order by 1
limit 20";

pub(crate) async fn settings(db: &Db, tx: &Tx<'_>) -> Result<Vec<Setting>> {
    let rows = query(db, tx, SETTINGS, &[]).await?;
    Ok(rows.iter().map(|r| Setting { name: r.get(0), value: r.get(1) }).collect())
}

pub(crate) async fn partitions(db: &Db, tx: &Tx<'_>) -> Result<Vec<PartitionReach>> {
    let rows = query(db, tx, PARTITIONS, &[&db.clock().for_statement()]).await?;
    let reach = |r: &Row| PartitionReach { table: r.get(0), days_ahead: r.get(1), oldest_age_days: r.get(2) };
    Ok(rows.iter().map(reach).collect())
}

pub(crate) async fn sequences(db: &Db, tx: &Tx<'_>) -> Result<Vec<SequenceDay>> {
    let rows = query(db, tx, SEQUENCES, &[&db.clock().for_statement()]).await?;
    Ok(rows.iter().map(|r| SequenceDay { sequence: r.get(0), days_from_today: r.get(1) }).collect())
}

pub(crate) async fn orphans(db: &Db, tx: &Tx<'_>) -> Result<Vec<OrphanedBuckets>> {
    let rows = query(db, tx, ORPHANS, &[&db.clock().for_statement()]).await?;
    Ok(rows.iter().map(|r| OrphanedBuckets { scope: r.get(0), buckets: r.get(1) }).collect())
}

/// Open transactions with a lock on the outbox, older than this.
pub(crate) async fn holders(db: &Db, tx: &Tx<'_>, older_than_seconds: f64) -> Result<Vec<Holder>> {
    let rows = query(db, tx, HOLDERS, &[&older_than_seconds]).await?;
    Ok(rows.iter().map(|r| Holder { who: r.get(0), age_seconds: r.get(1) }).collect())
}

pub(crate) async fn prepared(db: &Db, tx: &Tx<'_>, older_than_seconds: f64) -> Result<Vec<Holder>> {
    let rows = query(db, tx, PREPARED, &[&older_than_seconds]).await?;
    Ok(rows.iter().map(|r| Holder { who: r.get(0), age_seconds: r.get(1) }).collect())
}

/// Tables that a crash would empty.
pub(crate) async fn not_durable(db: &Db, tx: &Tx<'_>) -> Result<Vec<String>> {
    Ok(query(db, tx, NOT_DURABLE, &[]).await?.iter().map(|r| r.get(0)).collect())
}

pub(crate) async fn triggers_off(db: &Db, tx: &Tx<'_>) -> Result<Vec<String>> {
    Ok(query(db, tx, TRIGGERS_OFF, &[]).await?.iter().map(|r| r.get(0)).collect())
}
