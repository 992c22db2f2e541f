//! The tables of this example, in a schema of their own, and the ledger of effects.
//!
//! Every write of the domain is idempotent by a natural key. The ledger is not, on purpose: it takes
//! whatever happens, so that an effect that happened twice, or out of order, can be seen there.

use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use dipmo::store::postgres::Db;
use tokio_postgres::types::ToSql;

/// SQL in this example is written for the schema of this name.
pub const SCHEMA_DEFAULT: &str = "kyc";

const CREATE: &str = "
-- tables.create
create table if not exists kyc.hit (
    notification_id text primary key,
    customer_id     text not null,
    subject         text not null,
    score           integer not null,
    verdict         text check (verdict in ('positive', 'negative'))
);

create table if not exists kyc.review (
    notification_id text primary key references kyc.hit,
    customer_id     text not null,
    outcome         text check (outcome in ('confirmed', 'dismissed'))
);

create table if not exists kyc.qualification (
    onboarding_id text primary key,
    customer_id   text not null,
    product       text not null
);

create table if not exists kyc.block (
    onboarding_id text primary key references kyc.qualification,
    customer_id   text not null,
    extent        text not null check (extent in ('full', 'partial'))
);

-- Insert-only and without any unique constraint: a doubled effect must show, not be refused.
create table if not exists kyc.effect (
    n          bigint generated always as identity,
    feature    text not null,
    key        text not null,
    seq        bigint not null,
    kind       text not null,
    case_id    text not null,
    message_id text not null,
    at         timestamptz not null default now()
);
create index if not exists effect_key on kyc.effect (feature, key, seq);";

const RECORD: &str = "
-- effect.record
insert into kyc.effect (feature, key, seq, kind, case_id, message_id)
select $1, $2, coalesce(max(seq), 0) + 1, $3, $4, $5 from kyc.effect where feature = $1 and key = $2";

/// The schema that holds the tables, and how statements get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    schema: String,
}

/// Something that must happen exactly once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect<'a> {
    pub(crate) feature: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) message: &'a dipmo::Message,
}

impl Tables {
    pub fn new(schema: impl Into<String>) -> Self {
        Self { schema: schema.into() }
    }

    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Makes the tables where they are missing.
    pub async fn create(&self, db: &Db) -> anyhow::Result<()> {
        let create = format!("create schema if not exists {}; {}", self.schema, self.sql(CREATE));
        Ok(db.client().await?.batch_execute(&create).await?)
    }

    /// A statement as it reads on this schema.
    pub fn sql(&self, statement: &str) -> String {
        statement.replace("kyc.", &format!("{}.", self.schema))
    }

    /// Runs a statement in the handler's transaction; prepared once per connection.
    pub(crate) async fn execute(
        &self,
        enlisted: &Enlisted<'_>,
        statement: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let prepared = enlisted.tx().prepare_cached(&self.sql(statement)).await?;
        Ok(enlisted.tx().execute(&prepared, params).await?)
    }

    pub(crate) async fn record(&self, enlisted: &Enlisted<'_>, effect: Effect<'_>) -> Result<(), Failure> {
        let Effect { feature, kind, message } = effect;
        let case = crate::wire::case(message);
        let params: [&(dyn ToSql + Sync); 5] = [&feature, &message.key, &kind, &case, &message.message_id];
        self.execute(enlisted, RECORD, &params).await.map(drop)
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::new(SCHEMA_DEFAULT)
    }
}
