//! The rows a relay reads, and the one transaction that says what became of them.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::column;
use super::relay::Link;
use super::relay_out::OutRow;
use crate::error::Result;

// The columns of a row to send are read by position in [`OutRow`].
const FRESH: &str = "
-- relay.fresh
select o.shard, o.id, o.message_id, o.destination, o.key, o.tenant, o.aggregate_type, o.aggregate_id,
       o.aggregate_version, o.event_type, o.event_version, o.correlation_id, o.causation_id, o.traceparent,
       o.headers::text, o.payload, o.occurred_at, o.created_at
from unnest($1::smallint[], $2::bigint[]) as s (shard, after)
cross join lateral (
    select r.shard, r.id, r.message_id, r.destination, r.key, r.tenant, r.aggregate_type, r.aggregate_id,
           r.aggregate_version, r.event_type, r.event_version, r.correlation_id, r.causation_id, r.traceparent,
           r.headers, r.payload, r.occurred_at, r.created_at
    from dipmo.outbox r
    where r.shard = s.shard and r.id > s.after and r.id <= $3
    order by r.id
    limit $4) o";

const FRESH_IDS: &str = "
-- relay.fresh_ids
select o.shard, o.id, o.message_id, o.event_type, o.queue
from unnest($1::smallint[], $2::bigint[]) as s (shard, after)
cross join lateral (
    select r.shard, r.id, r.message_id, r.event_type, nullif(r.destination, 'INTERNAL') as queue
    from dipmo.outbox r
    where r.shard = s.shard and r.id > s.after and r.id <= $3
    order by r.id
    limit $4) o";

const LATE: &str = "
-- relay.late
select o.shard, o.id, o.message_id, o.destination, o.key, o.tenant, o.aggregate_type, o.aggregate_id,
       o.aggregate_version, o.event_type, o.event_version, o.correlation_id, o.causation_id, o.traceparent,
       o.headers::text, o.payload, o.occurred_at, o.created_at
from unnest($1::smallint[], $2::bigint[], $3::bigint[]) as g (shard, low, high)
cross join lateral (
    select r.shard, r.id, r.message_id, r.destination, r.key, r.tenant, r.aggregate_type, r.aggregate_id,
           r.aggregate_version, r.event_type, r.event_version, r.correlation_id, r.causation_id, r.traceparent,
           r.headers, r.payload, r.occurred_at, r.created_at
    from dipmo.outbox r
    where r.shard = g.shard and r.id >= g.low and r.id < g.high
    order by r.id) o
limit $4";

const LATE_IDS: &str = "
-- relay.late_ids
select o.shard, o.id, o.message_id, o.event_type, o.queue
from unnest($1::smallint[], $2::bigint[], $3::bigint[]) as g (shard, low, high)
cross join lateral (
    select r.shard, r.id, r.message_id, r.event_type, nullif(r.destination, 'INTERNAL') as queue
    from dipmo.outbox r
    where r.shard = g.shard and r.id >= g.low and r.id < g.high
    order by r.id) o
limit $4";

const BY_ID: &str = "
-- relay.by_id
select r.shard, r.id, r.message_id, r.destination, r.key, r.tenant, r.aggregate_type, r.aggregate_id,
       r.aggregate_version, r.event_type, r.event_version, r.correlation_id, r.causation_id, r.traceparent,
       r.headers::text, r.payload, r.occurred_at, r.created_at
from unnest($1::smallint[], $2::bigint[]) as s (shard, id)
join dipmo.outbox r on r.shard = s.shard and r.id = s.id";

