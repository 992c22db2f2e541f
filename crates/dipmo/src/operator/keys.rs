//! Parked keys: which keys wait behind which failed head, and letting the rest go without it.
//!
//! Operators never delete a parked key: they set it to DRAINING, and the worker that owns its bucket
//! hands out what waited, in order, and frees the key when nothing waits any more.

pub use crate::store::postgres::operator_keys::KeyRow;

use serde_json::json;

use super::{Change, Changed, Listing, Page, audit, conflict, moved};
use crate::error::{Error, Result};
use crate::store::postgres::Db;
use crate::store::postgres::operator::{change, look};
use crate::store::postgres::operator_keys::{self as store, LockedKey};

/// Parked keys, oldest head first; the page goes by head.
pub async fn list(db: &Db, consumer: Option<&str>, page: &Page<i64>) -> Result<Listing<KeyRow>> {
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, (consumer, None), page.after.unwrap_or(0), limit).await?;
    Ok(page.listing(rows, |row| row.head_id.to_string()))
}

pub async fn show(db: &Db, consumer: &str, key: &str) -> Result<KeyRow> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, (Some(consumer), Some(key)), 0, 1).await?;
    rows.into_iter().next().ok_or_else(|| not_parked(consumer, key))
}

/// Leaves the head where it is and lets the rest of the key go on. A key that waits for a missing
/// version goes on only with `skip_gap`, which counts the missing versions as applied.
pub async fn release(db: &Db, consumer: &str, key: &str, skip_gap: bool, by: &Change) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let parked = store::lock(db, &tx, consumer, key).await?.ok_or_else(|| not_parked(consumer, key))?;
    let target = format!("key {key:?} of {consumer}");
    if let Some(why) = refusal(&parked, skip_gap) {
        return Err(conflict(format!("{target} {why}")));
    }
    let version = match parked.awaits_version {
        Some(_) => store::skip_gap(db, &tx, parked.consumer_id, key).await?,
        None => None,
    };
    if store::drain(db, &tx, parked.consumer_id, key, parked.head_id).await? == 0 {
        return Err(moved(&target));
    }
    let note = match (version, parked.head_state.as_deref()) {
        (Some(version), _) => format!("counted as applied up to version {version}; what waits goes on in order"),
        (None, Some(state)) => format!("its head {} stays {state}; what waits goes on in order", parked.head_id),
        (None, None) => "what waits goes on in order".to_owned(),
    };
    let detail = json!({ "head": parked.head_id, "head_state": parked.head_state, "skipped_to_version": version });
    let changed = Changed { action: "key.release", target, note, detail };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

fn refusal(parked: &LockedKey, skip_gap: bool) -> Option<String> {
    let head = parked.head_id;
    if parked.state == "DRAINING" {
        return Some("is being released already: a worker hands out what waited".to_owned());
    }
    if let Some(version) = parked.awaits_version {
        let why = "have it sent again, or release with skip-gap to count it as applied";
        return (!skip_gap).then(|| format!("waits for version {version}: {why}"));
    }
    if parked.head_state.as_deref() == Some("RETRY") {
        let why = "wait for it, or discard it to let the rest go";
        return Some(format!("waits for {head}, which is being retried: {why}"));
    }
    None
}

fn not_parked(consumer: &str, key: &str) -> Error {
    Error::not_found(format!("key {key:?} of consumer {consumer:?} is not parked"))
}
