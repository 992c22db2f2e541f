//! A failing key waits alone: retry, dead, park, skip, group, release.

use std::sync::Arc;

use async_trait::async_trait;
use dipmo::Message;
use dipmo::consumer::{Consumer, DeadPolicy, Grouping, Handler};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use time::OffsetDateTime;

use crate::support::{World, fresh};
use crate::{Diary, pages};

fn consumer(diary: &Diary) -> Consumer {
    Consumer::process("diary", diary.clone()).from_kafka(&["orders"])
}

fn away() -> Failure {
    Failure::transient("AWAY", "the other side is away")
}

fn never() -> Failure {
    Failure::permanent("NEVER", "not with me")
}

#[tokio::test]
async fn a_transient_failure_parks_its_key_and_the_others_flow() {
    let world = World::new().await;
    let diary = Diary::refusing("1", away());
    let mut node = world.node(consumer(&diary)).await;
    node.receive(&[fresh(0, "a", "1"), fresh(1, "b", "2"), fresh(2, "a", "3")]).await.unwrap();
    assert_eq!(world.states("a").await, ["RETRY", "PARKED"]);
    assert_eq!(pages(&world, "b").await, "[2]");

    node.receive(&[fresh(3, "a", "4"), fresh(4, "b", "5")]).await.unwrap();
    assert_eq!(world.states("a").await, ["RETRY", "PARKED", "PARKED"], "later arrivals queue behind the head");
    assert_eq!(pages(&world, "b").await, "[2,5]");

    assert!(node.work_off().await == Default::default(), "nothing is due yet");
    world.advance(4);
    diary.heal();
    node.work_off().await;
    assert_eq!(pages(&world, "a").await, "[1,3,4]");
    assert_eq!(world.states("a").await, ["PROCESSED"; 3]);
    assert_eq!(world.count("dipmo.parked_key").await, 0);
    assert_eq!(world.count("dipmo.inbox_work").await, 0);

    node.receive(&[fresh(5, "a", "6")]).await.unwrap();
    assert_eq!(pages(&world, "a").await, "[1,3,4,6]", "a freed key is handled at once again");
}

#[tokio::test]
async fn attempts_run_out_and_the_rest_of_the_key_stays_parked_until_released() {
    let world = World::new().await;
    let diary = Diary::refusing("1", away());
    let mut node = world.node(consumer(&diary)).await;
    node.receive(&[fresh(0, "a", "1"), fresh(1, "a", "2")]).await.unwrap();
    for _ in 0..8 {
        world.advance(400);
        node.work_off().await;
    }
    assert_eq!(world.states("a").await, ["DEAD", "PARKED"]);
    assert_eq!(world.texts("select attempts::text from dipmo.inbox_work where state = 'DEAD'").await, ["8"]);
    world.execute("update dipmo.parked_key set state = 'DRAINING'").await;
    node.work_off().await;
    assert_eq!(world.states("a").await, ["DEAD", "PROCESSED"]);
    assert_eq!(pages(&world, "a").await, "[2]");
}

#[tokio::test]
async fn a_dead_message_parks_skips_or_takes_its_group_by_policy() {
    let expected = [
        (DeadPolicy::Park, vec!["PROCESSED", "DEAD", "PARKED"], "[1]"),
        (DeadPolicy::Skip, vec!["PROCESSED", "DEAD", "PROCESSED"], "[1,3]"),
        (DeadPolicy::Group, vec!["PROCESSED", "DEAD", "DEAD"], "[1]"),
    ];
    for (on_dead, states, written) in expected {
        let world = World::new().await;
        let consumer = Consumer { on_dead, dlq_topic: Some("dlq".into()), ..consumer(&Diary::refusing("2", never())) };
        let node = world.node(consumer).await;
        node.receive(&[fresh(0, "a", "1"), fresh(1, "a", "2"), fresh(2, "a", "3")]).await.unwrap();
        assert_eq!(world.states("a").await, states, "{on_dead:?}");
        assert_eq!(pages(&world, "a").await, written, "{on_dead:?}");
        let mirrored = "select convert_from(payload, 'UTF8')::json ->> 'originalEvent' from dipmo.outbox \
                        where destination = 'KAFKA:dlq' order by id";
        let dead: Vec<&str> = if on_dead == DeadPolicy::Group { vec!["2", "3"] } else { vec!["2"] };
        assert_eq!(world.texts(mirrored).await, dead, "{on_dead:?}");
        node.receive(&[fresh(3, "a", "4")]).await.unwrap();
        let next = if on_dead == DeadPolicy::Park { "PARKED" } else { "PROCESSED" };
        assert_eq!(world.states("a").await.pop().unwrap(), next, "{on_dead:?}");
    }
}

/// Panics at the messages of key a: while it decides or handles, or while it names the instance.
struct Panics {
    in_business_key: bool,
}

impl Process for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn business_key(&self, message: &Message) -> String {
        assert!(!self.in_business_key || message.key != "a", "panics on purpose");
        message.key.clone()
    }

    fn decide(&self, _: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { unreachable!("no timers here") };
        assert_ne!(message.key, "a", "panics on purpose");
        Ok(Decision::go("DONE").succeed())
    }
}

#[async_trait]
impl EnlistedHandler for Panics {
    async fn handle(&self, _: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        assert_ne!(message.key, "a", "panics on purpose");
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_in_user_code_is_a_failure_of_its_message() {
    let panics = |in_business_key| Arc::new(Panics { in_business_key });
    let enlisted = |grouping| Handler::Enlisted { handler: panics(false), grouping };
    let handlers = [
        Handler::Process(panics(false)),
        Handler::Process(panics(true)),
        enlisted(Grouping::Record),
        enlisted(Grouping::Key),
        enlisted(Grouping::Batch),
    ];
    for handler in handlers {
        let (world, label) = (World::new().await, format!("{handler:?}"));
        let node = world.node(Consumer::new("panics", handler).from_kafka(&["orders"])).await;
        node.receive(&[fresh(0, "a", "1"), fresh(1, "b", "2")]).await.unwrap();
        assert_eq!(
            (world.states("a").await, world.states("b").await),
            (vec!["RETRY".into()], vec!["PROCESSED".into()])
        );
        assert_eq!(world.texts("select error_code from dipmo.inbox_work").await, ["PANIC"], "{label}");
    }
}
