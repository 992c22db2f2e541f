//! The pool of connections when it is too small for those who use it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use dipmo::ErrorKind;
use dipmo::store::postgres::{Db, DbOptions};

/// As handlers that hold one connection each and need another: without an end to the wait, none ever goes on.
#[tokio::test]
async fn a_wait_for_a_connection_ends_and_says_why() {
    let url = std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`");
    let wait_max = Duration::from_millis(100);
    let options = DbOptions { connections_max: 1, idle_in_transaction_max: wait_max, ..DbOptions::new(url) };
    let db = Db::open(options).unwrap();
    let held = db.client().await.unwrap();
    let second = tokio::time::timeout(Duration::from_secs(20), db.client()).await.expect("it waits for ever");
    let refusal = second.map(drop).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Unavailable);
    assert!(refusal.to_string().contains("all 1 are taken"), "{refusal}");
    drop(held);
    db.client().await.map(drop).unwrap();
}
