//! Starts reviews and, in place of a human reviewer, concludes them.

use async_trait::async_trait;
use dipmo::Message;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;
use serde::{Deserialize, Serialize};

use super::domain::Conclusion;
use super::{REVIEW_COMPLETED, REVIEW_STARTED, START_REVIEW};
use crate::hits::domain::Notification;
use crate::tables::{Effect, Tables};
use crate::wire;

const FEATURE: &str = "review";

const START: &str = "
-- review.start
insert into kyc.review (notification_id, customer_id) values ($1, $2)
on conflict (notification_id) do nothing";

const CONCLUDE: &str = "
-- review.conclude
update kyc.review set outcome = $2 where notification_id = $1 and outcome is null";

/// Handles what concerns reviews.
#[derive(Debug)]
pub struct ReviewDesk {
    tables: Tables,
    /// Where other systems hear of reviews, beside the modules in this database.
    topic: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    notification_id: String,
    score: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Completed {
    notification_id: String,
    conclusion: Conclusion,
}

impl ReviewDesk {
    pub fn new(tables: Tables, topic: Option<String>) -> Self {
        Self { tables, topic }
    }

    async fn start(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let hit: Notification = message.json()?;
        if self.tables.execute(enlisted, START, &[&hit.notification_id, &message.key]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "review-started", message }).await?;
        let started = Started { notification_id: hit.notification_id, score: hit.score };
        self.tell(enlisted, message, REVIEW_STARTED, &started);
        Ok(())
    }

    async fn conclude(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let Started { notification_id, score } = message.json()?;
        let conclusion = Conclusion::of(score);
        if self.tables.execute(enlisted, CONCLUDE, &[&notification_id, &conclusion.name()]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "review-completed", message }).await?;
        let completed = Completed { notification_id, conclusion };
        self.tell(enlisted, message, REVIEW_COMPLETED, &completed);
        Ok(())
    }

    fn tell(&self, enlisted: &mut Enlisted<'_>, cause: &Message, event_type: &str, body: &impl Serialize) {
        let aggregate = ("Review", wire::case(cause));
        enlisted.send(wire::internal(aggregate, event_type, &cause.key, body), cause);
        if let Some(topic) = &self.topic {
            enlisted.send(wire::kafka(topic, aggregate, event_type, &cause.key, body), cause);
        }
    }
}

#[async_trait]
impl EnlistedHandler for ReviewDesk {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        match message.event_type() {
            START_REVIEW => self.start(enlisted, message).await,
            REVIEW_STARTED => self.conclude(enlisted, message).await,
            _ => Err(wire::unknown_type(message)),
        }
    }
}
