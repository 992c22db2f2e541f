//! Who relays which shard: leases with an epoch fence, and the relays that are alive.

use std::time::Duration;

use tokio_postgres::Row;

use super::{Db, Tx, execute, query};
use crate::error::Result;
use crate::relay::Ranges;

const HEARTBEAT: &str = "
-- relay.heartbeat
insert into dipmo.node (name, role, started_at, seen_at, detail)
values ($1, 'relay', coalesce($3, now()), coalesce($3, now()), $2)
on conflict (name, role) do update
set seen_at = excluded.seen_at, detail = excluded.detail,
    started_at = case when $4 then excluded.started_at else node.started_at end";

const FORGET: &str = "
-- relay.forget
delete from dipmo.node where name = $1 and role = 'relay'";

const ALIVE: &str = "
-- relay.alive
select count(*)
from dipmo.node
where role = 'relay' and seen_at > coalesce($3, now()) - $2 * interval '1 second' and detail -> 'lanes' ? $1";

const RENEW: &str = "
-- relay.renew
update dipmo.relay_shard s
set until = coalesce($5, now()) + $4 * interval '1 second'
from unnest($2::smallint[], $3::bigint[]) as h (shard, epoch)
where s.shard = h.shard and s.epoch = h.epoch and s.owner = $1
returning s.shard";

// The epoch moves with every change of hands: a former owner's writes find another epoch and do nothing.
// What this relay owns by name but does not know of is from before it forgot everything.
const TAKE: &str = "
-- relay.take
update dipmo.relay_shard s
set owner = $1, epoch = s.epoch + 1, until = coalesce($6, now()) + $5 * interval '1 second',
    changed_at = coalesce($6, now()), stalled = s.stalled + 1
from (
    select r.shard
    from dipmo.relay_shard r
    where r.lane = $2 and not r.shard = any ($3)
      and (r.owner is null or r.owner = $1 or r.until < coalesce($6, now()))
    order by r.shard
    limit $4
    for update skip locked
) t
where s.shard = t.shard
returning s.shard, s.epoch, s.cursor, s.gaps::text, s.stalled";

const RELEASE: &str = "
-- relay.release
update dipmo.relay_shard s
set owner = null, until = null, stalled = 0
from unnest($2::smallint[], $3::bigint[]) as h (shard, epoch)
where s.shard = h.shard and s.epoch = h.epoch and s.owner = $1";

/// A shard as its new owner finds it.
#[derive(Debug, Clone)]
pub(crate) struct TakenShard {
    pub(crate) shard: i16,
    pub(crate) epoch: i64,
    pub(crate) cursor: i64,
    pub(crate) gaps: Ranges,
    /// How often it was taken since anything was last settled for it, this time included.
    pub(crate) stalled: i32,
}

/// Says that the relay is alive and what it sees; `first` when the process has just begun.
pub(crate) async fn heartbeat(db: &Db, node: &str, detail: &serde_json::Value, first: bool) -> Result<()> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, HEARTBEAT, &[&node, detail, &db.clock().for_statement(), &first]).await?;
    tx.commit().await
}

/// How many relays serve the lane now.
pub(crate) async fn alive(db: &Db, lane: &str, lease: Duration) -> Result<usize> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let rows = query(db, &tx, ALIVE, &[&lane, &lease.as_secs_f64(), &db.clock().for_statement()]).await?;
    tx.commit().await?;
    Ok(usize::try_from(rows[0].get::<_, i64>(0)).unwrap_or(0))
}

/// Renews what is still owned; what is not in the answer is lost.
pub(crate) async fn renew(db: &Db, node: &str, held: &[(i16, i64)], lease: Duration) -> Result<Vec<i16>> {
    let (shards, epochs): (Vec<i16>, Vec<i64>) = held.iter().copied().unzip();
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&node, &shards, &epochs, &lease.as_secs_f64(), &db.clock().for_statement()];
    let rows = query(db, &tx, RENEW, &params).await?;
    tx.commit().await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Takes up to `count` shards of the lane that nobody owns, or whose owner has been silent too long.
pub(crate) async fn take(
    db: &Db,
    node: &str,
    lane: &str,
    (held, count): (&[i16], usize),
    lease: Duration,
) -> Result<Vec<TakenShard>> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
        [&node, &lane, &held, &count, &lease.as_secs_f64(), &db.clock().for_statement()];
    let rows = query(db, &tx, TAKE, &params).await?;
    tx.commit().await?;
    rows.iter().map(taken).collect()
}

fn taken(row: &Row) -> Result<TakenShard> {
    let gaps = Ranges::from_text(row.get(3))?;
    Ok(TakenShard { shard: row.get(0), epoch: row.get(1), cursor: row.get(2), gaps, stalled: row.get(4) })
}

/// Gives shards back, so that others need not wait for the lease to end.
pub(crate) async fn release(db: &Db, node: &str, held: &[(i16, i64)]) -> Result<()> {
    let (shards, epochs): (Vec<i16>, Vec<i64>) = held.iter().copied().unzip();
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, RELEASE, &[&node, &shards, &epochs]).await?;
    tx.commit().await
}

/// Takes the relay out of the list of the living.
pub(crate) async fn forget(db: &Db, node: &str) -> Result<()> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, FORGET, &[&node]).await?;
    tx.commit().await
}
