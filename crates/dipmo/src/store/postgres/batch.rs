//! Batches: opening one, adding items, counting them.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

use super::columns::column;
use super::{Db, Tx, execute, query};
use crate::batch::{BatchItemsRequested, BatchStatus, Items};
use crate::command::BatchItemStatus;
use crate::error::Result;

const OPEN: &str = "
-- batch.open
insert into dipmo.batch_run as b (batch_id, type, tenant, scheduled_for, status, expected, created_at)
values ($1, $2, $3, $4, 'NEW', $5, coalesce($6, now()))
on conflict (batch_id) do update set expected = coalesce(b.expected, excluded.expected)
returning type, tenant";

const ADD_ITEMS: &str = "
-- batch.add_items
insert into dipmo.batch_item (batch_id, item_id, tenant, status, saga_id, changed_at)
-- In order, so that two nodes that start the same batch wait for each other instead of deadlocking.
select $1, i.id, $2, 'NEW', i.saga, coalesce($5, now())
from unnest($3::text[], $4::uuid[]) as i (id, saga) order by i.id
on conflict do nothing
returning item_id";

const LOCK_OPEN: &str = "
-- batch.lock_open
select batch_id, type, tenant, scheduled_for, expected, coalesce($2, now()), endings
from dipmo.batch_run
where status in ('NEW', 'RUNNING')
order by batch_id limit $1
-- What another node is counting is in good hands.
for update skip locked";

const COUNT: &str = "
-- batch.count
select batch_id, status, count(*) from dipmo.batch_item where batch_id = any($1) group by 1, 2";

const NOTE: &str = "
-- batch.note
update dipmo.batch_run b
set counts = n.counts::jsonb, status = n.status,
    completed_at = case when n.status = 'RUNNING' then null else coalesce($4, now()) end,
    endings = b.endings + (n.status <> 'RUNNING')::integer
from unnest($1::uuid[], $2::text[], $3::text[]) as n (batch_id, counts, status)
-- A batch in which nothing moved is not written.
where b.batch_id = n.batch_id and (b.status, b.counts) is distinct from (n.status, n.counts::jsonb)";

/// Whose batch it is, as it was when it was first heard of.
#[derive(Debug)]
pub(crate) struct Opened {
    pub saga: String,
    pub tenant: String,
}

/// An open batch, counted now.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub id: Uuid,
    pub saga: String,
    pub tenant: String,
    pub scheduled_for: Option<Date>,
    pub expected: Option<i32>,
    /// How often it had ended before.
    pub endings: i32,
    /// By status; what there is none of is left out.
    pub counts: BTreeMap<String, i64>,
}

impl Counted {
    pub(crate) fn status(&self) -> BatchStatus {
        BatchStatus::of(items(&self.counts), self.expected.map(i64::from))
    }
}

pub(crate) fn items(counts: &BTreeMap<String, i64>) -> Items {
    let of = |status: BatchItemStatus| counts.get(status.name()).copied().unwrap_or(0);
    Items {
        open: of(BatchItemStatus::New) + of(BatchItemStatus::Running),
        succeeded: of(BatchItemStatus::Succeeded),
        failed: of(BatchItemStatus::Failed) + of(BatchItemStatus::TimedOut),
    }
}

/// Makes the batch unless it is there, and learns how many items it will have.
pub(crate) async fn open(db: &Db, tx: &Tx<'_>, request: &BatchItemsRequested) -> Result<Opened> {
    let BatchItemsRequested { batch_id, saga, tenant, scheduled_for, total, .. } = request;
    let now = db.clock().for_statement();
    let rows = query(db, tx, OPEN, &[batch_id, saga, tenant, scheduled_for, total, &now]).await?;
    Ok(Opened { saga: rows[0].get(0), tenant: rows[0].get(1) })
}

/// Answers with the ids of those that were not there.
pub(crate) async fn add_items(db: &Db, tx: &Tx<'_>, request: &BatchItemsRequested) -> Result<HashSet<String>> {
    if request.items.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = column(&request.items, |item| item.id.as_str());
    let sagas = column(&request.items, |item| request.saga_id(item));
    let now = db.clock().for_statement();
    let rows = query(db, tx, ADD_ITEMS, &[&request.batch_id, &request.tenant, &ids, &sagas, &now]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The time, and the open batches that nobody else is counting.
pub(crate) async fn count_open(db: &Db, tx: &Tx<'_>, max: i64) -> Result<(OffsetDateTime, Vec<Counted>)> {
    let rows = query(db, tx, LOCK_OPEN, &[&max, &db.clock().for_statement()]).await?;
    let Some(now) = rows.first().map(|row| row.get(5)) else {
        return Ok((OffsetDateTime::UNIX_EPOCH, Vec::new()));
    };
    let mut open: Vec<Counted> = rows
        .iter()
        .map(|row| Counted {
            id: row.get(0),
            saga: row.get(1),
            tenant: row.get(2),
            scheduled_for: row.get(3),
            expected: row.get(4),
            endings: row.get(6),
            counts: BTreeMap::new(),
        })
        .collect();
    for row in query(db, tx, COUNT, &[&column(&open, |batch| batch.id)]).await? {
        let id: Uuid = row.get(0);
        if let Some(batch) = open.iter_mut().find(|batch| batch.id == id) {
            batch.counts.insert(row.get(1), row.get(2));
        }
    }
    Ok((now, open))
}

pub(crate) async fn note(db: &Db, tx: &Tx<'_>, counted: &[Counted]) -> Result<()> {
    if counted.is_empty() {
        return Ok(());
    }
    let counts = column(counted, |batch| Value::from_iter(batch.counts.clone()).to_string());
    let statuses = column(counted, |batch| batch.status().name());
    execute(db, tx, NOTE, &[&column(counted, |b| b.id), &counts, &statuses, &db.clock().for_statement()]).await?;
    Ok(())
}
