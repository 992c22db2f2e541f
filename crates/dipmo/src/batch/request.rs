//! The message that a batch is made of: a list of items, sent in as many parts as its sender likes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::{Date, OffsetDateTime};
use uuid::Uuid;

use super::BATCH_QUEUE;
use crate::command::Envelope;
use crate::command::envelope::{SCHEMA_VERSION, header};
use crate::failure::Failure;
use crate::message::{Destination, OutMessage, dedupe_key};

/// What fits into a row of the table of items with room to spare.
const TEXT_BYTES_MAX: usize = 200;

/// Items to add to a batch; the payload of the message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchItemsRequested {
    pub batch_id: Uuid,
    /// The saga that is started for each item.
    #[serde(rename = "type")]
    pub saga: String,
    #[serde(default)]
    pub tenant: String,
    #[serde(default)]
    pub scheduled_for: Option<Date>,
    pub items: Vec<BatchItem>,
    /// Nothing comes after this part; it says how many there are in all.
    #[serde(default)]
    pub last: bool,
    #[serde(default)]
    pub total: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchItem {
    /// Unique in the batch.
    pub id: String,
    /// The business key of its saga.
    pub key: String,
    /// The input of its saga.
    #[serde(default)]
    pub payload: Value,
}

impl BatchItemsRequested {
    pub const KIND: &'static str = "BatchItemsRequested";

    /// What a sender got wrong, by the name of the field.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |why: String| Err(Failure::permanent("BATCH", why));
        let fits = |text: &str| !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.contains('\0');
        if !fits(&self.saga) {
            return wrong(format!("type must have 1 to {TEXT_BYTES_MAX} bytes"));
        }
        if let Some(at) = self.items.iter().position(|item| !fits(&item.id) || !fits(&item.key)) {
            return wrong(format!("items[{at}]: id and key must have 1 to {TEXT_BYTES_MAX} bytes and no NUL"));
        }
        if self.total.is_some_and(|total| total < 0) || (self.last && self.total.is_none()) {
            return wrong("the last part must say in total how many items there are".to_owned());
        }
        Ok(())
    }

    /// As a message to [`BATCH_QUEUE`] by a transport. Parts have the same id whenever they are sent.
    pub fn into_message(self, transport: &str, part: usize, now: OffsetDateTime) -> crate::Result<OutMessage> {
        let destination: Destination = format!("{transport}:{BATCH_QUEUE}").parse()?;
        let batch = self.batch_id.to_string();
        let mut headers = Map::new();
        headers.insert(header::SCHEMA_VERSION.to_owned(), SCHEMA_VERSION.into());
        headers.insert(header::BATCH_ID.to_owned(), batch.as_str().into());
        if !self.tenant.is_empty() {
            headers.insert(header::TENANT_ID.to_owned(), self.tenant.as_str().into());
        }
        let envelope = Envelope {
            message_id: dedupe_key([&batch, Self::KIND, &part.to_string()]),
            kind: Self::KIND.to_owned(),
            name: self.saga.clone(),
            command_id: self.batch_id,
            correlation_id: self.batch_id,
            causation_id: None,
            occurred_at: now,
            key: batch,
            headers,
            payload: serde_json::to_value(&self).expect("a list of items serialises"),
            rest: Map::new(),
        };
        Ok(envelope.into_message(destination, "Batch"))
    }

    /// The saga of an item: the same whenever the batch is started.
    pub(crate) fn saga_id(&self, item: &BatchItem) -> Uuid {
        dedupe_key([&*self.batch_id.to_string(), &item.id])
    }

    /// What starts the saga of an item.
    pub(super) fn start(&self, item: &BatchItem, cause: &Envelope, now: OffsetDateTime) -> Envelope {
        let saga = self.saga_id(item);
        let mut headers = Map::new();
        let texts = [
            (header::SCHEMA_VERSION, SCHEMA_VERSION),
            (header::TENANT_ID, &*self.tenant),
            (header::IDEMPOTENCY_KEY, &*saga.to_string()),
            (header::BATCH_ID, &*self.batch_id.to_string()),
            (header::BATCH_ITEM, &*item.id),
        ];
        for (name, value) in texts.into_iter().filter(|(_, value)| !value.is_empty()) {
            headers.insert(name.to_owned(), value.into());
        }
        Envelope {
            message_id: dedupe_key([&*saga.to_string(), "start"]),
            kind: crate::command::envelope::kind::REQUESTED.to_owned(),
            name: self.saga.clone(),
            command_id: saga,
            correlation_id: saga,
            causation_id: Some(cause.message_id.to_string()),
            occurred_at: now,
            key: item.key.clone(),
            headers,
            payload: item.payload.clone(),
            rest: Map::new(),
        }
    }
}
