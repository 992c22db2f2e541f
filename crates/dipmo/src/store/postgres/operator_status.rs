//! The figures that operators and gauges see. Every count is capped and every statement reads through
//! a small index, so that asking costs the same with ten messages or ten million.

use serde::Serialize;

use super::operator::Count;
use super::{Db, Tx, query};
use crate::error::Result;

/// What is open at a consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConsumerStatus {
    pub consumer: String,
    pub received: Count,
    pub retry: Count,
    pub parked: Count,
    pub dead: Count,
    pub serde_error: Count,
    pub parked_keys: Count,
    /// Age of the oldest message that can still move by itself (RECEIVED or RETRY).
    pub oldest_age_seconds: Option<f64>,
}

/// What a lane of the outbox has before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaneStatus {
    pub lane: String,
    pub pending: Count,
    pub oldest_age_seconds: Option<f64>,
    /// Shards whose lease nobody holds.
    pub shards_unowned: i64,
    /// From where its rows are read: `poll`, `wal` or `verify`.
    pub reader: Option<String>,
    /// WAL written since what the slot's reader has confirmed, where it is `wal`.
    pub wal_behind_bytes: Option<i64>,
}

/// How many messages of a lane could not be sent at once, by state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExceptionStatus {
    pub lane: String,
    pub state: String,
    pub count: Count,
}

/// A node and a role it plays.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatus {
    pub name: String,
    pub role: String,
    pub up_seconds: f64,
    pub heartbeat_age_seconds: f64,
}

/// How many instances of a process are where.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessStatus {
    #[serde(rename = "type")]
    pub process_type: String,
    pub status: String,
    pub state: String,
    pub count: Count,
}

