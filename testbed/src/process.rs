//! One running server process: spawn, signal, wait, and the end of its whole family.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How often a state outside our control (a file, a process) is looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long a killed family of processes may take to disappear.
const GONE_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Closed when the last process that inherited our pipe as its stdout has ended.
    family: Receiver<()>,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its stderr appended to `log`. Its stdout is a pipe that serves
    /// only to see when the last of its children is gone, so it must print elsewhere.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let stderr = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C on the terminal must not end the server before its owner has decided.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let mut stdout = child.stdout.take().context("server has no stdout")?;
        let (sender, family) = mpsc::channel();
        thread::spawn(move || {
            let mut scrap = [0; 4096];
            while !matches!(stdout.read(&mut scrap), Ok(0) | Err(_)) {}
            drop(sender);
        });
        let log = log.to_path_buf();
        Ok(Self { child, family, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready`, or fails with the end of the log.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut ready: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !ready(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{what} ended with {status}:\n{}", tail(&self.log));
            }
            ensure!(Instant::now() < deadline, "{what} was not ready after {timeout:?}:\n{}", tail(&self.log));
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the process has ended by itself; false if it has not within `timeout`.
    fn wait_exit(&mut self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
        Ok(true)
    }

    /// SIGKILL for the process and all its children, and waits until they are gone.
    pub(crate) fn kill_family(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            // Stopped first, so that it cannot fork a child that the list would miss.
            signal("STOP", &[self.pid()])?;
            let children = children_of(self.pid());
            self.child.kill()?;
            self.child.wait()?;
            // Fails if one of them has ended meanwhile, which does not matter: it is gone.
            let _ = signal("KILL", &children);
        }
        self.wait_family()
    }

    /// Waits until the process and everything it started are gone.
    pub(crate) fn wait_family(&self) -> Result<()> {
        match self.family.recv_timeout(GONE_MAX) {
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            _ => bail!("children of process {} are still there", self.pid()),
        }
    }

    /// Freezes the process and then its children.
    pub(crate) fn pause(&self) -> Result<()> {
        signal("STOP", &[self.pid()])?;
        self.signal_children("STOP");
        Ok(())
    }

    /// Lets the children and then the process go on.
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal_children("CONT");
        signal("CONT", &[self.pid()])
    }

    /// Asks for an orderly end with the signal `name`, and kills what has not ended in time.
    pub(crate) fn stop(&mut self, name: &str, timeout: Duration) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            signal(name, &[self.pid()])?;
            // A paused server would hear of it only when resumed.
            self.resume()?;
        }
        if self.wait_exit(timeout)? { self.wait_family() } else { self.kill_family() }
    }

    fn signal_children(&self, name: &str) {
        // Fails if one of them has ended meanwhile, which does not matter: it is gone.
        let _ = signal(name, &children_of(self.pid()));
    }
}

/// Runs a helper program to its end; the error carries what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {program}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed with {}:\n{stdout}{stderr}", output.status);
    }
    Ok(stdout)
}

/// The last lines of a log file, for error messages.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The shell's own `kill`, because signals other than SIGKILL need `unsafe` or a crate.
fn signal(name: &str, pids: &[u32]) -> Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -s {name} {}", pids.join(" "));
    run(Command::new("sh").args(["-c", &script])).map(drop)
}

/// The direct children of a process. Empty without /proc: children of a killed server then
/// leave when they notice, which is later but not never.
fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| parent_of(*pid).is_ok_and(|found| found == Some(parent)))
        .collect()
}

fn parent_of(pid: u32) -> io::Result<Option<u32>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; the state and the parent follow it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(after_name.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()))
}