// The fence: zero rows for a shard mean that another relay owns it, and nothing of it is written.
// The cursor is compared too, so that not even this relay can move one back.
const SETTLE: &str = "
-- relay.settle
with moved as (
    update dipmo.relay_shard s
    set cursor = g.cursor, gaps = coalesce(g.gaps::int8multirange, s.gaps), changed_at = coalesce($9, now()),
        stalled = 0
    from unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::text[]) as g (shard, epoch, cursor, gaps)
    where s.shard = g.shard and s.epoch = g.epoch and s.cursor <= g.cursor
    returning s.shard
), logged as (
    insert into dipmo.relay_batch (shard, from_id, to_id, sent, at)
    select b.shard, b.from_id, b.to_id, b.sent, coalesce($9, now())
    from unnest($5::smallint[], $6::bigint[], $7::bigint[], $8::integer[]) as b (shard, from_id, to_id, sent)
    where b.shard in (select m.shard from moved m)
)
select m.shard from moved m";

const OPEN_EXCEPTIONS: &str = "
-- relay.open_exceptions
insert into dipmo.outbox_exception
    (id, shard, destination, key, state, attempts, next_attempt_at, error_code, error_message, created_at, changed_at)
select x.id, x.shard, x.destination, x.key, x.state, x.attempts, coalesce($10, now()) + x.delay * interval '1 second',
       x.code, x.message, coalesce($10, now()), coalesce($10, now())
from unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::float8[],
            $8::text[], $9::text[])
    as x (id, shard, destination, key, state, attempts, delay, code, message)
on conflict (id) do nothing";

// Guarded by the state that was seen: an operator may have acted while the row was under way.
const CHANGE_EXCEPTIONS: &str = "
-- relay.change_exceptions
update dipmo.outbox_exception e
set state = x.state, attempts = x.attempts, next_attempt_at = coalesce($8, now()) + x.delay * interval '1 second',
    error_code = coalesce(x.code, e.error_code), error_message = coalesce(x.message, e.error_message),
    changed_at = coalesce($8, now())
from unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::float8[], $6::text[], $7::text[])
    as x (id, was, state, attempts, delay, code, message)
where e.id = x.id and e.state = x.was";

// One row a key that is open: its first message. A loose scan of the index, since a key may have many.
const OPEN_KEYS: &str = "
-- relay.open_keys
with recursive head as (
    select f.shard, f.destination, f.key, f.id, f.state, f.attempts, f.next_attempt_at
    from unnest($1::smallint[]) as s (shard)
    cross join lateral (
        select x.shard, x.destination, x.key, x.id, x.state, x.attempts, x.next_attempt_at
        from dipmo.outbox_exception x
        where x.shard = s.shard and x.state in ('RETRY', 'PARKED', 'DEAD')
        order by x.destination, x.key, x.id
        limit 1) f
    union all
    select n.shard, n.destination, n.key, n.id, n.state, n.attempts, n.next_attempt_at
    from head h
    cross join lateral (
        select x.shard, x.destination, x.key, x.id, x.state, x.attempts, x.next_attempt_at
        from dipmo.outbox_exception x
        where x.shard = h.shard and (x.destination, x.key) > (h.destination, h.key)
          and x.state in ('RETRY', 'PARKED', 'DEAD')
        order by x.destination, x.key, x.id
        limit 1) n
)
select shard, destination, key, id, state, attempts,
       coalesce(next_attempt_at <= coalesce($3, now()), false) as due
from head
limit $2";

const PARKED: &str = "
-- relay.parked
select x.shard, x.id, x.state, x.attempts, x.destination, x.key
from unnest($1::smallint[], $2::text[], $3::text[]) as k (shard, destination, key)
cross join lateral (
    select e.shard, e.id, e.state, e.attempts, e.destination, e.key
    from dipmo.outbox_exception e
    where e.shard = k.shard and e.destination = k.destination and e.key = k.key
      and e.state in ('RETRY', 'PARKED', 'DEAD')
    order by e.id
    limit $4) x";

/// What a shard's cursor and gaps become.
#[derive(Debug, Clone)]
pub(crate) struct ShardMove {
    pub(crate) shard: i16,
    pub(crate) epoch: i64,
    pub(crate) cursor: i64,
    /// `None` leaves the gaps as they are stored.
    pub(crate) gaps: Option<String>,
}

