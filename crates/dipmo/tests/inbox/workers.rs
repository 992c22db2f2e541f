//! Workers: store mode, leases and fences, timers, messages that kill their process.

use std::time::Duration;

use async_trait::async_trait;
use dipmo::clock::Clock;
use dipmo::consumer::{Consumer, Mode};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::{ErrorKind, Message};
use time::OffsetDateTime;

use crate::support::{World, fresh, postgres_url};
use crate::{Diary, pages};

fn stored() -> Consumer {
    Consumer { mode: Mode::Store, ..Consumer::process("diary", Diary::default()).from_kafka(&["orders"]) }
}

#[tokio::test]
async fn in_store_mode_messages_are_durable_first_and_handled_later() {
    let world = World::new().await;
    let mut node = world.node(stored()).await;
    let batch: Vec<_> = (0..100).map(|n| fresh(n, ["a", "b", "c"][n as usize % 3], &n.to_string())).collect();
    let report = node.runner.store_only(&node.fence, &batch).await.unwrap();
    assert_eq!(report.received, 100);
    let again = node.runner.store_only(&node.fence, &batch).await.unwrap();
    assert_eq!((again.received, again.duplicates), (0, 100));
    assert_eq!(node.work_off().await.processed, 100);
    let expected: Vec<String> = (0..100).filter(|n| n % 3 == 0).map(|n| n.to_string()).collect();
    assert_eq!(pages(&world, "a").await, format!("[{}]", expected.join(",")));
    assert_eq!(world.count("dipmo.inbox_work").await, 0);
    assert_eq!(world.count("dipmo.inbox_done where state = 'PROCESSED' and attempts = 1").await, 100);
}

#[tokio::test]
async fn what_is_stored_later_queues_behind_its_parked_key() {
    let world = World::new().await;
    let diary = Diary::refusing_times("1", Failure::transient("AWAY", "away"), 1);
    let consumer = Consumer { handler: Consumer::process("diary", diary).handler, batch_max: 1, ..stored() };
    let mut node = world.node(consumer).await;
    let batch = [fresh(0, "a", "1"), fresh(1, "a", "2"), fresh(2, "b", "3")];
    node.runner.store_only(&node.fence, &batch).await.unwrap();
    node.work_off().await;
    assert_eq!(world.states("a").await, ["RETRY", "PARKED"]);
    assert_eq!(pages(&world, "b").await, "[3]");
    world.advance(5);
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2]");
}

/// Takes a twentieth of a second for every message.
struct Slow;

#[async_trait]
impl EnlistedHandler for Slow {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, _: &Message) -> Result<(), Failure> {
        Ok(enlisted.tx().batch_execute("select pg_sleep(0.05)").await?)
    }
}

#[tokio::test]
async fn a_worker_with_a_slow_handler_takes_only_what_its_lease_outlives() {
    let world = World::real_time().await;
    let consumer = Consumer::enlisted("slow", Slow).from_kafka(&["orders"]);
    let consumer = Consumer { mode: Mode::Store, concurrency: 1, lease: Duration::from_secs(1), ..consumer };
    let mut node = world.node(consumer).await;
    let batch: Vec<_> = (0..40).map(|n| fresh(n, &format!("k{n}"), "1")).collect();
    node.runner.store_only(&node.fence, &batch).await.unwrap();
    // Nobody else is there to take what the first batch overruns.
    let first = node.worker.run_once().await.unwrap().report.processed;
    node.runner
        .store_only(&node.fence, &(40..80).map(|n| fresh(n, &format!("k{n}"), "1")).collect::<Vec<_>>())
        .await
        .unwrap();
    let second = node.worker.run_once().await.unwrap().report.processed;
    assert_eq!(first, 40);
    assert!((1..=5).contains(&second), "{second} messages of 50 ms are more than a quarter of a second");
}