// One subquery a state, with the state as a literal, so that each uses its own partial index.
const ACTIVE_SAGAS: &str = "
-- operator.active_sagas
select d.name, (select count(*) from dipmo.process p
                where p.type = d.name and p.status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED'))
from dipmo.saga_definition d where d.current";

const DEAD_LETTERS: &str = "
-- operator.dead_letters_count
select count(*) from dipmo.command_dlq";

const CONSUMERS: &str = "
-- operator.status_consumers
select c.name,
       (select count(*) from (select 1 from dipmo.inbox_work w
            where w.consumer_id = c.id and w.state = 'RECEIVED' limit 10001) n),
       (select count(*) from (select 1 from dipmo.inbox_work w
            where w.consumer_id = c.id and w.state = 'RETRY' limit 10001) n),
       (select count(*) from (select 1 from dipmo.inbox_work w
            where w.consumer_id = c.id and w.state = 'PARKED' limit 10001) n),
       (select count(*) from (select 1 from dipmo.inbox_work w
            where w.consumer_id = c.id and w.state = 'DEAD' limit 10001) n),
       (select count(*) from (select 1 from dipmo.inbox_work w
            where w.consumer_id = c.id and w.state = 'SERDE_ERROR' limit 10001) n),
       (select count(*) from (select 1 from dipmo.parked_key p where p.consumer_id = c.id limit 10001) n),
       (select extract(epoch from coalesce($1, now()) - min(i.received_at))::float8
        from dipmo.inbox i
        where i.id in (
            (select min(first.id)
             from generate_series(0, 15) b
             cross join lateral (select w.id from dipmo.inbox_work w
                                 where w.consumer_id = c.id and w.bucket = b and w.state = 'RECEIVED'
                                 order by w.id limit 1) first),
            (select min(n.id) from (select w.id from dipmo.inbox_work w
                                    where w.consumer_id = c.id and w.state = 'RETRY' limit 10001) n)))
from dipmo.consumer c
order by c.name";

// A gap is looked up with a limit of its own: the planner may then not turn the join around and read the
// whole outbox to find nothing.
const LANES: &str = "
-- operator.status_lanes
select s.lane, sum(pending.n)::bigint,
       extract(epoch from coalesce($1, now()) - min(oldest.created_at))::float8,
       count(*) filter (where s.owner is null or s.until is null or s.until < coalesce($1, now())),
       (select l.reader from dipmo.relay_lane l where l.lane = s.lane),
       -- A standby cannot say how far its WAL is written.
       (select case when not pg_is_in_recovery()
                    then pg_wal_lsn_diff(pg_current_wal_lsn(), slot.confirmed_flush_lsn)::bigint end
        from dipmo.relay_lane l
        join pg_replication_slots slot on slot.slot_name = l.slot and slot.database = current_database()
        where l.lane = s.lane and l.reader = 'wal')
from dipmo.relay_shard s
cross join lateral (
    select (select count(*) from (select 1 from dipmo.outbox o
                                  where o.shard = s.shard and o.id > s.cursor limit 10001) n)
         + (select count(*) from (select 1 from unnest(s.gaps) gap
                                  cross join lateral (
                                      select 1 from dipmo.outbox o
                                      where o.shard = s.shard and o.id >= lower(gap) and o.id < upper(gap)
                                      limit 10001) passed
                                  limit 10001) n) as n) pending
left join lateral (
    select min(first.created_at) as created_at from (
        (select o.created_at from dipmo.outbox o
         where o.shard = s.shard and o.id > s.cursor order by o.id limit 1)
        union all
        (select passed.created_at from unnest(s.gaps) gap
         cross join lateral (
             select o.created_at from dipmo.outbox o
             where o.shard = s.shard and o.id >= lower(gap) and o.id < upper(gap)
             order by o.id limit 1) passed)) first) oldest on true
group by s.lane
order by s.lane";

const EXCEPTIONS: &str = "
-- operator.status_exceptions
select s.lane, x.state, count(*)
from (select shard, state from dipmo.outbox_exception
      where state in ('RETRY', 'PARKED', 'DEAD') limit 100001) x
join dipmo.relay_shard s on s.shard = x.shard
group by s.lane, x.state
order by s.lane, x.state";

const NODES: &str = "
-- operator.status_nodes
select name, role, extract(epoch from coalesce($1, now()) - started_at)::float8,
       extract(epoch from coalesce($1, now()) - seen_at)::float8
from dipmo.node
order by role, name
limit 500";

// The types are found by hopping along the unique index, open instances through the index of open ones.
const PROCESSES: &str = "
-- operator.status_processes
with recursive types as (
    (select type from dipmo.process order by type limit 1)
    union all
    select (select p.type from dipmo.process p where p.type > t.type order by p.type limit 1)
    from types t
    where t.type is not null
)
select t.type, n.status, n.state, count(*)
from types t
cross join lateral (
    (select p.status, p.state from dipmo.process p
     where p.type = t.type and p.status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED') limit 10001)
    union all
    (select p.status, p.state from dipmo.process p
     where p.type = t.type and p.status in ('SUCCEEDED', 'FAILED', 'COMPENSATED') limit 10001)) n
where t.type is not null
group by t.type, n.status, n.state
order by t.type, n.status, n.state";

pub(crate) async fn consumers(db: &Db, tx: &Tx<'_>) -> Result<Vec<ConsumerStatus>> {
    let rows = query(db, tx, CONSUMERS, &[&db.clock().for_statement()]).await?;
    let row = |r: &tokio_postgres::Row| ConsumerStatus {
        consumer: r.get(0),
        received: Count::of(r.get(1)),
        retry: Count::of(r.get(2)),
        parked: Count::of(r.get(3)),
        dead: Count::of(r.get(4)),
        serde_error: Count::of(r.get(5)),
        parked_keys: Count::of(r.get(6)),
        oldest_age_seconds: r.get(7),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn lanes(db: &Db, tx: &Tx<'_>) -> Result<Vec<LaneStatus>> {
    let rows = query(db, tx, LANES, &[&db.clock().for_statement()]).await?;
    let row = |r: &tokio_postgres::Row| LaneStatus {
        lane: r.get(0),
        pending: Count::of(r.get(1)),
        oldest_age_seconds: r.get(2),
        shards_unowned: r.get(3),
        reader: r.get(4),
        wal_behind_bytes: r.get(5),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn exceptions(db: &Db, tx: &Tx<'_>) -> Result<Vec<ExceptionStatus>> {
    let rows = query(db, tx, EXCEPTIONS, &[]).await?;
    let row = |r: &tokio_postgres::Row| ExceptionStatus { lane: r.get(0), state: r.get(1), count: Count::of(r.get(2)) };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn nodes(db: &Db, tx: &Tx<'_>) -> Result<Vec<NodeStatus>> {
    let rows = query(db, tx, NODES, &[&db.clock().for_statement()]).await?;
    let row = |r: &tokio_postgres::Row| NodeStatus {
        name: r.get(0),
        role: r.get(1),
        up_seconds: r.get(2),
        heartbeat_age_seconds: r.get(3),
    };
    Ok(rows.iter().map(row).collect())
}

/// How many sagas of each definition are under way, and how many commands were given up.
pub(crate) async fn sagas(db: &Db, tx: &Tx<'_>) -> Result<(Vec<(String, i64)>, i64)> {
    let active = query(db, tx, ACTIVE_SAGAS, &[]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    let dead_letters = query(db, tx, DEAD_LETTERS, &[]).await?[0].get(0);
    Ok((active, dead_letters))
}

pub(crate) async fn processes(db: &Db, tx: &Tx<'_>) -> Result<Vec<ProcessStatus>> {
    let rows = query(db, tx, PROCESSES, &[]).await?;
    let row = |r: &tokio_postgres::Row| ProcessStatus {
        process_type: r.get(0),
        status: r.get(1),
        state: r.get(2),
        count: Count::of(r.get(3)),
    };
    Ok(rows.iter().map(row).collect())
}
