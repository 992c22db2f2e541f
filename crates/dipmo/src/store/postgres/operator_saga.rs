//! Operator statements on sagas: an instance locked for a decision, and the decision written.

use deadpool_postgres::Transaction;
use time::OffsetDateTime;
use uuid::Uuid;

use super::settle::Stop;
use super::{Db, outbox, process, query};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::Settlement;
use crate::process::Instance;

const LOCK: &str = "
-- operator.saga_lock
select coalesce($2, now()) from dipmo.process where id = $1 for update";

const CONSUMER: &str = "
-- operator.saga_consumer
select id from dipmo.consumer where name = $1";

/// The instance, held until the transaction ends, and the time of the database.
pub(crate) async fn lock(db: &Db, tx: &Transaction<'_>, id: Uuid) -> Result<Option<(Instance, OffsetDateTime)>> {
    let rows = query(db, tx, LOCK, &[&id, &db.clock().for_statement()]).await?;
    let Some(now) = rows.first().map(|row| row.get(0)) else { return Ok(None) };
    Ok(process::load_by_id(db, tx, &[id]).await?.remove(&id).map(|instance| (instance, now)))
}

/// Writes what was decided for the consumer that runs the sagas.
pub(crate) async fn write(db: &Db, tx: &Transaction<'_>, consumer: &str, settlement: &Settlement) -> Result<()> {
    let rows = query(db, tx, CONSUMER, &[&consumer]).await?;
    let Some(consumer_id) = rows.first().map(|row| row.get::<_, i32>(0)) else {
        return Err(Error::not_found(format!("there is no consumer {consumer}: has a node with it ever run here?")));
    };
    match process::write(db, consumer_id, tx, settlement).await {
        Ok(()) => {}
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Retry(_)) => return Err(Error::new(ErrorKind::Bug, "a locked process has moved")),
    }
    let taken = outbox::append(db, tx, &settlement.outbox).await?;
    match taken.is_empty() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Conflict, "this version of the aggregate has emitted that event")),
    }
}
