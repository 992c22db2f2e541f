//! The relay's own connections, and the readings of the id horizon.
//!
//! A [`Link`] never reconnects by itself: whatever was read over it is void once it breaks, because after
//! a crash of the server the sequence may go back. The caller forgets everything and opens a new one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::listen::named;
use super::{Db, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::relay::{Holder, Ranges, Snapshot};

/// Commits of the relay may be lost in a crash: then the rows are sent again, which is allowed.
/// The planner is pinned to the indexes, which are 2 us a row; its other ideas are 5 to 7. It plans each statement
/// once: planning is a third of the price of reading a single row.
const SETTINGS: &str = "
set synchronous_commit = off;
set enable_seqscan = off;
set enable_bitmapscan = off;
set enable_sort = off;
set plan_cache_mode = force_generic_plan;
set jit = off;
set statement_timeout = '60s';
set idle_in_transaction_session_timeout = '60s'";

// The inner select is fenced off, so that the transaction id is taken after the last id was read.
// Not `select last_value`: that reads without the buffer lock and can be ahead of what was handed out.
const LAST_ID: &str = "
-- relay.last_id
select q.last, case when q.last > $1 then pg_current_xact_id()::text::bigint end
from (select coalesce(pg_sequence_last_value('dipmo.outbox_seq'::regclass), 0) as last offset 0) q";

const SNAPSHOT: &str = "
-- relay.snapshot
select pg_current_snapshot()::text";

// pg_locks is read once. The parent counts: nextval runs before the lock on the partition is taken.
// A prepared transaction has the virtual transaction '-1/xid'.
const HOLDERS: &str = "
-- relay.holders
with held as materialized (
    select l.locktype, l.database, l.relation, l.transactionid, l.virtualtransaction, l.pid, l.mode
    from pg_locks l
    where l.granted and l.locktype in ('relation', 'transactionid')
), holder as materialized (
    select distinct h.virtualtransaction, h.pid
    from held h
    where h.locktype = 'relation'
      and h.database = (select d.oid from pg_database d where d.datname = current_database())
      and h.relation in (select t.relid from pg_partition_tree('dipmo.outbox'::regclass) t)
      and h.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
                     'ExclusiveLock', 'AccessExclusiveLock')
)
select x.transactionid::text::bigint, h.pid
from holder h
join held x on x.virtualtransaction = h.virtualtransaction
where x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
union all
select split_part(h.virtualtransaction, '/', 2)::bigint, h.pid
from holder h
where h.virtualtransaction like '-1/%'";

// What is not visible in (after, upto], as ranges; ids are never enumerated, only visible rows are listed,
// at most $3 of a shard. Where a shard has more, the answer ends at the last id that was listed of it.
const MISSING: &str = "
-- relay.missing
with seen as materialized (
    select s.shard, o.id
    from generate_series(0, 47) as s (shard)
    cross join lateral (
        select r.id from dipmo.outbox r
        where r.shard = s.shard::smallint and r.id > $1 and r.id <= $2
        order by r.id
        limit $3) o
), bound as materialized (
    select coalesce(min(m.last), $2) as upto
    from (select max(n.id) as last from seen n group by n.shard having count(*) = $3) m
), edge as (
    select lag(n.id, 1, $1) over (order by n.id) as before, n.id
    from seen n, bound b
    where n.id <= b.upto
    union all
    select coalesce((select max(n.id) from seen n where n.id <= b.upto), $1), b.upto + 1
    from bound b
)
select e.before + 1 as low, e.id as high, b.upto
from edge e, bound b
where e.id - e.before > 1
union all
select null, null, b.upto from bound b
order by 1 nulls last
limit $4";

const SET_QUIET: &str = "
-- relay.set_quiet
update dipmo.relay_wake set quiet = $1 where quiet <> $1";

const SESSIONS: &str = "
-- relay.sessions
select a.pid, coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.xact_start::text, '')
from pg_stat_activity a
where a.pid = any ($1)";

/// A connection outside the pool that is used until it breaks.
pub(crate) struct Link {
    client: Client,
    db: Db,
    prepared: Mutex<HashMap<usize, Statement>>,
    driver: JoinHandle<()>,
}

/// Who a staller is, for whoever has to end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionInfo {
    pub(crate) pid: i32,
    pub(crate) application_name: String,
    pub(crate) state: String,
    pub(crate) since: String,
}

impl Link {
    pub(crate) async fn open(db: &Db, role: &str) -> Result<Self> {
        let unavailable = |e| Error::new(ErrorKind::Unavailable, "connecting to PostgreSQL").source(e);
        let (client, connection) = named(db.config(), role).connect(db.tls()).await.map_err(unavailable)?;
        let driver = tokio::spawn(async move {
            // What goes wrong here is told to whoever uses the client.
            let _ = connection.await;
        });
        client.batch_execute(SETTINGS).await.map_err(|e| failed(SETTINGS, e))?;
        Ok(Self { client, db: db.clone(), prepared: Mutex::default(), driver })
    }

    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    pub(super) async fn query(&self, statement: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let prepared = self.prepare(statement).await?;
        self.client.query(&prepared, params).await.map_err(|e| failed(statement, e))
    }

