//! The inbox for operators: what is open, one message in full, retry, discard, decode again.

pub use crate::store::postgres::operator_inbox::{InboxDetail, InboxFilter, InboxRow, StoredRecord};

use serde_json::json;
use time::OffsetDateTime;

use super::{Change, Changed, Listing, Page, audit, conflict, moved};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::{InboxEvent, InboxState};
use crate::message::{Message, dedupe_key};
use crate::process::Failure;
use crate::store::postgres::operator::{change, look};
use crate::store::postgres::operator_inbox::{self as store, LockedWork};
use crate::store::postgres::{Db, Tx, operator_keys};

/// The reason kept with a discarded message is shortened to this.
const REASON_CHARS_MAX: usize = 500;

/// Open messages, oldest first.
pub async fn list(db: &Db, filter: &InboxFilter, page: &Page<i64>) -> Result<Listing<InboxRow>> {
    check_state(filter.state.as_deref())?;
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, filter, page.after.unwrap_or(0), limit).await?;
    Ok(page.listing(rows, |row| row.id.to_string()))
}

/// One message, open or closed. The payload is left out unless it is to be revealed.
pub async fn show(db: &Db, id: i64, reveal_payload: bool) -> Result<InboxDetail> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    store::show(db, &tx, id, reveal_payload).await?.ok_or_else(|| no_such(id))
}

/// When the consumer first saw the message, if the dedupe memory still knows it.
pub async fn seen(db: &Db, consumer: &str, source: &str, message_id: &str) -> Result<Option<OffsetDateTime>> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    store::seen(db, &tx, dedupe_key([consumer, source, message_id])).await
}

/// Another attempt now, with a fresh count of attempts. A parked key stays parked until it succeeds.
pub async fn retry(db: &Db, id: i64, by: &Change) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let work = allow(db, &tx, id, InboxEvent::Requeue).await?;
    if store::retry(db, &tx, id, &work.state).await? == 0 {
        return Err(moved(&target(id)));
    }
    let note = match work.head_id {
        Some(head) if head == id => "due now; its key stays parked until it succeeds",
        Some(_) => "due now; it is not the head of its parked key, so it runs apart from the key's order",
        None => "due now; its key is not parked, so later messages of the key may have gone before it",
    };
    let detail = json!({ "consumer": work.consumer, "key": work.key, "from": work.state, "attempts": work.attempts });
    let changed = Changed { action: "inbox.retry", target: target(id), note: note.to_owned(), detail };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Gives a message up. What waits behind it goes on in order.
pub async fn discard(db: &Db, id: i64, by: &Change) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let work = allow(db, &tx, id, InboxEvent::Discard).await?;
    let reason: String = format!("discarded: {}", by.reason()).chars().take(REASON_CHARS_MAX).collect();
    let freed = close(db, &tx, id, &work, &reason).await?;
    let note = if freed { "IGNORED; what waited behind it goes on in order" } else { "IGNORED; no key waited for it" };
    let detail = json!({ "consumer": work.consumer, "key": work.key, "from": work.state, "key_released": freed });
    let changed = Changed { action: "inbox.discard", target: target(id), note: note.to_owned(), detail };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Decodes a SERDE_ERROR again, with rules that have been mended in the meantime: a new message takes
