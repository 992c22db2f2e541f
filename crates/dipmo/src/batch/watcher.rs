//! Counts the items of open batches, and says once that a batch has ended.
//!
//! Promise: the end of a batch and the message that tells of it commit together, once, however many nodes
//! watch. A batch of which an operator takes something up again is open again, and ends once more.
//! Not promised: that the counts in `batch_run` are those of this moment; they are a second old.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tracing::{info, warn};
use uuid::Uuid;

use crate::command::Envelope;
use crate::command::envelope::{SCHEMA_VERSION, header};
use crate::error::Result;
use crate::message::{Destination, OutMessage, dedupe_key};
use crate::shutdown::Shutdown;
use crate::store::postgres::batch::{self, Counted};
use crate::store::postgres::{Db, Tx};

/// The type of the event at the end of a batch.
pub const BATCH_COMPLETED: &str = "BatchCompleted";

/// Often enough for eyes; a look at nothing costs one index probe.
const PAUSE: Duration = Duration::from_secs(1);
/// A look holds the rows of at most so many batches.
const BATCHES_MAX: i64 = 100;

/// The loop that keeps `batch_run` up to date.
#[derive(Debug)]
pub struct BatchWatcher {
    db: Db,
    events: Option<Destination>,
}

impl BatchWatcher {
    pub fn new(db: Db) -> Self {
        Self { db, events: None }
    }

    /// Sends [`BATCH_COMPLETED`] there, at the end of each batch.
    #[must_use]
    pub fn telling(mut self, events: Option<Destination>) -> Self {
        self.events = events;
        self
    }

    pub async fn run(&self, mut shutdown: Shutdown) {
        while !shutdown.requested() {
            if let Err(error) = self.run_once().await {
                warn!(%error, "counting batches failed");
            }
            shutdown.wait_up_to(PAUSE).await;
        }
    }

    /// Counts every open batch that no other node is counting; answers with how many have ended.
    pub async fn run_once(&self) -> Result<usize> {
        let mut client = self.db.client().await?;
        let tx = Tx::begin(&mut client)?;
        let (now, counted) = batch::count_open(&self.db, &tx, BATCHES_MAX).await?;
        batch::note(&self.db, &tx, &counted).await?;
        let ended: Vec<&Counted> = counted.iter().filter(|batch| batch.status().is_ended()).collect();
        if let Some(events) = &self.events {
            let messages: Vec<OutMessage> =
                ended.iter().map(|batch| completed(batch, now).into_message(events.clone(), "Batch")).collect();
            self.db.append_in(&tx, &messages).await?;
        }
        let report: Vec<(String, &str)> =
            ended.iter().map(|batch| (batch.id.to_string(), batch.status().name())).collect();
        tx.commit().await?;
        for (batch, status) in &report {
            info!(batch, status, "a batch has ended");
        }
        Ok(report.len())
    }
}

/// Another end is another message.
fn ending_id(batch: &str, before: i32) -> Uuid {
    match before {
        0 => dedupe_key([batch, BATCH_COMPLETED]),
        n => dedupe_key([batch, BATCH_COMPLETED, &n.to_string()]),
    }
}

fn completed(batch: &Counted, now: time::OffsetDateTime) -> Envelope {
    let id = batch.id.to_string();
    let mut headers = Map::new();
    headers.insert(header::SCHEMA_VERSION.to_owned(), SCHEMA_VERSION.into());
    headers.insert(header::BATCH_ID.to_owned(), id.as_str().into());
    if !batch.tenant.is_empty() {
        headers.insert(header::TENANT_ID.to_owned(), batch.tenant.as_str().into());
    }
    let payload: Value = json!({
        "batchId": id,
        "type": batch.saga,
        "scheduledFor": batch.scheduled_for.map(|day| day.to_string()),
        "status": batch.status().name(),
        "counts": batch.counts,
    });
    Envelope {
        message_id: ending_id(&id, batch.endings),
        kind: BATCH_COMPLETED.to_owned(),
        name: batch.saga.clone(),
        command_id: batch.id,
        correlation_id: batch.id,
        causation_id: None,
        occurred_at: now,
        key: id,
        headers,
        payload,
        rest: Map::new(),
    }
}
