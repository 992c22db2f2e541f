//! The broker dies, or the network does, in mid-flow from Kafka to Kafka: also in the moment when a
//! request got through and its answer did not.

use std::net::SocketAddr;
use std::time::Duration;

use dipmo::clock::Clock;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::{Db, DbOptions};
use testbed::{Kafka, KafkaOptions, Postgres, PostgresOptions, Proxy, free_port};

use crate::node::run_here;
use crate::support::{World, postgres_url};
use crate::{Scene, keys};

const ANSWER: Duration = Duration::from_secs(20);

/// Waits until the outbox holds this much.
async fn outbox_reaches(scene: &Scene, wanted: i64) {
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    while scene.world.try_count("dipmo.outbox").await.unwrap_or(0) < wanted {
        tick.tick().await;
    }
}

async fn everything_arrives(scene: &Scene, label: &str) {
    let keys = keys();
    scene.arrived(&keys.iter().map(String::as_str).collect::<Vec<_>>(), label).await;
    scene.check_effects(label).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_in_mid_flow_gets_everything_when_it_is_back() {
    let mut kafka = Kafka::start(KafkaOptions::default()).unwrap();
    let scene = Scene::on(World::real_time().await, &kafka.bootstrap()).await;
    let (trigger, shutdown) = ShutdownTrigger::new();
    let (db, bootstrap) = (scene.world.another_db(), kafka.bootstrap());
    let (input, output) = (scene.input.name.clone(), scene.output.name.clone());
    let node = tokio::spawn(async move { run_here(db, &bootstrap, &input, &output, shutdown).await });
    outbox_reaches(&scene, 20).await;
    kafka.kill_dash_nine().unwrap();
    kafka.restart().unwrap();
    everything_arrives(&scene, "broker killed").await;
    trigger.stop();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_to_the_broker_that_is_cut_before_the_answer_loses_nothing() {
    let port = free_port().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let advertised_port = Some(proxy.addr().port());
    let _kafka = Kafka::start(KafkaOptions { port: Some(port), advertised_port, ..KafkaOptions::default() }).unwrap();
    let bootstrap = proxy.addr().to_string();
    let scene = Scene::on(World::real_time().await, &bootstrap).await;
    let (trigger, shutdown) = ShutdownTrigger::new();
    let (db, bootstrap) = (scene.world.another_db(), bootstrap.clone());
    let (input, output) = (scene.input.name.clone(), scene.output.name.clone());
    let node = tokio::spawn(async move { run_here(db, &bootstrap, &input, &output, shutdown).await });
    for wanted in [10, 60] {
        outbox_reaches(&scene, wanted).await;
        proxy.stall_answers();
        assert!(proxy.wait_for_held_answer(ANSWER), "no answer was held back");
        proxy.cut();
        proxy.heal();
    }
    everything_arrives(&scene, "broker cut").await;
    trigger.stop();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_has_its_effect_once() {
    let postgres = Postgres::start(PostgresOptions::default()).unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], postgres.port()))).unwrap();
    let world = World::on(&postgres.url(), Clock::database()).await;
    let scene = Scene::on(world, &crate::support::kafka::bootstrap()).await;
    let through = postgres.url().replace(&postgres.port().to_string(), &proxy.addr().port().to_string());
    assert_ne!(through, postgres_url());
    let schema = scene.world.db.schema().to_owned();
    let db = Db::open(DbOptions { schema, ..DbOptions::new(through) }).unwrap();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let bootstrap = crate::support::kafka::bootstrap();
    let (input, output) = (scene.input.name.clone(), scene.output.name.clone());
    let node = tokio::spawn(async move { run_here(db, &bootstrap, &input, &output, shutdown).await });
    for wanted in [10, 40, 80] {
        outbox_reaches(&scene, wanted).await;
        proxy.stall_answers();
        assert!(proxy.wait_for_held_answer(ANSWER), "no answer was held back");
        proxy.cut();
        proxy.heal();
    }
    everything_arrives(&scene, "database cut").await;
    trigger.stop();
    node.await.unwrap();
}
