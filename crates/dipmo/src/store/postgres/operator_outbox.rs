//! Operator statements on the outbox: what is pending, what could not be sent, and its repair.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::operator::{PAYLOAD_SHOWN_MAX, Payload, rfc3339, rfc3339_option};
use super::{Db, Tx, execute, query};
use crate::error::Result;

/// A message to send that has not gone out, in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxRow {
    pub id: i64,
    pub destination: String,
    pub key: String,
    pub state: String,
    pub attempts: i32,
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub event_type: Option<String>,
    pub age_seconds: Option<f64>,
}

/// Everything about one message of the outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxDetail {
    pub id: i64,
    pub shard: i16,
    pub message_id: Uuid,
    pub destination: String,
    pub state: String,
    pub key: String,
    pub tenant: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub aggregate_version: Option<i64>,
    pub event_type: String,
    pub event_version: i32,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    pub headers: Option<Value>,
    #[serde(serialize_with = "rfc3339")]
    pub occurred_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339_option")]
    pub published_at: Option<OffsetDateTime>,
    pub attempts: i32,
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub payload_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
}

/// A message that could not be sent, locked for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockedException {
    pub state: String,
    pub shard: i16,
    pub destination: String,
    pub key: String,
    pub attempts: i32,
}

/// What a list of outbox messages is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxFilter {
    /// PENDING reads the outbox beyond the relays' cursors, any other state the exceptions.
    pub state: Option<String>,
    pub destination: Option<String>,
    pub key: Option<String>,
}

// Settled exceptions are left out unless asked for by state.
const LIST: &str = "
-- operator.outbox_list
select x.id, x.destination, x.key, x.state, x.attempts, x.next_attempt_at, x.error_code, x.error_message,
       o.event_type, extract(epoch from coalesce($6, now()) - coalesce(o.created_at, x.created_at))::float8
from dipmo.outbox_exception x
left join dipmo.outbox o on o.shard = x.shard and o.id = x.id
where x.id > $1
  and (case when $2::text is null then x.state in ('RETRY', 'PARKED', 'DEAD') else x.state = $2 end)
  and ($3::text is null or x.destination = $3)
  and ($4::text is null or x.key = $4)
order by x.id
limit $5";

// Each shard gives at most a page, from its cursor on; gaps are what the cursor has passed but not read.
const LIST_PENDING: &str = "
-- operator.outbox_list_pending
select o.id, o.destination, o.key, 'PENDING', 0, null::timestamptz, null::text, null::text, o.event_type,
       extract(epoch from coalesce($5, now()) - o.created_at)::float8
from dipmo.relay_shard s
cross join lateral (
    (select n.id, n.destination, n.key, n.event_type, n.created_at
     from dipmo.outbox n
     where n.shard = s.shard and n.id > greatest(s.cursor, $1)
       and ($2::text is null or n.destination = $2)
       and ($3::text is null or n.key = $3)
       and not exists (select 1 from dipmo.outbox_exception x where x.id = n.id)
     order by n.id
     limit $4)
    union all
    (select passed.id, passed.destination, passed.key, passed.event_type, passed.created_at
     from unnest(s.gaps) gap
     cross join lateral (
         select n.id, n.destination, n.key, n.event_type, n.created_at
         from dipmo.outbox n
         where n.shard = s.shard and n.id >= lower(gap) and n.id < upper(gap) and n.id > $1
           and ($2::text is null or n.destination = $2)
           and ($3::text is null or n.key = $3)
           and not exists (select 1 from dipmo.outbox_exception x where x.id = n.id)
         order by n.id
         limit $4) passed)
) o
order by o.id
limit $4";

// All shards are named so that the primary key (shard, id) serves a look-up by id.
const SHOW: &str = "
-- operator.outbox_show
select id, shard, message_id, destination, state, key, tenant, aggregate_type, aggregate_id,
       aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers,
       occurred_at, created_at, published_at, attempts, next_attempt_at, error_code, error_message,
       octet_length(payload)::bigint, case when $2 then substring(payload from 1 for $3) end
from dipmo.outbox_status
where id = $1 and shard = any (array(select g::smallint from generate_series(0, 47) g))";

const LOCK: &str = "
-- operator.outbox_lock
select state, shard, destination, key, attempts from dipmo.outbox_exception where id = $1 for update";

