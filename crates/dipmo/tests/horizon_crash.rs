//! The id horizon over crashes of the whole server: the sequence may go back, memory of before is void.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay_stress.rs"]
mod stress;
#[path = "support/relay.rs"]
mod support;

use std::sync::Arc;

use dipmo::clock::Clock;
use dipmo::relay::RelayOptions;
use dipmo::shutdown::ShutdownTrigger;
use stress::{Stress, seed};
use support::{Named, Scripted, World, connect};
use testbed::{Postgres, PostgresOptions};
use tokio::task::JoinSet;

const CRASHES: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_costs_duplicates_and_nothing_else() {
    let seed = seed();
    let mut server = Postgres::start(PostgresOptions::default()).unwrap();
    let stress = Stress::new(World::on(&server.url(), Clock::database()).await).await;
    let broker = Scripted::new();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let kafka = Arc::new(Named(broker.clone(), "r1".to_owned()));
    let options = RelayOptions { kafka: Some(kafka), internal: false, notify: false, ..RelayOptions::new("r1") };
    let relay = stress.world.relay(options);
    stress.world.execute("update dipmo.relay_wake set quiet = false").await;
    let relay = tokio::spawn(async move { relay.run(shutdown).await });
    let mut writers = JoinSet::new();
    for n in 0..4 {
        writers.spawn(stress.clone().rough(seed + n));
        writers.spawn(stress.clone().idle(seed + 10 + n, 100));
    }
    for _ in 0..CRASHES {
        stress.wait_for_commits(300).await;
        server.kill_dash_nine().unwrap();
        server.restart().unwrap();
        end_prepared(&server.url()).await;
    }
    stress.wait_for_commits(300).await;
    stress.stop();
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    end_prepared(&server.url()).await;
    stress.wait_until_sent(&broker).await;
    trigger.stop();
    relay.await.unwrap();
    let (rows, duplicates) = stress.check(&broker, true).await;
    println!("{rows} rows, {duplicates} of them duplicates, over {CRASHES} crashes");
}

/// Prepared transactions survive a crash; their writers do not come back for them.
async fn end_prepared(url: &str) {
    let client = connect(url, "end prepared").await.unwrap();
    for row in client.query("select gid from pg_prepared_xacts", &[]).await.unwrap() {
        // A writer that is still there may have ended it meanwhile.
        let _ = client.batch_execute(&format!("commit prepared '{}'", row.get::<_, String>(0))).await;
    }
}