/// What was sent of a shard at once; its time is the publish time of the rows in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLog {
    pub(crate) shard: i16,
    pub(crate) from_id: i64,
    pub(crate) to_id: i64,
    pub(crate) sent: i32,
}

/// A row that could not be sent, or waits behind one.
#[derive(Debug, Clone)]
pub(crate) struct ExceptionRow {
    pub(crate) id: i64,
    pub(crate) shard: i16,
    pub(crate) destination: String,
    pub(crate) key: String,
    /// The state that was read; `None` for a row that has been an exception just now.
    pub(crate) was: Option<&'static str>,
    pub(crate) state: &'static str,
    pub(crate) attempts: i32,
    pub(crate) delay: Option<Duration>,
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
}

/// The first message of a key that is open.
#[derive(Debug, Clone)]
pub(crate) struct OpenHead {
    pub(crate) shard: i16,
    pub(crate) destination: String,
    pub(crate) key: String,
    pub(crate) id: i64,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    pub(crate) due: bool,
}

/// A message of a key that is open.
#[derive(Debug, Clone)]
pub(crate) struct OpenRow {
    pub(crate) shard: i16,
    pub(crate) id: i64,
    pub(crate) state: String,
    pub(crate) attempts: i32,
    destination: String,
    key: String,
}

impl OpenRow {
    pub(crate) fn is_of(&self, head: &OpenHead) -> bool {
        self.shard == head.shard && self.key == head.key && self.destination == head.destination
    }
}

/// What is read of a row that stays in the database.
#[derive(Debug, Clone)]
pub(crate) struct IdRow {
    pub(crate) shard: i16,
    pub(crate) id: i64,
    pub(crate) message_id: Uuid,
    pub(crate) event_type: String,
    /// As `INTERNAL:<queue>`, for a message to a queue.
    pub(crate) queue: Option<String>,
}

impl IdRow {
    fn read(row: &Row) -> Self {
        let (shard, id, message_id) = (row.get(0), row.get(1), row.get(2));
        Self { shard, id, message_id, event_type: row.get(3), queue: row.get(4) }
    }
}

/// Where to read on: shards and the ids after which their new rows begin.
pub(crate) type Cursors = (Vec<i16>, Vec<i64>);
/// Ranges to look at again: shard, low, high.
pub(crate) type LateRanges = (Vec<i16>, Vec<i64>, Vec<i64>);

impl Link {
    pub(crate) async fn read_fresh(&self, (shards, after): &Cursors, upto: i64, limit: i64) -> Result<Vec<OutRow>> {
        Ok(self.query(FRESH, &[shards, after, &upto, &limit]).await?.into_iter().map(OutRow::Table).collect())
    }

    pub(crate) async fn read_fresh_ids(&self, cursors: &Cursors, upto: i64, limit: i64) -> Result<Vec<IdRow>> {
        let rows = self.query(FRESH_IDS, &[&cursors.0, &cursors.1, &upto, &limit]).await?;
        Ok(rows.iter().map(IdRow::read).collect())
    }

    pub(crate) async fn read_late(&self, (shards, low, high): &LateRanges, limit: i64) -> Result<Vec<OutRow>> {
        Ok(self.query(LATE, &[shards, low, high, &limit]).await?.into_iter().map(OutRow::Table).collect())
    }

    pub(crate) async fn read_late_ids(&self, ranges: &LateRanges, limit: i64) -> Result<Vec<IdRow>> {
        let rows = self.query(LATE_IDS, &[&ranges.0, &ranges.1, &ranges.2, &limit]).await?;
        Ok(rows.iter().map(IdRow::read).collect())
    }

    pub(crate) async fn read_by_id(&self, ids: &[(i16, i64)]) -> Result<Vec<OutRow>> {
        let (shards, ids): (Vec<i16>, Vec<i64>) = ids.iter().copied().unzip();
        Ok(self.query(BY_ID, &[&shards, &ids]).await?.into_iter().map(OutRow::Table).collect())
    }

    pub(crate) async fn begin(&self) -> Result<()> {
        self.run("begin").await
    }

