//! A private single-node Kafka broker (KRaft) from the jars of Maven Central.
//!
//! Started by tests, demo and bench. It listens on two loopback ports (clients, controller)
//! and creates no topics by itself: clients create what they need.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::dir;
use crate::free_port;
use crate::jars;
use crate::jvm;
use crate::process::{self, Process};
use crate::watchdog::{Patience, Watchdog};

/// Covers a cold JVM on a loaded machine, and log recovery after a kill.
const READY_MAX: Duration = Duration::from_secs(90);

/// How long an orderly stop may take before the broker is killed.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Another process may take a free port before the broker binds it.
const START_ATTEMPTS: u32 = 3;

/// What the broker logs once it is registered and serves clients.
const STARTED: &str = "Kafka Server started";

/// Who logs it.
const STARTED_BY: &str = "kafka.server.KafkaRaftServer";

/// Any 22 characters of base64 that encode 16 bytes; one node never meets another cluster.
const CLUSTER_ID: &str = "ZGlwbW8tdGVzdGJlZC0wMA";

/// Coordinators keep few partitions, because each costs time at start; log buffers are
/// small, because many brokers may run on one machine. A killed broker may register again
/// only when its old session has expired, so sessions are shorter than the usual 9 seconds,
/// yet longer than the pauses of a loaded machine.
const PROPERTIES: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.segment.bytes=134217728
log.cleaner.dedupe.buffer.size=8388608
";

/// Settings of a broker; the defaults suit tests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Heap of the JVM, as in `-Xmx`.
    pub heap: String,
    /// All compiler tiers and the default collector, for benches: starts slower, runs faster.
    pub full_speed: bool,
    /// The port for clients; a free one if none.
    pub port: Option<u16>,
    /// The port that clients are told to use, if it is another: that of a proxy. Clients
    /// follow what the broker tells them, so a proxy unknown to the broker is bypassed.
    pub advertised_port: Option<u16>,
    /// Any other lines of server.properties; they win over ours.
    pub properties: Vec<(String, String)>,
    /// Where the broker's own directory is created; the system's temporary directory if none.
    pub parent_dir: Option<PathBuf>,
    /// Leave data and log behind at the end.
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heap: "256m".into(),
            full_speed: false,
            port: None,
            advertised_port: None,
            properties: Vec::new(),
            parent_dir: None,
            keep: false,
        }
    }
}

impl Options {
    /// A broker to measure: 1 GB of heap, compiled as in production.
    pub fn for_bench() -> Self {
        Self { heap: "1g".into(), full_speed: true, ..Self::default() }
    }
}

/// A running (or stopped, or killed) broker. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Kafka {
    options: Options,
    jars: PathBuf,
    dir: PathBuf,
    port: u16,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl Kafka {
    /// Downloads Kafka if this user never did, formats a store, starts a broker on it and
    /// waits until it serves clients.
    pub fn start(options: Options) -> Result<Self> {
        let jars = jars::kafka_jars()?;
        let dir = dir::create_private(options.parent_dir.as_deref(), "kafka")?;
        let remove = (!options.keep).then_some(dir.as_path());
        let mut broker =
            Self { watchdog: Watchdog::start(remove, Patience::None)?, port: 0, process: None, options, jars, dir };
        broker.first_start()?;
        Ok(broker)
    }

    /// `127.0.0.1:PORT`, for `bootstrap.servers`; the advertised port, if there is one.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.advertised_port())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the JVM, `None` while the broker is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill_dash_nine(&mut self) -> Result<()> {
        self.end(Process::kill_family)
    }

    /// Starts again on the same ports and data, after an orderly stop if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// Orderly shutdown.
    pub fn stop(&mut self) -> Result<()> {
        self.end(|process| process.stop("TERM", STOP_MAX))
    }

    /// Freezes the broker: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().context("Kafka is down")?.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().context("Kafka is down")?.resume()
    }

    fn end(&mut self, how: impl FnOnce(&mut Process) -> Result<()>) -> Result<()> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        how(process)?;
        self.process = None;
        self.watchdog.watch(None)
    }

    fn first_start(&mut self) -> Result<()> {
        jvm::configure_logging(&self.dir, &[STARTED_BY])?;
        let mut attempt = 1;
        loop {
            self.port = self.options.port.map_or_else(free_port, Ok)?;
            self.configure(free_port()?)?;
            match self.format().and_then(|()| self.launch()) {
                Ok(()) => return Ok(()),
                Err(error) if attempt == START_ATTEMPTS || jars::is_missing(&error) => {
                    return Err(error);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    fn configure(&self, controller_port: u16) -> Result<()> {
        let (port, advertised_port) = (self.port, self.advertised_port());
        let data = self.data_dir();
        let mut text = format!(
            "{PROPERTIES}\
             controller.quorum.voters=1@127.0.0.1:{controller_port}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port}\n\
             log.dirs={}\n",
            data.display()
        );
        // The last of two equal keys wins.
        for (name, value) in &self.options.properties {
            text.push_str(&format!("{name}={value}\n"));
        }
        fs::write(self.server_properties(), text).context("writing server.properties")
    }

    fn format(&self) -> Result<()> {
        let data = self.data_dir();
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let mut format = jvm::java(&self.dir, &self.jars, &self.options.heap, false);
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]);
        match process::run(format.arg(self.server_properties())) {
            Ok(_) => Ok(()),
            Err(error) if jars::is_missing(&error) => Err(error.context(jvm::MISSING)),
            Err(error) => Err(error.context("formatting Kafka's storage")),
        }
    }

    fn launch(&mut self) -> Result<()> {
        let mut java = jvm::java(&self.dir, &self.jars, &self.options.heap, self.options.full_speed);
        java.arg("kafka.Kafka").arg(self.server_properties());
        let log = self.log_file();
        // What an earlier start has logged says nothing about this one.
        let logged_before = fs::metadata(&log).map_or(0, |log| log.len());
        let mut process = Process::spawn(&mut java, &log)?;
        self.watchdog.watch(Some(process.pid()))?;
        let ready = process.wait_until("Kafka", READY_MAX, |_| jvm::has_logged(&log, logged_before, STARTED));
        if let Err(error) = ready.and_then(|()| self.accepts()) {
            process.kill_family()?;
            self.watchdog.watch(None)?;
            return Err(error);
        }
        self.process = Some(process);
        Ok(())
    }

    fn accepts(&self) -> Result<()> {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
            Ok(_) => Ok(()),
            Err(error) => bail!("Kafka started but refuses connections: {error}"),
        }
    }

    fn advertised_port(&self) -> u16 {
        self.options.advertised_port.unwrap_or(self.port)
    }

    fn server_properties(&self) -> PathBuf {
        self.dir.join("server.properties")
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        // The data is about to go, so nothing is worth an orderly stop, except if it is kept.
        let ended = if self.options.keep { self.stop() } else { self.kill_dash_nine() };
        // On failure the watchdog ends the broker and removes the data right after this.
        if ended.is_ok() && !self.options.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
