//! The child process that is killed: `kyc-node`, started again on the same database.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

/// Short, so that a stranger need not wait long after a kill; a real deployment has 15 s.
const LEASE: Duration = Duration::from_secs(2);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(300);
const DRAIN_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Victim {
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    pub(super) kills: usize,
}

impl Victim {
    pub(super) fn new(program: PathBuf, postgres: &str, kafka: Option<&str>, log: PathBuf) -> Self {
        let mut args = vec![format!("--postgres={postgres}"), "--until-stdin-ends".to_owned()];
        args.push(format!("--lease-ms={}", LEASE.as_millis()));
        args.push(format!("--retry-delay-max-ms={}", RETRY_DELAY_MAX.as_millis()));
        args.extend(kafka.map(|brokers| format!("--kafka={brokers}")));
        Self { program, args, log, child: None, kills: 0 }
    }

    pub(super) fn start(&mut self) -> Result<()> {
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(self.open_log()?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL: no handler runs, nothing is flushed, nothing is given back.
    pub(super) async fn kill(&mut self) -> Result<()> {
        let child = self.child.as_mut().context("the node does not run")?;
        child.kill().await.context("killing the node")?;
        self.child = None;
        self.kills += 1;
        Ok(())
    }

    /// An error if it ended by itself, which it never should.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            bail!("the node ended by itself with {status}; see {}", self.log.display());
        }
        Ok(())
    }

    /// Asks for an orderly end.
    pub(super) async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        drop(child.stdin.take());
        let ended = tokio::time::timeout(DRAIN_MAX, child.wait()).await;
        let status = ended.with_context(|| format!("the node did not stop; see {}", self.log.display()))??;
        if !status.success() {
            bail!("the node stopped with {status}; see {}", self.log.display());
        }
        Ok(())
    }

    fn open_log(&self) -> Result<File> {
        let opened = OpenOptions::new().create(true).append(true).open(&self.log);
        opened.with_context(|| format!("opening {}", self.log.display()))
    }
}