    pub(crate) async fn commit(&self) -> Result<()> {
        self.run("commit").await
    }

    /// Moves cursors and gaps and logs the batches, shard by shard under its epoch. Returns the shards
    /// that moved; the others are lost.
    pub(crate) async fn settle(&self, moves: &[ShardMove], logs: &[BatchLog]) -> Result<Vec<i16>> {
        let params: [&(dyn ToSql + Sync); 9] = [
            &column(moves, |m| m.shard),
            &column(moves, |m| m.epoch),
            &column(moves, |m| m.cursor),
            &column(moves, |m| m.gaps.as_deref()),
            &column(logs, |l| l.shard),
            &column(logs, |l| l.from_id),
            &column(logs, |l| l.to_id),
            &column(logs, |l| l.sent),
            &self.db().clock().for_statement(),
        ];
        Ok(self.query(SETTLE, &params).await?.iter().map(|row| row.get(0)).collect())
    }

    /// Opens and changes exceptions; part of the transaction that [`Link::settle`] is in.
    pub(crate) async fn write_exceptions(&self, rows: &[ExceptionRow]) -> Result<()> {
        let (opened, changed): (Vec<&ExceptionRow>, Vec<&ExceptionRow>) = rows.iter().partition(|x| x.was.is_none());
        let now = self.db().clock().for_statement();
        let delay = |x: &&ExceptionRow| x.delay.map(|delay| delay.as_secs_f64());
        if !opened.is_empty() {
            let params: [&(dyn ToSql + Sync); 10] = [
                &column(&opened, |x| x.id),
                &column(&opened, |x| x.shard),
                &column(&opened, |x| &*x.destination),
                &column(&opened, |x| &*x.key),
                &column(&opened, |x| x.state),
                &column(&opened, |x| x.attempts),
                &opened.iter().map(delay).collect::<Vec<_>>(),
                &column(&opened, |x| x.code.as_deref()),
                &column(&opened, |x| x.message.as_deref()),
                &now,
            ];
            self.query(OPEN_EXCEPTIONS, &params).await?;
        }
        if !changed.is_empty() {
            let params: [&(dyn ToSql + Sync); 8] = [
                &column(&changed, |x| x.id),
                &column(&changed, |x| x.was),
                &column(&changed, |x| x.state),
                &column(&changed, |x| x.attempts),
                &changed.iter().map(delay).collect::<Vec<_>>(),
                &column(&changed, |x| x.code.as_deref()),
                &column(&changed, |x| x.message.as_deref()),
                &now,
            ];
            self.query(CHANGE_EXCEPTIONS, &params).await?;
        }
        Ok(())
    }

    /// The first open message of each open key, at most `limit`.
    pub(crate) async fn read_open_keys(&self, shards: &[i16], limit: i64) -> Result<Vec<OpenHead>> {
        let rows = self.query(OPEN_KEYS, &[&shards, &limit, &self.db().clock().for_statement()]).await?;
        let head = |row: &Row| OpenHead {
            shard: row.get(0),
            destination: row.get(1),
            key: row.get(2),
            id: row.get(3),
            state: row.get(4),
            attempts: row.get(5),
            due: row.get(6),
        };
        Ok(rows.iter().map(head).collect())
    }

    /// The open messages of the keys in order, at most `limit` of each, with their states.
    pub(crate) async fn read_parked(&self, keys: &[&OpenHead], limit: i64) -> Result<Vec<OpenRow>> {
        let shards = column(keys, |k| k.shard);
        let (destinations, names) = (column(keys, |k| &*k.destination), column(keys, |k| &*k.key));
        let rows = self.query(PARKED, &[&shards, &destinations, &names, &limit]).await?;
        let open = |row: &Row| OpenRow {
            shard: row.get(0),
            id: row.get(1),
            state: row.get(2),
            attempts: row.get(3),
            destination: row.get(4),
            key: row.get(5),
        };
        Ok(rows.iter().map(open).collect())
    }
}
