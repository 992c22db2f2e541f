//! Kafka's jars from Maven Central, downloaded once per user and version.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache_dir;
use crate::process;

/// Part of the name of the cached directory: a new version is a new download.
const KAFKA: &str = "4.3.1";
const LOG4J: &str = "2.25.4";

/// The directory that holds Kafka and everything it needs; downloads it if it is missing.
pub(crate) fn kafka_jars() -> Result<PathBuf> {
    let cache = cache_dir()?;
    let jars = cache.join(format!("kafka-{KAFKA}"));
    if jars.is_dir() {
        return Ok(jars);
    }
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let lock = File::create(cache.join("kafka.lock")).context("creating the download lock")?;
    // Released when the file is closed, so a killed downloader blocks nobody.
    lock.lock().context("waiting for the download lock")?;
    if !jars.is_dir() {
        download(&cache, &jars).context("downloading Kafka from Maven Central")?;
    }
    Ok(jars)
}

/// Downloads beside the final place and renames, so that a partial download is never used.
fn download(cache: &Path, jars: &Path) -> Result<()> {
    let partial = cache.join("kafka.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    fs::write(partial.join("pom.xml"), pom())?;
    let mut mvn = Command::new("mvn");
    mvn.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    mvn.args(["-DincludeScope=runtime", "-DoutputDirectory=libs"]);
    match process::run(mvn.current_dir(&partial)) {
        Ok(_) => {}
        Err(error) if is_missing(&error) => bail!(
            "mvn not found: install Maven (Debian and Ubuntu: apt install maven), \
             which fetches Kafka once"
        ),
        Err(error) => return Err(error),
    }
    fs::rename(partial.join("libs"), jars)?;
    fs::remove_dir_all(&partial)?;
    Ok(())
}

/// Whether a program could not be started because it is not installed.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn pom() -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>\n"
        )
    };
    let kafka = dependency("org.apache.kafka", "kafka_2.13", KAFKA);
    let tools = dependency("org.apache.kafka", "kafka-tools", KAFKA);
    let log4j = dependency("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J);
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n\
         <modelVersion>4.0.0</modelVersion>\n\
         <groupId>dipmo</groupId><artifactId>kafka-jars</artifactId><version>1</version>\n\
         <dependencies>\n{kafka}{tools}{log4j}</dependencies>\n</project>\n"
    )
}
