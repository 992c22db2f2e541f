//! PostgreSQL and Kafka go away in mid-flow, and nodes die where it hurts most.

use std::sync::Arc;

use dipmo::clock::Clock;
use dipmo::consumer::Consumer;
use dipmo::ingress::KafkaIngress;
use dipmo::runner::{Runner, Worker};
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::InboxStore as _;
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::wake::Wake;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use testbed::{Kafka, KafkaOptions, Postgres, PostgresOptions};

use crate::support::World;
use crate::support::hooked::{FailsAt, Hooked, When};
use crate::support::kafka::Topic;
use crate::{PATIENCE, Running, check_numbers, consumer, numbers, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_killed_and_restarted_in_mid_flow_loses_and_doubles_nothing() {
    let mut postgres = Postgres::start(PostgresOptions::default()).unwrap();
    let (world, topic) = (World::on(&postgres.url(), Clock::database()).await, Topic::new(2).await);
    let consumer = Arc::new(Consumer { batch_max: 20, ..consumer(&topic) });
    topic.send_all(numbers(10, 0..100)).await;
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    for wanted in [200, 500] {
        until(&world, "outbox", "dipmo.outbox", wanted).await;
        postgres.kill_dash_nine().unwrap();
        postgres.restart().unwrap();
    }
    until(&world, "outbox", "dipmo.outbox", 1000).await;
    node.stop().await;
    check_numbers(&world, 10, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_killed_and_restarted_in_mid_flow_loses_and_doubles_nothing() {
    let mut kafka = Kafka::start(KafkaOptions::default()).unwrap();
    let (world, topic) = (World::real_time().await, Topic::on(&kafka.bootstrap(), 2).await);
    let consumer = Arc::new(Consumer { batch_max: 20, ..consumer(&topic) });
    topic.send_all(numbers(10, 0..50)).await;
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "outbox", "dipmo.outbox", 100).await;
    kafka.kill_dash_nine().unwrap();
    kafka.restart().unwrap();
    topic.send_all(numbers(10, 50..100)).await;
    until(&world, "outbox", "dipmo.outbox", 1000).await;
    node.stop().await;
    check_numbers(&world, 10, 100).await;
}

/// The process dies after the inbox commit and before the offset: the records come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_inbox_and_offset_has_no_effect() {
    let (world, topic) = (World::real_time().await, Topic::new(1).await);
    let consumer = Arc::new(consumer(&topic));
    topic.send_all(numbers(5, 0..20)).await;
    let inner = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
    // Call 0 loads, call 1 settles: it takes effect, but the node never hears of it and dies.
    let store = Arc::new(Hooked::new(inner, FailsAt(1, When::After)));
    let runner = Runner::new(store.clone(), consumer.clone(), world.clock.clone());
    let wake = Wake::default();
    let ingress = KafkaIngress::with(runner, topic.options(), "dying".into(), wake).unwrap();
    let (_trigger, shutdown) = ShutdownTrigger::new();
    let dying = tokio::spawn(ingress.run(shutdown));
    until(&world, "the first commit", "dipmo.inbox", 1).await;
    dying.abort();
    let _ = dying.await;
    assert_eq!(topic.committed(&consumer.name, 1).await, 0, "no offset was committed");
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "outbox", "dipmo.outbox", 100).await;
    topic.send_all(numbers(5, 20..21)).await;
    until(&world, "outbox", "dipmo.outbox", 105).await;
    node.stop().await;
    check_numbers(&world, 5, 21).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_crash_at_random_lose_and_double_nothing() {
    let seed: u64 = std::env::var("DIPMO_SEED").map_or_else(|_| rand::rng().random(), |s| s.parse().unwrap());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (world, topic) = (World::real_time().await, Topic::new(3).await);
    let consumer = Arc::new(Consumer { batch_max: 10, ..consumer(&topic) });
    topic.send_all(numbers(12, 0..100)).await;
    let mut done = 0;
    for _ in 0..4 {
        let node = Running::start(world.db.clone(), &consumer, &topic).await;
        done += rng.random_range(20..200);
        until(&world, &format!("outbox, seed {seed}"), "dipmo.outbox", done).await;
        node.crash().await;
    }
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, &format!("outbox, seed {seed}"), "dipmo.outbox", 1200).await;
    node.stop().await;
    check_numbers(&world, 12, 100).await;
}

/// A message that kills its process is stored first after a few starts, and workers then run it out
/// of attempts while its partition goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_never_commits_is_stored_before_it_is_handled() {
    let (world, topic) = (World::real_time().await, Topic::new(1).await);
    let consumer = Arc::new(consumer(&topic));
    topic.send_all(numbers(3, 0..2)).await;
    let store = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
    for _ in 0..3 {
        // A process that took the partition and died before it committed anything.
        store.take_partition(&topic.name, 0, "died").await.unwrap();
    }
    let wake = Wake::default();
    let ingress =
        KafkaIngress::new(world.db.clone(), consumer.clone(), topic.options(), "careful".into(), wake.clone());
    let (trigger, shutdown) = ShutdownTrigger::new();
    let ingress = tokio::spawn(ingress.await.unwrap().run(shutdown.clone()));
    until(&world, "stored", "dipmo.inbox_work where state = 'PARKED'", 6).await;
    assert_eq!(world.count("dipmo.process").await, 0, "nothing was decided by the ingress");
    let worker = Worker::new(world.db.clone(), consumer, "worker".into(), &wake).await.unwrap();
    let worker = tokio::spawn(worker.run(shutdown));
    topic.send_all(numbers(3, 2..4)).await;
    until(&world, "outbox", "dipmo.outbox", 12).await;
    trigger.stop();
    tokio::time::timeout(PATIENCE, async { (ingress.await.unwrap(), worker.await.unwrap()) }).await.unwrap();
    check_numbers(&world, 3, 4).await;
}
