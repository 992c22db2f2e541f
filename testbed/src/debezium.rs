//! Debezium: a private Kafka Connect worker (standalone) with one connector, from the jars of Maven Central.
//!
//! Started by tests and bench as the peer that an outbox is compared with. It reads PostgreSQL and writes
//! to Kafka by itself; its REST port is on loopback, and the positions it has reached are kept in its own
//! directory. Replication slots belong to whoever named them: they outlive the worker.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::dir;
use crate::jars::{self, PLUGINS};
use crate::jvm;
use crate::process::Process;
use crate::watchdog::{Patience, Watchdog};

/// Covers a cold JVM that scans its plugins on a loaded machine.
const RUNNING_MAX: Duration = Duration::from_secs(180);

/// How long an orderly stop may take before the worker is killed.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The name of the connector, unless its properties say another.
const NAME: &str = "outbox";

/// What the connector logs once its replication connection streams.
const STREAMS: &str = "PostgresStreamingChangeEventSource: Processing messages";

/// Who logs it.
const STREAMS_BY: &str = "io.debezium.connector.postgresql.PostgresStreamingChangeEventSource";

/// What the worker logs when the connector has given up.
const FAILED: &str = "Task threw an uncaught and unrecoverable exception";

/// Lines of the log that tell why; stacks of Java go on for long.
const FAILURE_LINES_MAX: usize = 10;

/// The connector's converters say what goes to Kafka; the worker insists on defaults. Plugins are found by
/// their service files, because a scan of all classes takes seconds.
const PROPERTIES: &str = "\
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
plugin.discovery=service_load
";

/// Settings of a worker and its connector; the defaults suit tests.
#[derive(Clone, Debug)]
pub struct DebeziumOptions {
    /// Heap of the JVM, as in `-Xmx`.
    pub heap: String,
    /// Lines of the worker's properties, such as `producer.linger.ms`; they win over ours.
    pub worker: Vec<(String, String)>,
    /// The connector's properties; only its name has a default.
    pub connector: Vec<(String, String)>,
    /// All compiler tiers and the default collector, for benches: starts slower, runs faster.
    pub full_speed: bool,
}

impl Default for DebeziumOptions {
    fn default() -> Self {
        Self { heap: "256m".into(), worker: Vec::new(), connector: Vec::new(), full_speed: false }
    }
}

/// A running (or stopped, or killed) worker. Dropping it ends it and removes its directory.
#[derive(Debug)]
pub struct Debezium {
    dir: PathBuf,
    pid: u32,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl Debezium {
    /// Downloads Connect and Debezium if this user never did, and starts a worker that writes to
    /// `kafka_bootstrap`. Returns at once; [`Self::wait_running`] tells when it streams.
    pub fn start(kafka_bootstrap: &str, options: &DebeziumOptions) -> Result<Self> {
        let jars = jars::debezium_jars()?;
        let dir = dir::create_private(None, "debezium")?;
        let watchdog = Watchdog::start(Some(&dir), Patience::None)?;
        let mut worker = Self { dir, pid: 0, process: None, watchdog };
        worker.configure(kafka_bootstrap, options, &jars)?;
        worker.launch(options, &jars)?;
        Ok(worker)
    }

    /// The process id of the JVM, also after its end.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Blocks until the connector streams: what is committed from now on, or since its slot was made, arrives.
    /// Fails with the log's reason as soon as the worker ends or the connector gives up.
    pub fn wait_running(&mut self) -> Result<()> {
        let log = self.log();
        let process = self.process.as_mut().context("Debezium is down")?;
        let mut failure = None;
        process.wait_until("Debezium", RUNNING_MAX, |_| {
            failure = failure_in(&log);
            failure.is_some() || jvm::has_logged(&log, 0, STREAMS)
        })?;
        failure.map_or(Ok(()), |reason| bail!("Debezium's connector gave up:\n{reason}"))
    }

    /// Orderly shutdown: what was sent is confirmed to the slot and its position written down.
    pub fn stop(&mut self) -> Result<()> {
        self.end(|process| process.stop("TERM", STOP_MAX))
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) {
        // On failure the watchdog ends the worker when its owner is dropped.
        let _ = self.end(Process::kill_family);
    }

    fn configure(&self, bootstrap: &str, options: &DebeziumOptions, jars: &Path) -> Result<()> {
        let worker = format!(
            "{PROPERTIES}bootstrap.servers={bootstrap}\nlisteners=http://127.0.0.1:0\n\
             plugin.path={}\noffset.storage.file.filename={}\n",
            jars.join(PLUGINS).display(),
            self.dir.join("offsets").display(),
        );
        fs::write(self.worker_properties(), worker + &lines(&options.worker)).context("writing worker.properties")?;
        let connector = format!("name={NAME}\n{}", lines(&options.connector));
        fs::write(self.connector_properties(), connector).context("writing connector.properties")?;
        jvm::configure_logging(&self.dir, &[STREAMS_BY])
    }

    fn launch(&mut self, options: &DebeziumOptions, jars: &Path) -> Result<()> {
        let mut java = jvm::java(&self.dir, jars, &options.heap, options.full_speed);
        java.arg("org.apache.kafka.connect.cli.ConnectStandalone");
        java.arg(self.worker_properties()).arg(self.connector_properties());
        let process = match Process::spawn(&mut java, &self.log()) {
            Err(error) if jars::is_missing(&error) => return Err(error.context(jvm::MISSING)),
            spawned => spawned?,
        };
        self.pid = process.pid();
        self.process = Some(process);
        self.watchdog.watch(Some(self.pid))
    }

    fn end(&mut self, how: impl FnOnce(&mut Process) -> Result<()>) -> Result<()> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        how(process)?;
        self.process = None;
        self.watchdog.watch(None)
    }

    fn worker_properties(&self) -> PathBuf {
        self.dir.join("worker.properties")
    }

    fn connector_properties(&self) -> PathBuf {
        self.dir.join("connector.properties")
    }
}

impl Drop for Debezium {
    fn drop(&mut self) {
        self.kill();
        if self.process.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Why the connector gave up, if it has: what the worker logged, without most of the stack.
fn failure_in(log: &Path) -> Option<String> {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let failure = &text[text.find(FAILED)?..];
    Some(failure.lines().take(FAILURE_LINES_MAX).collect::<Vec<_>>().join("\n"))
}

/// Lines of a Java properties file, in which a backslash escapes. The last of two equal keys wins.
fn lines(properties: &[(String, String)]) -> String {
    let line = |(name, value): &(String, String)| format!("{name}={}\n", value.replace('\\', "\\\\"));
    properties.iter().map(line).collect()
}
