//! Takes up open work for the buckets held. Every claim is a transaction of its own that counts the
//! attempt: a message that kills its process must still run out of attempts.

use std::collections::HashMap;

use super::columns::column;
use super::inbox::{PgInbox, message};
use super::lease::buckets_of;
use super::settle::check_fence;
use super::{Tx, execute, failed, process, query};
use crate::error::Result;
use crate::inbox::{Fence, FiredTimer, InboxState};
use crate::process::Instance;
use crate::store::{Claimed, ClaimedMessage, Work};

const FIND_RECEIVED: &str = "
-- claim.find_received
select w.id, w.attempts,
    -- The version that a parked key waits for is let through.
    k.key is not null and (k.awaits_version = w.aggregate_version) is not true as behind,
    k.key is not null as parked
from unnest($2::integer[]) as b (bucket), lateral (
    select id, key, attempts, aggregate_version from dipmo.inbox_work
    where consumer_id = $1 and bucket = b.bucket and state = 'RECEIVED'
    order by id limit $3) w
left join dipmo.parked_key k on k.consumer_id = $1 and k.key = w.key
order by w.id limit $3";

const PUT_BEHIND: &str = "
-- claim.put_behind
update dipmo.inbox_work set state = 'PARKED', changed_at = coalesce($2, now())
where id = any($1) and state = 'RECEIVED'";

const COUNT: &str = "
-- claim.count
update dipmo.inbox_work set attempts = attempts + 1 where id = any($1) returning id, attempts, bucket::integer";

const COUNT_DUE: &str = "
-- claim.count_due
update dipmo.inbox_work
-- Due before its last outcome, which no outcome says: the mark of a claim that has had none since.
set attempts = attempts + 1, next_attempt_at = changed_at - interval '1 second'
where id = any($1) returning id, attempts, bucket::integer";

const FIND_DUE: &str = "
-- claim.find_due
select w.id, w.next_attempt_at < w.changed_at as claimed_before, k.head_id is not distinct from w.id as is_head
from unnest($2::integer[]) as b (bucket), lateral (
    select id, key, next_attempt_at, changed_at from dipmo.inbox_work
    where consumer_id = $1 and bucket = b.bucket and state = 'RETRY' and next_attempt_at <= coalesce($4, now())
    order by next_attempt_at limit $3) w
left join dipmo.parked_key k on k.consumer_id = $1 and k.key = w.key
order by w.next_attempt_at limit $3";

const FIND_DRAINING: &str = "
-- claim.find_draining
select w.id, w.attempts
from (select key from dipmo.parked_key
      where consumer_id = $1 and bucket = any($2::integer[]::smallint[]) and state = 'DRAINING' limit $3) k,
lateral (
    select id, attempts, aggregate_version from dipmo.inbox_work
    where consumer_id = $1 and key = k.key and state = 'PARKED'
    order by id limit $3) w
order by w.id limit $3";

/// For consumers that check versions: what waited for a gap is taken in the order of versions.
const FIND_DRAINING_BY_VERSION: &str = "
-- claim.find_draining_by_version
select w.id, w.attempts
from (select key from dipmo.parked_key
      where consumer_id = $1 and bucket = any($2::integer[]::smallint[]) and state = 'DRAINING' limit $3) k,
lateral (
    select id, attempts, aggregate_version from dipmo.inbox_work
    where consumer_id = $1 and key = k.key and state = 'PARKED'
    order by aggregate_version nulls first, id limit $3) w
order by w.aggregate_version nulls first, w.id limit $3";

const LOCK_DRAINING: &str = "
-- claim.lock_draining
select key from dipmo.parked_key
where consumer_id = $1 and bucket = any($2::integer[]::smallint[]) and state = 'DRAINING'
order by key
-- Waits for arrivals that are being parked behind the key, so that the next statement sees them.
for update";

const FREE_DRAINED: &str = "
-- claim.free_drained
delete from dipmo.parked_key k
where k.consumer_id = $1 and k.key = any($2) and k.state = 'DRAINING'
  and not exists (select 1 from dipmo.inbox_work w
                  where w.consumer_id = $1 and w.key = k.key and w.state = 'PARKED')";

