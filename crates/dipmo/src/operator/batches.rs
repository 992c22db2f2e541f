//! Batches for operators: how far each is, how fast it goes, and what failed in it.

pub use crate::store::postgres::operator_batch::{BatchDetail, BatchFilter, BatchRow, FailedItem};

use uuid::Uuid;

use super::{Listing, Page};
use crate::batch::BatchStatus;
use crate::error::{Error, Result};
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_batch as store;

/// The failed items that are shown with a batch.
const FAILURES_MAX: i64 = 100;

/// Batches in the order of their ids; counts are those of the watcher's last look.
pub async fn list(db: &Db, filter: &BatchFilter, page: &Page<Uuid>) -> Result<Listing<BatchRow>> {
    if let Some(status) = filter.status.as_deref().filter(|name| BatchStatus::from_name(name).is_none()) {
        let known = BatchStatus::ALL.map(BatchStatus::name).join(", ");
        return Err(Error::invalid(format!("unknown status {status:?}: use one of {known}")));
    }
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, filter, page.after.unwrap_or(Uuid::nil()), limit).await?;
    Ok(page.listing(rows, |row| row.id.to_string()))
}

/// One batch, counted now.
pub async fn show(db: &Db, id: Uuid) -> Result<BatchDetail> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let found = store::show(db, &tx, id, FAILURES_MAX).await?;
    found.ok_or_else(|| Error::not_found(format!("there is no batch {id}")))
}
