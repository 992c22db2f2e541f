//! Commands for operators and for whoever sent them: lists, one command with its saga, dead letters.

pub use crate::store::postgres::operator_command::{
    CommandDetail, CommandFilter, CommandProcess, CommandRow, DeadLetterRow,
};

use uuid::Uuid;

use super::{Listing, Page};
use crate::command::CommandStatus;
use crate::error::{Error, Result};
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_command as store;

/// Commands that came from outside, newest first; or those of one saga.
pub async fn list(db: &Db, filter: &CommandFilter, page: &Page<Uuid>) -> Result<Listing<CommandRow>> {
    if let Some(status) = filter.status.as_deref().filter(|name| CommandStatus::from_name(name).is_none()) {
        let known = CommandStatus::ALL.map(CommandStatus::name).join(", ");
        return Err(Error::invalid(format!("unknown status {status:?}: use one of {known}")));
    }
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::list(db, &tx, filter, page.after.unwrap_or(Uuid::max()), limit).await?;
    Ok(page.listing(rows, |row| row.command_id.to_string()))
}

pub async fn show(db: &Db, id: Uuid) -> Result<CommandDetail> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    store::show(db, &tx, id).await?.ok_or_else(|| Error::not_found(format!("there is no command {id}")))
}

/// Commands that were given up, in the order of their ids.
pub async fn dead_letters(db: &Db, name: Option<&str>, page: &Page<Uuid>) -> Result<Listing<DeadLetterRow>> {
    let limit = page.probe()?;
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = store::dead_letters(db, &tx, name, page.after.unwrap_or(Uuid::nil()), limit).await?;
    Ok(page.listing(rows, |row| row.command.command_id.to_string()))
}