const FETCH: &str = "
-- claim.fetch
select id, source, message_id, topic, partition_no, offset_no, key, key_bytes, tenant, aggregate_id,
    aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers,
    payload, event_time
from dipmo.inbox where id = any($1)";

const PROBE: &str = "
-- claim.probe
select
    exists (select 1 from unnest($2::integer[]) b, lateral (
        select 1 from dipmo.inbox_work where consumer_id = $1 and bucket = b and state = 'RECEIVED' limit 1) w),
    exists (select 1 from unnest($2::integer[]) b, lateral (
        select 1 from dipmo.inbox_work where consumer_id = $1 and bucket = b and state = 'RETRY'
            and next_attempt_at <= coalesce($3, now()) limit 1) w),
    exists (select 1 from dipmo.parked_key
        where consumer_id = $1 and bucket = any($2::integer[]::smallint[]) and state = 'DRAINING'),
    exists (select 1 from unnest($2::integer[]) b, lateral (
        select 1 from dipmo.timer where consumer_id = $1 and bucket = b and due_at <= coalesce($3, now()) limit 1) t)";

pub(super) async fn probe(inbox: &PgInbox, fence: &Fence) -> Result<Work> {
    let client = inbox.db().client().await?;
    let statement = client.prepare_cached(&inbox.db().sql(PROBE)).await.map_err(|e| failed(PROBE, e))?;
    let now = inbox.db().clock().for_statement();
    let row = client
        .query_one(&statement, &[&inbox.consumer_id(), &buckets_of(fence)?, &now])
        .await
        .map_err(|e| failed(PROBE, e))?;
    Ok(Work { received: row.get(0), due: row.get(1), draining: row.get(2), timers: row.get(3) })
}

pub(super) async fn received(inbox: &PgInbox, fence: &Fence, max: usize) -> Result<Claimed> {
    let buckets = buckets_of(fence)?;
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    check_fence(inbox.db(), &tx, fence).await?;
    let found = query(inbox.db(), &tx, FIND_RECEIVED, &[&inbox.consumer_id(), &buckets, &(max as i64)]).await?;
    let (behind, free): (Vec<_>, Vec<_>) = found.iter().partition(|row| row.get::<_, bool>(2));
    let behind: Vec<i64> = behind.iter().map(|row| row.get(0)).collect();
    if !behind.is_empty() {
        execute(inbox.db(), &tx, PUT_BEHIND, &[&behind, &inbox.db().clock().for_statement()]).await?;
    }
    let fresh = free.iter().take_while(|row| row.get::<_, i32>(1) == 0).count();
    let taken = alone_or(fresh, &free);
    let ids = column(taken, |row| row.get::<_, i64>(0));
    let parked: HashMap<i64, bool> = taken.iter().map(|row| (row.get(0), row.get(3))).collect();
    let mut claimed = fetch(inbox, &tx, &ids, InboxState::Received).await?;
    for work in &mut claimed.work {
        work.is_head = parked.get(&work.message.inbox_id).copied().unwrap_or(false);
    }
    claimed.parked = behind.len();
    tx.commit().await?;
    Ok(claimed)
}

pub(super) async fn due(inbox: &PgInbox, fence: &Fence, max: usize) -> Result<Claimed> {
    let buckets = buckets_of(fence)?;
    let now = inbox.db().clock().for_statement();
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    check_fence(inbox.db(), &tx, fence).await?;
    let found = query(inbox.db(), &tx, FIND_DUE, &[&inbox.consumer_id(), &buckets, &(max as i64), &now]).await?;
    let heads: HashMap<i64, bool> = found.iter().map(|row| (row.get(0), row.get(2))).collect();
    let fresh = found.iter().take_while(|row| !row.get::<_, bool>(1)).count();
    let ids = column(alone_or(fresh, &found), |row| row.get::<_, i64>(0));
    let mut claimed = fetch(inbox, &tx, &ids, InboxState::Retry).await?;
    for work in &mut claimed.work {
        work.is_head = heads[&work.message.inbox_id];
    }
    tx.commit().await?;
    Ok(claimed)
}

