//! The PostgreSQL store: one file a stage, one transaction a method, batches in and out.

pub(crate) mod batch;
mod claim;
mod columns;
mod command;
pub(crate) mod command_accept;
pub(crate) mod command_ledger;
pub(crate) mod command_taken;
pub mod definitions;
pub mod inbox;
mod lease;
pub(crate) mod listen;
pub(crate) mod operator;
pub(crate) mod operator_batch;
pub(crate) mod operator_command;
pub(crate) mod operator_doctor;
pub(crate) mod operator_inbox;
pub(crate) mod operator_journey;
pub(crate) mod operator_keys;
pub(crate) mod operator_outbox;
pub(crate) mod operator_process;
pub(crate) mod operator_relay;
pub(crate) mod operator_saga;
pub(crate) mod operator_status;
pub(crate) mod operator_why;
pub(crate) mod outbox;
mod process;
pub(crate) mod relay;
pub(crate) mod relay_internal;
pub(crate) mod relay_lease;
pub(crate) mod relay_out;
pub(crate) mod relay_rows;
pub(crate) mod relay_wal;
pub mod schema;
mod settle;
mod tls;
mod tx;
pub(crate) mod upkeep;
#[allow(dead_code, reason = "the relay that reads the WAL is built on it")]
pub(crate) mod wal;

pub use tx::Tx;

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::QueueMode;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Transaction,
};
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::OutMessage;

/// The schema that SQL in this crate is written for.
const SCHEMA_DEFAULT: &str = "dipmo";
/// Enough for one loop of each kind plus the groups of enlisted handlers that run side by side.
const CONNECTIONS_MAX: usize = 16;

/// A server that can be reached answers within this.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A server that does not acknowledge what it is sent for this long is taken to be gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Twice the lease of a bucket: an honest handler has answered long before.
const IDLE_IN_TRANSACTION_MAX: Duration = Duration::from_secs(30);

/// A database: a pool of connections, the schema that holds our tables, and a clock. Clones share it.
#[derive(Clone)]
pub struct Db(Arc<Shared>);

struct Shared {
    pool: Pool,
    config: Config,
    tls: MakeRustlsConnect,
    schema: String,
    clock: Clock,
}

/// How to reach the database.
#[derive(Clone)]
pub struct DbOptions {
    /// `postgres://user:password@host:port/database?sslmode=require`; never printed.
    pub url: String,
    /// Who may vouch for the server, with `sslmode=require`; the system's authorities unless given.
    pub ca_file: Option<PathBuf>,
    pub schema: String,
    pub connections_max: usize,
    /// The server ends a transaction whose node has been silent for this long: a node that is paused in
    /// the middle of one would otherwise keep its buckets from the others. Nobody waits longer than this for
    /// a pooled connection: handlers that hold one each and wait for another would wait for ever.
    pub idle_in_transaction_max: Duration,
    pub application_name: String,
    pub clock: Clock,
}

impl DbOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_file: None,
            schema: SCHEMA_DEFAULT.to_owned(),
            connections_max: CONNECTIONS_MAX,
            idle_in_transaction_max: IDLE_IN_TRANSACTION_MAX,
            application_name: "dipmo".to_owned(),
            clock: Clock::database(),
        }
    }
}

impl fmt::Debug for DbOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbOptions").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("schema", &self.0.schema).finish_non_exhaustive()
    }
}

impl Db {
    /// Makes the pool; connections are opened when they are first needed.
    pub fn open(options: DbOptions) -> Result<Self> {
        valid_schema_name(&options.schema)?;
        // The parser's error may quote the URL, and with it the password: not passed on.
        let mut config = Config::from_str(&options.url).map_err(|_| {
            Error::invalid("the database URL is not valid: postgres://user:password@host:port/database")
        })?;
        config.application_name(&options.application_name);
        notice_silence(&mut config);
        let idle = options.idle_in_transaction_max.as_millis();
        let given = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
        config.options(format!("{given}-c idle_in_transaction_session_timeout={idle}"));
        let tls = tls::connector(&mut config, options.ca_file.as_deref())?;
        let manager = Manager::from_config(
            config.clone(),
            tls.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(options.connections_max)
            // The one that was used last has its plans and caches; the others may be needed under load.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(options.idle_in_transaction_max))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::invalid("making the connection pool").source(error))?;
        Ok(Self(Arc::new(Shared { pool, config, tls, schema: options.schema, clock: options.clock })))
    }

    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The settings to open a connection outside the pool, for LISTEN.
    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn tls(&self) -> MakeRustlsConnect {
        self.0.tls.clone()
    }

    /// A pooled connection. Whoever takes a second one while it holds one needs a pool that is large enough.
    pub async fn client(&self) -> Result<Object> {
        self.0.pool.get().await.map_err(|error| match error {
            PoolError::Timeout(TimeoutType::Wait) => {
                let all = self.0.pool.status().max_size;
                let why = format!("no connection to PostgreSQL became free in time: all {all} are taken, allow more");
                Error::new(ErrorKind::Unavailable, why)
            }
            error => Error::new(ErrorKind::Unavailable, "connecting to PostgreSQL").source(error),
        })
    }

    /// Appends messages to the outbox in the caller's own transaction: they go out if and only if it commits.
    /// Do it while the aggregate's row is held, so that they leave in the order of its changes.
    pub async fn append(&self, tx: &Transaction<'_>, messages: &[OutMessage]) -> Result<()> {
        self.append_in(&Tx::lent(tx), messages).await
    }

    pub(crate) async fn append_in(&self, tx: &Tx<'_>, messages: &[OutMessage]) -> Result<()> {
        let taken = outbox::append(self, tx, messages).await?;
        match messages.iter().find(|message| message.version_key().is_some_and(|key| taken.contains(&key))) {
            None => Ok(()),
            Some(message) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{} of {} {} version {} is in the outbox already",
                    message.event_type,
                    message.aggregate_type,
                    message.aggregate_id,
                    message.aggregate_version.unwrap_or_default()
                ),
            )),
        }
    }

    /// SQL is written with the schema `dipmo`; a store on another schema reads it rewritten.
    pub(crate) fn sql(&self, statement: &'static str) -> Cow<'static, str> {
        if self.0.schema == SCHEMA_DEFAULT {
            return Cow::Borrowed(statement);
        }
        Cow::Owned(statement.replace("dipmo.", &format!("{}.", self.0.schema)))
    }
}

