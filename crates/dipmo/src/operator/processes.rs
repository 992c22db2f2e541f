//! Process instances for operators: lists, and one instance with its timers and journal.

pub use crate::store::postgres::operator_process::{JournalRow, ProcessDetail, ProcessFilter, ProcessRow, TimerRow};

use uuid::Uuid;

use super::{Listing, Page};
use crate::error::{Error, Result};
use crate::process::Status;
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_process as store;

/// The newest journal lines that are shown with an instance.
const JOURNAL_MAX: i64 = 500;

/// Instances in the order of their ids.
pub async fn list(db: &Db, filter: &ProcessFilter, page: &Page<Uuid>) -> Result<Listing<ProcessRow>> {
    if let Some(status) = filter.status.as_deref().filter(|name| Status::from_name(name).is_none()) {
        let known = Status::ALL.map(Status::name).join(", ");
        return Err(Error::invalid(format!("unknown status {status:?}: use one of {known}")));
    }
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, filter, page.after.unwrap_or(Uuid::nil()), limit).await?;
    Ok(page.listing(rows, |row| row.id.to_string()))
}

pub async fn show(db: &Db, id: Uuid) -> Result<ProcessDetail> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let found = store::show(db, &tx, id, JOURNAL_MAX).await?;
    found.ok_or_else(|| Error::not_found(format!("there is no process {id}")))
}