#[tokio::test]
async fn two_workers_share_the_buckets_and_hand_them_over() {
    let world = World::new().await;
    let (mut one, mut two) = (world.node(stored()).await, world.node(stored()).await);
    one.worker.run_once().await.unwrap();
    assert_eq!(one.worker.held().len(), 16);
    two.worker.run_once().await.unwrap();
    assert_eq!(two.worker.held().len(), 0, "everything is taken");
    world.advance(10);
    one.worker.renew().await.unwrap();
    two.worker.renew().await.unwrap();
    assert_eq!((one.worker.held().len(), two.worker.held().len()), (8, 8));
    // The first dies; the second has all of it once the lease is over.
    world.advance(16);
    two.worker.renew().await.unwrap();
    assert_eq!(two.worker.held().len(), 16);
}

#[tokio::test]
async fn a_worker_that_slept_past_its_lease_commits_nothing() {
    let world = World::new().await;
    let (mut quick, mut sleepy) = (world.node(stored()).await, world.node(stored()).await);
    sleepy.runner.store_only(&sleepy.fence, &[fresh(0, "a", "1")]).await.unwrap();
    sleepy.worker.renew().await.unwrap();
    let fence = sleepy.worker.held().clone();
    let claimed = sleepy.runner.store().claim_received(&fence, 10).await.unwrap();
    world.advance(60);
    quick.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1]");
    let late: Vec<_> = claimed.work.into_iter().map(dipmo::runner::Delivery::Stored).collect();
    let refused = sleepy.runner.handle(&fence, &late).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseLost);
    assert_eq!(sleepy.runner.store().claim_received(&fence, 10).await.unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(pages(&world, "a").await, "[1]");
    let unfenced = quick.runner.handle(&Vec::new(), &late).await.unwrap_err();
    assert_eq!(unfenced.kind(), ErrorKind::LeaseLost, "without a fence nothing is settled at all");
}

#[tokio::test]
async fn an_ingress_whose_partition_was_taken_commits_nothing() {
    let world = World::new().await;
    let old = world.node(stored()).await;
    let new = world.node(stored()).await;
    let refused = old.receive(&[fresh(0, "a", "1")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseLost);
    assert_eq!(world.count("dipmo.inbox").await, 0);
    new.receive(&[fresh(0, "a", "1")]).await.unwrap();
    assert_eq!(pages(&world, "a").await, "[1]");
}

#[tokio::test]
async fn a_message_that_kills_its_process_runs_out_of_attempts_alone() {
    let world = World::new().await;
    let mut node = world.node(stored()).await;
    let batch = [fresh(0, "killer", "0"), fresh(1, "b", "1"), fresh(2, "c", "2")];
    node.runner.store_only(&node.fence, &batch).await.unwrap();
    node.worker.renew().await.unwrap();
    let fence = node.worker.held().clone();
    // Each claim without an outcome is a process that died with the message in hand.
    let first = node.runner.store().claim_received(&fence, 10).await.unwrap();
    assert_eq!(first.work.len(), 3);
    for _ in 0..7 {
        let next = node.runner.store().claim_received(&fence, 10).await.unwrap();
        let keys: Vec<&str> = next.work.iter().map(|work| work.message.key.as_str()).collect();
        assert_eq!(keys, ["killer"], "after the first death messages are tried alone");
    }
    node.work_off().await;
    assert_eq!(world.states("killer").await, ["DEAD"]);
    assert_eq!(world.texts("select error_code from dipmo.inbox_work").await, ["ATTEMPTS_EXHAUSTED"]);
    assert_eq!((pages(&world, "b").await, pages(&world, "c").await), ("[1]".into(), "[2]".into()));
}

#[tokio::test]
async fn a_retry_that_kills_its_process_runs_out_of_attempts_alone() {
    let world = World::new().await;
    let diary = Diary::default();
    for payload in ["0", "1", "2"] {
        diary.refuse(payload, Failure::transient("AWAY", "away"), 1);
    }
    let mut node = world.node(Consumer::process("diary", diary).from_kafka(&["orders"])).await;
    node.receive(&[fresh(0, "killer", "0"), fresh(1, "b", "1"), fresh(2, "c", "2")]).await.unwrap();
    node.worker.renew().await.unwrap();
    world.advance(5);
    node.worker.renew().await.unwrap();
    let fence = node.worker.held().clone();
    let first = node.runner.store().claim_due(&fence, 10).await.unwrap();
    assert_eq!(first.work.len(), 3);
    let suspect = node.runner.store().claim_due(&fence, 10).await.unwrap().work.remove(0).message.key;
    for _ in 0..6 {
        let next = node.runner.store().claim_due(&fence, 10).await.unwrap();
        let keys: Vec<&str> = next.work.iter().map(|work| work.message.key.as_str()).collect();
        assert_eq!(keys, [suspect.as_str()], "after the first death messages are tried alone");
    }
    node.work_off().await;
    assert_eq!(
        world.texts("select key || ' ' || error_code from dipmo.inbox_work").await,
        [format!("{suspect} ATTEMPTS_EXHAUSTED")]
    );
    assert_eq!(world.count("dipmo.inbox_status where state = 'PROCESSED'").await, 2, "the others had attempts left");
}

#[tokio::test]
async fn what_an_inline_consumer_only_stored_is_not_overtaken() {
    let world = World::new().await;
    let mut node = world.node(Consumer { mode: Mode::Inline, ..stored() }).await;
    node.runner.store_only(&node.fence, &[fresh(0, "a", "1"), fresh(1, "a", "2")]).await.unwrap();
    node.receive(&[fresh(2, "a", "3"), fresh(3, "b", "4")]).await.unwrap();
    assert_eq!(pages(&world, "b").await, "[4]");
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,2,3]");
    assert_eq!(world.count("dipmo.parked_key").await, 0);
}

