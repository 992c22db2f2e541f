//! A private Apache ActiveMQ Artemis from Maven Central: a broker that speaks AMQP 1.0.
//!
//! Started by tests. It listens on loopback, asks every client for user and password, writes its journal
//! durably, and makes queues as they are used. What cannot be delivered goes to [`DEAD_LETTERS`].
//! It allows more than other brokers do: what works here may still be refused elsewhere.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::dir;
use crate::free_port;
use crate::jars;
use crate::jvm;
use crate::process::Process;
use crate::watchdog::{Patience, Watchdog};

/// Where messages go that were rejected, or failed too often.
pub const DEAD_LETTERS: &str = "APP.DLQ";

/// Queues whose names begin with this are never made by being used.
pub const FIXED: &str = "FIXED.";

/// Queues whose names begin with this are closed to the user of [`Artemis::user`].
pub const LOCKED: &str = "LOCKED.";

/// Covers a cold JVM on a loaded machine, and the reading of the journal after a kill.
const READY_MAX: Duration = Duration::from_secs(90);

/// How long an orderly stop may take before the broker is killed.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Another process may take a free port before the broker binds it.
const START_ATTEMPTS: u32 = 3;

/// What the broker logs once it serves clients.
const STARTED: &str = "AMQ221007";

/// Who logs it.
const STARTED_BY: &str = "org.apache.activemq.artemis.core.server";

const USER: &str = "app";
const PASSWORD: &str = "let-me-in";

const LOGIN: &str = r#"activemq {
    org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
        org.apache.activemq.jaas.properties.user="users.properties"
        org.apache.activemq.jaas.properties.role="roles.properties";
};
"#;

/// No way in by JMX.
const MANAGEMENT: &str = "<management-context xmlns=\"http://activemq.apache.org/schema\"/>\n";

/// Settings of a broker; the defaults suit tests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Heap of the JVM, as in `-Xmx`.
    pub heap: String,
    /// Certificate and key in PEM; with them there is a second port that is encrypted.
    pub certificate: Option<(String, String)>,
    /// How often a message may fail before it is a dead letter.
    pub delivery_attempts_max: u32,
    /// Leave data and log behind at the end.
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { heap: "384m".into(), certificate: None, delivery_attempts_max: 5, keep: false }
    }
}

/// A running (or stopped, or killed) broker. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Artemis {
    options: Options,
    home: PathBuf,
    dir: PathBuf,
    port: u16,
    tls_port: u16,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl Artemis {
    /// Downloads Artemis if this user never did, starts a broker on an empty store and waits until it
    /// serves clients.
    pub fn start(options: Options) -> Result<Self> {
        let home = jars::artemis_home()?;
        let dir = dir::create_private(None, "artemis")?;
        let watchdog = Watchdog::start((!options.keep).then_some(dir.as_path()), Patience::None)?;
        let mut broker = Self { options, home, dir, port: 0, tls_port: 0, process: None, watchdog };
        broker.first_start()?;
        Ok(broker)
    }

    /// `amqp://USER:PASSWORD@127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("amqp://{USER}:{PASSWORD}@{}", self.address())
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The encrypted port, where a certificate was given.
    pub fn tls_port(&self) -> Option<u16> {
        self.options.certificate.as_ref().map(|_| self.tls_port)
    }

    pub fn user(&self) -> &'static str {
        USER
    }

    pub fn password(&self) -> &'static str {
        PASSWORD
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
        self.process.as_ref().context("Artemis is down")?.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().context("Artemis is down")?.resume()
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
            (self.port, self.tls_port) = (free_port()?, free_port()?);
            self.configure()?;
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(error) if jars::is_missing(&error) => return Err(error.context(jvm::MISSING)),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    /// What `artemis create` would write, and nothing that is not needed.
    fn configure(&self) -> Result<()> {
        let etc = self.dir.join("etc");
        fs::create_dir_all(&etc).context("creating etc")?;
        let mut files = vec![
            ("login.config", LOGIN.to_owned()),
            ("users.properties", format!("{USER} = {PASSWORD}\n")),
            ("roles.properties", format!("amq = {USER}\n")),
            ("bootstrap.xml", bootstrap(&etc)),
            ("management.xml", MANAGEMENT.to_owned()),
            ("broker.xml", self.broker(&etc)),
        ];
        if let Some((certificate, key)) = &self.options.certificate {
            files.push(("server.pem", format!("{key}{certificate}")));
        }
        for (name, text) in files {
            fs::write(etc.join(name), text).with_context(|| format!("writing {name}"))?;
        }
        Ok(())
    }

    fn broker(&self, etc: &Path) -> String {
        let plain = "protocols=AMQP;amqpCredits=1000;amqpLowCredits=300;saslMechanisms=PLAIN";
        let mut acceptors = format!("<acceptor name=\"amqp\">tcp://127.0.0.1:{}?{plain}</acceptor>\n", self.port);
        if self.options.certificate.is_some() {
            acceptors.push_str(&format!(
                "<acceptor name=\"amqps\">tcp://127.0.0.1:{}?{plain};sslEnabled=true;keyStoreType=PEM;\
                 keyStorePath={}</acceptor>\n",
                self.tls_port,
                etc.join("server.pem").display()
            ));
        }
        let data = self.data_dir();
        BROKER
            .replace("DATA", &data.display().to_string())
            .replace("ATTEMPTS_MAX", &self.options.delivery_attempts_max.to_string())
            .replace("DEAD_LETTERS", DEAD_LETTERS)
            .replace("FIXED", FIXED)
            .replace("LOCKED", LOCKED)
            .replace("ACCEPTORS", &acceptors)
    }

    fn launch(&mut self) -> Result<()> {
        let etc = self.dir.join("etc");
        let mut java = jvm::java(&self.dir, &self.home.join("lib"), &self.options.heap, false);
        for (name, value) in [
            ("artemis.home", &self.home),
            ("artemis.instance", &self.dir),
            ("artemis.instance.etc", &etc),
            ("java.security.auth.login.config", &etc.join("login.config")),
        ] {
            java.arg(format!("-D{name}={}", value.display()));
        }
        java.args(["org.apache.activemq.artemis.cli.Artemis", "run"]);
        let log = self.log_file();
        // What an earlier start has logged says nothing about this one.
        let logged_before = fs::metadata(&log).map_or(0, |log| log.len());
        let mut process = Process::spawn(&mut java, &log)?;
        self.watchdog.watch(Some(process.pid()))?;
        let ready = process.wait_until("Artemis", READY_MAX, |_| jvm::has_logged(&log, logged_before, STARTED));
        if let Err(error) = ready.and_then(|()| self.accepts()) {
            process.kill_family()?;
            self.watchdog.watch(None)?;
            return Err(error);
        }
        self.process = Some(process);
        Ok(())
    }

    fn accepts(&self) -> Result<()> {
        let ports = [Some(self.port), self.tls_port()];
        for port in ports.into_iter().flatten() {
            if let Err(error) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                bail!("Artemis started but refuses connections on port {port}: {error}");
            }
        }
        Ok(())
    }
}

