//! One span for each message, and its context in whatever the message causes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dipmo::consumer::{Consumer, Grouping};
use dipmo::process::Failure;
use dipmo::trace::TraceContext;
use tracing::Span;

use crate::Diary;
use crate::enlisted;
use crate::support::{Node, World, delivery, record, with_header};

/// Gives every span a number in place of a traceparent, and keeps what each was tied to.
#[derive(Debug, Default)]
struct Numbered {
    next: AtomicUsize,
    parents: Mutex<Vec<String>>,
}

impl TraceContext for Numbered {
    fn adopt(&self, _: &Span, traceparent: Option<&str>) -> Option<String> {
        self.parents.lock().unwrap().push(traceparent.unwrap_or("-").to_owned());
        Some(format!("span-{}", self.next.fetch_add(1, Ordering::SeqCst)))
    }
}

impl Numbered {
    fn parents(&self) -> Vec<String> {
        self.parents.lock().unwrap().clone()
    }
}

async fn traced(world: &World, consumer: Consumer) -> (Node, Arc<Numbered>) {
    let numbered = Arc::new(Numbered::default());
    let mut node = world.node(consumer).await;
    node.runner = node.runner.traced(Some(numbered.clone()));
    node.worker = node.worker.traced(Some(numbered.clone()));
    (node, numbered)
}

fn sent(offset: i64, key: &str, body: &str, traceparent: &str) -> dipmo::runner::Delivery {
    delivery(with_header(record(offset, key, body), "traceparent", traceparent))
}

async fn traces(world: &World, table: &str) -> Vec<String> {
    let sql = format!("select convert_from(payload, 'UTF8') || ' ' || traceparent from dipmo.{table} order by 1");
    world.texts(&sql).await
}

#[tokio::test]
async fn what_a_message_causes_continues_its_span_and_what_is_stored_keeps_what_came() {
    let world = World::new().await;
    let process = || Consumer::process("diary", Diary::default()).from_kafka(&["orders"]);
    let grouped = |grouping| enlisted::scribe(&world, &Diary::default(), grouping);
    enlisted::create_table(&world).await;
    let consumers = [process(), grouped(Grouping::Record), grouped(Grouping::Key), grouped(Grouping::Batch)];
    for (n, consumer) in consumers.into_iter().enumerate() {
        let (node, numbered) = traced(&world, Consumer { name: format!("c{n}"), ..consumer }).await;
        let batch = [sent(0, "a", "1", "from-x"), sent(1, "b", "2", "from-y")];
        node.receive(&batch).await.unwrap();
        let caused = traces(&world, "outbox").await;
        // A handler of text tells it in quotes.
        let caused: Vec<String> = caused.iter().map(|line| line.replace(['"'], "")).collect();
        assert_eq!(caused, ["1 span-0", "2 span-1"], "consumer {n}");
        assert_eq!(numbered.parents(), ["from-x", "from-y"], "consumer {n}");
        assert_eq!(traces(&world, "inbox").await, ["1 from-x", "2 from-y"], "consumer {n}");
        world.execute("delete from dipmo.inbox; delete from dipmo.outbox; delete from dipmo.process").await;
    }
}

#[tokio::test]
async fn a_batch_that_is_folded_again_opens_no_second_span_and_a_retry_opens_its_own() {
    let world = World::new().await;
    let diary = Diary::refusing_times("1", Failure::transient("AWAY", "away"), 1);
    let (mut node, numbered) = traced(&world, Consumer::process("diary", diary).from_kafka(&["orders"])).await;
    node.receive(&[sent(0, "a", "1", "from-x")]).await.unwrap();
    assert_eq!(numbered.parents(), ["from-x"]);
    // The first is a duplicate, which only the database knows: folded twice.
    node.receive(&[sent(0, "a", "1", "from-x"), sent(1, "b", "2", "from-y")]).await.unwrap();
    assert_eq!(numbered.parents(), ["from-x", "from-x", "from-y"]);
    world.advance(400);
    node.work_off().await;
    assert_eq!(numbered.parents()[3..], ["from-x"], "a retry is another span of the same cause");
    assert_eq!(traces(&world, "outbox").await, ["1 span-3", "2 span-2"]);
}
