//! Pure processes: a batch is one transaction, duplicates have no effect, the journal tells it all.

use dipmo::consumer::Consumer;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::runner::Report;
use time::OffsetDateTime;

use crate::support::{World, fresh};
use crate::{Diary, pages};

fn diary() -> Consumer {
    Consumer::process("diary", Diary::default()).from_kafka(&["orders"])
}

#[tokio::test]
async fn a_batch_is_processed_in_order_and_sends_what_it_decided() {
    let world = World::new().await;
    let node = world.node(diary()).await;
    let batch = [fresh(0, "a", "1"), fresh(1, "b", "2"), fresh(2, "a", "3")];
    let report = node.receive(&batch).await.unwrap();
    assert_eq!(report, Report { processed: 3, sent: 3, ..Report::default() });
    assert_eq!((pages(&world, "a").await, pages(&world, "b").await), ("[1,3]".into(), "[2]".into()));
    assert_eq!(
        world.texts("select convert_from(payload, 'UTF8') from dipmo.outbox order by id").await,
        ["1", "2", "3"]
    );
    assert_eq!(world.states("a").await, ["PROCESSED", "PROCESSED"]);
    let journal = "select concat_ws(' ', kind, from_state, to_state, message_id) from dipmo.journal order by id";
    assert_eq!(
        world.texts(journal).await,
        ["MESSAGE WRITING orders/0/0", "MESSAGE WRITING orders/0/1", "MESSAGE WRITING WRITING orders/0/2"]
    );
}

#[tokio::test]
async fn duplicates_have_no_effect_and_are_counted() {
    let world = World::new().await;
    let node = world.node(diary()).await;
    node.receive(&[fresh(0, "a", "1"), fresh(1, "a", "2")]).await.unwrap();
    let again = [fresh(0, "a", "1"), fresh(1, "a", "2"), fresh(2, "a", "3"), fresh(2, "a", "3")];
    let report = node.receive(&again).await.unwrap();
    assert_eq!((report.processed, report.duplicates), (1, 3));
    assert_eq!(pages(&world, "a").await, "[1,2,3]");
    assert_eq!(world.count("dipmo.inbox").await, 3);
    assert_eq!(world.count("dipmo.outbox").await, 3);
}

#[tokio::test]
async fn what_cannot_be_decoded_is_kept_with_its_bytes_and_the_rest_goes_on() {
    let world = World::new().await;
    let node = world.node(Consumer { dlq_topic: Some("orders-dlq".into()), ..diary() }).await;
    let report = node.receive(&[fresh(0, "a", "{oops"), fresh(1, "a", "2")]).await.unwrap();
    assert_eq!((report.processed, report.undecodable), (1, 1));
    assert_eq!(world.states("a").await, ["SERDE_ERROR", "PROCESSED"]);
    let kept = "select concat_ws(' ', convert_from(payload, 'UTF8'), error_stage, error_code) \
                from dipmo.inbox_status where state = 'SERDE_ERROR'";
    assert_eq!(world.texts(kept).await, ["{oops CONSUMER_SERDE NOT_JSON"]);
    let mirrored = "select concat_ws(' ', destination, key, convert_from(payload, 'UTF8')::json ->> 'originalEventBase64') \
                    from dipmo.outbox where event_type = 'DeadLetter'";
    assert_eq!(world.texts(mirrored).await, ["KAFKA:orders-dlq a e29vcHM="]);
}

#[tokio::test]
async fn the_journal_and_the_audit_refuse_to_be_changed() {
    let world = World::new().await;
    world.node(diary()).await.receive(&[fresh(0, "a", "1")]).await.unwrap();
    world.execute("insert into dipmo.audit (actor, action, target, reason) values ('a', 'b', 'c', 'd')").await;
    let client = world.db.client().await.unwrap();
    for change in ["update {}.journal set to_state = 'X'", "delete from {}.journal", "delete from {}.audit"] {
        let refused = client.batch_execute(&change.replace("{}", world.db.schema())).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "23001", "{change}");
    }
}

#[tokio::test]
async fn a_nul_inside_json_is_kept_as_it_came() {
    let world = World::new().await;
    let node = world.node(diary()).await;
    let batch = [fresh(0, "a", "1"), fresh(1, "b", "\"x\\u0000y\""), fresh(2, "c", "3")];
    assert_eq!(node.receive(&batch).await.unwrap().processed, 3);
    let data = world.texts("select data::text from dipmo.process where business_key = 'b'").await;
    assert_eq!(data, ["{\"pages\":[\"x\\u0000y\"]}"]);
    let sent = world.texts("select convert_from(payload, 'UTF8') from dipmo.outbox where key = 'b'").await;
    assert_eq!(sent, ["\"x\\u0000y\""]);
}

/// Takes messages until its state is CLOSED.
struct Gate;

impl Process for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    fn decide(&self, current: Option<&Instance>, _: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        match current.map(|instance| instance.state.as_str()) {
            Some("CLOSED") => Err(Failure::stale("closed")),
            _ => Ok(Decision::go("OPEN")),
        }
    }
}

/// As another node, a timer or an operator would.
async fn moved_by_another(world: &World, change: &str) {
    world.execute(&format!("update dipmo.process set version = version + 1, {change}")).await;
}

#[tokio::test]
async fn an_instance_that_another_node_has_moved_is_decided_on_as_it_is_now() {
    let world = World::new().await;
    let node = world.node(diary()).await;
    node.receive(&[fresh(0, "a", "1")]).await.unwrap();
    moved_by_another(&world, r#"data = '{"pages":[7]}'"#).await;
    node.receive(&[fresh(1, "a", "2")]).await.unwrap();
    node.receive(&[fresh(2, "a", "3")]).await.unwrap();
    assert_eq!(pages(&world, "a").await, "[7,2,3]", "what the node had in mind is not what counts");
    assert_eq!(world.texts("select version::text from dipmo.process").await, ["4"]);
}

#[tokio::test]
async fn nothing_is_refused_because_of_what_an_instance_was_before() {
    let world = World::new().await;
    let node = world.node(Consumer::process("gate", Gate).from_kafka(&["orders"])).await;
    node.receive(&[fresh(0, "a", "1")]).await.unwrap();
    moved_by_another(&world, "state = 'CLOSED'").await;
    assert_eq!(node.receive(&[fresh(1, "a", "2")]).await.unwrap().ignored, 1, "it is closed by now");
    moved_by_another(&world, "state = 'OPEN'").await;
    assert_eq!(node.receive(&[fresh(2, "a", "3")]).await.unwrap().processed, 1, "and open again");
    moved_by_another(&world, "state = 'CLOSED'").await;
    let both = [fresh(3, "a", "4"), fresh(4, "b", "1")];
    let report = node.receive(&both).await.unwrap();
    assert_eq!((report.ignored, report.processed), (1, 1), "in a batch with others too");
}
