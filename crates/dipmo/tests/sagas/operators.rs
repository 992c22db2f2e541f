//! What operators can do to a saga, and what they are refused.

use dipmo::batch::BatchWatcher;
use dipmo::command::CommandError;
use dipmo::operator::sagas::{Intervention, intervene, resubmit_dead_letter};
use dipmo::operator::{Change, Changed};
use dipmo::process::OperatorVerb;
use dipmo::saga::START_QUEUE;
use dipmo::{ErrorKind, Result};
use serde_json::json;
use uuid::Uuid;

use crate::Scene;

impl Scene {
    async fn act(&self, saga: Uuid, verb: OperatorVerb) -> Result<Changed> {
        self.intervene(Intervention::new(saga, verb)).await
    }

    async fn intervene(&self, intervention: Intervention) -> Result<Changed> {
        let ann = Change::new("ann", "the bank called").unwrap();
        intervene(&self.world.db, &*self.orchestrator, "orchestrator", &intervention, &ann).await
    }

    /// One that waits for an operator because its payment was refused.
    async fn paused(&self) -> Uuid {
        self.shop.fails("Pay", Some(CommandError::permanent("NO_MONEY", "the card was refused")));
        let id = self.purchase("P-1").await;
        assert_eq!(self.status(id).await, "PAUSED STEP_PAY");
        self.shop.fails("Pay", None);
        id
    }

    async fn audit(&self) -> Vec<String> {
        self.world.texts("select actor || ' ' || action || ' ' || reason from dipmo.audit order by id").await
    }
}

#[tokio::test]
async fn resubmitting_sends_the_dead_letter_again_under_its_key() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    let changed = scene.act(id, OperatorVerb::Resubmit).await.unwrap();
    assert_eq!(changed.note, "is now RUNNING in STEP_PAY; Pay is sent");
    assert_eq!(scene.dead_letters().await, [""; 0], "it is under way again");
    scene.run().await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(scene.shop.done(), ["STEP_RESERVE", "STEP_PAY"]);
    assert_eq!(scene.audit().await, ["ann saga.resubmit the bank called"]);
    let line = "select actor || ' ' || reason || ' ' || (detail ->> 'verb') from dipmo.journal where kind = 'OPERATOR'";
    assert_eq!(scene.world.texts(line).await, ["ann the bank called resubmit"]);
}

#[tokio::test]
async fn skipping_goes_on_and_compensating_undoes() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    scene.act(id, OperatorVerb::Skip).await.unwrap();
    scene.run().await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(scene.dead_letters().await, [""; 0], "nobody waits for it any more");
    scene.shop.fails("Pay", Some(CommandError::permanent("NO_MONEY", "the card was refused")));
    let other = scene.purchase("P-2").await;
    scene.act(other, OperatorVerb::Compensate).await.unwrap();
    scene.run().await;
    assert_eq!(scene.status(other).await, "COMPENSATED COMPENSATED");
    assert_eq!(scene.shop.done().last().unwrap(), "STEP_RELEASE");
}

#[tokio::test]
async fn completing_by_force_needs_evidence_and_keeps_it() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    let evidence = "bank statement 4711".to_owned();
    scene.act(id, OperatorVerb::ForceComplete { evidence }).await.unwrap();
    scene.run().await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(scene.shop.done(), ["STEP_RESERVE"]);
    let kept = "select (detail ->> 'evidence') from dipmo.journal where kind = 'OPERATOR'
                union all select detail ->> 'evidence' from dipmo.audit";
    assert_eq!(scene.world.texts(kept).await, ["bank statement 4711"; 2]);
}

#[tokio::test]
async fn pausing_holds_the_answer_until_it_is_resumed() {
    let scene = Scene::new(false).await;
    let id = scene.purchase("P-1").await;
    scene.act(id, OperatorVerb::Pause).await.unwrap();
    assert_eq!(scene.status(id).await, "PAUSED STEP_RESERVE");
    scene.after(600).await;
    assert_eq!(scene.status(id).await, "PAUSED STEP_RESERVE", "its patience is paused too");
    scene.act(id, OperatorVerb::Resume).await.unwrap();
    assert_eq!(scene.status(id).await, "RUNNING STEP_RESERVE");
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_and_does_nothing() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    let plan = scene.intervene(Intervention::new(id, OperatorVerb::Resubmit).dry_run(true)).await.unwrap();
    assert_eq!(plan.note, "would become RUNNING in STEP_PAY; Pay would be sent");
    assert_eq!(scene.status(id).await, "PAUSED STEP_PAY");
    assert_eq!(scene.audit().await, [""; 0]);
}

