//! One process of the example: ingress, workers, relay and upkeep until asked to stop.
//!
//! It may be killed at any point; another one, or the same one started again, goes on where it was.

use anyhow::{Context, Result};
use dipmo::node::{Node, NodeOptions as Loops};
use dipmo::shutdown::Shutdown;
use dipmo::store::postgres::Db;

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
    let mut loops = Loops::new(&options.name);
    loops.relay.lease = options.kyc.lease;
    if let Some(brokers) = &options.brokers {
        loops = loops.kafka(brokers);
    }
    let node = consumers(&options.kyc).into_iter().fold(Node::new(db, loops), Node::consumer);
    node.run(shutdown).await.context("running the node")
}
