//! Appends messages to the outbox, inside the transaction of whatever causes them.

use std::collections::HashSet;

use uuid::Uuid;

use super::columns::column;
use super::{Db, Tx, execute, query};
use crate::error::{Error, ErrorKind, Result};
use crate::message::OutMessage;

const KEY_BYTES_MAX: usize = 1_000;
const DESTINATION_BYTES_MAX: usize = 300;

const TAKE_VERSIONS: &str = "
-- outbox.take_versions
insert into dipmo.outbox_version (key, seen_at)
-- In order, so that two transactions with the same keys wait for each other instead of deadlocking.
select k, coalesce($2, now()) from unnest($1::uuid[]) k order by k
on conflict do nothing
returning key";

const APPEND: &str = "
-- outbox.append
insert into dipmo.outbox (shard, message_id, destination, key, tenant, aggregate_type, aggregate_id,
    aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers,
    payload, occurred_at, created_at)
select dipmo.outbox_shard(m.destination, m.key), m.message_id, m.destination, m.key, m.tenant,
    m.aggregate_type, m.aggregate_id, m.aggregate_version, m.event_type, m.event_version,
    m.correlation_id, m.causation_id, m.traceparent, m.headers::jsonb, m.payload,
    coalesce($16, now()), coalesce($16, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
    $8::text[], $9::integer[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::bigint[])
    as m (message_id, destination, key, tenant, aggregate_type, aggregate_id, aggregate_version,
          event_type, event_version, correlation_id, causation_id, traceparent, headers, payload, n)
order by m.n";

/// Appends; answers with the version keys that were taken before, in which case nothing was appended.
pub(crate) async fn append(db: &Db, tx: &Tx<'_>, messages: &[OutMessage]) -> Result<HashSet<Uuid>> {
    if messages.is_empty() {
        return Ok(HashSet::new());
    }
    let destinations: Vec<String> = column(messages, |m| m.destination.to_string());
    fit(messages, &destinations)?;
    let taken = take_versions(db, tx, messages).await?;
    if !taken.is_empty() {
        return Ok(taken);
    }
    let headers: Vec<Option<String>> =
        column(messages, |m| m.headers.as_ref().map(|h| serde_json::to_string(h).expect("a JSON map has text keys")));
    let numbers: Vec<i64> = (0..).take(messages.len()).collect();
    execute(
        db,
        tx,
        APPEND,
        &[
            &column(messages, |m| m.message_id),
            &destinations,
            &column(messages, |m| m.key()),
            &column(messages, |m| m.tenant.as_str()),
            &column(messages, |m| m.aggregate_type.as_str()),
            &column(messages, |m| m.aggregate_id.as_str()),
            &column(messages, |m| m.aggregate_version),
            &column(messages, |m| m.event_type.as_str()),
            &column(messages, |m| m.event_version),
            &column(messages, |m| m.correlation_id.as_deref()),
            &column(messages, |m| m.causation_id.as_deref()),
            &column(messages, |m| m.traceparent.as_deref()),
            &headers,
            &column(messages, |m| m.payload.as_deref()),
            &numbers,
            &db.clock().for_statement(),
        ],
    )
    .await?;
    Ok(HashSet::new())
}

/// What may end up in an index entry must fit into one; `dipmo.outbox_append` checks the same.
fn fit(messages: &[OutMessage], destinations: &[String]) -> Result<()> {
    let too_long = |(message, destination): (&OutMessage, &String)| {
        message.key().len() > KEY_BYTES_MAX || destination.len() > DESTINATION_BYTES_MAX
    };
    match messages.iter().zip(destinations).position(too_long) {
        None => Ok(()),
        Some(at) => {
            let (kind, bytes) = (&messages[at].event_type, messages[at].key().len());
            let what = format!("{kind} to {:.100}: its key has {bytes} bytes", destinations[at]);
            let limits = format!("{KEY_BYTES_MAX} are the most, and {DESTINATION_BYTES_MAX} for a destination");
            Err(Error::new(ErrorKind::Poison, format!("cannot be appended to the outbox: {what}; {limits}")))
        }
    }
}

async fn take_versions(db: &Db, tx: &Tx<'_>, messages: &[OutMessage]) -> Result<HashSet<Uuid>> {
    let mut wanted = HashSet::new();
    let mut taken = HashSet::new();
    for key in messages.iter().filter_map(OutMessage::version_key) {
        if !wanted.insert(key) {
            taken.insert(key);
        }
    }
    if wanted.is_empty() || !taken.is_empty() {
        return Ok(taken);
    }
    let keys: Vec<Uuid> = wanted.iter().copied().collect();
    for row in query(db, tx, TAKE_VERSIONS, &[&keys, &db.clock().for_statement()]).await? {
        wanted.remove(&row.get(0));
    }
    Ok(wanted)
}