#[tokio::test]
async fn of_two_operators_at_once_one_is_refused_with_the_reason() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    let version = format!("select version::text from dipmo.process where id = '{id}'");
    let seen_version = Some(scene.world.texts(&version).await[0].parse().unwrap());
    // Both were shown the same; the slower one has seen an old version.
    let wish = |verb| scene.intervene(Intervention { seen_version, ..Intervention::new(id, verb) });
    let (first, second) = tokio::join!(wish(OperatorVerb::Resubmit), wish(OperatorVerb::Skip));
    let refused: Vec<_> = [&first, &second].into_iter().filter_map(|result| result.as_ref().err()).collect();
    let [moved] = refused[..] else { panic!("one of them was first: {first:?} {second:?}") };
    assert_eq!(moved.kind(), ErrorKind::Conflict);
    assert!(moved.to_string().contains("changed in the meantime"), "{moved}");
    assert_eq!(scene.audit().await.len(), 1, "what was refused was not done");
    scene.run().await;
    let pays = scene.shop.done().iter().filter(|step| *step == "STEP_PAY").count();
    assert!(pays <= 1, "whatever they agreed on, it was paid at most once");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_would() {
    let scene = Scene::new(true).await;
    let ended = scene.purchase("P-1").await;
    for verb in [OperatorVerb::Pause, OperatorVerb::Resume, OperatorVerb::Resubmit, OperatorVerb::Skip] {
        let refusal = scene.act(ended, verb.clone()).await.unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Conflict, "{verb:?}");
        assert!(refusal.to_string().contains("is SUCCEEDED"), "{refusal}");
    }
    let nobody = scene.act(Uuid::now_v7(), OperatorVerb::Pause).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::NotFound);
    assert_eq!(scene.audit().await, [""; 0], "a refusal changes nothing");
}

#[tokio::test]
async fn a_dead_letter_is_sent_again_by_its_own_id_and_only_while_it_is_one() {
    let scene = Scene::new(true).await;
    let id = scene.paused().await;
    let letter = scene.world.texts("select command_id::text from dipmo.command_dlq").await.remove(0).parse().unwrap();
    let ann = Change::new("ann", "the bank called").unwrap();
    let again = async || {
        resubmit_dead_letter(&scene.world.db, &*scene.orchestrator, "orchestrator", (letter, false), &ann).await
    };
    again().await.unwrap();
    scene.run().await;
    assert_eq!(scene.status(id).await, "SUCCEEDED SUCCEEDED");
    let refusal = again().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Conflict);
    assert!(refusal.to_string().contains("is SUCCEEDED and not a dead letter"), "{refusal}");
}

#[tokio::test]
async fn a_batch_of_which_something_is_taken_up_again_ends_once_more() {
    let scene = Scene::new(true).await;
    scene.shop.fails("Reserve", Some(CommandError::permanent("SOLD_OUT", "there is no book left")));
    let (batch, saga, message) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let envelope = json!({
        "messageId": message, "type": "CommandRequested", "name": "Purchase", "commandId": saga, "correlationId": saga,
        "occurredAt": "2026-11-16T08:00:00Z", "key": "P-1", "payload": { "item": "book" },
        "headers": { "schemaVersion": "1", "batchId": batch, "batchItem": "i1" }
    });
    scene
        .world
        .execute(&format!(
            "insert into dipmo.batch_run (batch_id, type, status, expected) values ('{batch}', 'Purchase', 'NEW', 1);
             insert into dipmo.batch_item (batch_id, item_id, status, saga_id) values ('{batch}', 'i1', 'NEW', '{saga}');
             select dipmo.outbox_append('INTERNAL:{START_QUEUE}', 'Command', 'P-1', 'CommandRequested', '{envelope}',
                                        correlation_id => '{saga}', message_id => '{message}')"
        ))
        .await;
    scene.run().await;
    let watcher = BatchWatcher::new(scene.world.db.clone()).telling(Some("KAFKA:events".parse().unwrap()));
    assert_eq!((watcher.run_once().await.unwrap(), scene.status(saga).await), (1, "FAILED FAILED".into()));
    let run = "select status || ' ' || endings || ' ' || (completed_at is not null) from dipmo.batch_run";
    assert_eq!(scene.world.texts(run).await, ["FAILED 1 true"]);
    scene.shop.fails("Reserve", None);
    scene.act(saga, OperatorVerb::Resubmit).await.unwrap();
    assert_eq!(scene.world.texts(run).await, ["RUNNING 1 false"], "it is open again");
    scene.run().await;
    assert_eq!(watcher.run_once().await.unwrap(), 1);
    assert_eq!(scene.world.texts(run).await, ["SUCCEEDED 2 true"]);
    assert_eq!(watcher.run_once().await.unwrap(), 0, "told of once each");
    let told = "select convert_from(payload, 'UTF8')::json -> 'payload' ->> 'status' from dipmo.outbox
                where event_type = 'BatchCompleted' order by id";
    assert_eq!(scene.world.texts(told).await, ["FAILED", "SUCCEEDED"]);
    let ids = scene.world.count("(select distinct message_id from dipmo.outbox where event_type = 'BatchCompleted') m");
    assert_eq!(ids.await, 2, "a receiver takes the second for news");
}