impl Drop for Artemis {
    fn drop(&mut self) {
        // The data is about to go, so nothing is worth an orderly stop, except if it is kept.
        let ended = if self.options.keep { self.stop() } else { self.kill_dash_nine() };
        // On failure the watchdog ends the broker and removes the data right after this.
        if ended.is_ok() && !self.options.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn bootstrap(etc: &Path) -> String {
    format!(
        "<broker xmlns=\"http://activemq.apache.org/schema\">\n<jaas-security domain=\"activemq\"/>\n\
         <server configuration=\"file:{}\"/>\n</broker>\n",
        etc.join("broker.xml").display()
    )
}

/// Queues stay when they are empty: a consumer that comes later must find what was sent before.
const BROKER: &str = r##"<configuration xmlns="urn:activemq" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<core xmlns="urn:activemq:core">
<name>testbed</name>
<persistence-enabled>true</persistence-enabled>
<journal-type>NIO</journal-type>
<journal-datasync>true</journal-datasync>
<paging-directory>DATA/paging</paging-directory>
<bindings-directory>DATA/bindings</bindings-directory>
<journal-directory>DATA/journal</journal-directory>
<large-messages-directory>DATA/large</large-messages-directory>
<journal-file-size>4M</journal-file-size>
<journal-min-files>2</journal-min-files>
<max-disk-usage>100</max-disk-usage>
<acceptors>
ACCEPTORS</acceptors>
<security-settings>
<security-setting match="#">
<permission type="createNonDurableQueue" roles="amq"/>
<permission type="deleteNonDurableQueue" roles="amq"/>
<permission type="createDurableQueue" roles="amq"/>
<permission type="createAddress" roles="amq"/>
<permission type="consume" roles="amq"/>
<permission type="browse" roles="amq"/>
<permission type="send" roles="amq"/>
<permission type="manage" roles="amq"/>
</security-setting>
<security-setting match="LOCKED#">
<permission type="send" roles="nobody"/>
<permission type="consume" roles="nobody"/>
</security-setting>
</security-settings>
<address-settings>
<address-setting match="#">
<dead-letter-address>DEAD_LETTERS</dead-letter-address>
<expiry-address>APP.EXPIRED</expiry-address>
<redelivery-delay>0</redelivery-delay>
<max-delivery-attempts>ATTEMPTS_MAX</max-delivery-attempts>
<default-queue-routing-type>ANYCAST</default-queue-routing-type>
<default-address-routing-type>ANYCAST</default-address-routing-type>
<auto-create-queues>true</auto-create-queues>
<auto-create-addresses>true</auto-create-addresses>
<auto-delete-queues>false</auto-delete-queues>
<auto-delete-addresses>false</auto-delete-addresses>
</address-setting>
<address-setting match="FIXED#">
<auto-create-queues>false</auto-create-queues>
<auto-create-addresses>false</auto-create-addresses>
</address-setting>
</address-settings>
<addresses>
<address name="DEAD_LETTERS"><anycast><queue name="DEAD_LETTERS"/></anycast></address>
<address name="APP.EXPIRED"><anycast><queue name="APP.EXPIRED"/></anycast></address>
</addresses>
</core>
</configuration>
"##;
