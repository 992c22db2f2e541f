//! The worked example: sanctions hits and onboarding, on dipmo.
//!
//! Two flows, each a small state machine wrapped in a dipmo process, with handlers that write tables:
//!
//! - notification-126 -> hit -> qualification -> review ([`hits`], [`review`])
//! - onboarding-customer -> qualification -> block ([`onboarding`])
//!
//! Feature folders hold domain code that knows no infrastructure (`domain`, `state`), a process manager
//! that decides (`process`) and a desk that writes (`desk`). [`consumers`] wires them up, [`node`] runs
//! them, and [`demo`] puts them under load, kills them, and checks the outcome.

pub mod hits;
pub mod onboarding;
pub mod review;

pub mod demo;
pub mod node;
pub mod tables;
pub mod transition;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use dipmo::backoff::RetryPolicy;
use dipmo::consumer::{Consumer, Grouping, Handler, VersionPolicy};
use dipmo::handler::EnlistedHandler;

use hits::screening::{ScoreScreening, Screening};
use hits::{HitDesk, HitProcess};
use onboarding::{OnboardingDesk, OnboardingProcess};
use review::ReviewDesk;
use tables::Tables;

pub const NOTIFICATION_TOPIC: &str = "notification-126";
pub const ONBOARDING_TOPIC: &str = "onboarding-customer";
pub const REVIEW_TOPIC: &str = "kyc.reviews";

/// The consumers that face the outside.
pub const HIT_INTAKE: &str = "kyc.hit-intake";
pub const ONBOARDING_INTAKE: &str = "kyc.onboarding-intake";

/// What was in hand when a node was killed is tried one by one afterwards, in case one of them was the
/// killer: a smaller batch makes for a quicker recovery.
const BATCH_MAX: usize = 100;

/// How the example runs.
#[derive(Clone)]
pub struct Options {
    pub tables: Tables,
    /// Inputs come from Kafka topics and reviews are told there, too; else everything is INTERNAL.
    pub kafka: bool,
    pub retry: RetryPolicy,
    /// After a kill, the work in hand is taken up again once this has passed.
    pub lease: Duration,
    pub screening: Arc<dyn Screening>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tables: Tables::default(),
            kafka: false,
            retry: RetryPolicy::default(),
            lease: Duration::from_secs(15),
            screening: Arc::new(ScoreScreening),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("tables", &self.tables).field("kafka", &self.kafka).finish_non_exhaustive()
    }
}

/// All consumers of the example.
///
/// Each process has two: an intake for what comes from outside, and one for what our own modules
/// answer. A notification that is DEAD then holds up the customer's later notifications, as it must,
/// but not the hits of that customer that are already under way.
pub fn consumers(options: &Options) -> Vec<Consumer> {
    let tables = &options.tables;
    let topic = options.kafka.then(|| REVIEW_TOPIC.to_owned());
    let hits = HitDesk::new(tables.clone(), Arc::clone(&options.screening));
    let mut consumers = vec![
        intake(Consumer::process(HIT_INTAKE, HitProcess), options, NOTIFICATION_TOPIC, hits::NOTIFICATION),
        Consumer::process("kyc.hit-process", HitProcess).from_internal(&hits::EVENTS),
        desk("kyc.hits", hits).from_internal(&[hits::CREATE_HIT, hits::QUALIFY_HIT]),
        desk("kyc.review", ReviewDesk::new(tables.clone(), topic))
            .from_internal(&[review::START_REVIEW, review::REVIEW_STARTED]),
        intake(
            Consumer::process(ONBOARDING_INTAKE, OnboardingProcess),
            options,
            ONBOARDING_TOPIC,
            onboarding::ONBOARDING,
        ),
        Consumer::process("kyc.onboarding-process", OnboardingProcess).from_internal(&onboarding::EVENTS),
        desk("kyc.onboarding", OnboardingDesk::new(tables.clone()))
            .from_internal(&[onboarding::QUALIFY_CUSTOMER, onboarding::CREATE_BLOCK]),
    ];
    for consumer in &mut consumers {
        consumer.retry = options.retry.clone();
        consumer.lease = options.lease;
        consumer.batch_max = BATCH_MAX;
    }
    consumers
}

/// Senders number the messages of a customer: what arrives too early waits for what it overtook.
fn intake(consumer: Consumer, options: &Options, topic: &str, event_type: &str) -> Consumer {
    let consumer = if options.kafka { consumer.from_kafka(&[topic]) } else { consumer.from_internal(&[event_type]) };
    Consumer { versions: VersionPolicy::ParkOnGap, ..consumer }
}

/// Desks write a few small rows a message, so that one commit for many customers pays; where a message
/// of the batch fails, it is taken apart by customer.
fn desk(name: &str, handler: impl EnlistedHandler) -> Consumer {
    Consumer::new(name, Handler::Enlisted { handler: Arc::new(handler), grouping: Grouping::Batch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_consumer_is_valid_with_and_without_kafka() {
        for kafka in [false, true] {
            for consumer in consumers(&Options { kafka, ..Options::default() }) {
                consumer.validate().unwrap();
            }
        }
    }
}
