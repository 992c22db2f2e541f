//! What the database refuses stays inside its message, and nothing is lost.

use std::sync::Arc;

use async_trait::async_trait;
use dipmo::consumer::{Consumer, Grouping, Handler};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::{Message, OutMessage};
use time::OffsetDateTime;

use crate::support::{World, fresh};

/// Sends on under a key that is too long for an index when the payload says so.
fn send_on(message: &Message) -> OutMessage {
    let key = if message.payload.as_deref() == Some(b"666") { "k".repeat(2_000) } else { message.key.clone() };
    OutMessage::internal(("Thing", &key), "Sent")
}

struct Sender;

impl Process for Sender {
    fn name(&self) -> &str {
        "sender"
    }

    fn decide(&self, _: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        Ok(Decision::go("SENT").emit(send_on(message)))
    }
}

#[async_trait]
impl EnlistedHandler for Sender {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        enlisted.send(send_on(message), message);
        Ok(())
    }
}

#[tokio::test]
async fn a_decision_that_cannot_be_stored_is_dead_alone() {
    let handlers = [
        Handler::Process(Arc::new(Sender)),
        Handler::Enlisted { handler: Arc::new(Sender), grouping: Grouping::Record },
        Handler::Enlisted { handler: Arc::new(Sender), grouping: Grouping::Key },
        Handler::Enlisted { handler: Arc::new(Sender), grouping: Grouping::Batch },
    ];
    for handler in handlers {
        let world = World::new().await;
        let label = format!("{handler:?}");
        let node = world.node(Consumer::new("sender", handler).from_kafka(&["orders"])).await;
        let batch =
            [fresh(0, "a", "1"), fresh(1, "a", "666"), fresh(2, "a", "3"), fresh(3, "b", "4"), fresh(4, "c", "5")];
        node.receive(&batch).await.unwrap();
        assert_eq!(world.states("a").await, ["PROCESSED", "DEAD", "PARKED"], "{label}");
        assert_eq!(world.states("b").await, ["PROCESSED"], "{label}");
        assert_eq!(world.count("dipmo.outbox").await, 3, "{label}");
        assert_eq!(world.texts("select error_code from dipmo.inbox_work where state = 'DEAD'").await, ["NOT_STORABLE"]);
    }
}

#[tokio::test]
async fn a_version_emitted_twice_is_dead_and_names_the_reason() {
    struct Versioned;
    impl Process for Versioned {
        fn name(&self) -> &str {
            "versioned"
        }
        fn decide(&self, _: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
            let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
            let version: i64 = message.json()?;
            Ok(Decision::go("SENT").emit(OutMessage::internal(("Thing", &message.key), "Sent").version(version)))
        }
    }
    let world = World::new().await;
    let node = world.node(Consumer::process("versioned", Versioned).from_kafka(&["orders"])).await;
    node.receive(&[fresh(0, "a", "1"), fresh(1, "b", "1"), fresh(2, "a", "2")]).await.unwrap();
    node.receive(&[fresh(3, "a", "2"), fresh(4, "b", "2")]).await.unwrap();
    assert_eq!(world.states("a").await, ["PROCESSED", "PROCESSED", "DEAD"]);
    assert_eq!(world.states("b").await, ["PROCESSED", "PROCESSED"]);
    assert_eq!(world.texts("select error_code from dipmo.inbox_work").await, ["VERSION_TAKEN"]);
    assert_eq!(world.count("dipmo.outbox").await, 4);
}

/// Leaves the refusal to the end of the transaction, in one of two ways.
struct Late {
    schema: String,
}

#[async_trait]
impl EnlistedHandler for Late {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let number: i64 = message.json()?;
        let parent = if number == 666 { 404 } else { 1 };
        let insert = format!("insert into {}.child (parent) values ($1)", self.schema);
        enlisted.tx().execute(&insert, &[&parent]).await?;
        if number == 777 {
            // A handler that does not look at the answer: the transaction is lost, and it goes on.
            let _ = enlisted.tx().batch_execute("select 1/0").await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn what_the_handlers_own_tables_refuse_at_the_end_is_dead_alone() {
    for grouping in [Grouping::Record, Grouping::Key, Grouping::Batch] {
        let world = World::new().await;
        world
            .execute(
                "create table dipmo.parent (id integer primary key);
                 insert into dipmo.parent values (1);
                 create table dipmo.child (
                     parent integer references dipmo.parent deferrable initially deferred)",
            )
            .await;
        let handler = Arc::new(Late { schema: world.db.schema().to_owned() });
        let node =
            world.node(Consumer::new("late", Handler::Enlisted { handler, grouping }).from_kafka(&["orders"])).await;
        let batch = [fresh(0, "a", "1"), fresh(1, "b", "666"), fresh(2, "c", "777"), fresh(3, "d", "2")];
        node.receive(&batch).await.unwrap();
        let states =
            "select key || ' ' || state || ' ' || coalesce(error_code, '') from dipmo.inbox_status order by key";
        let expected = ["a PROCESSED ", "b DEAD NOT_STORABLE", "c DEAD NOT_STORABLE", "d PROCESSED "];
        assert_eq!(world.texts(states).await, expected, "{grouping:?}");
        assert_eq!(world.count("dipmo.child").await, 2, "{grouping:?}");
    }
}
