//! One PostgreSQL, one Kafka and one Artemis, private to this run, and how to reach them.
//!
//! Dropping [`Services`] stops them. Ctrl-C needs no handling: the servers' watchdogs see
//! that this process is gone and clean up after it.

use std::io;
use std::thread;

use anyhow::{Context, Result, anyhow};
use testbed::{Artemis, ArtemisOptions, Kafka, KafkaOptions, Postgres, PostgresOptions};

/// The names under which tests find the servers.
const POSTGRES_VARIABLE: &str = "DIPMO_TEST_POSTGRES";
const KAFKA_VARIABLE: &str = "DIPMO_TEST_KAFKA";
const ARTEMIS_VARIABLE: &str = "DIPMO_TEST_ARTEMIS";

#[derive(Debug)]
pub(crate) struct Services {
    postgres: Postgres,
    kafka: Kafka,
    artemis: Artemis,
}

impl Services {
    /// Starts the servers side by side.
    pub(crate) fn start() -> Result<Self> {
        eprintln!("starting PostgreSQL, Kafka and Artemis (the first time downloads Kafka and Artemis)");
        let kafka = thread::spawn(|| Kafka::start(KafkaOptions::default()));
        let artemis = thread::spawn(|| Artemis::start(ArtemisOptions::default()));
        let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL");
        let kafka =
            kafka.join().map_err(|_| anyhow!("the thread that starts Kafka panicked"))?.context("starting Kafka");
        let artemis =
            artemis.join().map_err(|_| anyhow!("the thread that starts Artemis panicked"))?.context("starting Artemis");
        Ok(Self { postgres: postgres?, kafka: kafka?, artemis: artemis? })
    }

    /// The environment in which tests use these servers.
    pub(crate) fn env(&self) -> [(&'static str, String); 3] {
        [
            (POSTGRES_VARIABLE, self.postgres.url()),
            (KAFKA_VARIABLE, self.kafka.bootstrap()),
            (ARTEMIS_VARIABLE, self.artemis.url()),
        ]
    }
}

/// `cargo xtask services`
pub(crate) fn run() -> Result<()> {
    let services = Services::start()?;
    for (name, value) in services.env() {
        println!("export {name}={value}");
    }
    println!("# psql {}", services.postgres.url());
    let logs = [services.postgres.log_file(), services.kafka.log_file(), services.artemis.log_file()];
    logs.iter().for_each(|log| println!("# log: {}", log.display()));
    println!("# running until Ctrl-C or the end of stdin");
    io::copy(&mut io::stdin(), &mut io::sink()).context("waiting on stdin")?;
    Ok(())
}
