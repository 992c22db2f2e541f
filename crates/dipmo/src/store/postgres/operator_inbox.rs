//! Operator statements on the inbox. The rules are in `operator::inbox`; every change here is guarded
//! by the state that was looked at.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::operator::{PAYLOAD_SHOWN_MAX, Payload, bytes, rfc3339, rfc3339_option};
use super::{Db, Tx, execute, query};
use crate::error::Result;
use crate::message::Message;

/// An open message in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InboxRow {
    pub id: i64,
    pub consumer: String,
    pub key: String,
    pub state: String,
    pub attempts: i32,
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    pub error_stage: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub message_id: Option<String>,
    pub topic: Option<String>,
    pub event_type: Option<String>,
    pub age_seconds: Option<f64>,
}

/// Everything about one message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InboxDetail {
    pub id: i64,
    pub consumer: String,
    pub state: String,
    pub source: String,
    pub message_id: String,
    pub topic: String,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    pub key: String,
    pub tenant: String,
    pub aggregate_id: Option<String>,
    pub aggregate_version: Option<i64>,
    pub event_type: Option<String>,
    pub event_version: Option<i32>,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    pub headers: Option<Value>,
    #[serde(serialize_with = "rfc3339_option")]
    pub event_time: Option<OffsetDateTime>,
    #[serde(serialize_with = "rfc3339")]
    pub received_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339_option")]
    pub processed_at: Option<OffsetDateTime>,
    pub attempts: i32,
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    pub error_stage: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub reason: Option<String>,
    /// The failed head that this message waits behind, or itself.
    pub parked_behind: Option<i64>,
    pub payload_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
}

/// An open message, locked for a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockedWork {
    pub state: String,
    pub consumer: String,
    pub consumer_id: i32,
    pub key: String,
    pub attempts: i32,
    pub head_id: Option<i64>,
}

/// A record as it was received, for another try at decoding it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRecord {
    pub id: i64,
    pub consumer: String,
    pub source: String,
    pub message_id: String,
    pub topic: String,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    pub key: String,
    pub key_bytes: Option<Bytes>,
    pub headers: Option<Map<String, Value>>,
    pub payload: Option<Bytes>,
    pub event_time: Option<OffsetDateTime>,
}

const LIST: &str = "
-- operator.inbox_list
select w.id, c.name, w.key, w.state, w.attempts, w.next_attempt_at, w.error_stage, w.error_code,
       w.error_message, i.message_id, i.topic, i.event_type,
       extract(epoch from coalesce($6, now()) - i.received_at)::float8
from dipmo.inbox_work w
join dipmo.consumer c on c.id = w.consumer_id
left join dipmo.inbox i on i.id = w.id
where w.id > $1
  and ($2::text is null or c.name = $2)
  and ($3::text is null or w.state = $3)
  and ($4::text is null or w.key = $4)
order by w.id
limit $5";

// The literal states let the planner use the small index of what is stuck, whatever else is open.
const LIST_STUCK: &str = "
-- operator.inbox_list_stuck
select w.id, c.name, w.key, w.state, w.attempts, w.next_attempt_at, w.error_stage, w.error_code,
       w.error_message, i.message_id, i.topic, i.event_type,
       extract(epoch from coalesce($6, now()) - i.received_at)::float8
from dipmo.inbox_work w
join dipmo.consumer c on c.id = w.consumer_id
left join dipmo.inbox i on i.id = w.id
where w.state in ('DEAD', 'SERDE_ERROR')
  and w.id > $1
  and ($2::text is null or c.name = $2)
  and ($3::text is null or w.state = $3)
  and ($4::text is null or w.key = $4)
order by w.id
limit $5";

const SHOW: &str = "
-- operator.inbox_show
select s.id, s.consumer, s.state, s.source, s.message_id, s.topic, s.partition_no, s.offset_no, s.key,
       s.tenant, s.aggregate_id, s.aggregate_version, s.event_type, s.event_version, s.correlation_id,
       s.causation_id, s.traceparent, s.headers, s.event_time, s.received_at, s.processed_at, s.attempts,
       s.next_attempt_at, s.error_stage, s.error_code, s.error_message, s.reason, p.head_id,
       octet_length(s.payload)::bigint, case when $2 then substring(s.payload from 1 for $3) end
from dipmo.inbox_status s
join dipmo.consumer c on c.name = s.consumer
left join dipmo.parked_key p on p.consumer_id = c.id and p.key = s.key
                            and s.state in ('RETRY', 'PARKED', 'DEAD', 'SERDE_ERROR')
