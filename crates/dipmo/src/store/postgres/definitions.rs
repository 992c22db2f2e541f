//! The definitions of sagas: every version that was ever used, and which one new sagas begin with.
//!
//! Promise: a version once registered stays, so that an instance that began with it can end with it; at
//! any moment a name has at most one current version.

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use super::operator::{look, rfc3339};
use super::{Db, Tx, execute, query};
use crate::error::Result;

/// A version of a definition, to be registered.
#[derive(Debug, Clone, PartialEq)]
pub struct NewDefinition {
    pub name: String,
    pub hash: String,
    pub body: Value,
}

/// A version of a definition as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredDefinition {
    pub name: String,
    pub hash: String,
    /// New sagas begin with this version.
    pub current: bool,
    #[serde(serialize_with = "rfc3339")]
    pub registered_at: OffsetDateTime,
    pub body: Value,
}

// Two nodes that start at once must not both find that nothing is current.
const LOCK: &str = "
-- definitions.lock
select pg_advisory_xact_lock(hashtextextended($1, 0))";

const RETIRE: &str = "
-- definitions.retire
update dipmo.saga_definition set current = false where name = $1 and hash <> $2 and current";

const REGISTER: &str = "
-- definitions.register
insert into dipmo.saga_definition (name, hash, body, current, registered_at)
values ($1, $2, $3, true, coalesce($4, now()))
on conflict (name, hash) do update set current = true where not saga_definition.current";

const ALL: &str = "
-- definitions.all
select name, hash, current, registered_at, body from dipmo.saga_definition order by name, registered_at, hash";

/// Makes these versions the current ones of their names, all at once; answers with those that were not.
pub async fn register(db: &Db, definitions: &[NewDefinition]) -> Result<Vec<String>> {
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    query(db, &tx, LOCK, &[&format!("{}.saga_definition", db.schema())]).await?;
    let mut changed = Vec::new();
    for definition in definitions {
        if make_current(db, &tx, definition).await? {
            changed.push(definition.name.clone());
        }
    }
    tx.commit().await?;
    Ok(changed)
}

async fn make_current(db: &Db, tx: &Tx<'_>, definition: &NewDefinition) -> Result<bool> {
    let NewDefinition { name, hash, body } = definition;
    execute(db, tx, RETIRE, &[name, hash]).await?;
    Ok(execute(db, tx, REGISTER, &[name, hash, body, &db.clock().for_statement()]).await? == 1)
}

/// Every version there is.
pub async fn all(db: &Db) -> Result<Vec<StoredDefinition>> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let rows = query(db, &tx, ALL, &[]).await?;
    let definition = |r: &tokio_postgres::Row| StoredDefinition {
        name: r.get(0),
        hash: r.get(1),
        current: r.get(2),
        registered_at: r.get(3),
        body: r.get(4),
    };
    Ok(rows.iter().map(definition).collect())
}
