//! Starts the sagas of a batch. Items that are known already are left alone, so that a batch may be started
//! any number of times.

use std::collections::HashSet;

use async_trait::async_trait;

use super::{BATCH_CONSUMER, BatchItem, BatchItemsRequested};
use crate::command::{Envelope, START_QUEUE};
use crate::consumer::Consumer;
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::handler::{Enlisted, EnlistedHandler};
use crate::message::{Destination, Message};
use crate::store::postgres::batch;

/// The consumer's handler.
#[derive(Debug, Clone)]
pub struct BatchStarter {
    start: Destination,
}

impl BatchStarter {
    /// Starts sagas by messages to this destination.
    pub fn starting_at(start: Destination) -> Self {
        Self { start }
    }

    /// Starts sagas of an orchestrator in the same database.
    pub fn internal() -> Result<Self> {
        Ok(Self::starting_at(format!("INTERNAL:{START_QUEUE}").parse()?))
    }

    /// The consumer, still without its source.
    pub fn consumer(self) -> Consumer {
        Consumer::enlisted(BATCH_CONSUMER, self)
    }
}

#[async_trait]
impl EnlistedHandler for BatchStarter {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let envelope = Envelope::of(message)?;
        let request: BatchItemsRequested = serde_json::from_value(envelope.payload.clone())
            .map_err(|error| Failure::undecodable("BATCH", error.to_string()))?;
        request.check()?;
        let now = enlisted.now().await?;
        let (db, tx) = (enlisted.db(), enlisted.tx());
        let known = batch::open(db, tx, &request).await.map_err(failed)?;
        if (known.saga.as_str(), known.tenant.as_str()) != (&request.saga, &request.tenant) {
            let why = format!("batch {} is of {:?} for tenant {:?}", request.batch_id, known.saga, known.tenant);
            return Err(Failure::permanent("BATCH_MISMATCH", why));
        }
        let added: HashSet<String> = batch::add_items(db, tx, &request).await.map_err(failed)?;
        let new: Vec<&BatchItem> = first_of_each(&request.items, added);
        for item in new {
            let start = request.start(item, &envelope, now);
            enlisted.send(start.into_message(self.start.clone(), "Saga"), message);
        }
        Ok(())
    }
}

/// The items of these ids; of two of one id, the first.
fn first_of_each(items: &[BatchItem], mut ids: HashSet<String>) -> Vec<&BatchItem> {
    items.iter().filter(|item| ids.remove(&item.id)).collect()
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Poison => Failure::permanent("NOT_STORABLE", error.to_string()),
        _ => Failure::transient("DATABASE", error.to_string()),
    }
}
