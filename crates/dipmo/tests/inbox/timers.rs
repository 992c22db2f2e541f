//! Timers of messages and timers that are decided on together: the last word counts, and a timer whose
//! decision cannot be stored waits alone.

use std::time::Duration;

use dipmo::OutMessage;
use dipmo::consumer::Consumer;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use time::OffsetDateTime;

use crate::support::{Node, World, fresh};

const MINUTE: Duration = Duration::from_secs(60);

/// Does with its timers what the payload says, `["set", "a"]` or `["cancel", "a"]`, or ends.
struct Timekeeper;

impl Process for Timekeeper {
    fn name(&self) -> &str {
        "timekeeper"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        match input {
            Input::Message(message) => {
                let (verb, name): (String, String) = message.json()?;
                let decision = Decision::go("WAITING");
                Ok(match verb.as_str() {
                    "set" => decision.timer(&name, MINUTE),
                    "cancel" => decision.cancel_timer(&name),
                    _ => Decision::go("ENDED").succeed(),
                })
            }
            Input::Timer { name: "first" } => Ok(Decision::go("FIRST").cancel_timer("second")),
            // Every instance claims the same version of one aggregate, which only one can have.
            Input::Timer { name: "clash" } => {
                Ok(Decision::go("CLASHED").emit(OutMessage::internal(("Thing", "one"), "Claimed").version(1)))
            }
            Input::Timer { name: "unstorable" } => {
                Ok(Decision::go("UNSTORABLE").emit(OutMessage::internal(("Thing", &"k".repeat(2_000)), "Sent")))
            }
            Input::Timer { name } => {
                let state = current.map_or("", |instance| instance.state.as_str());
                Ok(Decision::go(format!("{state}+{name}")))
            }
            Input::Operator(_) => Err(Failure::stale("no operators here")),
        }
    }
}

async fn node(world: &World) -> Node {
    world.node(Consumer::process("timekeeper", Timekeeper).from_kafka(&["orders"])).await
}

async fn timers(world: &World) -> Vec<String> {
    world.texts("select name from dipmo.timer order by name").await
}

async fn states(world: &World) -> Vec<String> {
    world.texts("select business_key || ' ' || state from dipmo.process order by 1").await
}

#[tokio::test]
async fn of_several_changes_to_a_timer_in_one_batch_the_last_counts() {
    let world = World::new().await;
    let node = node(&world).await;
    let batch = [
        fresh(0, "a", r#"["set", "again"]"#),
        fresh(1, "a", r#"["set", "again"]"#),
        fresh(2, "a", r#"["set", "off"]"#),
        fresh(3, "a", r#"["cancel", "off"]"#),
        fresh(4, "a", r#"["cancel", "on"]"#),
        fresh(5, "a", r#"["set", "on"]"#),
    ];
    assert_eq!(node.receive(&batch).await.unwrap().processed, 6);
    assert_eq!(timers(&world).await, ["again", "on"]);
}

#[tokio::test]
async fn a_timer_that_is_cancelled_by_another_due_with_it_does_not_fire() {
    let world = World::new().await;
    let mut node = node(&world).await;
    node.receive(&[fresh(0, "a", r#"["set", "first"]"#)]).await.unwrap();
    world.advance(1);
    node.receive(&[fresh(1, "a", r#"["set", "second"]"#)]).await.unwrap();
    world.advance(120);
    assert_eq!(node.work_off().await.timers, 1);
    assert_eq!(states(&world).await, ["a FIRST"]);
    assert!(timers(&world).await.is_empty());
}

#[tokio::test]
async fn a_timer_of_a_process_that_has_ended_is_dropped() {
    let world = World::new().await;
    let mut node = node(&world).await;
    let batch = [fresh(0, "a", r#"["set", "late"]"#), fresh(1, "a", r#"["end", ""]"#)];
    assert_eq!(node.receive(&batch).await.unwrap().processed, 2);
    world.advance(61);
    assert_eq!(node.work_off().await.timers, 0);
    assert_eq!(states(&world).await, ["a ENDED"]);
    assert!(timers(&world).await.is_empty(), "nobody would ever answer it");
}

#[tokio::test]
async fn a_timer_whose_decision_is_refused_waits_and_the_others_fire() {
    for refused in ["clash", "unstorable"] {
        let world = World::new().await;
        let mut node = node(&world).await;
        world
            .execute("select dipmo.outbox_append('INTERNAL', 'Thing', 'one', 'Claimed', '{}', aggregate_version => 1)")
            .await;
        let batch = [fresh(0, "a", &format!(r#"["set", "{refused}"]"#)), fresh(1, "b", r#"["set", "fine"]"#)];
        node.receive(&batch).await.unwrap();
        world.advance(61);
        node.work_off().await;
        assert_eq!(states(&world).await, ["a WAITING", "b WAITING+fine"], "{refused}");
        let waits = "select name || ' ' || attempts from dipmo.timer";
        assert_eq!(world.texts(waits).await, [format!("{refused} 1")], "tried again later, not at once");
    }
}
