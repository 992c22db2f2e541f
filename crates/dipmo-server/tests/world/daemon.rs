//! The daemon as a process of the test, with its HTTP side.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use super::{Ran, World, ran};

const PATIENCE: Duration = Duration::from_secs(30);

/// A running daemon; killed when the test ends before it does.
pub(crate) struct Daemon {
    child: Option<Child>,
    pub(super) http: SocketAddr,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn start(world: &World, more: &str, args: &[&str]) -> Self {
        let http = free_address();
        world.configure(&format!("[http]\nlisten = \"{http}\"\n{more}"));
        Self::start_as_configured(world, http, args)
    }

    pub(crate) fn start_as_configured(world: &World, http: SocketAddr, args: &[&str]) -> Self {
        let mut command = world.command();
        // Files, not pipes: a daemon that says much must not wait for somebody to read it.
        let log = world.dir.join(format!("daemon-{}", http.port()));
        let file = |name: &str| File::create(log.with_extension(name)).unwrap();
        command.arg("run").args(args).stdout(file("out")).stderr(file("err"));
        Self { child: Some(command.spawn().unwrap()), http, log }
    }

    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    pub(crate) async fn ready(&self) {
        until("the daemon is ready", async || matches!(self.get("/readyz"), Some((200, _)))).await;
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn ended(mut self) -> Ran {
        let status = self.child.take().unwrap().wait().unwrap();
        let read = |name: &str| std::fs::read(self.log.with_extension(name)).unwrap();
        ran(Output { status, stdout: read("out"), stderr: read("err") })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.log.with_extension("err")).unwrap_or_default();
                let said = std::fs::read_to_string(self.log.with_extension("out")).unwrap_or_default();
                println!("--- {}\n{said}{log}", self.log.display());
            }
        }
    }
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
