//! The id horizon under writers that abort, batch, prepare and leave transactions open: nothing is lost,
//! nothing of a key is overtaken, and healthy writers hardly notice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay_stress.rs"]
mod stress;
#[path = "support/relay.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use dipmo::relay::RelayOptions;
use dipmo::shutdown::{Shutdown, ShutdownTrigger};
use stress::{Stress, percentile, seed};
use support::{Named, Scripted, World};
use tokio::task::{JoinHandle, JoinSet};

/// With `notify` off, writers can prepare transactions at any time.
fn run_relay(world: &World, broker: &Arc<Scripted>, node: &str, notify: bool, shutdown: Shutdown) -> JoinHandle<()> {
    let kafka = Arc::new(Named(broker.clone(), node.to_owned()));
    let options = RelayOptions { kafka: Some(kafka), internal: false, notify, ..RelayOptions::new(node) };
    let relay = world.relay(options);
    tokio::spawn(async move { relay.run(shutdown).await })
}

async fn steady_phase(stress: &Arc<Stress>, count: u32) {
    let mut writers = JoinSet::new();
    for writer in 0..6 {
        writers.spawn(stress.clone().steady(writer, count, Duration::from_millis(12)));
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_overtaken_and_healthy_writers_hardly_notice() {
    let seed = seed();
    let stress = Stress::new(World::real_time().await).await;
    let broker = Scripted::new();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let relay = run_relay(&stress.world, &broker, "r1", true, shutdown);
    steady_phase(&stress, 300).await;
    stress.wait_until_sent(&broker).await;
    let calm = stress.latencies(&broker);

    let mut disturbers = JoinSet::new();
    for n in 0..3 {
        disturbers.spawn(stress.clone().idle(seed + n, 1500));
    }
    disturbers.spawn(stress.clone().elsewhere(1000));
    steady_phase(&stress, 400).await;
    stress.wait_for_latencies(&broker).await;
    let disturbed = stress.latencies(&broker);

    for n in 0..4 {
        disturbers.spawn(stress.clone().rough(seed + 10 + n));
    }
    steady_phase(&stress, 400).await;
    stress.stop();
    while let Some(done) = disturbers.join_next().await {
        done.unwrap();
    }
    stress.wait_until_sent(&broker).await;
    trigger.stop();
    relay.await.unwrap();
    let (rows, _) = stress.check(&broker, false).await;
    let show = |l: &[Duration]| format!("p50 {:?} p99 {:?}", percentile(l, 50), percentile(l, 99));
    println!("{rows} rows; undisturbed {}; beside transactions left open {}", show(&calm), show(&disturbed));
    // What a poll takes on a loaded machine is noise: below this, four times is no statement.
    let floor = Duration::from_millis(10);
    assert!(percentile(&disturbed, 99) <= 4 * percentile(&calm, 99).max(floor));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_that_come_and_go_lose_and_overtake_nothing() {
    let seed = seed();
    let stress = Stress::new(World::real_time().await).await;
    let broker = Scripted::new();
    stress.world.execute("update dipmo.relay_wake set quiet = false").await;
    let mut disturbers = JoinSet::new();
    for n in 0..3 {
        disturbers.spawn(stress.clone().rough(seed + n));
        disturbers.spawn(stress.clone().idle(seed + 10 + n, 300));
    }
    let (keep, shutdown) = ShutdownTrigger::new();
    let lasting = run_relay(&stress.world, &broker, "lasting", false, shutdown);
    for round in 0..4 {
        let (trigger, shutdown) = ShutdownTrigger::new();
        let passing = run_relay(&stress.world, &broker, &format!("passing{round}"), false, shutdown);
        steady_phase(&stress, 100).await;
        trigger.stop();
        passing.await.unwrap();
    }
    stress.stop();
    while let Some(done) = disturbers.join_next().await {
        done.unwrap();
    }
    stress.wait_until_sent(&broker).await;
    keep.stop();
    lasting.await.unwrap();
    let (rows, _) = stress.check(&broker, false).await;
    println!("{rows} rows over five relays");
}
