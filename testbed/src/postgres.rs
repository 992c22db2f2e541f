//! A private PostgreSQL server from the binaries installed on the machine.
//!
//! Started by tests, demo and bench. It listens on one loopback port, trusts every
//! connection there, opens no unix socket, and is as durable as in production unless
//! [`Options::fsync`] is turned off.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::dir;
use crate::free_port;
use crate::process::{self, Process};
use crate::watchdog::{Patience, Watchdog};

/// Covers crash recovery after a kill on a slow machine.
const READY_MAX: Duration = Duration::from_secs(60);

/// How long an orderly stop may take before the server is killed.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Another process may take a free port before the server binds it.
const START_ATTEMPTS: u32 = 3;

/// Settings of a server; the defaults suit tests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Off only where losing data on a crash of the machine is irrelevant and time matters.
    pub fsync: bool,
    pub max_connections: u32,
    pub max_prepared_transactions: u32,
    pub wal_level: String,
    /// Replication slots, and as many walsenders: tests that run side by side hold one each.
    pub replication_slots_max: u32,
    pub shared_buffers: String,
    /// Any other settings of postgresql.conf; they win over the fields above.
    pub settings: Vec<(String, String)>,
    /// Where the server's own directory is created; the system's temporary directory if none.
    pub parent_dir: Option<PathBuf>,
    /// Leave data and log behind at the end.
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fsync: true,
            max_connections: 200,
            max_prepared_transactions: 20,
            wal_level: "logical".into(),
            replication_slots_max: 64,
            shared_buffers: "256MB".into(),
            settings: Vec::new(),
            parent_dir: None,
            keep: false,
        }
    }
}

