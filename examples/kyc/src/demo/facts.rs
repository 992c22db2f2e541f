//! What the database holds when all is quiet, read once, for the checks and the ledger.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use dipmo::store::postgres::Db;
use tokio_postgres::Row;

use super::kafka::Published;
use crate::{HIT_INTAKE, ONBOARDING_INTAKE};

const ARRIVED: &str = "
-- demo.arrived
select message_id from dipmo.inbox_status where consumer = any($1)
union all
-- What was handled straight from the outbox has no row in the inbox, only the memory that it was seen.
(select distinct o.message_id::text
 from dipmo.outbox o
 cross join unnest($1::text[]) as c (name)
 join dipmo.inbox_dedupe d on d.key = dipmo.dedupe_key(c.name, 'INTERNAL', o.message_id::text)
 except
 select message_id from dipmo.inbox_status where consumer = any($1))";

const OPEN: &str = "
-- demo.open
select consumer, message_id, state from dipmo.inbox_status
where state not in ('PROCESSED', 'IGNORED')";

const EFFECTS: &str = "
-- demo.effects
select feature, key, seq, kind, case_id from kyc.effect order by n";

const PROCESSES: &str = "
-- demo.processes
select p.type, p.business_key, p.state,
       (select array_agg(j.to_state order by j.id) from dipmo.journal j where j.process_id = p.id)
from dipmo.process p";

/// What the tables say, under the name of the effect that wrote it.
const TABLES: &str = "
-- demo.tables
select 'hit-opened', notification_id from kyc.hit
union all select 'hit-qualified', notification_id from kyc.hit where verdict is not null
union all select 'review-started', notification_id from kyc.review
union all select 'review-completed', notification_id from kyc.review where outcome is not null
union all select 'customer-qualified', onboarding_id from kyc.qualification
union all select 'block-created', onboarding_id from kyc.block";

const OUTBOX: &str = "
-- demo.outbox
select count(*) filter (where state = 'PUBLISHED'), count(*) filter (where state <> 'PUBLISHED')
from dipmo.outbox_status";

const TO_KAFKA: &str = "
-- demo.to_kafka
select message_id::text from dipmo.outbox where destination like 'KAFKA:%'";

const ATTEMPTS: &str = "
-- demo.attempts
select count(*) from dipmo.inbox_done where attempts > 1";

// Everything that a consumer got has a dedupe key, also what it took from memory and has no row in the inbox.
const STEPS: &str = "
-- demo.steps
select (select count(*) from dipmo.inbox_dedupe)
     - (select count(*) from dipmo.inbox_status where state not in ('PROCESSED', 'IGNORED'))";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRow {
    pub feature: String,
    pub key: String,
    pub seq: i64,
    pub kind: String,
    pub case_id: String,
}

/// An input or step that has not ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessage {
    pub consumer: String,
    pub message_id: String,
    pub state: String,
}

#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Ids of the inputs that the intakes hold.
    pub arrived: Vec<String>,
    pub open: Vec<OpenMessage>,
    pub effects: Vec<EffectRow>,
    /// By process type and business key: the state, and the states of its journal.
    pub processes: HashMap<(String, String), (String, Vec<String>)>,
    /// Kind of effect and case, as the domain tables show it.
    pub tables: HashSet<(String, String)>,
    pub sent: i64,
    pub unsent: i64,
    pub retried: i64,
    pub steps: i64,
    /// Ids of the messages meant for Kafka, and what Kafka holds.
    pub kafka: Option<(Vec<String>, Vec<Published>)>,
}

impl Facts {
    pub async fn read(db: &Db) -> Result<Self> {
        let client = db.client().await?;
        let texts = |rows: Vec<Row>| -> Vec<String> { rows.iter().map(|row| row.get(0)).collect() };
        let intakes = [HIT_INTAKE, ONBOARDING_INTAKE].as_slice();
        let outbox = client.query_one(OUTBOX, &[]).await?;
        let open = client.query(OPEN, &[]).await?;
        let effects = client.query(EFFECTS, &[]).await?;
        let processes = client.query(PROCESSES, &[]).await?;
        let tables = client.query(TABLES, &[]).await?;
        Ok(Self {
            arrived: texts(client.query(ARRIVED, &[&intakes]).await?),
            open: open
                .iter()
                .map(|row| OpenMessage { consumer: row.get(0), message_id: row.get(1), state: row.get(2) })
                .collect(),
            effects: effects.iter().map(effect).collect(),
            processes: processes.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3)))).collect(),
            tables: tables.iter().map(|row| (row.get(0), row.get(1))).collect(),
            sent: outbox.get(0),
            unsent: outbox.get(1),
            retried: client.query_one(ATTEMPTS, &[]).await?.get(0),
            steps: client.query_one(STEPS, &[]).await?.get(0),
            kafka: None,
        })
    }

    /// Adds what the output topic holds.
    pub async fn with_kafka(mut self, db: &Db, published: Vec<Published>) -> Result<Self> {
        let rows = db.client().await?.query(TO_KAFKA, &[]).await?;
        self.kafka = Some((rows.iter().map(|row| row.get(0)).collect(), published));
        Ok(self)
    }

    pub fn open_in(&self, state: &str) -> usize {
        self.open.iter().filter(|message| message.state == state).count()
    }
}

fn effect(row: &Row) -> EffectRow {
    EffectRow { feature: row.get(0), key: row.get(1), seq: row.get(2), kind: row.get(3), case_id: row.get(4) }
}