/// Runs a prepared statement of ours inside a transaction; prepared once per connection.
pub(crate) async fn query(
    db: &Db,
    tx: &Tx<'_>,
    statement: &'static str,
    params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>> {
    let prepared = tx.prepare_cached(&db.sql(statement)).await.map_err(|e| failed(statement, e))?;
    tx.query(&prepared, params).await.map_err(|e| failed(statement, e))
}

/// Like [`query`], for reading outside any transaction.
pub(crate) async fn look_up(
    db: &Db,
    client: &Object,
    statement: &'static str,
    params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>> {
    let prepared = client.prepare_cached(&db.sql(statement)).await.map_err(|e| failed(statement, e))?;
    client.query(&prepared, params).await.map_err(|e| failed(statement, e))
}

/// Like [`query`], for statements whose count of rows is the answer.
pub(crate) async fn execute(
    db: &Db,
    tx: &Tx<'_>,
    statement: &'static str,
    params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<u64> {
    let prepared = tx.prepare_cached(&db.sql(statement)).await.map_err(|e| failed(statement, e))?;
    tx.execute(&prepared, params).await.map_err(|e| failed(statement, e))
}

/// Turns what the server said into what the caller should do. The first line of a statement names it.
pub(crate) fn failed(statement: &str, error: tokio_postgres::Error) -> Error {
    let name = statement.trim_start().lines().next().unwrap_or("").trim_start_matches("-- ");
    Error::new(kind_of(error.code().map(|code| code.code())), format!("database: {name}")).source(error)
}

/// What to do about an error with this SQLSTATE; none means that the server said nothing.
fn kind_of(code: Option<&str>) -> ErrorKind {
    match code {
        None => ErrorKind::Unavailable,
        // Connection, rollback, resources, lock not available, operator intervention, system error.
        Some(code) if ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class)) => {
            ErrorKind::Unavailable
        }
        // The schema changed under a cached plan: a new connection prepares it anew.
        Some("0A000") => ErrorKind::Unavailable,
        Some("23505") => ErrorKind::Conflict,
        // A statement failed before: only a handler that does not look at the answer goes on after that.
        Some("25P02") => ErrorKind::Poison,
        // A value that the database cannot hold: the input is at fault, and only it.
        Some(code) if code.starts_with("22") || code.starts_with("54") || code == "23514" => ErrorKind::Poison,
        Some("42P01" | "3F000" | "42883" | "42703" | "42501" | "28P01" | "28000" | "3D000") => ErrorKind::Invalid,
        Some(_) => ErrorKind::Bug,
    }
}

/// A server that vanished without a word is noticed within a minute, not when the kernel gives up after a
/// quarter of an hour. What the URL says otherwise is kept.
fn notice_silence(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_MAX);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    if config.get_keepalives_interval().is_none() && config.get_keepalives_retries().is_none() {
        config.keepalives_idle(config.get_keepalives_idle().min(SILENCE_MAX));
        config.keepalives_interval(SILENCE_MAX / 3).keepalives_retries(3);
    }
}

fn valid_schema_name(name: &str) -> Result<()> {
    let shape = name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !shape {
        return Err(Error::invalid(format!(
            "schema name {name:?}: use lower case letters, digits and _, at most 40, a letter first"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(parameters: &str) -> Config {
        Db::open(DbOptions::new(format!("postgres://u@localhost/d{parameters}"))).unwrap().config().clone()
    }

    #[test]
    fn a_silent_server_is_noticed_unless_the_url_says_otherwise() {
        let plain = opened("");
        assert_eq!(plain.get_connect_timeout(), Some(&CONNECT_MAX));
        assert_eq!(plain.get_tcp_user_timeout(), Some(&SILENCE_MAX));
        assert_eq!((plain.get_keepalives_idle(), plain.get_keepalives_retries()), (SILENCE_MAX, Some(3)));
        let own = opened("?connect_timeout=3&tcp_user_timeout=7000&keepalives_retries=9");
        assert_eq!(own.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_ne!(own.get_tcp_user_timeout(), Some(&SILENCE_MAX));
        assert_eq!(own.get_keepalives_retries(), Some(9));
    }
}
