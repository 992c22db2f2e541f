//! Who owns which bucket. An epoch grows with every change of hands; a settlement commits only under
//! the epoch it was claimed with, so a node that slept past its lease can write nothing.

use std::time::Duration;

use super::columns::column;
use super::inbox::PgInbox;
use super::{Db, Tx, execute, query};
use crate::consumer::BUCKETS;
use crate::error::{Error, Result};
use crate::inbox::{Fence, Held};
use crate::store::TakenPartition;

const CREATE_BUCKETS: &str = "
-- lease.create_buckets
insert into dipmo.lease (scope, bucket) select $1, b from generate_series(0, $2 - 1) b on conflict do nothing";

const TAKE_PARTITION: &str = "
-- lease.take_partition
insert into dipmo.lease (scope, bucket, epoch, owner, stalled) values ($1, $2, 1, $3, 1)
on conflict (scope, bucket) do update
    set epoch = lease.epoch + 1, owner = excluded.owner, stalled = lease.stalled + 1
returning epoch, stalled";

const CLEAR_STALL: &str = "
-- lease.clear_stall
update dipmo.lease set stalled = 0 where scope = $1 and bucket = $2 and epoch = $3 and stalled > 0";

const HEARTBEAT: &str = "
-- lease.heartbeat
insert into dipmo.node (name, role, started_at, seen_at) values ($1, $2, coalesce($3, now()), coalesce($3, now()))
on conflict (name, role) do update set seen_at = excluded.seen_at";

const LIVE: &str = "
-- lease.live
select greatest(count(*), 1) from dipmo.node
where role = $1 and seen_at > coalesce($2, now()) - $3 * interval '1 millisecond'";

const RENEW: &str = "
-- lease.renew
update dipmo.lease l set until = coalesce($4, now()) + $5 * interval '1 millisecond'
from unnest($2::integer[], $3::bigint[]) as h (bucket, epoch)
where l.scope = $1 and l.bucket = h.bucket and l.epoch = h.epoch
returning l.bucket, l.epoch";

const TAKE: &str = "
-- lease.take
update dipmo.lease l
set epoch = l.epoch + 1, owner = $2, until = coalesce($3, now()) + $4 * interval '1 millisecond',
    stalled = l.stalled + 1
where l.scope = $1 and l.bucket in (
    select bucket from dipmo.lease
    where scope = $1 and (until is null or until < coalesce($3, now()))
    order by bucket limit $5
    -- Another node is at it already: leave it to that one.
    for update skip locked)
returning l.bucket, l.epoch";

const GIVE_BACK: &str = "
-- lease.give_back
update dipmo.lease l set until = null, owner = null
from unnest($1::text[], $2::integer[], $3::bigint[]) as h (scope, bucket, epoch)
where l.scope = h.scope and l.bucket = h.bucket and l.epoch = h.epoch";

/// The scope of a consumer's worker buckets.
pub(super) fn worker_scope(consumer: &str) -> String {
    format!("worker:{consumer}")
}

pub(super) async fn create_buckets(db: &Db, tx: &Tx<'_>, consumer: &str) -> Result<()> {
    execute(db, tx, CREATE_BUCKETS, &[&worker_scope(consumer), &BUCKETS]).await.map(drop)
}

pub(super) async fn take_partition(
    inbox: &PgInbox,
    topic: &str,
    partition: i32,
    owner: &str,
) -> Result<TakenPartition> {
    let scope = format!("ingress:{}:{topic}", inbox.consumer());
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    let rows = query(inbox.db(), &tx, TAKE_PARTITION, &[&scope, &partition, &owner]).await?;
    tx.commit().await?;
    let (epoch, stalled) = (rows[0].get(0), rows[0].get(1));
    Ok(TakenPartition { held: Held { scope, bucket: partition, epoch }, stalled })
}

pub(super) async fn clear_stall(db: &Db, held: &Held) -> Result<()> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, CLEAR_STALL, &[&held.scope, &held.bucket, &held.epoch]).await?;
    tx.commit().await
}

pub(super) async fn lease_buckets(inbox: &PgInbox, owner: &str, held: &Fence, lease: Duration) -> Result<Fence> {
    let db = inbox.db();
    let scope = worker_scope(inbox.consumer());
    let (now, lease_ms) = (db.clock().for_statement(), lease.as_millis() as f64);
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    execute(db, &tx, HEARTBEAT, &[&owner, &scope, &now]).await?;
    let live: i64 = query(db, &tx, LIVE, &[&scope, &now, &lease_ms]).await?[0].get(0);
    let (buckets, epochs) = (column(held, |h| h.bucket), column(held, |h| h.epoch));
    let rows = query(db, &tx, RENEW, &[&scope, &buckets, &epochs, &now, &lease_ms]).await?;
    let mut mine: Fence =
        rows.iter().map(|row| Held { scope: scope.clone(), bucket: row.get(0), epoch: row.get(1) }).collect();
    let share = fair_share(BUCKETS as usize, live as usize);
    if mine.len() < share {
        let missing = (share - mine.len()) as i64;
        let rows = query(db, &tx, TAKE, &[&scope, &owner, &now, &lease_ms, &missing]).await?;
        mine.extend(rows.iter().map(|row| Held { scope: scope.clone(), bucket: row.get(0), epoch: row.get(1) }));
    }
    mine.sort_by_key(|held| held.bucket);
    let surplus = mine.split_off(mine.len().min(share));
    give_back(db, &tx, &surplus).await?;
    tx.commit().await?;
    Ok(mine)
}

pub(super) async fn release_buckets(db: &Db, held: &Fence) -> Result<()> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    give_back(db, &tx, held).await?;
    tx.commit().await
}

async fn give_back(db: &Db, tx: &Tx<'_>, held: &Fence) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let scopes = column(held, |h| h.scope.as_str());
    execute(db, tx, GIVE_BACK, &[&scopes, &column(held, |h| h.bucket), &column(held, |h| h.epoch)]).await?;
    Ok(())
}

/// How many of `total` buckets each of `live` nodes may hold: all are taken, none holds much more.
pub(crate) fn fair_share(total: usize, live: usize) -> usize {
    total.div_ceil(live.max(1))
}

/// A worker without buckets has nothing to prove its right with.
pub(super) fn buckets_of(fence: &Fence) -> Result<Vec<i32>> {
    if fence.is_empty() {
        return Err(Error::lease_lost("no bucket is held"));
    }
    Ok(column(fence, |held| held.bucket))
}

#[cfg(test)]
mod tests {
    use super::fair_share;

    #[test]
    fn shares_cover_every_bucket() {
        for live in 1..40 {
            assert!(fair_share(16, live) * live >= 16);
        }
        assert_eq!((fair_share(16, 1), fair_share(16, 2), fair_share(16, 3), fair_share(16, 0)), (16, 8, 6, 16));
    }
}