where s.id = $1";

const SEEN: &str = "
-- operator.inbox_seen
select seen_at from dipmo.inbox_dedupe where key = $1";

const LOCK: &str = "
-- operator.inbox_lock
select w.state, c.name, w.consumer_id, w.key, w.attempts, p.head_id
from dipmo.inbox_work w
join dipmo.consumer c on c.id = w.consumer_id
left join dipmo.parked_key p on p.consumer_id = w.consumer_id and p.key = w.key
where w.id = $1
for update of w";

const CLOSED_STATE: &str = "
-- operator.inbox_closed_state
select state from dipmo.inbox_status where id = $1";

const RETRY: &str = "
-- operator.inbox_retry
update dipmo.inbox_work
set state = 'RETRY', attempts = 0, next_attempt_at = coalesce($3, now()), changed_at = coalesce($3, now())
where id = $1 and state = $2";

const CLOSE: &str = "
-- operator.inbox_close
with moved as (delete from dipmo.inbox_work where id = $1 and state = $2 returning id, attempts)
insert into dipmo.inbox_done (id, state, attempts, processed_at, reason)
select id, 'IGNORED', attempts, coalesce($4, now()), $3 from moved";

const STORED: &str = "
-- operator.inbox_stored
select i.id, c.name, i.source, i.message_id, i.topic, i.partition_no, i.offset_no, i.key, i.key_bytes,
       i.headers, i.payload, i.event_time
from dipmo.inbox i
join dipmo.consumer c on c.id = i.consumer_id
where i.id = $1";

const REMEMBER: &str = "
-- operator.inbox_remember
insert into dipmo.inbox_dedupe (key, seen_at) values ($1, coalesce($2, now())) on conflict do nothing";

const INSERT: &str = "
-- operator.inbox_insert
insert into dipmo.inbox (consumer_id, source, message_id, topic, partition_no, offset_no, key, key_bytes,
                         tenant, aggregate_id, aggregate_version, event_type, event_version,
                         correlation_id, causation_id, traceparent, headers, payload, event_time, received_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
        coalesce($20, now()))
returning id";

// As RECEIVED even when the key is parked: the worker that claims it puts it behind the key.
const OPEN_WORK: &str = "
-- operator.inbox_open_work
insert into dipmo.inbox_work (id, consumer_id, bucket, key, aggregate_version, state, changed_at)
values ($1, $2, (hashtextextended($3, 0) & 15)::smallint, $3, $4, 'RECEIVED', coalesce($5, now()))";

/// What a list of messages is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InboxFilter {
    pub consumer: Option<String>,
    pub state: Option<String>,
    pub key: Option<String>,
}