    /// For the few statements that name a table of somebody else's.
    pub(super) async fn query_text(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client.query(statement, params).await.map_err(|e| failed("-- relay.foreign", e))
    }

    pub(super) async fn run(&self, statement: &'static str) -> Result<()> {
        self.client.batch_execute(statement).await.map_err(|e| failed(statement, e))
    }

    async fn prepare(&self, statement: &'static str) -> Result<Statement> {
        let at = statement.as_ptr() as usize;
        let known = self.prepared.lock().expect("no code panics while it holds the statements").get(&at).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let prepared = self.client.prepare(&self.db.sql(statement)).await.map_err(|e| failed(statement, e))?;
        self.prepared.lock().expect("no code panics while it holds the statements").insert(at, prepared.clone());
        Ok(prepared)
    }

    /// Before the first reading, so that its statements are on the wire as soon as it is polled, in their order
    /// and before whatever is polled after it.
    pub(crate) async fn prepare_horizon(&self) -> Result<()> {
        self.prepare(LAST_ID).await?;
        self.prepare(SNAPSHOT).await.map(drop)
    }

    /// Steps 1 and 2 of a poll, sent together and run one after the other, each in its own transaction:
    /// the last id, a transaction id taken after it when it is beyond `marked`, then what runs.
    pub(crate) async fn read_horizon(&self, marked: i64) -> Result<(i64, Option<u64>, Snapshot)> {
        let params: [&(dyn ToSql + Sync); 1] = [&marked];
        let (last, snapshot) = tokio::join!(biased; self.query(LAST_ID, &params), self.query(SNAPSHOT, &[]));
        let (last, snapshot) = (last?, snapshot?);
        let xid = last[0].get::<_, Option<i64>>(1).map(i64::cast_unsigned);
        Ok((last[0].get(0), xid, Snapshot::from_text(snapshot[0].get(0))?))
    }

    /// Begins a read-only transaction in which every statement sees the same, and tells what it sees.
    pub(crate) async fn begin_snapshot(&self) -> Result<Snapshot> {
        self.prepare(SNAPSHOT).await?;
        let begin = self.run("begin isolation level repeatable read read only");
        let (begun, snapshot) = tokio::join!(biased; begin, self.query(SNAPSHOT, &[]));
        begun?;
        Snapshot::from_text(snapshot?[0].get(0))
    }

    /// Who holds a lock on the outbox that an insert would take.
    pub(crate) async fn read_holders(&self) -> Result<Vec<Holder>> {
        let rows = self.query(HOLDERS, &[]).await?;
        let holder = |row: &Row| {
            let xid = u32::try_from(row.get::<_, i64>(0));
            let xid_low = xid.map_err(|_| Error::new(ErrorKind::Bug, "a transaction id in pg_locks has 32 bits"))?;
            Ok(Holder { xid_low, pid: row.get(1) })
        };
        rows.iter().map(holder).collect()
    }

    /// What is missing in `(after, upto]`, and up to which id the answer goes. At most `rows_max` rows of
    /// a shard are looked at, and little more than `ranges_max` ranges are told.
    pub(crate) async fn read_missing(
        &self,
        (after, upto): (i64, i64),
        rows_max: i64,
        ranges_max: usize,
    ) -> Result<(Ranges, i64)> {
        let limit = i64::try_from(ranges_max).unwrap_or(i64::MAX).saturating_add(2);
        let rows = self.query(MISSING, &[&after, &upto, &rows_max, &limit]).await?;
        let mut missing = Ranges::default();
        for row in &rows {
            if let (Some(low), Some(high)) = (row.get::<_, Option<i64>>(0), row.get(1)) {
                missing.push(low, high);
            }
        }
        Ok((missing, rows.first().map_or(upto, |row| row.get(2))))
    }

    /// Whether writers should notify. Nothing is written when the flag is so already.
    pub(crate) async fn set_quiet(&self, quiet: bool) -> Result<()> {
        self.query(SET_QUIET, &[&quiet]).await.map(drop)
    }

    pub(crate) async fn read_sessions(&self, pids: &[i32]) -> Result<Vec<SessionInfo>> {
        let rows = self.query(SESSIONS, &[&pids]).await?;
        let session = |row: &Row| SessionInfo {
            pid: row.get(0),
            application_name: row.get(1),
            state: row.get(2),
            since: row.get(3),
        };
        Ok(rows.iter().map(session).collect())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("schema", &self.db.schema()).finish_non_exhaustive()
    }
}
