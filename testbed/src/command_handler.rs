//! The command handlers of `examples/` in other languages, built and run as their users would.
//!
//! What they need is downloaded once per user. Each runs in a directory of its own, which holds its log; a test
//! that fails prints the end of it. Each can be killed without warning, also at a point between its commit and
//! its acknowledgement, and started again.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::dir;
use crate::jars;
use crate::jvm;
use crate::process::{self, Process};
use crate::watchdog::{Patience, Watchdog};

/// Covers a cold JVM on a loaded machine.
const READY_MAX: Duration = Duration::from_secs(60);

/// How long a handler may take to get to the point where it is held.
const HELD_MAX: Duration = Duration::from_secs(120);

/// What handlers log once they take commands.
const READY: &str = "ready: ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `examples/java-handler`: CheckDailyLimit.
    Java,
    /// `examples/python-handler`: CheckBalance.
    Python,
}

/// Where a handler stays, the first time it gets there, until it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldAt {
    /// Its transaction is committed, nothing is answered.
    Committed,
    /// The answer is with the broker, the command is not acknowledged.
    Answered,
}

/// What a handler works with.
#[derive(Debug, Clone)]
pub struct HandlerOptions {
    /// `host:port` of the broker.
    pub broker: String,
    pub user: String,
    pub password: String,
    /// `postgres://user@host:port/database`
    pub database: String,
    /// `None` is the queue that the handler reads unless told otherwise.
    pub queue: Option<String>,
    pub hold_at: Option<HoldAt>,
}

/// A running (or killed) handler. Dropping it ends it.
#[derive(Debug)]
pub struct CommandHandler {
    language: Language,
    options: HandlerOptions,
    /// Jars or a Python environment.
    tools: PathBuf,
    dir: PathBuf,
    process: Option<Process>,
    watchdog: Watchdog,
}

impl CommandHandler {
    /// Fetches what it needs if this user never did, builds it, and waits until it takes commands.
    pub fn start(language: Language, options: HandlerOptions) -> Result<Self> {
        let tools = match language {
            Language::Java => jars::handler_jars(&source(language).join("pom.xml"))?,
            Language::Python => python_environment(&source(language).join("requirements.txt"))?,
        };
        let dir = dir::create_private(None, "handler")?;
        let watchdog = Watchdog::start(Some(&dir), Patience::None)?;
        let mut handler = Self { language, options, tools, dir, process: None, watchdog };
        if language == Language::Java {
            handler.compile().context("compiling examples/java-handler")?;
        }
        handler.launch()?;
        Ok(handler)
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Waits until it is where it was to be held.
    pub fn wait_until_held(&mut self) -> Result<()> {
        let held = self.held_file();
        let process = self.process.as_mut().context("the handler is down")?;
        process.wait_until("the handler at the point where it is held", HELD_MAX, |_| held.exists())
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill_dash_nine(&mut self) -> Result<()> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        process.kill_family()?;
        self.process = None;
        self.watchdog.watch(None)
    }

    /// Starts again after it was killed. What it was held at it passes now.
    pub fn restart(&mut self) -> Result<()> {
        self.kill_dash_nine()?;
        self.launch()
    }

    fn compile(&self) -> Result<()> {
        let sources = source(self.language).join("src/main/java/limits");
        let mut javac = Command::new("javac");
        javac.args(["--release", "17", "-Werror", "-Xlint:all", "-cp"]).arg(self.tools.join("*"));
        javac.arg("-d").arg(self.classes());
        for file in fs::read_dir(&sources).with_context(|| format!("reading {}", sources.display()))? {
            javac.arg(file?.path());
        }
        match process::run(&mut javac) {
            Err(error) if jars::is_missing(&error) => {
                bail!(
                    "javac not found: install a JDK, 17 or newer (Debian and Ubuntu: apt install default-jdk-headless)"
                )
            }
            done => done.map(drop),
        }
    }

    fn launch(&mut self) -> Result<()> {
        let log = self.log_file();
        let logged_before = fs::metadata(&log).map_or(0, |log| log.len());
        let mut process = Process::spawn(&mut self.command(), &log)?;
        self.watchdog.watch(Some(process.pid()))?;
        let ready = |_: &Process| jvm::has_logged(&log, logged_before, READY);
        if let Err(error) = process.wait_until("the handler", READY_MAX, ready) {
            process.kill_family()?;
            self.watchdog.watch(None)?;
            return Err(error);
        }
        self.process = Some(process);
        Ok(())
    }

    fn command(&self) -> Command {
        let (mut command, database) = match self.language {
            Language::Java => (self.java(), jdbc_url(&self.options.database)),
            Language::Python => (self.python(), self.options.database.clone()),
        };
        command
            .env("DATABASE_URL", database)
            .env("AMQP_URL", format!("amqp://{}", self.options.broker))
            .env("AMQP_USER", &self.options.user)
            .env("AMQP_PASSWORD", &self.options.password)
            .env("HOLD_FILE", self.held_file());
        if let Some(queue) = &self.options.queue {
            command.env("QUEUE", queue);
        }
        match self.options.hold_at {
            Some(HoldAt::Committed) => command.env("HOLD_AT", "committed"),
            Some(HoldAt::Answered) => command.env("HOLD_AT", "answered"),
            None => command.env_remove("HOLD_AT"),
        };
        command
    }

    fn java(&self) -> Command {
        let mut class_path = OsString::from(self.classes());
        class_path.push(":");
        class_path.push(self.tools.join("*"));
        let mut java = jvm::java_with(&self.dir, &class_path, "128m", false);
        java.arg("limits.LimitsHandler");
        java
    }

    fn python(&self) -> Command {
        let mut python = Command::new(self.tools.join("bin/python"));
        // -B: writes nothing beside its sources, which belong to the repository.
        python.arg("-B").arg(source(self.language).join("handler.py")).current_dir(&self.dir);
        python
    }

    fn classes(&self) -> PathBuf {
        self.dir.join("classes")
    }

    fn held_file(&self) -> PathBuf {
        self.dir.join("held")
    }
}

impl Drop for CommandHandler {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of the log of the {:?} handler:\n{}", self.language, process::tail(&self.log_file()));
        }
        // On failure the watchdog ends it; that removes its directory in any case.
        let _ = self.kill_dash_nine();
    }
}

fn source(language: Language) -> PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    match language {
        Language::Java => examples.join("java-handler"),
        Language::Python => examples.join("python-handler"),
    }
}

/// A virtual environment with what is required, made anew for another Python or other requirements.
fn python_environment(requirements: &Path) -> Result<PathBuf> {
    let required = fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let version = match process::run(Command::new("python3").arg("-VV")) {
        Err(error) if jars::is_missing(&error) => {
            bail!("python3 not found: install Python 3.10 or newer (Debian and Ubuntu: apt install python3-venv)")
        }
        version => version?,
    };
    let name = format!("python-handler-{:016x}", dir::fingerprint((&required, version)));
    cache::kept("python-handler", &name, |partial| {
        let environment = partial.join("environment");
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))
            .context("making a virtual environment (Debian and Ubuntu: apt install python3-venv)")?;
        let mut pip = Command::new(environment.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(requirements);
        process::run(&mut pip)
            .context("installing the requirements (Qpid Proton is compiled: a C compiler is needed)")?;
        Ok(environment)
    })
}

/// JDBC has no user before the host.
fn jdbc_url(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    match rest.split_once('@') {
        Some((user, server)) => format!("jdbc:postgresql://{server}?user={user}"),
        None => format!("jdbc:postgresql://{rest}"),
    }
}
