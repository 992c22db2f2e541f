//! The crash sweep: every call to the store fails once, before or after it took effect, and the node
//! starts again. Nothing is lost, nothing happens twice, order holds; and the sweep proves that it has
//! been through the window in which a duplicate could have happened.

use std::sync::Arc;

use dipmo::consumer::Consumer;
use dipmo::process::Failure;
use dipmo::runner::Delivery;
use dipmo::store::InboxStore;
use dipmo::store::postgres::inbox::PgInbox;

use crate::support::hooked::{FailsAt, Hooked, When};
use crate::support::{World, fresh};
use crate::{Diary, pages};

/// Three batches with a key that fails for a while. A batch is received until it is acknowledged.
async fn run(world: &World, store: Arc<dyn InboxStore>, consumer: Arc<Consumer>) -> usize {
    let batches: Vec<Vec<Delivery>> = vec![
        vec![fresh(0, "a", "1"), fresh(1, "b", "2"), fresh(2, "a", "3")],
        vec![fresh(3, "a", "4"), fresh(4, "b", "5")],
        vec![fresh(5, "a", "6"), fresh(6, "c", "7")],
    ];
    let mut duplicates = 0;
    let mut node = world.node_over(store.clone(), consumer.clone()).await;
    for batch in &batches {
        let mut tries = 0;
        loop {
            match node.receive(batch).await {
                Ok(report) => {
                    duplicates += report.duplicates;
                    break;
                }
                Err(error) => assert!(error.is_unavailable() && tries < 3, "{error}"),
            }
            tries += 1;
            node = world.node_over(store.clone(), consumer.clone()).await;
        }
    }
    for _ in 0..12 {
        // A new worker each time: what the one before had in memory is gone.
        node = world.node_over(store.clone(), consumer.clone()).await;
        world.advance(400);
        for _ in 0..6 {
            let _ = node.worker.run_once().await;
        }
    }
    duplicates
}

async fn check(world: &World, label: &str) {
    let expected = [("a", "[1,3,4,6]"), ("b", "[2,5]"), ("c", "[7]")];
    for (key, written) in expected {
        assert_eq!(pages(world, key).await, written, "{label}, key {key}");
    }
    let said = world.texts("select convert_from(payload, 'UTF8') from dipmo.outbox where key = 'a' order by id").await;
    assert_eq!(said, ["1", "3", "4", "6"], "{label}");
    assert_eq!(world.count("dipmo.outbox").await, 7, "{label}");
    assert_eq!(world.count("dipmo.inbox").await, 7, "{label}");
    assert_eq!(world.count("dipmo.inbox_work").await, 0, "{label}");
    assert_eq!(world.count("dipmo.parked_key").await, 0, "{label}");
}

#[tokio::test]
async fn any_store_call_may_fail_before_or_after_it_took_effect() {
    let mut duplicate_windows = 0;
    for when in [When::Before, When::After] {
        for fails_at in 0.. {
            let world = World::new().await;
            let diary = Diary::refusing_times("1", Failure::transient("AWAY", "away"), 3);
            let consumer = Arc::new(Consumer::process("diary", diary).from_kafka(&["orders"]));
            let inner = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
            let store = Arc::new(Hooked::new(inner, FailsAt(fails_at, when)));
            duplicate_windows += run(&world, store.clone(), consumer).await;
            check(&world, &format!("call {fails_at} fails {when:?}")).await;
            // The calls of the idle rounds at the end are alike.
            if store.calls() <= fails_at || fails_at > 45 {
                break;
            }
        }
    }
    assert!(duplicate_windows > 0, "the sweep never met a batch that had been committed before");
}
