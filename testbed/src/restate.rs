//! A private Restate server from the npm registry: a peer that sagas are compared with.
//!
//! Started by bench. It listens on loopback only, calls nobody at home, and is as durable as its defaults
//! make it: the log is synced before an answer.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result};

use crate::dir;
use crate::free_port;
use crate::process::Process;
use crate::watchdog::{Patience, Watchdog};

const READY_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(30);

/// One look at whether it is up.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Another process may take a free port before the server binds it.
const START_ATTEMPTS: u32 = 3;

/// A running (or stopped) server. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Restate {
    dir: PathBuf,
    ingress: u16,
    admin: u16,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl Restate {
    /// Starts `program` on an empty store and waits until it is healthy. `settings` are variables of its
    /// environment, such as `RESTATE_DEFAULT_NUM_PARTITIONS`.
    pub fn start(program: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let dir = dir::create_private(None, "restate")?;
        let watchdog = Watchdog::start(Some(&dir), Patience::None)?;
        let mut server = Self { dir, ingress: 0, admin: 0, process: None, watchdog };
        let mut attempt = 1;
        loop {
            match server.launch(program, settings) {
                Err(_) if attempt < START_ATTEMPTS => attempt += 1,
                done => return done.map(|()| server),
            }
        }
    }

    /// The process id, `None` while the server is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Where invocations are asked for.
    pub fn ingress_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ingress)
    }

    /// Where services are registered.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin)
    }

    /// Orderly shutdown.
    pub fn stop(&mut self) -> Result<()> {
        self.end(|process| process.stop("TERM", STOP_MAX))
    }

    fn launch(&mut self, program: &Path, settings: &[(&str, &str)]) -> Result<()> {
        let (ingress, admin, node) = (free_port()?, free_port()?, free_port()?);
        let address = |port: u16| format!("127.0.0.1:{port}");
        let data = self.dir.join("data");
        let mut command = Command::new(program);
        command
            .arg("--no-logo")
            .arg("--base-dir")
            .arg(&data)
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("RESTATE_LISTEN_MODE", "tcp")
            .env("RESTATE_LOG_FILTER", "warn")
            .env("RESTATE_LOG_FORMAT", "compact")
            .env("RESTATE_INGRESS__BIND_ADDRESS", address(ingress))
            .env("RESTATE_ADMIN__BIND_ADDRESS", address(admin))
            .env("RESTATE_BIND_ADDRESS", address(node))
            .env("RESTATE_ADVERTISED_ADDRESS", format!("http://{}", address(node)))
            .envs(settings.iter().copied());
        let mut process = Process::spawn(&mut command, &self.dir.join("log")).context("starting Restate")?;
        self.watchdog.watch(Some(process.pid()))?;
        let healthy = || answers(admin, "/health") && answers(ingress, "/restate/health");
        if let Err(error) = process.wait_until("Restate", READY_MAX, |_| healthy()) {
            process.kill_family()?;
            self.watchdog.watch(None)?;
            let _ = fs::remove_dir_all(&data);
            return Err(error);
        }
        (self.ingress, self.admin, self.process) = (ingress, admin, Some(process));
        Ok(())
    }

    fn end(&mut self, how: impl FnOnce(&mut Process) -> Result<()>) -> Result<()> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        how(process)?;
        self.process = None;
        self.watchdog.watch(None)
    }
}

impl Drop for Restate {
    fn drop(&mut self) {
        // On failure the watchdog ends the server.
        let _ = self.end(Process::kill_family);
        if self.process.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Whether a request for `path` is answered with success.
fn answers(port: u16, path: &str) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
