//! Who changed what, and why: an append-only list that the database itself protects.

pub use crate::store::postgres::operator::AuditRow;

use super::{Change, Changed, Listing, Page};
use crate::error::Result;
use crate::store::postgres::operator::{AuditEntry, audit_list, look};
use crate::store::postgres::{Db, Tx, operator};

/// What a list of audit rows is narrowed by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub target: Option<String>,
}

/// Newest first.
pub async fn list(db: &Db, filter: &AuditFilter, page: &Page<i64>) -> Result<Listing<AuditRow>> {
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let by = (filter.actor.as_deref(), filter.action.as_deref(), filter.target.as_deref());
    let rows = audit_list(db, &tx, page.after.unwrap_or(i64::MAX), by, limit).await?;
    Ok(page.listing(rows, |row| row.id.to_string()))
}

/// Writes a change down, in its own transaction.
pub(super) async fn write(db: &Db, tx: &Tx<'_>, change: &Change, changed: &Changed) -> Result<()> {
    let Changed { action, target, detail, .. } = changed;
    let entry = AuditEntry { actor: change.actor(), action, target, reason: change.reason(), detail };
    operator::audit(db, tx, entry).await
}
