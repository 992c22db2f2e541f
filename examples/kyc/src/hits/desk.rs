//! Opens and qualifies hits: writes the tables in the transaction that records the command as handled.

use std::sync::Arc;

use async_trait::async_trait;
use dipmo::Message;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;

use super::domain::{Hit, Notification};
use super::screening::Screening;
use super::{CREATE_HIT, HIT_CREATED, HIT_QUALIFIED, HIT_REFUSED, QUALIFY_HIT};
use crate::tables::{Effect, Tables};
use crate::wire::{self, Nothing, Qualified, Refused};

const FEATURE: &str = "hits";

const OPEN: &str = "
-- hit.open
insert into kyc.hit (notification_id, customer_id, subject, score) values ($1, $2, $3, $4)
on conflict (notification_id) do nothing";

const QUALIFY: &str = "
-- hit.qualify
update kyc.hit set verdict = $2 where notification_id = $1 and verdict is null";

/// Handles the commands about hits.
pub struct HitDesk {
    tables: Tables,
    screening: Arc<dyn Screening>,
}

impl HitDesk {
    pub fn new(tables: Tables, screening: Arc<dyn Screening>) -> Self {
        Self { tables, screening }
    }

    async fn open(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let notification: Notification = message.json()?;
        let aggregate = ("Hit", notification.notification_id.as_str());
        let hit = match Hit::open(&notification) {
            Ok(hit) => hit,
            Err(refusal) => {
                let refused = wire::internal(aggregate, HIT_REFUSED, &message.key, &Refused { why: refusal.why });
                enlisted.send(refused, message);
                return Ok(());
            }
        };
        let Hit { notification_id, customer_id, subject, score } = &hit;
        let score = i32::from(*score);
        // The same command under another id: the first one has done and told all of it.
        if self.tables.execute(enlisted, OPEN, &[notification_id, customer_id, subject, &score]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "hit-opened", message }).await?;
        enlisted.send(wire::internal(aggregate, HIT_CREATED, &message.key, &Nothing {}), message);
        Ok(())
    }

    async fn qualify(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let hit: Notification = message.json()?;
        let verdict = self
            .screening
            .screen(&hit.subject, hit.score, message.attempt)
            .map_err(|unanswered| Failure::transient("SCREENING", unanswered.why))?;
        if self.tables.execute(enlisted, QUALIFY, &[&hit.notification_id, &verdict.name()]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "hit-qualified", message }).await?;
        let aggregate = ("Hit", hit.notification_id.as_str());
        enlisted.send(wire::internal(aggregate, HIT_QUALIFIED, &message.key, &Qualified { verdict }), message);
        Ok(())
    }
}

#[async_trait]
impl EnlistedHandler for HitDesk {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        match message.event_type() {
            CREATE_HIT => self.open(enlisted, message).await,
            QUALIFY_HIT => self.qualify(enlisted, message).await,
            _ => Err(wire::unknown_type(message)),
        }
    }
}

impl std::fmt::Debug for HitDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HitDesk").field("tables", &self.tables).finish_non_exhaustive()
    }
}