const HEAD: &str = "
-- operator.outbox_head
select min(id) from dipmo.outbox_exception
where shard = $1 and destination = $2 and key = $3 and state in ('RETRY', 'DEAD')";

const RETRY: &str = "
-- operator.outbox_retry
update dipmo.outbox_exception
set state = 'RETRY', attempts = 0, next_attempt_at = coalesce($3, now()), changed_at = coalesce($3, now())
where id = $1 and state = $2";

const DISCARD: &str = "
-- operator.outbox_discard
update dipmo.outbox_exception
set state = 'DISCARDED', next_attempt_at = null, changed_at = coalesce($3, now())
where id = $1 and state = $2";

const WAKE: &str = "
-- operator.outbox_wake
select pg_notify($1, '')";

pub(crate) async fn list(
    db: &Db,
    tx: &Tx<'_>,
    filter: &OutboxFilter,
    after: i64,
    limit: i64,
) -> Result<Vec<OutboxRow>> {
    let OutboxFilter { state, destination, key } = filter;
    let now = db.clock().for_statement();
    let rows = if state.as_deref() == Some("PENDING") {
        query(db, tx, LIST_PENDING, &[&after, destination, key, &limit, &now]).await?
    } else {
        query(db, tx, LIST, &[&after, state, destination, key, &limit, &now]).await?
    };
    let row = |r: &tokio_postgres::Row| OutboxRow {
        id: r.get(0),
        destination: r.get(1),
        key: r.get(2),
        state: r.get(3),
        attempts: r.get(4),
        next_attempt_at: r.get(5),
        error_code: r.get(6),
        error_message: r.get(7),
        event_type: r.get(8),
        age_seconds: r.get(9),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn show(db: &Db, tx: &Tx<'_>, id: i64, reveal: bool) -> Result<Option<OutboxDetail>> {
    let rows = query(db, tx, SHOW, &[&id, &reveal, &PAYLOAD_SHOWN_MAX]).await?;
    let row = |r: &tokio_postgres::Row| OutboxDetail {
        id: r.get(0),
        shard: r.get(1),
        message_id: r.get(2),
        destination: r.get(3),
        state: r.get(4),
        key: r.get(5),
        tenant: r.get(6),
        aggregate_type: r.get(7),
        aggregate_id: r.get(8),
        aggregate_version: r.get(9),
        event_type: r.get(10),
        event_version: r.get(11),
        correlation_id: r.get(12),
        causation_id: r.get(13),
        traceparent: r.get(14),
        headers: r.get(15),
        occurred_at: r.get(16),
        created_at: r.get(17),
        published_at: r.get(18),
        attempts: r.get(19),
        next_attempt_at: r.get(20),
        error_code: r.get(21),
        error_message: r.get(22),
        payload_bytes: r.get(23),
        payload: Payload::of(r.get(23), r.get(24)),
    };
    Ok(rows.first().map(row))
}

pub(crate) async fn lock(db: &Db, tx: &Tx<'_>, id: i64) -> Result<Option<LockedException>> {
    let rows = query(db, tx, LOCK, &[&id]).await?;
    Ok(rows.first().map(|r| LockedException {
        state: r.get(0),
        shard: r.get(1),
        destination: r.get(2),
        key: r.get(3),
        attempts: r.get(4),
    }))
}

/// What the parked messages of the key wait behind.
pub(crate) async fn head(db: &Db, tx: &Tx<'_>, of: &LockedException) -> Result<Option<i64>> {
    let rows = query(db, tx, HEAD, &[&of.shard, &of.destination, &of.key]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

pub(crate) async fn retry(db: &Db, tx: &Tx<'_>, id: i64, from: &str) -> Result<u64> {
    execute(db, tx, RETRY, &[&id, &from, &db.clock().for_statement()]).await
}

pub(crate) async fn discard(db: &Db, tx: &Tx<'_>, id: i64, from: &str) -> Result<u64> {
    execute(db, tx, DISCARD, &[&id, &from, &db.clock().for_statement()]).await
}

/// Tells the relays, when the transaction commits, that there is something to look at.
pub(crate) async fn wake(db: &Db, tx: &Tx<'_>) -> Result<()> {
    query(db, tx, WAKE, &[&format!("{}_outbox", db.schema())]).await?;
    Ok(())
}
