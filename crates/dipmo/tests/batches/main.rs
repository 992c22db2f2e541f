//! Batches on a real PostgreSQL: started any number of times, counted, and told of once at their end.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use dipmo::batch::{BatchItem, BatchItemsRequested, BatchStarter, BatchWatcher};
use dipmo::command::{Envelope, START_QUEUE};
use dipmo::operator::Page;
use dipmo::operator::batches::{self, BatchFilter};
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::Worker;
use dipmo::wake::Wake;
use serde_json::json;
use support::{Node, World, fresh};
use time::OffsetDateTime;
use uuid::Uuid;

fn part(batch_id: Uuid, items: std::ops::Range<u32>, total: Option<i32>) -> BatchItemsRequested {
    let item = |n| BatchItem { id: format!("i{n}"), key: format!("P-{n}"), payload: json!({ "n": n }) };
    BatchItemsRequested {
        batch_id,
        saga: "Payment".to_owned(),
        tenant: "acme".to_owned(),
        scheduled_for: None,
        items: items.map(item).collect(),
        last: total.is_some(),
        total,
    }
}

async fn starter(world: &World) -> Node {
    world.node(BatchStarter::internal().unwrap().consumer().from_kafka(&["orders"])).await
}

async fn send(node: &Node, offset: i64, part: BatchItemsRequested) {
    let batch = part.batch_id.to_string();
    let message = part.into_message("INTERNAL", 0, OffsetDateTime::UNIX_EPOCH).unwrap();
    let body = String::from_utf8(message.payload.unwrap().to_vec()).unwrap();
    node.receive(&[fresh(offset, &batch, &body)]).await.unwrap();
}

