//! The outbox for operators: what has not gone out and why, retry, discard.
//!
//! The relay that owns the shard re-reads the open keys and lets what is parked behind a message
//! follow once that message is sent or discarded.

pub use crate::store::postgres::operator_outbox::{OutboxDetail, OutboxFilter, OutboxRow};

use serde_json::json;

use super::{Change, Changed, Listing, Page, audit, conflict, moved};
use crate::error::{Error, Result};
use crate::store::postgres::operator::{change, look};
use crate::store::postgres::operator_outbox::{self as store, LockedException};
use crate::store::postgres::{Db, Tx};

const STATES: [&str; 6] = ["PENDING", "RETRY", "PARKED", "DEAD", "PUBLISHED", "DISCARDED"];

/// What could not be sent (or, with the state PENDING, has not been yet), oldest first.
pub async fn list(db: &Db, filter: &OutboxFilter, page: &Page<i64>) -> Result<Listing<OutboxRow>> {
    if let Some(state) = filter.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(Error::invalid(format!("unknown state {state:?}: use one of {}", STATES.join(", "))));
    }
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, filter, page.after.unwrap_or(0), limit).await?;
    Ok(page.listing(rows, |row| row.id.to_string()))
}

/// One message in any state. The payload is left out unless it is to be revealed.
pub async fn show(db: &Db, id: i64, reveal_payload: bool) -> Result<OutboxDetail> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    store::show(db, &tx, id, reveal_payload).await?.ok_or_else(|| no_such(id))
}

/// Sends a message again, now, with a fresh count of attempts.
pub async fn retry(db: &Db, id: i64, by: &Change) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let exception = allow(db, &tx, id, "retry").await?;
    if store::retry(db, &tx, id, &exception.state).await? == 0 {
        return Err(moved(&target(id)));
    }
    let note = "due now; what is parked behind it follows once it is sent";
    finish(db, tx, by, ("outbox.retry", id, note), &exception).await
}

/// Gives a message up: it is never sent. What is parked behind it follows.
pub async fn discard(db: &Db, id: i64, by: &Change) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let exception = allow(db, &tx, id, "discard").await?;
    if store::discard(db, &tx, id, &exception.state).await? == 0 {
        return Err(moved(&target(id)));
    }
    let note = "DISCARDED, it will never be sent; what is parked behind it follows";
    finish(db, tx, by, ("outbox.discard", id, note), &exception).await
}

async fn finish(
    db: &Db,
    tx: Tx<'_>,
    by: &Change,
    (action, id, note): (&'static str, i64, &str),
    exception: &LockedException,
) -> Result<Changed> {
    let LockedException { state, destination, key, attempts, .. } = exception;
    let detail = json!({ "destination": destination, "key": key, "from": state, "attempts": attempts });
    let changed = Changed { action, target: target(id), note: note.to_owned(), detail };
    audit::write(db, &tx, by, &changed).await?;
    store::wake(db, &tx).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Locks the exception and refuses what its state does not allow, with the way out.
async fn allow(db: &Db, tx: &Tx<'_>, id: i64, verb: &str) -> Result<LockedException> {
    let Some(exception) = store::lock(db, tx, id).await? else {
        let found = store::show(db, tx, id, false).await?.ok_or_else(|| no_such(id))?;
        let why = match found.state.as_str() {
            "PENDING" => "a relay will send it: if none does, see `dipmo doctor`",
            _ => "it has gone out, and what is out cannot be taken back",
        };
        return Err(conflict(format!("{} is {}: {why}", target(id), found.state)));
    };
    let why = match (exception.state.as_str(), verb) {
        ("DEAD" | "RETRY", _) => return Ok(exception),
        ("PARKED", _) => match store::head(db, tx, &exception).await? {
            Some(head) => format!("it waits behind {head}: {verb} that one"),
            None => "nothing is before it any more: a relay will send it shortly".to_owned(),
        },
        ("DISCARDED", "retry") => {
            "it was given up, and later messages of its key may be out: send a new one".to_owned()
        }
        _ => format!("nothing is left to {verb}"),
    };
    Err(conflict(format!("{} is {}: {why}", target(id), exception.state)))
}

fn target(id: i64) -> String {
    format!("outbox message {id}")
}

fn no_such(id: i64) -> Error {
    Error::not_found(format!("there is no {}", target(id)))
}
