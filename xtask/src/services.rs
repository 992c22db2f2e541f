//! One PostgreSQL and one Kafka, private to this run, and how to reach them.
//!
//! Dropping [`Services`] stops both. Ctrl-C needs no handling: the servers' watchdogs see
//! that this process is gone and clean up after it.

use std::io;
use std::thread;

use anyhow::{Context, Result, anyhow};
use testbed::{Kafka, KafkaOptions, Postgres, PostgresOptions};

/// The names under which tests find the servers.
const POSTGRES_VARIABLE: &str = "DIPMO_TEST_POSTGRES";
const KAFKA_VARIABLE: &str = "DIPMO_TEST_KAFKA";

#[derive(Debug)]
pub(crate) struct Services {
    postgres: Postgres,
    kafka: Kafka,
}

impl Services {
    /// Starts both servers side by side.
    pub(crate) fn start() -> Result<Self> {
        eprintln!("starting PostgreSQL and Kafka (the first time downloads Kafka)");
        let kafka = thread::spawn(|| Kafka::start(KafkaOptions::default()));
        let postgres = Postgres::start(PostgresOptions::default()).context("starting PostgreSQL");
        let kafka =
            kafka.join().map_err(|_| anyhow!("the thread that starts Kafka panicked"))?.context("starting Kafka");
        Ok(Self { postgres: postgres?, kafka: kafka? })
    }

    /// The environment in which tests use these servers.
    pub(crate) fn env(&self) -> [(&'static str, String); 2] {
        [(POSTGRES_VARIABLE, self.postgres.url()), (KAFKA_VARIABLE, self.kafka.bootstrap())]
    }
}

/// `cargo xtask services`
pub(crate) fn run() -> Result<()> {
    let services = Services::start()?;
    for (name, value) in services.env() {
        println!("export {name}={value}");
    }
    println!("# psql {}", services.postgres.url());
    println!("# logs: {} and {}", services.postgres.log_file().display(), services.kafka.log_file().display());
    println!("# running until Ctrl-C or the end of stdin");
    io::copy(&mut io::stdin(), &mut io::sink()).context("waiting on stdin")?;
    Ok(())
}
