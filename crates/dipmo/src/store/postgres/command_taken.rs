//! Commands that were taken to be answered later.

use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Tx, execute, query};
use crate::error::Result;

// Taken again, it is another sending, and whatever was answered to the one before is no answer to it.
const TAKE: &str = "
-- command_taken.take
insert into dipmo.command_taken (command_id, key, envelope, reply_to, traceparent, taken_at)
values ($1, $2, $3, $4, $5, coalesce($6, now()))
on conflict (command_id) do update
    set key = excluded.key, envelope = excluded.envelope, reply_to = excluded.reply_to,
        traceparent = excluded.traceparent, taken_at = excluded.taken_at, answer = null, payload = null";

// Locked, so that of two answers at once the second sees the first.
const FIND: &str = "
-- command_taken.find
select key, envelope, reply_to, traceparent, answer, payload, coalesce($2, now())
from dipmo.command_taken where command_id = $1 for update";

const IS_SENT: &str = "
-- command_taken.is_sent
select exists (select from dipmo.command where id = $1 and status in ('PENDING', 'RUNNING'))";

const ANSWER: &str = "
-- command_taken.answer
update dipmo.command_taken set answer = $2, payload = $3 where command_id = $1";

/// A command that somebody has and will answer.
#[derive(Debug)]
pub(crate) struct Taken {
    pub key: Uuid,
    pub envelope: Value,
    pub reply_to: String,
    pub traceparent: Option<String>,
}

/// What is known of it when an answer comes.
#[derive(Debug)]
pub(crate) struct Found {
    pub taken: Taken,
    /// What was answered to this sending of it.
    pub answered: Option<(String, Value)>,
    pub now: OffsetDateTime,
}

pub(crate) async fn take(db: &Db, tx: &Tx<'_>, command_id: Uuid, taken: &Taken) -> Result<()> {
    let Taken { key, envelope, reply_to, traceparent } = taken;
    let now = db.clock().for_statement();
    execute(db, tx, TAKE, &[&command_id, key, envelope, reply_to, traceparent, &now]).await.map(drop)
}

pub(crate) async fn find(db: &Db, tx: &Tx<'_>, command_id: Uuid) -> Result<Option<Found>> {
    let rows = query(db, tx, FIND, &[&command_id, &db.clock().for_statement()]).await?;
    Ok(rows.first().map(|row| Found {
        taken: Taken { key: row.get(0), envelope: row.get(1), reply_to: row.get(2), traceparent: row.get(3) },
        answered: row.get::<_, Option<String>>(4).map(|answer| (answer, row.get(5))),
        now: row.get(6),
    }))
}

/// Whether the command was sent from this database and waits for an answer.
pub(crate) async fn is_sent(db: &Db, tx: &Tx<'_>, command_id: Uuid) -> Result<bool> {
    Ok(query(db, tx, IS_SENT, &[&command_id]).await?[0].get(0))
}

pub(crate) async fn answer(db: &Db, tx: &Tx<'_>, command_id: Uuid, (answer, payload): (&str, &Value)) -> Result<()> {
    execute(db, tx, ANSWER, &[&command_id, &answer, payload]).await.map(drop)
}
