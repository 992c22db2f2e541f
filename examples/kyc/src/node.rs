//! One process of the example: ingress, workers, relay and upkeep until asked to stop.
//!
//! It may be killed at any point; another one, or the same one started again, goes on where it was.

use std::sync::Arc;

use anyhow::{Context, Result};
use dipmo::consumer::Source;
use dipmo::ingress::KafkaIngress;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::Worker;
use dipmo::shutdown::Shutdown;
use dipmo::store::postgres::{Db, schema};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use dipmo::upkeep::{Upkeep, UpkeepOptions};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::{Options, consumers};

/// Everything a node needs to know.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Unique among the running processes.
    pub name: String,
    /// `host:port`; with it, [`Options::kafka`] should be set.
    pub brokers: Option<String>,
    pub kyc: Options,
}

/// Runs until asked to stop. The schema must be there.
pub async fn run(db: Db, options: &NodeOptions, shutdown: Shutdown) -> Result<()> {
    schema::check(&db).await.context("looking at the schema")?;
    let kafka = options.brokers.as_ref().map(KafkaOptions::new);
    let wake = Arc::new(Notify::new());
    let mut workers = Vec::new();
    let mut ingresses = Vec::new();
    for consumer in consumers(&options.kyc).into_iter().map(Arc::new) {
        let worker = Worker::new(db.clone(), Arc::clone(&consumer), options.name.clone(), Arc::clone(&wake));
        workers.push(worker.await.with_context(|| format!("registering {}", consumer.name))?);
        let from_kafka = consumer.sources.iter().any(|source| matches!(source, Source::Kafka { .. }));
        if let (true, Some(kafka)) = (from_kafka, &kafka) {
            let (owner, wake) = (options.name.clone(), Arc::clone(&wake));
            ingresses.push(KafkaIngress::new(db.clone(), consumer, kafka.clone(), owner, wake).await?);
        }
    }
    // Only now: what the relay hands over before a consumer is registered would pass it by.
    let relay = relay(&db, options, kafka, wake)?;
    let upkeep = Upkeep::new(db, UpkeepOptions { node: options.name.clone(), ..UpkeepOptions::default() })?;
    let mut loops = JoinSet::new();
    for worker in workers {
        loops.spawn(worker.run(shutdown.clone()));
    }
    for ingress in ingresses {
        loops.spawn(ingress.run(shutdown.clone()));
    }
    let until = shutdown.clone();
    loops.spawn(async move { relay.run(until).await });
    loops.spawn(async move { upkeep.run(shutdown).await });
    while let Some(ended) = loops.join_next().await {
        ended.context("a loop of the node panicked")?;
    }
    Ok(())
}

fn relay(db: &Db, options: &NodeOptions, kafka: Option<KafkaOptions>, wake: Arc<Notify>) -> Result<Relay> {
    let mut relay = RelayOptions::new(&options.name);
    relay.lease = options.kyc.lease;
    relay.inbox_wake = wake;
    if let Some(kafka) = kafka {
        relay.kafka = Some(Arc::new(KafkaPublisher::new(kafka)?));
    }
    Ok(Relay::new(db.clone(), relay)?)
}