/// A running (or stopped, or killed) server. Dropping it ends the server and removes its data.
#[derive(Debug)]
pub struct Postgres {
    options: Options,
    bin_dir: PathBuf,
    dir: PathBuf,
    port: u16,
    user: Option<User>,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl Postgres {
    /// Creates a cluster, starts it and waits until it accepts connections.
    pub fn start(options: Options) -> Result<Self> {
        let bin_dir = find_bin_dir()?;
        let dir = dir::create_private(options.parent_dir.as_deref(), "postgres")?;
        let remove = (!options.keep).then_some(dir.as_path());
        let mut server = Self {
            watchdog: Watchdog::start(remove, Patience::SevenSeconds)?,
            user: User::for_server(&dir)?,
            port: 0,
            process: None,
            options,
            bin_dir,
            dir,
        };
        server.init()?;
        server.first_start()?;
        Ok(server)
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`; no password is asked for.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the postmaster, `None` while the server is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The directory of the binaries in use, for psql and pgbench.
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// SIGKILL for the postmaster and all its backends; returns when they are gone.
    pub fn kill_dash_nine(&mut self) -> Result<()> {
        self.end(Process::kill_family)
    }

    /// Starts again on the same port and data, after an orderly stop if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// Fast shutdown: connections are closed, everything is written, the process ends.
    pub fn stop(&mut self) -> Result<()> {
        self.end(|process| process.stop("INT", STOP_MAX))
    }

    /// Freezes the whole server: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().context("PostgreSQL is down")?.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().context("PostgreSQL is down")?.resume()
    }

    fn end(&mut self, how: impl FnOnce(&mut Process) -> Result<()>) -> Result<()> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        how(process)?;
        self.process = None;
        self.watchdog.watch(None)
    }

    fn init(&self) -> Result<()> {
        // --no-sync: an empty cluster that a power loss destroys is simply created again.
        let mut initdb = self.command("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8"]);
        initdb.args(["--locale=C", "--no-sync", "--pgdata"]);
        process::run(initdb.arg(self.data_dir())).context("creating a PostgreSQL cluster")?;
        let path = self.data_dir().join("postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(&path)?;
        file.write_all(self.options.conf().as_bytes()).with_context(|| format!("writing {}", path.display()))
    }

    fn first_start(&mut self) -> Result<()> {
        let mut attempt = 1;
        loop {
            self.port = free_port()?;
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    fn launch(&mut self) -> Result<()> {
        let data_dir = self.data_dir();
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(&data_dir);
        postgres.arg("-p").arg(self.port.to_string());
        let mut process = Process::spawn(&mut postgres, &self.log_file())?;
        self.watchdog.watch(Some(process.pid()))?;
        let ready = process.wait_until("PostgreSQL", READY_MAX, |process| is_ready(&data_dir, process.pid()));
        if let Err(error) = ready {
            process.kill_family()?;
            self.watchdog.watch(None)?;
            return Err(error);
        }
        self.process = Some(process);
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin_dir.join(program));
        // The caller's directory may be closed to the server's user.
        command.current_dir(&self.dir);
        // Inherited PGDATA, PGPORT and the like would override what is said here.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Some(user) = &self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The data is about to go, so nothing is worth an orderly stop, except if it is kept.
        let ended = if self.options.keep { self.stop() } else { self.kill_dash_nine() };
        // On failure the watchdog ends the server and removes the data right after this.
        if ended.is_ok() && !self.options.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

impl Options {
    fn conf(&self) -> String {
        let fsync = if self.fsync { "on" } else { "off" };
        let mut conf = format!(
            "\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n\
             fsync = {fsync}\nmax_connections = {}\nmax_prepared_transactions = {}\n\
             wal_level = {}\nmax_replication_slots = {}\nmax_wal_senders = {}\n\
             shared_buffers = {}\nlogging_collector = off\nlog_line_prefix = '%m [%p] '\n",
            self.max_connections,
            self.max_prepared_transactions,
            self.wal_level,
            self.replication_slots_max,
            self.replication_slots_max,
            self.shared_buffers,
        );
        for (name, value) in &self.settings {
            conf.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        conf
    }
}

/// PostgreSQL refuses to run as root, so root runs it as somebody else.
#[derive(Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user for a server in `dir`, which becomes theirs; `None` means the caller.
    fn for_server(dir: &Path) -> Result<Option<Self>> {
        // The directory was created by this process and so belongs to its user.
        if fs::metadata(dir)?.uid() != 0 {
            return Ok(None);
        }
        let user = Self::find("postgres").or_else(|_| Self::find("nobody"))?;
        chown(dir, Some(user.uid), Some(user.gid))
            .with_context(|| format!("giving {} to the server's user", dir.display()))?;
        Ok(Some(user))
    }

    fn find(name: &str) -> Result<Self> {
        let id = |flag| -> Result<u32> {
            let printed = process::run(Command::new("id").args([flag, name]))?;
            Ok(printed.trim().parse()?)
        };
        Ok(Self { uid: id("-u")?, gid: id("-g")? })
    }
}

/// The postmaster writes its id into the first line of its pid file and its state into the
/// last. The id is compared because a killed server leaves the file behind.
fn is_ready(data_dir: &Path, pid: u32) -> bool {
    let text = fs::read_to_string(data_dir.join("postmaster.pid")).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().trim();
    let last = text.lines().last().unwrap_or_default().trim();
    first == pid.to_string() && last == "ready"
}

fn find_bin_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("DIPMO_PG_BIN") {
        let dir = PathBuf::from(dir);
        if has_server(&dir) {
            return Ok(dir);
        }
        bail!("DIPMO_PG_BIN={} holds no initdb and postgres", dir.display());
    }
    candidates().into_iter().find(|dir| has_server(dir)).context(
        "no PostgreSQL server found: install one (Debian and Ubuntu: apt install postgresql) \
         or set DIPMO_PG_BIN to the directory that holds initdb and postgres",
    )
}

fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(printed) = process::run(Command::new("pg_config").arg("--bindir")) {
        found.push(PathBuf::from(printed.trim()));
    }
    for dir in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        // Often a link; the tools stand beside the file it points to.
        if let Ok(real) = fs::canonicalize(dir.join("postgres")) {
            found.extend(real.parent().map(Path::to_path_buf));
        }
    }
    found.extend(debian_bin_dirs());
    found
}

/// `/usr/lib/postgresql/VERSION/bin`, newest version first.
fn debian_bin_dirs() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"))).collect()
}

fn has_server(dir: &Path) -> bool {
    dir.join("initdb").is_file() && dir.join("postgres").is_file()
}
