//! The relay with a transactional topic: one relay after the other sends the shards.

use std::time::Duration;

use dipmo::relay::RelayOptions;

use crate::relay::{World, drain, eager};
use crate::scene::Scene;

const SEND_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_relay_that_takes_over_goes_on_in_transactions() {
    let (world, scene) = (World::new().await, Scene::new());
    let orders = scene.topic().await.name;
    let destination = format!("KAFKA:{orders}");
    let relay = |node| world.relay(RelayOptions { kafka: Some(scene.publisher(SEND_TIMEOUT)), ..eager(node) });
    let first = relay("first");
    for key in ["a", "b", "c", "d"] {
        world.append(&destination, key, &["1", "2", "3"]).await;
    }
    assert_eq!(drain(&first).await.published, 12);
    world.advance(16);
    let second = relay("second");
    for key in ["a", "b", "c", "d"] {
        world.append(&destination, key, &["4", &"x".repeat(3_000_000), "6"]).await;
    }
    assert_eq!(drain(&second).await.published, 4);
    let seen = scene.committed(&orders).await;
    for (body, count) in [("1", 4), ("2", 4), ("3", 4), ("4", 4), ("6", 0)] {
        assert_eq!(seen.iter().filter(|seen| *seen == body).count(), count, "{body} in {seen:?}");
    }
    assert_eq!(world.states("a").await[3..], ["PUBLISHED", "DEAD", "PARKED"]);
}
