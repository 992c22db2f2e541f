//! Operator statements on journeys: everything that carries one correlation id.

use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Tx, query};
use crate::command::envelope::Heading;
use crate::error::Result;

/// A process that takes part.
#[derive(Debug, Clone)]
pub(crate) struct Traveller {
    pub(crate) id: Uuid,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) open: bool,
}

/// One thing that happened, as its table tells it.
#[derive(Debug, Clone)]
pub(crate) struct Happening {
    pub(crate) at: OffsetDateTime,
    pub(crate) place: &'static str,
    pub(crate) reference: String,
    pub(crate) what: String,
    pub(crate) detail: Value,
}

const TRAVELLERS: &str = "
-- operator.journey_travellers
select id, created_at, updated_at, status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED')
from dipmo.process where id = $2
union
select id, created_at, updated_at, status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED')
from dipmo.process where correlation_id = $1 and correlation_id <> id::text
limit 100";

const INBOX: &str = "
-- operator.journey_inbox
select s.received_at, s.id::text, s.consumer || ' received ' || coalesce(s.event_type, 'a message') || ' by ' || s.topic,
    jsonb_strip_nulls(jsonb_build_object('state', s.state, 'attempts', s.attempts, 'message_id', s.message_id,
        'key', s.key, 'reason', s.reason, 'error', s.error_message))
from dipmo.inbox_status s
where s.id >= dipmo.id_at('inbox', $2) and s.id < dipmo.id_at('inbox', $3) and s.correlation_id = $1
order by s.id limit $4";

// What was handled straight from the outbox has no row in the inbox, only the memory that it was seen.
const HANDLED: &str = "
-- operator.journey_handled
with received as materialized (
    select i.consumer_id, i.message_id from dipmo.inbox i
    where i.id >= dipmo.id_at('inbox', $2) and i.id < dipmo.id_at('inbox', $3) and i.correlation_id = $1
), sent as materialized (
    select o.id, o.destination, o.event_type, o.message_id::text as message_id, o.key
    from dipmo.relay_shard r
    join dipmo.outbox o on o.shard = r.shard
    where r.lane = 'INTERNAL' and o.correlation_id = $1
      and o.id >= dipmo.id_at('outbox', $2) and o.id < dipmo.id_at('outbox', $3)
    order by o.id limit $4
)
select d.seen_at, s.id::text, c.name || ' handled ' || s.event_type || ' by ' || s.destination,
    jsonb_build_object('state', 'PROCESSED', 'message_id', s.message_id, 'key', s.key)
from sent s
cross join dipmo.consumer c
join dipmo.inbox_dedupe d on d.key = dipmo.dedupe_key(c.name, 'INTERNAL', s.message_id)
where not exists (select 1 from received r where r.consumer_id = c.id and r.message_id = s.message_id)
order by s.id limit $4";

const OUTBOX: &str = "
-- operator.journey_outbox
select s.created_at, s.id::text, s.event_type || ' to ' || s.destination,
    jsonb_strip_nulls(jsonb_build_object('state', s.state, 'message_id', s.message_id, 'key', s.key,
        'published_at', s.published_at, 'attempts', nullif(s.attempts, 0), 'error', s.error_message)),
    s.headers ->> 'name', s.aggregate_type, s.payload
from dipmo.relay_shard r
join dipmo.outbox_status s on s.shard = r.shard
where s.id >= dipmo.id_at('outbox', $2) and s.id < dipmo.id_at('outbox', $3) and s.correlation_id = $1
order by s.id limit $4";

const JOURNAL: &str = "
-- operator.journey_journal
select j.at, j.process_id::text,
    p.type || ' ' || coalesce(j.from_state || ' -> ', '') || j.to_state || ' (' || j.status || ')',
    jsonb_strip_nulls(jsonb_build_object('kind', j.kind, 'version', j.version, 'message_id', j.message_id,
        'detail', j.detail::jsonb, 'actor', j.actor, 'reason', j.reason))
from dipmo.journal j join dipmo.process p on p.id = j.process_id
where j.process_id = any($1)
order by j.id limit $2";

const COMMANDS: &str = "
-- operator.journey_commands
select c.requested_at, c.id::text, 'command ' || c.name || coalesce(' of ' || nullif(c.step, ''), '') || ' is ' || c.status,
    jsonb_strip_nulls(jsonb_build_object('attempts', c.attempts, 'idempotency_key', c.idempotency_key,
        'completed_at', c.completed_at, 'error', c.last_error, 'parked_at', d.parked_at))
from dipmo.command c left join dipmo.command_dlq d on d.command_id = c.id
where c.process_id = any($1)
order by c.requested_at limit $2";

pub(crate) async fn travellers(db: &Db, tx: &Tx<'_>, correlation: &str) -> Result<Vec<Traveller>> {
    let id = Uuid::parse_str(correlation).ok();
    let rows = query(db, tx, TRAVELLERS, &[&correlation, &id]).await?;
    let traveller = |r: &tokio_postgres::Row| Traveller {
        id: r.get(0),
        created_at: r.get(1),
        updated_at: r.get(2),
        open: r.get(3),
    };
    Ok(rows.iter().map(traveller).collect())
}

/// Messages received and sent with this correlation id within the span.
pub(crate) async fn messages(
    db: &Db,
    tx: &Tx<'_>,
    correlation: &str,
    (from, to): (OffsetDateTime, OffsetDateTime),
    limit: i64,
) -> Result<Vec<Happening>> {
    let mut found = Vec::new();
    for statement in [INBOX, HANDLED] {
        let rows = query(db, tx, statement, &[&correlation, &from, &to, &limit]).await?;
        found.extend(rows.iter().map(|row| happening("inbox", row)));
    }
    let rows = query(db, tx, OUTBOX, &[&correlation, &from, &to, &limit]).await?;
    found.extend(rows.iter().map(sent));
    Ok(found)
}

/// What the processes decided and which commands they issued.
pub(crate) async fn decisions(db: &Db, tx: &Tx<'_>, ids: &[Uuid], limit: i64) -> Result<Vec<Happening>> {
    let mut found = Vec::new();
    for (place, statement) in [("process", JOURNAL), ("command", COMMANDS)] {
        let rows = query(db, tx, statement, &[&ids, &limit]).await?;
        found.extend(rows.iter().map(|row| happening(place, row)));
    }
    Ok(found)
}

/// Told by the command's name: what stays in the database has it in the envelope alone.
fn sent(row: &tokio_postgres::Row) -> Happening {
    let (header, aggregate_type): (Option<&str>, &str) = (row.get(4), row.get(5));
    let heading = Heading::of(row.get(6));
    let name = header.or(heading.as_ref().map(|heading| heading.name.as_ref())).unwrap_or(aggregate_type);
    let sent = happening("outbox", row);
    Happening { what: format!("{name} {}", sent.what), ..sent }
}

fn happening(place: &'static str, row: &tokio_postgres::Row) -> Happening {
    Happening { at: row.get(0), place, reference: row.get(1), what: row.get(2), detail: row.get(3) }
}
