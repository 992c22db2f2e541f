//! A real PostgreSQL starts, answers, and keeps its data through a kill.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use testbed::{Postgres, PostgresOptions};

fn psql(server: &Postgres, sql: &str) -> String {
    let output =
        Command::new(server.bin_dir().join("psql")).args([&server.url(), "-XAtqc", sql]).output().expect("psql starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql failed: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn postgres_survives_a_kill_with_its_data() {
    let mut server = Postgres::start(PostgresOptions::default()).unwrap();
    assert_eq!(psql(&server, "select 1"), "1");
    assert_eq!(psql(&server, "show fsync"), "on");
    psql(&server, "create table kept as select 42 as answer");
    let before = server.pid();

    server.kill_dash_nine().unwrap();
    assert_eq!(server.pid(), None);
    server.restart().unwrap();

    assert_ne!(server.pid(), before);
    assert_eq!(psql(&server, "select answer from kept"), "42");
}

#[test]
fn a_paused_postgres_answers_after_it_is_resumed_and_leaves_nothing_behind() {
    let options = PostgresOptions {
        fsync: false,
        settings: vec![("work_mem".into(), "7MB".into())],
        ..PostgresOptions::default()
    };
    let server = Postgres::start(options).unwrap();
    server.pause().unwrap();
    server.resume().unwrap();
    assert_eq!(psql(&server, "show work_mem"), "7MB");

    let data_dir = server.data_dir();
    assert!(data_dir.exists());
    drop(server);
    assert!(!data_dir.exists());
}
