//! Nodes come and go under load: partitions change hands between batches, never inside one.

use std::sync::Arc;

use dipmo::consumer::Consumer;

use crate::support::World;
use crate::support::kafka::Topic;
use crate::{Running, check_numbers, consumer, numbers, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalance_under_load_loses_doubles_and_reorders_nothing() {
    let (world, topic) = (World::real_time().await, Topic::new(6).await);
    let consumer = Arc::new(Consumer { batch_max: 20, ..consumer(&topic) });
    topic.send_all(numbers(30, 0..40)).await;
    let first = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "outbox", "dipmo.outbox", 200).await;
    let second = Running::start(world.another_db(), &consumer, &topic).await;
    topic.send_all(numbers(30, 40..80)).await;
    until(&world, "outbox", "dipmo.outbox", 1500).await;
    first.stop().await;
    topic.send_all(numbers(30, 80..100)).await;
    until(&world, "outbox", "dipmo.outbox", 3000).await;
    second.stop().await;
    check_numbers(&world, 30, 100).await;
    assert_eq!(topic.committed(&consumer.name, 6).await, 3000);
}
