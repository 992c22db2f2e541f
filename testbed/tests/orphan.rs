//! No server outlives its owner, however the owner ends.

#![allow(clippy::unwrap_used)]

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::{Postgres, PostgresOptions};

const LONG: Duration = Duration::from_secs(20);
const OWNER: &str = "DIPMO_TESTBED_OWNER";

/// Run by the test below in a process of its own; in an ordinary run it does nothing.
#[test]
fn owner() {
    if env::var_os(OWNER).is_none() {
        return;
    }
    let server = Postgres::start(PostgresOptions::default()).unwrap();
    println!("\nserver {} {}", server.port(), server.data_dir().display());
    // Waits for a kill; the other end of stdin is closed only by a failed test.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_server_ends_when_its_owner_is_killed() {
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owner", "--nocapture"])
        .env(OWNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line =
        lines.map(|line| line.unwrap()).find(|line| line.starts_with("server ")).expect("the owner starts a server");
    let mut words = line.split(' ').skip(1);
    let addr = format!("127.0.0.1:{}", words.next().unwrap());
    let data_dir = Path::new(words.next().unwrap()).to_path_buf();
    let mut connection = TcpStream::connect(&addr).expect("the server runs");
    connection.set_read_timeout(Some(LONG)).unwrap();

    owner.kill().unwrap();
    owner.wait().unwrap();

    assert_eq!(connection.read(&mut [0]).expect("the server is ended"), 0);
    // The directory goes right after the server.
    let deadline = Instant::now() + LONG;
    while data_dir.exists() {
        assert!(Instant::now() < deadline, "the data is still there");
        thread::yield_now();
    }
    TcpStream::connect(&addr).expect_err("the server is gone");
}