struct Patient;

impl Process for Patient {
    fn name(&self) -> &str {
        "patient"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, now: OffsetDateTime) -> Result<Decision, Failure> {
        match (current, input) {
            (None, Input::Message(_)) => {
                let deadline = now + Duration::from_secs(60);
                Ok(Decision::go("WAITING").timer("remind", Duration::from_secs(30)).deadline(deadline))
            }
            (Some(_), Input::Timer { name: "remind" }) => Ok(Decision::go("REMINDED")),
            (Some(_), Input::Timer { .. }) => Ok(Decision::go("TIMED_OUT").fail()),
            (_, input) => Err(Failure::stale(format!("{input:?}"))),
        }
    }
}

#[tokio::test]
async fn timers_fire_once_and_in_time() {
    let world = World::new().await;
    let mut node = world.node(Consumer::process("patient", Patient).from_kafka(&["orders"])).await;
    node.receive(&[fresh(0, "a", "1")]).await.unwrap();
    assert_eq!(world.count("dipmo.timer").await, 2);
    node.work_off().await;
    let state = "select state || ' ' || status from dipmo.process";
    assert_eq!(world.texts(state).await, ["WAITING RUNNING"]);
    world.advance(31);
    assert_eq!(node.work_off().await.timers, 1);
    assert_eq!(world.texts(state).await, ["REMINDED RUNNING"]);
    world.advance(31);
    node.work_off().await;
    assert_eq!(world.texts(state).await, ["TIMED_OUT FAILED"]);
    assert_eq!(world.count("dipmo.timer").await, 0);
    let kinds = "select kind || ' ' || to_state from dipmo.journal order by id";
    assert_eq!(world.texts(kinds).await, ["MESSAGE WAITING", "TIMER REMINDED", "TIMER TIMED_OUT"]);
}

#[tokio::test]
async fn a_node_whose_clock_is_an_hour_ahead_decides_and_takes_nothing_early() {
    let ahead = Clock::skewed(Duration::from_secs(3600));
    let world = World::on(&postgres_url(), ahead).await;
    let mut node = world.node(Consumer::process("patient", Patient).from_kafka(&["orders"])).await;
    node.receive(&[fresh(0, "a", "1")]).await.unwrap();
    let deadline =
        "select (deadline between now() + interval '50 s' and now() + interval '61 s')::text from dipmo.process";
    assert_eq!(world.texts(deadline).await, ["true"]);
    assert_eq!(node.work_off().await.timers, 0, "no timer is due by the time of the database");
    let leases = "select bool_and(until between now() and now() + interval '16 s')::text from dipmo.lease \
                  where scope like 'worker:%'";
    assert_eq!(world.texts(leases).await, ["true"]);
}
