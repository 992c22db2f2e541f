//! Operator statements on batches: lists, and one batch counted now, with what went wrong in it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

use super::batch::items;
use super::operator::{rfc3339, rfc3339_option};
use super::{Db, Tx, query};
use crate::batch::iso_date;
use crate::error::Result;

/// A batch and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchRow {
    pub id: Uuid,
    #[serde(rename = "type")]
    pub saga: String,
    pub tenant: String,
    #[serde(with = "iso_date::option")]
    pub scheduled_for: Option<Date>,
    pub status: String,
    /// How many items there will be; unknown until the last of them is announced.
    pub expected: Option<i64>,
    pub open: i64,
    pub succeeded: i64,
    pub failed: i64,
    /// Items that ended, by second, over the life of the batch.
    pub rate: Option<f64>,
    /// How long the rest takes at that rate.
    pub left_seconds: Option<f64>,
    #[serde(serialize_with = "rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(serialize_with = "rfc3339_option")]
    pub completed_at: Option<OffsetDateTime>,
}

/// An item that did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailedItem {
    pub item: String,
    pub status: String,
    pub saga: Uuid,
    pub error: Option<String>,
}

/// A batch, counted now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchDetail {
    #[serde(flatten)]
    pub row: BatchRow,
    /// By status.
    pub counts: BTreeMap<String, i64>,
    /// The first of them, in the order of their ids.
    pub failures: Vec<FailedItem>,
}

/// What a list of batches is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchFilter {
    pub saga: Option<String>,
    pub status: Option<String>,
    pub tenant: Option<String>,
}

const LIST: &str = "
-- operator.batch_list
select batch_id, type, tenant, scheduled_for, status, expected, created_at, completed_at, coalesce($6, now()), counts
from dipmo.batch_run
where batch_id > $1
  and ($2::text is null or type = $2)
  and ($3::text is null or status = $3)
  and ($4::text is null or tenant = $4)
order by batch_id
limit $5";

const SHOW: &str = "
-- operator.batch_show
select batch_id, type, tenant, scheduled_for, status, expected, created_at, completed_at, coalesce($2, now()),
       (select coalesce(jsonb_object_agg(c.status, c.n), '{}')
        from (select i.status, count(*) as n from dipmo.batch_item i where i.batch_id = $1 group by 1) c)
from dipmo.batch_run
where batch_id = $1";

const FAILURES: &str = "
-- operator.batch_failures
select item_id, status, saga_id, last_error
from dipmo.batch_item
where batch_id = $1 and status in ('FAILED', 'TIMED_OUT')
order by item_id
limit $2";

pub(crate) async fn list(db: &Db, tx: &Tx<'_>, filter: &BatchFilter, after: Uuid, limit: i64) -> Result<Vec<BatchRow>> {
    let BatchFilter { saga, status, tenant } = filter;
    let now = db.clock().for_statement();
    let rows = query(db, tx, LIST, &[&after, saga, status, tenant, &limit, &now]).await?;
    Ok(rows.iter().map(|row| batch_row(row, &counts_of(row))).collect())
}

pub(crate) async fn show(db: &Db, tx: &Tx<'_>, id: Uuid, failures_max: i64) -> Result<Option<BatchDetail>> {
    let rows = query(db, tx, SHOW, &[&id, &db.clock().for_statement()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let counts = counts_of(row);
    let failures = query(db, tx, FAILURES, &[&id, &failures_max]).await?;
    let failure =
        |r: &tokio_postgres::Row| FailedItem { item: r.get(0), status: r.get(1), saga: r.get(2), error: r.get(3) };
    Ok(Some(BatchDetail { row: batch_row(row, &counts), counts, failures: failures.iter().map(failure).collect() }))
}

fn counts_of(row: &tokio_postgres::Row) -> BTreeMap<String, i64> {
    serde_json::from_value(row.get::<_, Value>(9)).unwrap_or_default()
}

fn batch_row(r: &tokio_postgres::Row, counts: &BTreeMap<String, i64>) -> BatchRow {
    let items = items(counts);
    let expected: Option<i64> = r.get::<_, Option<i32>>(5).map(i64::from);
    let (created_at, completed_at): (OffsetDateTime, Option<OffsetDateTime>) = (r.get(6), r.get(7));
    let seconds = (completed_at.unwrap_or_else(|| r.get(8)) - created_at).as_seconds_f64();
    let ended = items.succeeded + items.failed;
    let rate = (ended > 0 && seconds > 0.0).then(|| ended as f64 / seconds);
    let left = expected.map(|expected| (expected - ended).max(0)).filter(|_| completed_at.is_none());
    BatchRow {
        id: r.get(0),
        saga: r.get(1),
        tenant: r.get(2),
        scheduled_for: r.get(3),
        status: r.get(4),
        expected,
        open: items.open,
        succeeded: items.succeeded,
        failed: items.failed,
        rate,
        left_seconds: rate.and_then(|rate| Some(left? as f64 / rate)),
        created_at,
        completed_at,
    }
}