pub(crate) async fn list(db: &Db, tx: &Tx<'_>, filter: &InboxFilter, after: i64, limit: i64) -> Result<Vec<InboxRow>> {
    let stuck = matches!(filter.state.as_deref(), Some("DEAD" | "SERDE_ERROR"));
    let statement = if stuck { LIST_STUCK } else { LIST };
    let now = db.clock().for_statement();
    let rows = query(db, tx, statement, &[&after, &filter.consumer, &filter.state, &filter.key, &limit, &now]).await?;
    let row = |r: &tokio_postgres::Row| InboxRow {
        id: r.get(0),
        consumer: r.get(1),
        key: r.get(2),
        state: r.get(3),
        attempts: r.get(4),
        next_attempt_at: r.get(5),
        error_stage: r.get(6),
        error_code: r.get(7),
        error_message: r.get(8),
        message_id: r.get(9),
        topic: r.get(10),
        event_type: r.get(11),
        age_seconds: r.get(12),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn show(db: &Db, tx: &Tx<'_>, id: i64, reveal: bool) -> Result<Option<InboxDetail>> {
    let rows = query(db, tx, SHOW, &[&id, &reveal, &PAYLOAD_SHOWN_MAX]).await?;
    let row = |r: &tokio_postgres::Row| InboxDetail {
        id: r.get(0),
        consumer: r.get(1),
        state: r.get::<_, Option<String>>(2).unwrap_or_else(|| "UNKNOWN".to_owned()),
        source: r.get(3),
        message_id: r.get(4),
        topic: r.get(5),
        partition: r.get(6),
        offset: r.get(7),
        key: r.get(8),
        tenant: r.get(9),
        aggregate_id: r.get(10),
        aggregate_version: r.get(11),
        event_type: r.get(12),
        event_version: r.get(13),
        correlation_id: r.get(14),
        causation_id: r.get(15),
        traceparent: r.get(16),
        headers: r.get(17),
        event_time: r.get(18),
        received_at: r.get(19),
        processed_at: r.get(20),
        attempts: r.get(21),
        next_attempt_at: r.get(22),
        error_stage: r.get(23),
        error_code: r.get(24),
        error_message: r.get(25),
        reason: r.get(26),
        parked_behind: r.get(27),
        payload_bytes: r.get(28),
        payload: Payload::of(r.get(28), r.get(29)),
    };
    Ok(rows.first().map(row))
}

/// When the dedupe memory first saw the key.
pub(crate) async fn seen(db: &Db, tx: &Tx<'_>, key: Uuid) -> Result<Option<OffsetDateTime>> {
    Ok(query(db, tx, SEEN, &[&key]).await?.first().map(|row| row.get(0)))
}

pub(crate) async fn lock(db: &Db, tx: &Tx<'_>, id: i64) -> Result<Option<LockedWork>> {
    let rows = query(db, tx, LOCK, &[&id]).await?;
    Ok(rows.first().map(|r| LockedWork {
        state: r.get(0),
        consumer: r.get(1),
        consumer_id: r.get(2),
        key: r.get(3),
        attempts: r.get(4),
        head_id: r.get(5),
    }))
}

/// The state of a message that is not open; `None` when there is no such message.
pub(crate) async fn closed_state(db: &Db, tx: &Tx<'_>, id: i64) -> Result<Option<String>> {
    let rows = query(db, tx, CLOSED_STATE, &[&id]).await?;
    Ok(rows.first().map(|row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "UNKNOWN".to_owned())))
}

pub(crate) async fn retry(db: &Db, tx: &Tx<'_>, id: i64, from: &str) -> Result<u64> {
    execute(db, tx, RETRY, &[&id, &from, &db.clock().for_statement()]).await
}

/// Moves an open message to the closed ones, IGNORED with a reason.
pub(crate) async fn close(db: &Db, tx: &Tx<'_>, id: i64, from: &str, reason: &str) -> Result<u64> {
    execute(db, tx, CLOSE, &[&id, &from, &reason, &db.clock().for_statement()]).await
}

pub(crate) async fn stored(db: &Db, tx: &Tx<'_>, id: i64) -> Result<Option<StoredRecord>> {
    let rows = query(db, tx, STORED, &[&id]).await?;
    Ok(rows.first().map(|r| StoredRecord {
        id: r.get(0),
        consumer: r.get(1),
        source: r.get(2),
        message_id: r.get(3),
        topic: r.get(4),
        partition: r.get(5),
        offset: r.get(6),
        key: r.get(7),
        key_bytes: bytes(r.get(8)),
        headers: match r.get(9) {
            Some(Value::Object(headers)) => Some(headers),
            _ => None,
        },
        payload: bytes(r.get(10)),
        event_time: r.get(11),
    }))
}

/// False when the dedupe memory holds the key already.
pub(crate) async fn remember(db: &Db, tx: &Tx<'_>, key: Uuid) -> Result<bool> {
    Ok(execute(db, tx, REMEMBER, &[&key, &db.clock().for_statement()]).await? == 1)
}

/// Stores a message as newly received and opens its work; answers with its id.
pub(crate) async fn insert(db: &Db, tx: &Tx<'_>, consumer_id: i32, m: &Message) -> Result<i64> {
    let now = db.clock().for_statement();
    let headers = m.headers.clone().map(Value::Object);
    let (key_bytes, payload) = (m.key_bytes.as_deref(), m.payload.as_deref());
    let rows = query(
        db,
        tx,
        INSERT,
        &[
            &consumer_id,
            &m.source,
            &m.message_id,
            &m.topic,
            &m.partition,
            &m.offset,
            &m.key,
            &key_bytes,
            &m.tenant,
            &m.aggregate_id,
            &m.aggregate_version,
            &m.event_type,
            &m.event_version,
            &m.correlation_id,
            &m.causation_id,
            &m.traceparent,
            &headers,
            &payload,
            &m.event_time,
            &now,
        ],
    )
    .await?;
    let id: i64 = rows.first().expect("an insert that returns gives a row").get(0);
    execute(db, tx, OPEN_WORK, &[&id, &consumer_id, &m.key, &m.aggregate_version, &now]).await?;
    Ok(id)
}
