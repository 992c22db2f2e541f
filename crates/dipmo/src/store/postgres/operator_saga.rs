//! Operator statements on sagas: an instance locked for a decision, and the decision written.

use time::OffsetDateTime;
use uuid::Uuid;

use super::settle::{Expect, Stop};
use super::{Db, Tx, execute, outbox, process, query};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::Settlement;
use crate::process::Instance;

const LOCK: &str = "
-- operator.saga_lock
select coalesce($2, now()) from dipmo.process where id = $1 for update";

const DEAD_LETTER: &str = "
-- operator.saga_dead_letter
select c.process_id, c.step, c.status, d.command_id is not null
from dipmo.command c left join dipmo.command_dlq d on d.command_id = c.id
where c.id = $1";

const SETTLE_LETTERS: &str = "
-- operator.saga_settle_letters
delete from dipmo.command_dlq d using dipmo.command c where c.id = d.command_id and c.process_id = $1";

const CONSUMER: &str = "
-- operator.saga_consumer
select id from dipmo.consumer where name = $1";

/// Which step of which saga a command is, how it stands, and whether it was given up.
#[derive(Debug, Clone)]
pub(crate) struct IssuedCommand {
    pub(crate) saga: Uuid,
    pub(crate) step: String,
    pub(crate) status: String,
    pub(crate) parked: bool,
}

pub(crate) async fn command(db: &Db, tx: &Tx<'_>, id: Uuid) -> Result<Option<IssuedCommand>> {
    let rows = query(db, tx, DEAD_LETTER, &[&id]).await?;
    let command = |row: &tokio_postgres::Row| IssuedCommand {
        saga: row.get(0),
        step: row.get(1),
        status: row.get(2),
        parked: row.get(3),
    };
    Ok(rows.first().map(command))
}

/// The instance, held until the transaction ends, and the time of the database.
pub(crate) async fn lock(db: &Db, tx: &Tx<'_>, id: Uuid) -> Result<Option<(Instance, OffsetDateTime)>> {
    let rows = query(db, tx, LOCK, &[&id, &db.clock().for_statement()]).await?;
    let Some(now) = rows.first().map(|row| row.get(0)) else { return Ok(None) };
    Ok(process::load_by_id(db, tx, &[id]).await?.remove(&id).map(|instance| (instance, now)))
}

/// An operator has said what becomes of the saga: its dead letters wait for nobody any more.
pub(crate) async fn settle_letters(db: &Db, tx: &Tx<'_>, saga: Uuid) -> Result<()> {
    execute(db, tx, SETTLE_LETTERS, &[&saga]).await.map(drop)
}

/// Writes what was decided for the consumer that runs the sagas.
pub(crate) async fn write(db: &Db, tx: &Tx<'_>, consumer: &str, settlement: &Settlement) -> Result<()> {
    let rows = query(db, tx, CONSUMER, &[&consumer]).await?;
    let Some(consumer_id) = rows.first().map(|row| row.get::<_, i32>(0)) else {
        return Err(Error::not_found(format!("there is no consumer {consumer}: has a node with it ever run here?")));
    };
    match process::write(db, consumer_id, tx, settlement, Expect::Duplicates).await {
        Ok(()) => {}
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Retry(_) | Stop::Surprise) => return Err(Error::new(ErrorKind::Bug, "a locked process has moved")),
    }
    let taken = outbox::append(db, tx, &settlement.outbox).await?;
    match taken.is_empty() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Conflict, "this version of the aggregate has emitted that event")),
    }
}
