//! Forward-only migrations of our schema, each in its own transaction, and the check that a running
//! library knows the schema it finds.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{Db, failed};
use crate::error::{Error, ErrorKind, Result};

/// One step of the schema. Its text never changes once released; a checksum holds it.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub version: i32,
    pub name: &'static str,
    sql: &'static str,
}

pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "spine", sql: include_str!("../../../migrations/postgres/0001_spine.sql") },
    Migration { version: 2, name: "wal", sql: include_str!("../../../migrations/postgres/0002_wal.sql") },
    Migration { version: 3, name: "commands", sql: include_str!("../../../migrations/postgres/0003_commands.sql") },
    Migration { version: 4, name: "taken", sql: include_str!("../../../migrations/postgres/0004_taken.sql") },
    Migration {
        version: 5,
        name: "journal_key",
        sql: include_str!("../../../migrations/postgres/0005_journal_key.sql"),
    },
];

/// The oldest server the SQL is written for, as `server_version_num`.
const SERVER_VERSION_MIN: i32 = 150_000;

const CREATE_LEDGER: &str = "
-- schema.create_ledger
create table if not exists dipmo.schema_migration (
    version    integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default now(),
    applied_by text not null default current_user
)";

const APPLIED: &str = "
-- schema.applied
select version, checksum from dipmo.schema_migration order by version";

const RECORD: &str = "
-- schema.record
insert into dipmo.schema_migration (version, name, checksum) values ($1, $2, $3)";

impl Migration {
    /// The SQL as it would run on the schema of `db`.
    pub fn sql(&self, db: &Db) -> String {
        db.sql(self.sql).into_owned()
    }

    fn checksum(&self) -> String {
        Sha256::digest(self.sql.as_bytes()).iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// What [`migrate`] would do now.
pub async fn plan(db: &Db) -> Result<Vec<Migration>> {
    check_server(db).await?;
    let applied = applied(db).await?;
    verify(&applied)?;
    Ok(MIGRATIONS.iter().copied().filter(|m| !applied.iter().any(|(version, _)| *version == m.version)).collect())
}

/// Brings the schema up to date. Safe to run from several nodes at once.
pub async fn migrate(db: &Db) -> Result<Vec<Migration>> {
    check_server(db).await?;
    let mut client = db.client().await?;
    let tx = client.transaction().await.map_err(|e| failed("begin", e))?;
    let lock = format!("select pg_advisory_xact_lock(hashtextextended('{}.migrate', 0))", db.schema());
    let setup = format!("{lock}; create schema if not exists {}; {}", db.schema(), db.sql(CREATE_LEDGER));
    tx.batch_execute(&setup).await.map_err(|e| failed("schema.setup", e))?;
    let rows = tx.query(&*db.sql(APPLIED), &[]).await.map_err(|e| failed(APPLIED, e))?;
    let applied: Vec<(i32, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    verify(&applied)?;
    let mut done = Vec::new();
    for migration in MIGRATIONS.iter().filter(|m| !applied.iter().any(|(v, _)| *v == m.version)) {
        let context = |e| failed("schema.migrate", e);
        tx.batch_execute(&migration.sql(db)).await.map_err(context)?;
        tx.execute(&*db.sql(RECORD), &[&migration.version, &migration.name, &migration.checksum()])
            .await
            .map_err(context)?;
        done.push(*migration);
    }
    tx.commit().await.map_err(|e| failed("commit", e))?;
    Ok(done)
}

/// Refuses a schema that this library does not know: too old, too new, or changed by hand.
pub async fn check(db: &Db) -> Result<()> {
    let missing = plan(db).await?;
    if let Some(first) = missing.first() {
        return Err(Error::invalid(format!(
            "schema {} lacks migration {} ({}): run `dipmo schema migrate`",
            db.schema(),
            first.version,
            first.name
        )));
    }
    Ok(())
}

async fn applied(db: &Db) -> Result<Vec<(i32, String)>> {
    let client = db.client().await?;
    match client.query(&*db.sql(APPLIED), &[]).await {
        Ok(rows) => Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect()),
        Err(error) if error.code().is_some_and(|c| ["42P01", "3F000"].contains(&c.code())) => Ok(Vec::new()),
        Err(error) => Err(failed(APPLIED, error)),
    }
}

fn verify(applied: &[(i32, String)]) -> Result<()> {
    for (version, checksum) in applied {
        let Some(known) = MIGRATIONS.iter().find(|m| m.version == *version) else {
            return Err(Error::invalid(format!(
                "the schema has migration {version}, which this version of dipmo does not know: use a newer dipmo"
            )));
        };
        if known.checksum() != *checksum {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("migration {version} ({}) in the database is not the one in this version of dipmo", known.name),
            ));
        }
    }
    Ok(())
}

async fn check_server(db: &Db) -> Result<()> {
    let client = db.client().await?;
    let row = client
        .query_one("select current_setting('server_version_num')::integer", &[])
        .await
        .map_err(|e| failed("schema.server_version", e))?;
    let version: i32 = row.get(0);
    if version < SERVER_VERSION_MIN {
        return Err(Error::invalid(format!("PostgreSQL {} is too old: 15 or later is needed", version / 10_000)));
    }
    Ok(())
}
