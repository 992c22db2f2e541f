//! How a server in Java is started: class path, heap, and a log that goes to stderr.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// To stderr, which goes to the log file: stdout is the pipe that tells of the end.
const LOGGING: &str = "\
appender.file.type=Console
appender.file.name=file
appender.file.target=SYSTEM_ERR
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %c: %m%n
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
";

/// What is asked for where java is missing.
pub(crate) const MISSING: &str = "java not found: install Java 17 or newer \
     (Debian and Ubuntu: apt install default-jre-headless)";

/// Writes the logging configuration that [`java`] names. Warnings are always logged; `informative` are
/// the loggers whose information is wanted too.
pub(crate) fn configure_logging(dir: &Path, informative: &[&str]) -> Result<()> {
    let mut text = LOGGING.to_owned();
    for (number, logger) in informative.iter().enumerate() {
        text.push_str(&format!("logger.l{number}.name={logger}\nlogger.l{number}.level=info\n"));
    }
    fs::write(dir.join("log4j2.properties"), text).context("writing log4j2.properties")
}

/// `java` in `dir`, with the jars of the directory `jars`. At full speed all compiler tiers and the default
/// collector are used, which starts slower and runs faster.
pub(crate) fn java(dir: &Path, jars: &Path, heap: &str, full_speed: bool) -> Command {
    java_with(dir, jars.join("*").as_os_str(), heap, full_speed)
}

/// The same with a class path as java reads it.
pub(crate) fn java_with(dir: &Path, class_path: &OsStr, heap: &str, full_speed: bool) -> Command {
    let mut logging = OsString::from("-Dlog4j2.configurationFile=");
    logging.push(dir.join("log4j2.properties"));
    let mut java = Command::new("java");
    java.arg(format!("-Xmx{heap}"));
    if !full_speed {
        java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    }
    java.arg(logging)
        .arg("-cp")
        .arg(class_path)
        .current_dir(dir)
        // Would print to the pipe and may hold flags that contradict ours.
        .env_remove("JAVA_TOOL_OPTIONS");
    java
}

/// Whether `line` was logged after the first `from` bytes of the log.
pub(crate) fn has_logged(log: &Path, from: u64, line: &str) -> bool {
    let log = fs::read(log).unwrap_or_default();
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(log.len());
    String::from_utf8_lossy(&log[from..]).contains(line)
}
