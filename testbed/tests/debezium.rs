//! Debezium's worker tells why it does not stream.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::thread;

use testbed::{Debezium, DebeziumOptions, Kafka, KafkaOptions, Postgres, PostgresOptions};

fn pair((name, value): (&str, &str)) -> (String, String) {
    (name.into(), value.into())
}

#[test]
fn a_connector_that_gives_up_is_an_error_with_the_reason() {
    let broker = thread::spawn(|| Kafka::start(KafkaOptions::default()).unwrap());
    let server = Postgres::start(PostgresOptions::default()).unwrap();
    let broker = broker.join().unwrap();
    let port = server.port().to_string();
    let connector = [
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("database.hostname", "127.0.0.1"),
        ("database.port", &port),
        ("database.user", "postgres"),
        ("database.dbname", "postgres"),
        ("topic.prefix", "t"),
        ("plugin.name", "pgoutput"),
        ("publication.name", "absent"),
        ("publication.autocreate.mode", "disabled"),
        ("snapshot.mode", "no_data"),
    ];
    let options = DebeziumOptions { connector: connector.map(pair).into(), ..DebeziumOptions::default() };
    let mut worker = Debezium::start(&broker.bootstrap(), &options).unwrap();
    let process = format!("/proc/{}", worker.pid());
    let error = worker.wait_running().unwrap_err().to_string();
    assert!(error.contains("Publication autocreation is disabled"), "{error}");
    worker.kill();
    assert!(!Path::new(&process).exists(), "a killed worker is gone");
}
