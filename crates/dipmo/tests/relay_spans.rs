//! A message that is sent has a span of its own, which continues its cause and is continued by its receiver.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dipmo::relay::RelayOptions;
use dipmo::trace::TraceContext;
use dipmo::transport::{Outcome, Outgoing, Publisher};
use support::{World, drain, eager};
use tracing::Span;

/// The traceparent of a span is that of its cause with a mark.
#[derive(Debug)]
struct Marks;

impl TraceContext for Marks {
    fn adopt(&self, _: &Span, traceparent: Option<&str>) -> Option<String> {
        traceparent.map(|cause| format!("{cause}-sent"))
    }
}

/// Keeps the traceparents of what it is given.
#[derive(Default)]
struct Kept(Mutex<Vec<String>>);

#[async_trait]
impl Publisher for Kept {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        let traces = rows.iter().map(|row| row.traceparent.unwrap_or("none").to_owned());
        self.0.lock().unwrap().extend(traces);
        rows.iter().map(|_| Outcome::Done).collect()
    }
}

async fn sent_with(trace: Option<Arc<dyn TraceContext>>) -> Vec<String> {
    let (world, kept) = (World::new().await, Arc::new(Kept::default()));
    world
        .execute("select dipmo.outbox_append('KAFKA:orders', 'order', 'a', 'Placed', '1', traceparent => 'cause')")
        .await;
    world.append("KAFKA:orders", "a", &["2"]).await;
    let options = RelayOptions { kafka: Some(kept.clone()), trace, ..eager("r1") };
    drain(&world.relay(options)).await;
    kept.0.lock().unwrap().clone()
}

#[tokio::test]
async fn the_receiver_continues_the_span_of_the_sending() {
    assert_eq!(sent_with(Some(Arc::new(Marks))).await, ["cause-sent", "none"]);
}

#[tokio::test]
async fn without_an_exporter_the_cause_is_passed_on() {
    assert_eq!(sent_with(None).await, ["cause", "none"]);
}
