//! Kafka's, Debezium's and Artemis' jars from Maven Central, downloaded once per user and version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::process;

/// Part of the name of the cached directory: a new version is a new download.
const KAFKA: &str = "4.3.1";
const DEBEZIUM: &str = "3.7.0.Final";
const LOG4J: &str = "2.25.4";
/// Later versions have no archive of the whole broker there.
const ARTEMIS: &str = "2.44.0";

/// What Maven does with the artifacts.
const COPY: &str = "dependency:copy-dependencies";
const UNPACK: &str = "dependency:unpack-dependencies";

/// The directory beside the jars of [`debezium_jars`] that Connect loads Debezium from.
pub(crate) const PLUGINS: &str = "plugins";

/// The directory that holds Kafka and everything it needs; downloads it if it is missing.
pub(crate) fn kafka_jars() -> Result<PathBuf> {
    let artifacts =
        [jar("org.apache.kafka", "kafka_2.13", KAFKA), jar("org.apache.kafka", "kafka-tools", KAFKA), log4j()];
    cached("kafka", &format!("kafka-{KAFKA}"), COPY, &artifacts)
}

/// The directory that holds Kafka Connect and, in [`PLUGINS`], Debezium's connector for PostgreSQL.
pub(crate) fn debezium_jars() -> Result<PathBuf> {
    let artifacts = [
        jar("org.apache.kafka", "connect-runtime", KAFKA),
        jar("org.apache.kafka", "connect-json", KAFKA),
        log4j(),
        plugin("io.debezium", "debezium-connector-postgres", DEBEZIUM),
    ];
    cached("debezium", &format!("debezium-{DEBEZIUM}-connect-{KAFKA}"), COPY, &artifacts)
}

/// The directory of Artemis as its project packs it, with its jars in `lib`.
pub(crate) fn artemis_home() -> Result<PathBuf> {
    let whole =
        archive("org.apache.activemq", "apache-artemis", ARTEMIS, "<type>zip</type><classifier>bin</classifier>");
    let unpacked = cached("artemis", &format!("artemis-{ARTEMIS}"), UNPACK, &[whole])?;
    Ok(unpacked.join(format!("apache-artemis-{ARTEMIS}")))
}

/// The directory `version` of the cache with all `artifacts` and what they need.
fn cached(name: &str, version: &str, goal: &str, artifacts: &[String]) -> Result<PathBuf> {
    cache::kept(name, version, |partial| {
        download(goal, artifacts, partial).with_context(|| format!("downloading {version} from Maven Central"))
    })
}

/// Downloads into `partial`; the directory of the jars is told.
fn download(goal: &str, artifacts: &[String], partial: &Path) -> Result<PathBuf> {
    fs::write(partial.join("pom.xml"), pom(artifacts))?;
    let mut mvn = Command::new("mvn");
    mvn.args(["--quiet", "--batch-mode", goal]);
    mvn.args(["-DincludeScope=runtime", "-DoutputDirectory=libs"]);
    match process::run(mvn.current_dir(partial)) {
        Ok(_) => {}
        Err(error) if is_missing(&error) => bail!(
            "mvn not found: install Maven (Debian and Ubuntu: apt install maven), \
             which fetches the servers once"
        ),
        Err(error) => return Err(error),
    }
    let libs = partial.join("libs");
    unpack_plugins(&libs)?;
    Ok(libs)
}

/// Plugins come as archives. Connect loads what is in a directory of its own apart from its own class path.
fn unpack_plugins(libs: &Path) -> Result<()> {
    for file in fs::read_dir(libs)? {
        let archive = file?.path();
        if archive.extension().is_some_and(|extension| extension == "gz") {
            let plugins = libs.join(PLUGINS);
            fs::create_dir_all(&plugins)?;
            process::run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&plugins))?;
            fs::remove_file(&archive)?;
        }
    }
    Ok(())
}

/// Whether a program could not be started because it is not installed.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn log4j() -> String {
    jar("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J)
}

fn jar(group: &str, artifact: &str, version: &str) -> String {
    dependency(group, artifact, version, "")
}

/// An archive that holds everything its connector needs.
fn plugin(group: &str, artifact: &str, version: &str) -> String {
    archive(group, artifact, version, "<type>tar.gz</type><classifier>plugin</classifier>")
}

/// One file, without what its pom says it needs.
fn archive(group: &str, artifact: &str, version: &str, which: &str) -> String {
    let alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>";
    dependency(group, artifact, version, &format!("{which}{alone}"))
}

fn dependency(group: &str, artifact: &str, version: &str, more: &str) -> String {
    format!(
        "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
         <version>{version}</version>{more}</dependency>\n"
    )
}

fn pom(artifacts: &[String]) -> String {
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n\
         <modelVersion>4.0.0</modelVersion>\n\
         <groupId>dipmo</groupId><artifactId>jars</artifactId><version>1</version>\n\
         <dependencies>\n{}</dependencies>\n</project>\n",
        artifacts.concat()
    )
}
