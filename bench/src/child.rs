//! A process of this same binary that is measured from outside.
//!
//! The child says `ready` when it begins to work and `done` when it has nothing more to do, if ever. It
//! stays until its stdin is closed, so that its figures can be read before it is gone.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::meter::{self, Usage};

/// A child that takes longer than this to start or to stop is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    pid: u32,
}

impl Node {
    /// Starts `bench node <args>` and waits until it is ready.
    pub(crate) async fn start(args: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("finding this binary")?;
        let mut command = Command::new(program);
        command.arg("node").args(args);
        Self::spawn(command).await
    }

    /// Starts any program that keeps to the same rules.
    pub(crate) async fn spawn(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("starting the node")?;
        let pid = child.id().context("the node has no process id")?;
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().context("the node has no stdout")?).lines();
        let mut node = Self { child, stdin, lines, pid };
        node.wait_for("ready", PATIENCE).await?;
        Ok(node)
    }

    /// Lets the child go on after `ready`, for those that wait for it.
    pub(crate) async fn go(&mut self) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the node was stopped")?;
        stdin.write_all(b"go\n").await.context("telling the node to go")
    }

    /// One line of JSON there, one back.
    pub(crate) async fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value> {
        let stdin = self.stdin.as_mut().context("the node was stopped")?;
        stdin.write_all(format!("{request}\n").as_bytes()).await.context("asking the node")?;
        let answer = tokio::time::timeout(limit, self.lines.next_line()).await;
        let line = answer.context("the node does not answer in time")??.context("the node ended without an answer")?;
        serde_json::from_str(&line).with_context(|| format!("the node answered {line:?}"))
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        meter::usage(self.pid)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) async fn wait_for(&mut self, word: &str, limit: Duration) -> Result<()> {
        let reading = async {
            while let Some(line) = self.lines.next_line().await? {
                if line == word {
                    return Ok(());
                }
            }
            bail!("the node ended before it was {word}")
        };
        tokio::time::timeout(limit, reading).await.with_context(|| format!("the node is not {word} in time"))?
    }

    /// Closes its stdin and waits for its end.
    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.stdin.take());
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.context("the node does not stop")??;
        if !status.success() {
            bail!("the node ended with {status}");
        }
        Ok(())
    }
}
