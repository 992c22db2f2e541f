//! The demo as newcomers run it, smaller, on a database of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tokio::process::Command;
use tokio_postgres::NoTls;
use uuid::Uuid;

#[tokio::test]
async fn the_demo_ends_well_though_its_node_is_killed() {
    let server = std::env::var("DIPMO_TEST_POSTGRES").expect("cargo xtask test starts the servers");
    let (admin, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
    let _connection = tokio::spawn(connection);
    let name = format!("demo_{}", Uuid::now_v7().simple());
    admin.batch_execute(&format!("create database {name}")).await.unwrap();
    let (address, _) = server.rsplit_once('/').unwrap();
    let demo = Command::new(env!("CARGO_BIN_EXE_kyc-demo"))
        .args([format!("--postgres={address}/{name}"), "--messages=600".to_owned()])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&demo.stdout);
    assert!(demo.status.success(), "{told}\n{}", String::from_utf8_lossy(&demo.stderr));
    assert!(told.contains("killed"), "it shows what happened: {told}");
    admin.batch_execute(&format!("drop database {name} with (force)")).await.unwrap();
}
