//! A poison message at the head of a hot key: the other keys lose nothing.

use dipmo::consumer::{Consumer, Mode};
use dipmo::process::Failure;
use dipmo::runner::Delivery;

use crate::support::{World, fresh};
use crate::{Diary, pages};

const BATCHES: i64 = 20;
const BATCH: i64 = 100;

/// Every other message belongs to the hot key; its first one is poison.
fn batches() -> Vec<Vec<Delivery>> {
    let message = |offset: i64| match offset % 2 {
        0 => fresh(offset, "hot", if offset == 0 { "\"poison\"" } else { "1" }),
        _ => fresh(offset, &format!("k{}", offset % 50), "1"),
    };
    (0..BATCHES).map(|batch| (batch * BATCH..(batch + 1) * BATCH).map(message).collect()).collect()
}

fn consumer(mode: Mode, poison: bool) -> Consumer {
    let diary = if poison {
        Diary::refusing("\"poison\"", Failure::transient("POISON", "never works"))
    } else {
        Diary::default()
    };
    Consumer { mode, batch_max: BATCH as usize, ..Consumer::process("diary", diary).from_kafka(&["orders"]) }
}

#[tokio::test]
async fn inline_every_healthy_message_passes_in_the_batch_it_came_with() {
    let world = World::new().await;
    let mut node = world.node(consumer(Mode::Inline, true)).await;
    for batch in batches() {
        let report = node.receive(&batch).await.unwrap();
        assert_eq!(report.processed as i64, BATCH / 2);
        world.advance(1);
        node.worker.run_once().await.unwrap();
    }
    assert_eq!(world.count("dipmo.inbox_status where key = 'hot' and state = 'PARKED'").await, BATCHES * BATCH / 2 - 1);
    assert_eq!(pages(&world, "hot").await, "-");
}

#[tokio::test]
async fn stored_healthy_keys_need_no_more_steps_than_without_the_poison() {
    let mut steps = Vec::new();
    for poison in [false, true] {
        let world = World::new().await;
        let mut node = world.node(consumer(Mode::Store, poison)).await;
        for batch in batches() {
            node.runner.store_only(&node.fence, &batch).await.unwrap();
        }
        let healthy = "dipmo.inbox_status where key <> 'hot' and state = 'PROCESSED'";
        let mut taken = 0;
        while world.count(healthy).await < BATCHES * BATCH / 2 {
            node.worker.run_once().await.unwrap();
            world.advance(1);
            taken += 1;
        }
        steps.push(taken);
    }
    assert!(f64::from(steps[0]) / f64::from(steps[1]) > 0.95, "steps without and with the poison: {steps:?}");
}
