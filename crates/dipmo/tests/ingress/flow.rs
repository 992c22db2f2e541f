//! What arrives is durable before its offset is committed, and nothing arrives twice.

use std::sync::Arc;

use dipmo::consumer::{Consumer, Mode};

use crate::support::World;
use crate::support::kafka::Topic;
use crate::{Running, check_numbers, consumer, numbers, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_flow_in_order_and_offsets_follow() {
    for mode in [Mode::Inline, Mode::Store] {
        let (world, topic) = (World::real_time().await, Topic::new(4).await);
        let consumer = Arc::new(Consumer { mode, ..consumer(&topic) });
        topic.send_all(numbers(20, 0..50)).await;
        let node = Running::start(world.db.clone(), &consumer, &topic).await;
        until(&world, "outbox", "dipmo.outbox", 1000).await;
        node.stop().await;
        check_numbers(&world, 20, 50).await;
        assert_eq!(topic.committed(&consumer.name, 4).await, 1000, "{mode:?}");
        // A drained stop leaves nothing to be done twice.
        let again = Running::start(world.db.clone(), &consumer, &topic).await;
        topic.send_all(numbers(20, 50..51)).await;
        until(&world, "outbox", "dipmo.outbox", 1020).await;
        again.stop().await;
        assert_eq!(world.count("dipmo.inbox").await, 1020, "{mode:?}");
        check_numbers(&world, 20, 51).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arbitrary_bytes_are_kept_and_the_offsets_go_on() {
    let (world, topic) = (World::real_time().await, Topic::new(1).await);
    let consumer = Arc::new(consumer(&topic));
    let wild: [&[u8]; 4] = [b"\xff\xfe\x00", b"", b"{\"half\":", b"\x00\x01"];
    for (n, bytes) in wild.iter().enumerate() {
        topic.send("wild", bytes, Some(&format!("id-{n}"))).await;
    }
    topic.send("tame", b"0", None).await;
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "outbox", "dipmo.outbox", 1).await;
    node.stop().await;
    assert_eq!(world.states("wild").await, ["SERDE_ERROR"; 4]);
    let kept = world.texts("select encode(payload, 'hex') from dipmo.inbox where key = 'wild' order by id").await;
    assert_eq!(kept, ["fffe00", "", "7b2268616c66223a", "0001"]);
    assert_eq!(topic.committed(&consumer.name, 1).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_message_id_sent_again_has_no_effect() {
    let (world, topic) = (World::real_time().await, Topic::new(1).await);
    let consumer = Arc::new(consumer(&topic));
    for id in ["one", "two", "one", "two", "three"] {
        topic.send("k", b"7", Some(id)).await;
    }
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "outbox", "dipmo.outbox", 3).await;
    node.stop().await;
    assert_eq!(world.count("dipmo.inbox").await, 3);
    assert_eq!(topic.committed(&consumer.name, 1).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_backlog_stops_consuming_until_the_workers_catch_up() {
    let (world, topic) = (World::real_time().await, Topic::new(1).await);
    let consumer = Arc::new(Consumer { mode: Mode::Store, backlog_max: 50, batch_max: 25, ..consumer(&topic) });
    // A worker that cannot claim: every bucket is held by a node that does not exist.
    let store = dipmo::store::postgres::inbox::PgInbox::register(world.db.clone(), &consumer).await.unwrap();
    drop(store);
    world.execute("update dipmo.lease set owner = 'ghost', until = now() + interval '1 hour'").await;
    topic.send_all(numbers(1, 0..500)).await;
    let node = Running::start(world.db.clone(), &consumer, &topic).await;
    until(&world, "backlog", "dipmo.inbox_work", 50).await;
    world.execute("update dipmo.lease set until = null").await;
    until(&world, "outbox", "dipmo.outbox", 500).await;
    node.stop().await;
    check_numbers(&world, 1, 500).await;
}
