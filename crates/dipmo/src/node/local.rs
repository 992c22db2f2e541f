//! The consumers of a node that take INTERNAL from its relay's memory, instead of through their inbox.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::JoinSet;

use crate::consumer::{Consumer, Grouping, Handler, Mode, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::{Fence, Held, RELAY_SCOPE};
use crate::message::Message;
use crate::relay::{HeldShard, LocalConsumers, Offer};
use crate::runner::{Delivery, Foreknown, Runner};
use crate::wake::Wake;

/// So many messages of a consumer keep two connections busy.
const WORTH_TWO: usize = 64;

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

/// What the messages of an offer are handled with.
#[derive(Debug, Clone)]
struct Taker {
    runner: Runner,
    fence: Fence,
    foreknown: Foreknown,
    wake: Wake,
}

impl Taker {
    async fn handle(mut self, deliveries: Vec<Delivery>) -> Result<()> {
        for batch in deliveries.chunks(self.runner.consumer().batch_max) {
            let report = self.runner.handle_knowing(&self.fence, batch, self.foreknown).await?;
            if report.retried + report.parked > 0 {
                self.wake.fire();
            }
            // What follows may be of a key that waits since just now.
            self.foreknown.parked |= report.processed < batch.len();
        }
        Ok(())
    }

    /// Each part in a task of its own: deciding on many takes a processor a while. When one fails, or nobody waits
    /// any more, the others are given up; what they have committed by then is found out when it is offered again.
    async fn handle_side_by_side(self, parts: Vec<Vec<Delivery>>) -> Result<()> {
        let mut tasks = JoinSet::new();
        for part in parts {
            tasks.spawn(self.clone().handle(part));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| Error::new(ErrorKind::Bug, "handling from memory").source(error))??;
        }
        Ok(())
    }
}

/// In two parts, if they are worth two transactions: a shard is in one of them, and so is every key.
fn side_by_side(messages: Vec<Message>) -> Vec<Vec<Delivery>> {
    let fresh = |message| Delivery::Fresh { message: Arc::new(message), fault: None };
    if messages.len() < WORTH_TWO {
        return vec![messages.into_iter().map(fresh).collect()];
    }
    let is_even = |message: &Message| message.partition.is_some_and(|shard| shard % 2 == 0);
    let (even, odd): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_even);
    [even, odd].into_iter().map(|part| part.into_iter().map(fresh).collect()).collect()
}

#[async_trait]
impl LocalConsumers for LocalRunners {
    fn takes(&self, consumer: &str) -> bool {
        self.runners.contains_key(consumer)
    }

    async fn handle(&self, offer: Offer) -> Result<()> {
        let Offer { consumer, held, parked, now, messages } = offer;
        let Some(runner) = self.runners.get(&consumer) else { return Ok(()) };
        let as_fence =
            |held: &HeldShard| Held { scope: RELAY_SCOPE.to_owned(), bucket: held.shard.into(), epoch: held.epoch };
        let fence: Fence = held.iter().map(as_fence).collect();
        let foreknown = Foreknown { parked, now };
        let taker = Taker { runner: runner.clone(), fence, foreknown, wake: self.wake.clone() };
        let mut parts = side_by_side(messages);
        match parts.len() {
            1 => taker.handle(parts.remove(0)).await,
            _ => taker.handle_side_by_side(parts).await,
        }
    }
}
