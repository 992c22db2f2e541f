//! What every broker must do for us, by whichever profile: run against Artemis, against a peer that refuses
//! what IBM refuses, and against a real queue manager where one is given.

use dipmo::transport::amqp::{AmqpOptions, AmqpPublisher, Profile};
use dipmo::transport::{Outcome, Outgoing, Publisher, Refusal};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::client::artemis;
use crate::support::World;
use crate::{Reading, queue, until};

/// A row of the outbox that needs no database.
pub struct Row {
    queue: String,
    key: String,
    id: Uuid,
    body: String,
    headers: String,
}

pub fn row(queue: &str, key: &str, number: i64) -> Row {
    let id = Uuid::now_v7();
    let headers = format!(r#"{{"commandId": "{id}", "replyTo": "KYC.REPLY"}}"#);
    Row { queue: queue.to_owned(), key: key.to_owned(), id, body: number.to_string(), headers }
}

impl Row {
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            id: 1,
            shard: 32,
            transaction: 0,
            message_id: self.id,
            topic: &self.queue,
            key: &self.key,
            tenant: "acme",
            aggregate_type: "order",
            aggregate_id: "o1",
            aggregate_version: None,
            event_type: "Placed",
            event_version: 1,
            correlation_id: Some("corr"),
            causation_id: None,
            traceparent: None,
            headers: Some(&self.headers),
            payload: Some(self.body.as_bytes()),
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        }
    }
}

/// Why the publisher cannot send anything.
pub async fn refusal(publisher: &dyn Publisher, queue: &str) -> Refusal {
    match publisher.publish(&[row(queue, "k", 1).outgoing()]).await.remove(0) {
        Outcome::Unknown(refusal) | Outcome::Retry(refusal) | Outcome::Rejected(refusal) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

/// Sends, receives, and compares: every message once, in order within its key, with its ids.
pub async fn holds(options: &AmqpOptions, queue: &str) {
    let world = World::real_time().await;
    let publisher = AmqpPublisher::new(options.clone()).unwrap();
    let rows: Vec<Row> = (0..40).map(|n| row(queue, if n % 2 == 0 { "even" } else { "odd" }, n)).collect();
    let outgoing: Vec<Outgoing<'_>> = rows.iter().map(Row::outgoing).collect();
    let told = publisher.publish(&outgoing).await;
    assert!(told.iter().all(|outcome| *outcome == Outcome::Done), "{told:?}");
    let reading = Reading::start(&world, options, queue).await;
    until(&world, "dipmo.inbox", 40).await;
    // Sent again, as after an answer that was lost: no effect.
    assert_eq!(publisher.publish(&outgoing[..2]).await, [Outcome::Done, Outcome::Done]);
    let last = row(queue, "even", 40);
    assert_eq!(publisher.publish(&[last.outgoing()]).await, [Outcome::Done]);
    until(&world, "dipmo.inbox", 41).await;
    reading.stop().await;
    let stored = world
        .texts(
            "select concat_ws('|', message_id, headers->>'commandId', headers->>'replyTo', event_type, tenant,
                 correlation_id, convert_from(payload, 'UTF8')) from dipmo.inbox order by key, id",
        )
        .await;
    let mut expected: Vec<(&Row, String)> = rows.iter().chain([&last]).map(|row| (row, line(row))).collect();
    expected.sort_by(|a, b| a.0.key.cmp(&b.0.key));
    assert_eq!(stored, expected.into_iter().map(|(_, line)| line).collect::<Vec<_>>());
}

fn line(row: &Row) -> String {
    format!("{0}|{0}|KYC.REPLY|Placed|acme|corr|{1}", row.id, row.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_on_artemis() {
    holds(&artemis(), &queue("contract")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_on_artemis_with_what_ibm_mq_allows() {
    let backout_queue = Some(queue("backout"));
    holds(&AmqpOptions { profile: Profile::IbmMq, backout_queue, ..artemis() }, &queue("contract")).await;
}

/// `DIPMO_TEST_IBM_MQ` is `amqp://user:password@host:port` of an AMQP channel; its queues are those that IBM's
/// developer configuration has, unless `DIPMO_TEST_IBM_MQ_QUEUE` names another. The queue must be empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_on_a_real_queue_manager() {
    let Ok(url) = std::env::var("DIPMO_TEST_IBM_MQ") else {
        println!("skipped: DIPMO_TEST_IBM_MQ is not set");
        return;
    };
    let queue = std::env::var("DIPMO_TEST_IBM_MQ_QUEUE").unwrap_or_else(|_| "DEV.QUEUE.1".to_owned());
    let backout_queue = Some("DEV.DEAD.LETTER.QUEUE".to_owned());
    let options = AmqpOptions::from_url(&url).unwrap();
    holds(&AmqpOptions { profile: Profile::IbmMq, backout_queue, ..options }, &queue).await;
}