pub(super) async fn draining(inbox: &PgInbox, fence: &Fence, max: usize) -> Result<Claimed> {
    let buckets = buckets_of(fence)?;
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    check_fence(inbox.db(), &tx, fence).await?;
    let find = if inbox.checks_versions() { FIND_DRAINING_BY_VERSION } else { FIND_DRAINING };
    let found = query(inbox.db(), &tx, find, &[&inbox.consumer_id(), &buckets, &(max as i64)]).await?;
    let fresh = found.iter().take_while(|row| row.get::<_, i32>(1) == 0).count();
    let ids = column(alone_or(fresh, &found), |row| row.get::<_, i64>(0));
    let claimed = fetch(inbox, &tx, &ids, InboxState::Parked).await?;
    tx.commit().await?;
    Ok(claimed)
}

/// What was claimed before and is still here has seen its process die. It is tried alone, so that one
/// message that kills its process does not use up the attempts of the others.
fn alone_or<T>(fresh: usize, found: &[T]) -> &[T] {
    &found[..fresh.max(found.len().min(1))]
}

/// Counts the attempts and reads the messages, in the order given.
async fn fetch(inbox: &PgInbox, tx: &Tx<'_>, ids: &[i64], state: InboxState) -> Result<Claimed> {
    if ids.is_empty() {
        return Ok(Claimed::default());
    }
    let count = if state == InboxState::Retry { COUNT_DUE } else { COUNT };
    let counted = query(inbox.db(), tx, count, &[&ids]).await?;
    let claims: HashMap<i64, (i32, i32)> = counted.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let rows = query(inbox.db(), tx, FETCH, &[&ids]).await?;
    let mut messages: HashMap<i64, _> = rows
        .iter()
        .filter_map(|row| {
            let id: i64 = row.get(0);
            let (attempts, bucket) = *claims.get(&id)?;
            Some((id, ClaimedMessage { message: message(row, attempts), state, bucket, is_head: false }))
        })
        .collect();
    Ok(Claimed { work: ids.iter().filter_map(|id| messages.remove(id)).collect(), parked: 0 })
}

pub(super) async fn free_drained(inbox: &PgInbox, fence: &Fence) -> Result<usize> {
    let buckets = buckets_of(fence)?;
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    check_fence(inbox.db(), &tx, fence).await?;
    let rows = query(inbox.db(), &tx, LOCK_DRAINING, &[&inbox.consumer_id(), &buckets]).await?;
    let keys = column(&rows, |row| row.get::<_, String>(0));
    let freed = if keys.is_empty() {
        0
    } else {
        execute(inbox.db(), &tx, FREE_DRAINED, &[&inbox.consumer_id(), &keys]).await?
    };
    tx.commit().await?;
    Ok(freed as usize)
}

pub(super) async fn due_timers(inbox: &PgInbox, fence: &Fence, max: usize) -> Result<Vec<(FiredTimer, Instance)>> {
    let buckets = buckets_of(fence)?;
    let now = inbox.db().clock().for_statement();
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    check_fence(inbox.db(), &tx, fence).await?;
    let rows =
        query(inbox.db(), &tx, process::DUE_TIMERS, &[&inbox.consumer_id(), &buckets, &now, &(max as i64)]).await?;
    let ids = column(&rows, |row| row.get::<_, uuid::Uuid>(0));
    let instances = if ids.is_empty() { HashMap::new() } else { process::load_by_id(inbox.db(), &tx, &ids).await? };
    tx.commit().await?;
    let fired = rows.iter().filter_map(|row| {
        let timer = FiredTimer { process_id: row.get(0), name: row.get(1), bucket: row.get(2), attempts: row.get(3) };
        instances.get(&timer.process_id).map(|instance| (timer, instance.clone()))
    });
    Ok(fired.collect())
}
