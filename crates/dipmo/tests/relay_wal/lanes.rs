//! Every message takes the lane of its transport, also while one of the lanes is read from the WAL.

use std::sync::Arc;

use dipmo::relay::RelayOptions;
use dipmo::transport::Publisher;

use crate::support::{Scripted, World};
use crate::{end, until, wal_world};

/// One transaction for all transports, and what each of them got.
async fn everything_goes_its_way(world: &World) {
    let (kafka, amqp) = (Scripted::new(), Scripted::new());
    world.subscribe("types", "*").await;
    world.subscribe("queue", "INTERNAL:Q").await;
    let options = RelayOptions { amqp: Some(Arc::clone(&amqp) as Arc<dyn Publisher>), ..kafka.options("one") };
    let relay = world.relay(options);
    crate::until_following(&relay, world).await;
    for n in 0..20 {
        world
            .execute(&format!(
                "begin;
                 select dipmo.outbox_append(d, 'order', 'k', 'Placed', d || '{n}')
                 from unnest(array['KAFKA:t', 'AMQP:Q', 'INTERNAL', 'INTERNAL:Q']) d;
                 commit"
            ))
            .await;
    }
    until(&relay, "all is sent", || async { world.count("dipmo.outbox_status where state = 'PENDING'").await == 0 })
        .await;
    let expected = |to: &str| (0..20).map(|n| format!("{to}{n}")).collect::<Vec<_>>();
    assert_eq!(kafka.bodies(), expected("KAFKA:t"));
    assert_eq!(amqp.bodies(), expected("AMQP:Q"));
    for (consumer, to) in [("types", "INTERNAL"), ("queue", "INTERNAL:Q")] {
        let got = format!(
            "select convert_from(payload, 'UTF8') from dipmo.inbox_status where consumer = '{consumer}' order by id"
        );
        assert_eq!(world.texts(&got).await, expected(to), "{consumer}");
    }
    end(relay, world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_takes_its_own_lane_while_kafkas_is_read_from_the_wal() {
    everything_goes_its_way(&wal_world().await).await;
}

/// One that somebody made by hand, or before there were other lanes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_with_the_rows_of_other_lanes_sends_none_of_them_to_kafka() {
    let world = wal_world().await;
    let name = format!("{}_outbox", world.db.schema());
    let settings = "with (publish = 'insert', publish_via_partition_root = true)";
    world
        .execute(&format!("create publication \"{name}\" for table dipmo.outbox where (shard >= 16) {settings}"))
        .await;
    everything_goes_its_way(&world).await;
}
