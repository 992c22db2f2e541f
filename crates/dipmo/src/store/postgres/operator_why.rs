//! Operator statements that tell what stands in the way of a process, a command or a key.

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Tx, process, query};
use crate::error::Result;
use crate::process::Instance;

/// The most obstacles that are told; the first is the one to deal with.
const OBSTACLES_MAX: i64 = 5;

/// A message that is not moving.
#[derive(Debug, Clone)]
pub(crate) struct Obstacle {
    pub(crate) id: i64,
    pub(crate) state: String,
    /// The consumer, or the destination.
    pub(crate) place: String,
    pub(crate) event_type: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) due: Option<OffsetDateTime>,
}

const PROCESS_OF: &str = "
-- operator.why_process_of
select id from dipmo.process where id = $1
union all select process_id from dipmo.command where id = $1
limit 1";

const BY_BUSINESS_KEY: &str = "
-- operator.why_by_business_key
select id from dipmo.process where business_key = $1
order by (status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED')) desc, updated_at desc limit 1";

const COMMAND: &str = "
-- operator.why_command
select c.name || ' is ' || c.status || coalesce(': ' || c.last_error, '')
from dipmo.command c where c.id = $1";

const INBOX: &str = "
-- operator.why_inbox
select w.id, w.state, c.name, i.event_type, concat_ws(': ', w.error_code, w.error_message), w.next_attempt_at
from dipmo.inbox_work w
join dipmo.inbox i on i.id = w.id
join dipmo.consumer c on c.id = w.consumer_id
where (i.correlation_id = $1 or w.key = $2)
-- What failed comes before what only waits behind it.
order by array_position(array['DEAD', 'SERDE_ERROR', 'RETRY', 'RECEIVED', 'PARKED'], w.state), w.id
limit $3";

const OUTBOX: &str = "
-- operator.why_outbox
select x.id, x.state, x.destination, o.event_type, concat_ws(': ', x.error_code, x.error_message), x.next_attempt_at
from dipmo.outbox_exception x
join dipmo.outbox o on o.shard = x.shard and o.id = x.id
where x.state in ('RETRY', 'PARKED', 'DEAD') and (o.correlation_id = $1 or x.key = $2)
order by array_position(array['DEAD', 'RETRY', 'PARKED'], x.state), x.id
limit $3";

/// The process with this id, or that issued the command with this id.
pub(crate) async fn process_of(db: &Db, tx: &Tx<'_>, id: Uuid) -> Result<Option<Instance>> {
    let rows = query(db, tx, PROCESS_OF, &[&id]).await?;
    load(db, tx, rows.first().map(|row| row.get(0))).await
}

/// The process of this business key; of several an open one, else the latest.
pub(crate) async fn by_business_key(db: &Db, tx: &Tx<'_>, key: &str) -> Result<Option<Instance>> {
    let rows = query(db, tx, BY_BUSINESS_KEY, &[&key]).await?;
    load(db, tx, rows.first().map(|row| row.get(0))).await
}

async fn load(db: &Db, tx: &Tx<'_>, id: Option<Uuid>) -> Result<Option<Instance>> {
    match id {
        Some(id) => Ok(process::load_by_id(db, tx, &[id]).await?.remove(&id)),
        None => Ok(None),
    }
}

/// How a command stands, in words.
pub(crate) async fn command(db: &Db, tx: &Tx<'_>, id: Uuid) -> Result<Option<String>> {
    Ok(query(db, tx, COMMAND, &[&id]).await?.first().map(|row| row.get(0)))
}

/// Open messages that were received under this correlation id or for this key.
pub(crate) async fn inbox(db: &Db, tx: &Tx<'_>, correlation: Option<&str>, key: Option<&str>) -> Result<Vec<Obstacle>> {
    Ok(query(db, tx, INBOX, &[&correlation, &key, &OBSTACLES_MAX]).await?.iter().map(obstacle).collect())
}

/// Messages under this correlation id or for this key that could not be sent.
pub(crate) async fn outbox(
    db: &Db,
    tx: &Tx<'_>,
    correlation: Option<&str>,
    key: Option<&str>,
) -> Result<Vec<Obstacle>> {
    Ok(query(db, tx, OUTBOX, &[&correlation, &key, &OBSTACLES_MAX]).await?.iter().map(obstacle).collect())
}

fn obstacle(row: &tokio_postgres::Row) -> Obstacle {
    let error: String = row.get(4);
    Obstacle {
        id: row.get(0),
        state: row.get(1),
        place: row.get(2),
        event_type: row.get(3),
        error: Some(error).filter(|error| !error.is_empty()),
        due: row.get(5),
    }
}
