//! Versions: stale is ignored with its reason, a gap parks or fails by policy.

use dipmo::consumer::{Consumer, VersionPolicy};
use dipmo::inbox::{Settled, Settlement};

use crate::support::{World, versioned};
use crate::{Diary, pages};

fn checking(versions: VersionPolicy) -> Consumer {
    Consumer { versions, ..Consumer::process("diary", Diary::default()).from_kafka(&["orders"]) }
}

#[tokio::test]
async fn a_stale_version_is_ignored_with_its_reason() {
    let world = World::new().await;
    let node = world.node(checking(VersionPolicy::ParkOnGap)).await;
    node.receive(&[versioned(0, "a", 1), versioned(1, "a", 2), versioned(2, "a", 2)]).await.unwrap();
    node.receive(&[versioned(3, "a", 1)]).await.unwrap();
    assert_eq!(world.states("a").await, ["PROCESSED", "PROCESSED", "IGNORED", "IGNORED"]);
    let reasons = "select reason from dipmo.inbox_status where state = 'IGNORED' order by id";
    assert_eq!(world.texts(reasons).await[0], "STALE_VERSION: has 2, 2 is applied");
    assert_eq!(pages(&world, "a").await, "[1,2]");
}

#[tokio::test]
async fn after_a_gap_the_key_waits_for_the_missing_version_and_goes_on_in_order() {
    let world = World::new().await;
    let mut node = world.node(checking(VersionPolicy::ParkOnGap)).await;
    node.receive(&[versioned(0, "a", 1), versioned(1, "a", 4), versioned(2, "b", 1)]).await.unwrap();
    node.receive(&[versioned(3, "a", 3)]).await.unwrap();
    node.work_off().await;
    assert_eq!(world.states("a").await, ["PROCESSED", "PARKED", "PARKED"]);
    assert_eq!(world.texts("select awaits_version::text from dipmo.parked_key").await, ["2"]);
    node.receive(&[versioned(4, "a", 2)]).await.unwrap();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3,4]");
    assert_eq!(world.count("dipmo.parked_key").await, 0);
    assert_eq!(pages(&world, "b").await, "[1]");
}

#[tokio::test]
async fn versions_that_overtook_each_other_in_one_batch_are_put_in_order() {
    let world = World::new().await;
    let mut node = world.node(checking(VersionPolicy::ParkOnGap)).await;
    node.receive(&[versioned(0, "a", 1), versioned(1, "a", 3), versioned(2, "a", 2)]).await.unwrap();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3]");
    // 7 and 6 wait for 4; it comes together with 8 and before 5.
    node.receive(&[versioned(3, "a", 7), versioned(4, "a", 6)]).await.unwrap();
    node.receive(&[versioned(5, "a", 4), versioned(6, "a", 8), versioned(7, "a", 5)]).await.unwrap();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3,4,5,6,7,8]");
    assert_eq!(world.count("dipmo.parked_key").await, 0);
}

#[tokio::test]
async fn a_key_that_began_to_wait_for_another_version_meanwhile_is_looked_at_again() {
    let world = World::new().await;
    let mut node = world.node(checking(VersionPolicy::ParkOnGap)).await;
    node.receive(&[versioned(0, "a", 1), versioned(1, "a", 5)]).await.unwrap();
    // What an ingress has loaded that did not see the drain in between: the key awaits 2, not 4.
    let stale =
        Settlement { fence: node.fence.clone(), still_parked: vec![("a".into(), Some(4))], ..Settlement::default() };
    assert_eq!(node.runner.store().settle(&stale).await.unwrap(), Settled::Conflict);
    node.receive(&[versioned(2, "a", 4), versioned(3, "a", 3), versioned(4, "a", 2)]).await.unwrap();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3,4,5]");
}

#[tokio::test]
async fn in_store_mode_the_missing_version_passes_the_parked_key_too() {
    let world = World::new().await;
    let mut node = world.node(checking(VersionPolicy::ParkOnGap)).await;
    let batch = [versioned(0, "a", 3), versioned(1, "a", 2)];
    node.runner.handle(&node.fence, &batch).await.unwrap();
    let store = world.node(Consumer { mode: dipmo::consumer::Mode::Store, ..checking(VersionPolicy::ParkOnGap) });
    let store = store.await;
    store.runner.store_only(&store.fence, &[versioned(2, "a", 1)]).await.unwrap();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3]");
}

#[tokio::test]
async fn a_gap_is_dead_where_the_policy_says_so() {
    let world = World::new().await;
    let node = world.node(checking(VersionPolicy::FailOnGap)).await;
    node.receive(&[versioned(0, "a", 1), versioned(1, "a", 3), versioned(2, "a", 2)]).await.unwrap();
    assert_eq!(world.states("a").await, ["PROCESSED", "DEAD", "PARKED"]);
    assert_eq!(world.texts("select error_code from dipmo.inbox_work where state = 'DEAD'").await, ["VERSION_GAP"]);
}
