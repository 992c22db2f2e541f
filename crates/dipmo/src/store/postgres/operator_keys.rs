//! Operator statements on parked keys. The rules are in `operator::keys`.

use serde::Serialize;
use time::OffsetDateTime;

use super::operator::{Count, rfc3339};
use super::{Db, Tx, execute, query};
use crate::error::Result;

/// A key that waits, and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyRow {
    pub consumer: String,
    pub key: String,
    pub state: String,
    pub head_id: i64,
    pub head_state: Option<String>,
    pub awaits_version: Option<i64>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    /// Messages that wait behind the head.
    pub waiting: Count,
    #[serde(serialize_with = "rfc3339")]
    pub parked_at: OffsetDateTime,
    pub age_seconds: f64,
}

/// A parked key, locked for a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockedKey {
    pub consumer_id: i32,
    pub state: String,
    pub head_id: i64,
    pub head_state: Option<String>,
    pub awaits_version: Option<i64>,
}

// Only the worker that owns the bucket deletes the row: it alone knows that nothing waits any more.
const DRAIN: &str = "
-- operator.key_drain
update dipmo.parked_key
set state = 'DRAINING', awaits_version = null
where consumer_id = $1 and key = $2 and head_id = $3 and state = 'WAITING'";

const KEY_LIST: &str = "
-- operator.key_list
select c.name, p.key, p.state, p.head_id, w.state, p.awaits_version, w.error_code, w.error_message,
       (select count(*) from (select 1 from dipmo.inbox_work q
                              where q.consumer_id = p.consumer_id and q.key = p.key and q.state = 'PARKED'
                                and q.id <> p.head_id
                              limit 10001) capped),
       p.parked_at, extract(epoch from coalesce($5, now()) - p.parked_at)::float8
from dipmo.parked_key p
join dipmo.consumer c on c.id = p.consumer_id
left join dipmo.inbox_work w on w.id = p.head_id
where p.head_id > $1
  and ($2::text is null or c.name = $2)
  and ($3::text is null or p.key = $3)
order by p.head_id
limit $4";

// What waits behind a gap goes on as if the missing versions had been there.
const SKIP_GAP: &str = "
-- operator.key_skip_gap
insert into dipmo.inbox_version (consumer_id, key, version)
select $1, $2, min(w.aggregate_version) - 1
from dipmo.inbox_work w
where w.consumer_id = $1 and w.key = $2 and w.state = 'PARKED' and w.aggregate_version is not null
having min(w.aggregate_version) is not null
on conflict (consumer_id, key) do update set version = excluded.version
where inbox_version.version < excluded.version
returning version";

const KEY_LOCK: &str = "
-- operator.key_lock
select p.consumer_id, p.state, p.head_id, w.state, p.awaits_version
from dipmo.parked_key p
join dipmo.consumer c on c.id = p.consumer_id
left join dipmo.inbox_work w on w.id = p.head_id
where c.name = $1 and p.key = $2
for update of p";

pub(crate) async fn list(
    db: &Db,
    tx: &Tx<'_>,
    (consumer, key): (Option<&str>, Option<&str>),
    after: i64,
    limit: i64,
) -> Result<Vec<KeyRow>> {
    let rows = query(db, tx, KEY_LIST, &[&after, &consumer, &key, &limit, &db.clock().for_statement()]).await?;
    let row = |r: &tokio_postgres::Row| KeyRow {
        consumer: r.get(0),
        key: r.get(1),
        state: r.get(2),
        head_id: r.get(3),
        head_state: r.get(4),
        awaits_version: r.get(5),
        error_code: r.get(6),
        error_message: r.get(7),
        waiting: Count::of(r.get(8)),
        parked_at: r.get(9),
        age_seconds: r.get(10),
    };
    Ok(rows.iter().map(row).collect())
}

pub(crate) async fn lock(db: &Db, tx: &Tx<'_>, consumer: &str, key: &str) -> Result<Option<LockedKey>> {
    let rows = query(db, tx, KEY_LOCK, &[&consumer, &key]).await?;
    Ok(rows.first().map(|r| LockedKey {
        consumer_id: r.get(0),
        state: r.get(1),
        head_id: r.get(2),
        head_state: r.get(3),
        awaits_version: r.get(4),
    }))
}

/// Moves the key's version up to the first that is here; answers with it, if it moved.
pub(crate) async fn skip_gap(db: &Db, tx: &Tx<'_>, consumer_id: i32, key: &str) -> Result<Option<i64>> {
    Ok(query(db, tx, SKIP_GAP, &[&consumer_id, &key]).await?.first().map(|row| row.get(0)))
}

pub(crate) async fn drain(db: &Db, tx: &Tx<'_>, consumer_id: i32, key: &str, head_id: i64) -> Result<u64> {
    execute(db, tx, DRAIN, &[&consumer_id, &key, &head_id]).await
}
