//! From the queues of a broker into the inbox.

use std::sync::Arc;

use dipmo::consumer::Consumer;
use dipmo::ingress::AmqpIngress;
use dipmo::transport::amqp::AmqpOptions;
use dipmo::wake::Wake;

use crate::client::{Client, artemis, data, id_of, message, sequence, text};
use crate::support::{World, drain};
use crate::{Reading, queue, reader, relay, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_outbox_sent_is_received_field_by_field() {
    let (world, to) = (World::real_time().await, queue("both"));
    let id = "22222222-2222-2222-2222-222222222222";
    world
        .execute(&format!(
            "select dipmo.outbox_append('AMQP:{to}', 'order', 'o1', 'Placed', '{{\"n\": 1}}', aggregate_version => 4,
                 event_version => 2, tenant => 'acme', key => 'k', correlation_id => 'corr', causation_id => 'cause',
                 traceparent => '00-aa-bb-01', message_id => '{id}', headers => '{{\"replyTo\": \"R\"}}')"
        ))
        .await;
    let reading = Reading::start(&world, &artemis(), &to).await;
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 1);
    until(&world, "dipmo.inbox_status where state = 'RECEIVED'", 1).await;
    reading.stop().await;
    let row = world
        .texts(
            "select concat_ws('|', source = topic, message_id, key, tenant, aggregate_id, aggregate_version, event_type,
                 event_version, correlation_id, causation_id, traceparent, headers->>'replyTo',
                 convert_from(payload, 'UTF8'), partition_no is null and offset_no is null and event_time is not null)
             from dipmo.inbox",
        )
        .await;
    assert_eq!(row, [format!("t|{id}|k|acme|o1|4|Placed|2|corr|cause|00-aa-bb-01|R|{{\"n\": 1}}|t")]);
    assert!(Client::open(&artemis()).await.take_rest(&to).await.is_empty(), "what is stored is accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_other_clients_are_taken_in_whatever_their_form() {
    let (world, from) = (World::real_time().await, queue("forms"));
    let mut client = Client::open(&artemis()).await;
    let sent = [
        message("m-text", &[("key", "a")], text("{\"from\": \"jms\"}")),
        message("m-data", &[("key", "a")], data(b"{}")),
        message("m-bad", &[("key", "b")], data(b"{oops")),
        message("m-again", &[("messageId", "m-data")], data(b"{}")),
    ];
    client.put(&from, sent).await;
    let reading = Reading::start(&world, &artemis(), &from).await;
    until(&world, "dipmo.inbox", 3).await;
    reading.stop().await;
    let rows = world
        .texts(
            "select concat_ws('|', message_id, state, convert_from(payload, 'UTF8'), error_code)
             from dipmo.inbox_status order by message_id",
        )
        .await;
    assert_eq!(
        rows,
        ["m-bad|SERDE_ERROR|{oops|NOT_JSON", "m-data|RECEIVED|{}", "m-text|RECEIVED|{\"from\": \"jms\"}"],
        "what cannot be decoded is kept, and what was seen is not stored again"
    );
    assert!(client.take_rest(&from).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_can_never_be_stored_is_a_dead_letter_of_the_broker() {
    let (world, from) = (World::real_time().await, queue("unstorable"));
    let mut client = Client::open(&artemis()).await;
    let lost = queue("lost");
    client.put(&from, [message(&lost, &[], sequence()), message("fine", &[], data(b"1"))]).await;
    let reading = Reading::start(&world, &artemis(), &from).await;
    until(&world, "dipmo.inbox", 1).await;
    let dead = client.find_dead(&lost).await;
    reading.stop().await;
    assert_eq!((id_of(&dead), dead.body), (lost, sequence()), "the broker keeps it as it came");
    assert_eq!(world.texts("select message_id from dipmo.inbox").await, ["fine"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_share_a_queue_store_each_message_once() {
    let (world, from) = (World::real_time().await, queue("shared"));
    let numbers = (0..300).map(|n| message(&format!("m-{n}"), &[("key", "k")], data(b"1")));
    Client::open(&artemis()).await.put(&from, numbers).await;
    let first = Reading::start(&world, &artemis(), &from).await;
    let second = Reading::start(&world, &artemis(), &from).await;
    until(&world, "dipmo.inbox", 300).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(world.count("(select distinct message_id from dipmo.inbox) m").await, 300);
    assert_eq!(world.count("dipmo.inbox").await, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_backlog_leaves_the_rest_with_the_broker() {
    let (world, from) = (World::real_time().await, queue("full"));
    let mut client = Client::open(&artemis()).await;
    client.put(&from, (0..50).map(|n| message(&format!("m-{n}"), &[], data(b"1")))).await;
    let consumer = Arc::new(Consumer { backlog_max: 10, batch_max: 5, ..reader(&from) });
    let options = AmqpOptions { credit: 5, ..artemis() };
    let made = AmqpIngress::new(world.db.clone(), consumer, options, &from, Wake::default()).await.unwrap();
    let reading = Reading::of(made);
    until(&world, "dipmo.inbox", 10).await;
    // All but what the broker has sent ahead is there for others, while the ingress lives and waits.
    client.take(&from, 35).await;
    assert_eq!(world.count("dipmo.inbox").await, 10);
    reading.stop().await;
    assert_eq!(client.take(&from, 5).await.len(), 5, "what was sent ahead goes back");
}
