//! Qualifies customers and creates their blocks.

use async_trait::async_trait;
use dipmo::Message;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;

use super::domain::Application;
use super::{BLOCK_CREATED, CREATE_BLOCK, CUSTOMER_QUALIFIED, CUSTOMER_REFUSED, QUALIFY_CUSTOMER};
use crate::tables::{Effect, Tables};
use crate::wire::{self, Nothing, Refused};

const FEATURE: &str = "onboarding";

const QUALIFY: &str = "
-- qualification.insert
insert into kyc.qualification (onboarding_id, customer_id, product) values ($1, $2, $3)
on conflict (onboarding_id) do nothing";

const BLOCK: &str = "
-- block.insert
insert into kyc.block (onboarding_id, customer_id, extent) values ($1, $2, $3)
on conflict (onboarding_id) do nothing";

/// Handles the commands about onboardings.
#[derive(Debug)]
pub struct OnboardingDesk {
    tables: Tables,
}

impl OnboardingDesk {
    pub fn new(tables: Tables) -> Self {
        Self { tables }
    }

    async fn qualify(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let application: Application = message.json()?;
        let aggregate = ("Onboarding", application.onboarding_id.as_str());
        if let Err(refusal) = application.qualify() {
            let refused = wire::internal(aggregate, CUSTOMER_REFUSED, &message.key, &Refused { why: refusal.why });
            enlisted.send(refused, message);
            return Ok(());
        }
        let Application { onboarding_id, customer_id, product, .. } = &application;
        // The same command under another id: the first one has done and told all of it.
        if self.tables.execute(enlisted, QUALIFY, &[onboarding_id, customer_id, product]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "customer-qualified", message }).await?;
        enlisted.send(wire::internal(aggregate, CUSTOMER_QUALIFIED, &message.key, &Nothing {}), message);
        Ok(())
    }

    async fn block(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let application: Application = message.json()?;
        let extent = application.extent().name();
        let Application { onboarding_id, customer_id, .. } = &application;
        if self.tables.execute(enlisted, BLOCK, &[onboarding_id, customer_id, &extent]).await? == 0 {
            return Ok(());
        }
        self.tables.record(enlisted, Effect { feature: FEATURE, kind: "block-created", message }).await?;
        let aggregate = ("Onboarding", onboarding_id.as_str());
        enlisted.send(wire::internal(aggregate, BLOCK_CREATED, &message.key, &Nothing {}), message);
        Ok(())
    }
}

#[async_trait]
impl EnlistedHandler for OnboardingDesk {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        match message.event_type() {
            QUALIFY_CUSTOMER => self.qualify(enlisted, message).await,
            CREATE_BLOCK => self.block(enlisted, message).await,
            _ => Err(wire::unknown_type(message)),
        }
    }
}