/// its place, with a dedupe entry of its own, and the old one is IGNORED.
pub async fn redecode(
    db: &Db,
    id: i64,
    by: &Change,
    decode: impl Fn(&StoredRecord) -> Result<Message, Failure>,
) -> Result<Changed> {
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let work = allow(db, &tx, id, InboxEvent::Redecode).await?;
    let stored = store::stored(db, &tx, id)
        .await?
        .ok_or_else(|| Error::new(ErrorKind::Bug, format!("{} is open but its bytes are gone", target(id))))?;
    let message = decode(&stored).map_err(|failure| {
        Error::new(ErrorKind::Poison, format!("{} still cannot be decoded: {failure}", target(id)))
    })?;
    // Its own entry from the first arrival must not count as a duplicate of itself.
    let same = (&message.source, &message.message_id) == (&stored.source, &stored.message_id);
    let new = same || store::remember(db, &tx, message.dedupe_key(&stored.consumer)).await?;
    let (reason, redecoded_as, note) = if new {
        let new_id = store::insert(db, &tx, work.consumer_id, &message).await?;
        (format!("redecoded as {new_id}"), Some(new_id), format!("received anew as {new_id}"))
    } else {
        let why = "redecoded: the message had been received before".to_owned();
        (why.clone(), None, format!("IGNORED; {why}"))
    };
    close(db, &tx, id, &work, &reason).await?;
    let detail = json!({ "consumer": work.consumer, "redecoded_as": redecoded_as, "message_id": message.message_id });
    let changed = Changed { action: "inbox.redecode", target: target(id), note, detail };
    audit::write(db, &tx, by, &changed).await?;
    tx.commit().await?;
    Ok(changed)
}

/// True when a key waited behind the message and is now drained.
async fn close(db: &Db, tx: &Tx<'_>, id: i64, work: &LockedWork, reason: &str) -> Result<bool> {
    if store::close(db, tx, id, &work.state, reason).await? == 0 {
        return Err(moved(&target(id)));
    }
    if work.head_id != Some(id) {
        return Ok(false);
    }
    Ok(operator_keys::drain(db, tx, work.consumer_id, &work.key, id).await? == 1)
}

/// Locks the message and refuses what its state does not allow, with the way out.
async fn allow(db: &Db, tx: &Tx<'_>, id: i64, event: InboxEvent) -> Result<LockedWork> {
    let Some(work) = store::lock(db, tx, id).await? else {
        let Some(state) = store::closed_state(db, tx, id).await? else { return Err(no_such(id)) };
        return Err(conflict(format!("{} is {state} already: nothing is left to {}", target(id), event.name())));
    };
    let state = InboxState::from_name(&work.state)
        .ok_or_else(|| Error::new(ErrorKind::Bug, format!("{} has the unknown state {}", target(id), work.state)))?;
    match state.next(event) {
        Ok(_) => Ok(work),
        Err(_) => Err(conflict(format!("{} is {}: {}", target(id), work.state, way_out(state, event, &work)))),
    }
}

fn way_out(state: InboxState, event: InboxEvent, work: &LockedWork) -> String {
    match (state, event) {
        (InboxState::SerdeError, InboxEvent::Requeue) => {
            "it cannot be decoded as it is: mend the rules, then redecode it, or discard it".to_owned()
        }
        (InboxState::Parked, _) => match work.head_id {
            Some(head) => format!("it waits behind {head}: retry or discard that one, or release the key"),
            None => "its key is being released: it will be handled shortly".to_owned(),
        },
        (InboxState::Received, _) => "a worker will take it: if none does, see `dipmo status`".to_owned(),
        (_, InboxEvent::Redecode) => "it was decoded: only a SERDE_ERROR is decoded again, use retry".to_owned(),
        _ => "look at it with `dipmo inbox show`".to_owned(),
    }
}

fn check_state(state: Option<&str>) -> Result<()> {
    match state.map(|name| (name, InboxState::from_name(name))) {
        None => Ok(()),
        Some((_, Some(known))) if !known.is_closed() => Ok(()),
        Some((name, Some(_))) => Err(Error::invalid(format!(
            "{name} messages are closed and not listed: show one by its id, or ask `seen` by its message id"
        ))),
        Some((name, None)) => {
            Err(Error::invalid(format!("unknown state {name:?}: use RECEIVED, RETRY, PARKED, DEAD or SERDE_ERROR")))
        }
    }
}

fn target(id: i64) -> String {
    format!("inbox message {id}")
}

fn no_such(id: i64) -> Error {
    Error::not_found(format!("there is no {}", target(id)))
}