async fn starts(world: &World) -> Vec<Envelope> {
    let sql = format!(
        "select convert_from(payload, 'UTF8') from dipmo.outbox where destination = 'INTERNAL:{START_QUEUE}' order by id"
    );
    world.texts(&sql).await.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// What the saga of an item would write.
async fn end(world: &World, items: &str, status: &str) {
    world.execute(&format!("update dipmo.batch_item set status = '{status}' where item_id in ({items})")).await;
}

async fn status(world: &World) -> String {
    world.texts("select concat(status, ' ', counts) from dipmo.batch_run").await.remove(0)
}

#[tokio::test]
async fn every_item_starts_one_saga_however_often_the_batch_is_started() {
    let world = World::new().await;
    let node = starter(&world).await;
    let id = Uuid::now_v7();
    for round in 0..2 {
        send(&node, round * 2, part(id, 0..3, None)).await;
        send(&node, round * 2 + 1, part(id, 2..5, Some(5))).await;
    }
    let starts = starts(&world).await;
    let keys: Vec<&str> = starts.iter().map(|start| start.key.as_str()).collect();
    assert_eq!(keys, ["P-0", "P-1", "P-2", "P-3", "P-4"]);
    let first = &starts[0];
    assert_eq!((first.name.as_str(), first.command_id), ("Payment", first.correlation_id));
    assert_eq!(first.payload, json!({ "n": 0 }));
    let headers = json!({ "batchId": id, "batchItem": "i0", "tenantId": "acme", "schemaVersion": "1",
                          "idempotencyKey": first.command_id });
    assert_eq!(json!(first.headers), headers);
    let sagas = world.texts("select saga_id::text from dipmo.batch_item order by item_id").await;
    assert_eq!(sagas, starts.iter().map(|start| start.command_id.to_string()).collect::<Vec<_>>());
    assert_eq!(world.count("dipmo.batch_run where expected = 5").await, 1);
}

#[tokio::test]
async fn a_batch_ends_when_its_last_item_does_and_is_told_of_once() {
    let world = World::new().await;
    let node = starter(&world).await;
    send(&node, 0, part(Uuid::now_v7(), 0..3, None)).await;
    let watcher = BatchWatcher::new(world.db.clone()).telling(Some("KAFKA:events.Orchestrations".parse().unwrap()));
    watcher.run_once().await.unwrap();
    assert_eq!(status(&world).await, r#"RUNNING {"NEW": 3}"#);
    end(&world, "'i0', 'i1', 'i2'", "SUCCEEDED").await;
    assert_eq!(watcher.run_once().await.unwrap(), 0, "nobody has said that these are all");
    let id: Uuid = world.texts("select batch_id::text from dipmo.batch_run").await[0].parse().unwrap();
    send(&node, 1, part(id, 3..4, Some(4))).await;
    end(&world, "'i3'", "TIMED_OUT").await;
    let beside = BatchWatcher::new(world.another_db()).telling(Some("KAFKA:events.Orchestrations".parse().unwrap()));
    let (one, other) = tokio::join!(watcher.run_once(), beside.run_once());
    let last = watcher.run_once().await.unwrap();
    assert_eq!(one.unwrap() + other.unwrap() + last, 1);
    assert_eq!(status(&world).await, r#"PARTIAL {"SUCCEEDED": 3, "TIMED_OUT": 1}"#);
    let told = "select convert_from(payload, 'UTF8')::json ->> 'payload' from dipmo.outbox
                where destination = 'KAFKA:events.Orchestrations' and event_type = 'BatchCompleted'";
    let told = world.texts(told).await;
    let payload: serde_json::Value = serde_json::from_str(&told[0]).unwrap();
    assert_eq!((told.len(), &payload["status"], &payload["counts"]["SUCCEEDED"]), (1, &json!("PARTIAL"), &json!(3)));
}

#[tokio::test]
async fn an_operator_sees_how_far_it_is_and_how_long_it_will_take() {
    let world = World::new().await;
    let node = starter(&world).await;
    let id = Uuid::now_v7();
    send(&node, 0, part(id, 0..4, Some(4))).await;
    world.advance(10);
    end(&world, "'i0'", "SUCCEEDED").await;
    world.execute("update dipmo.batch_item set status = 'FAILED', last_error = 'NO_FUNDS' where item_id = 'i1'").await;
    let shown = batches::show(&world.db, id).await.unwrap();
    assert_eq!((shown.row.open, shown.row.succeeded, shown.row.failed, shown.row.expected), (2, 1, 1, Some(4)));
    assert_eq!((shown.row.rate, shown.row.left_seconds), (Some(0.2), Some(10.0)));
    assert_eq!(shown.failures[0].error.as_deref(), Some("NO_FUNDS"));
    let listed = batches::list(&world.db, &BatchFilter::default(), &Page::default()).await.unwrap();
    assert_eq!(listed.items[0].open, 0, "a list shows what the watcher counted last");
    BatchWatcher::new(world.db.clone()).run_once().await.unwrap();
    let listed = batches::list(&world.db, &BatchFilter::default(), &Page::default()).await.unwrap();
    assert_eq!((listed.items[0].open, listed.items[0].status.as_str()), (2, "RUNNING"));
    let wrong = BatchFilter { status: Some("DONE".into()), ..BatchFilter::default() };
    assert!(batches::list(&world.db, &wrong, &Page::default()).await.unwrap_err().to_string().contains("PARTIAL"));
    assert!(batches::show(&world.db, Uuid::now_v7()).await.unwrap_err().to_string().contains("no batch"));
}

#[tokio::test]
async fn what_does_not_fit_is_refused_whole() {
    let world = World::new().await;
    let node = starter(&world).await;
    let mut nameless = part(Uuid::now_v7(), 0..2, Some(2));
    nameless.items[1].id.clear();
    send(&node, 0, nameless).await;
    let id = Uuid::now_v7();
    send(&node, 1, part(id, 0..1, Some(1))).await;
    send(&node, 2, BatchItemsRequested { saga: "Refund".to_owned(), ..part(id, 1..2, Some(2)) }).await;
    let faults = world.texts("select concat_ws(' ', state, error_code) from dipmo.inbox_work order by id").await;
    assert_eq!(faults, ["DEAD BATCH", "DEAD BATCH_MISMATCH"]);
    assert_eq!(starts(&world).await.len(), 1);
    assert_eq!(world.count("dipmo.batch_item").await, 1);
}

#[tokio::test]
async fn parts_come_by_their_queue() {
    let world = World::new().await;
    let consumer = BatchStarter::internal().unwrap().consumer().from_internal_queues(&[dipmo::batch::BATCH_QUEUE]);
    let wake = Wake::default();
    let mut worker = Worker::new(world.db.clone(), Arc::new(consumer), "w".into(), &wake).await.unwrap();
    let id = Uuid::now_v7();
    for _ in 0..2 {
        let message = part(id, 0..2, Some(2)).into_message("INTERNAL", 0, OffsetDateTime::now_utc()).unwrap();
        let mut client = world.db.client().await.unwrap();
        let tx = client.transaction().await.unwrap();
        world.db.append(&tx, &[message]).await.unwrap();
        tx.commit().await.unwrap();
    }
    let relay = Relay::new(world.db.clone(), RelayOptions::new("r")).unwrap();
    while world.count("dipmo.batch_item").await == 0 {
        relay.run_once().await.unwrap();
        worker.run_once().await.unwrap();
    }
    assert_eq!(starts(&world).await.len(), 2);
    assert_eq!(world.count("dipmo.inbox").await, 1, "the same part has the same id");
}
