//! The consumers of a node that take INTERNAL from its relay's memory, instead of through their inbox.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use crate::consumer::{Consumer, Grouping, Handler, Mode, Source};
use crate::error::Result;
use crate::inbox::{Fence, Held, RELAY_SCOPE};
use crate::message::Message;
use crate::relay::{HeldShard, LocalConsumers};
use crate::runner::{Delivery, Runner};
use crate::wake::Wake;

/// Whether the relay may wait for it. A handler with a transaction for each key, which may call somebody
/// on the way, is left to its workers.
pub(super) fn is_quick(consumer: &Consumer) -> bool {
    let internal = |source: &Source| matches!(source, Source::Internal { .. } | Source::InternalQueue { .. });
    let quick = match &consumer.handler {
        Handler::Process(_) => true,
        Handler::Enlisted { grouping, .. } => *grouping == Grouping::Batch,
    };
    quick && consumer.mode == Mode::Inline && consumer.sources.iter().any(internal)
}

/// Runs them, in the relay's own time.
#[derive(Debug)]
pub struct LocalRunners {
    runners: HashMap<String, Runner>,
    wake: Wake,
}

impl LocalRunners {
    pub fn new(runners: Vec<Runner>, wake: Wake) -> Self {
        let named = |runner: Runner| (runner.consumer().name.clone(), runner);
        Self { runners: runners.into_iter().map(named).collect(), wake }
    }
}

#[async_trait]
impl LocalConsumers for LocalRunners {
    fn takes(&self, consumer: &str) -> bool {
        self.runners.contains_key(consumer)
    }

    async fn handle(&self, consumer: &str, held: &[HeldShard], messages: Vec<Message>) -> Result<()> {
        let Some(runner) = self.runners.get(consumer) else { return Ok(()) };
        let as_fence =
            |held: &HeldShard| Held { scope: RELAY_SCOPE.to_owned(), bucket: held.shard.into(), epoch: held.epoch };
        let fence: Fence = held.iter().map(as_fence).collect();
        let fresh = |message| Delivery::Fresh { message: Arc::new(message), fault: None };
        let deliveries: Vec<Delivery> = messages.into_iter().map(fresh).collect();
        for batch in deliveries.chunks(runner.consumer().batch_max) {
            let report = runner.handle(&fence, batch).await?;
            if report.retried + report.parked > 0 {
                self.wake.fire();
            }
        }
        Ok(())
    }
}
