//! A night on duty: a saga waits, the command line says why, and it is repaired with who, why and evidence.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use world::World;
use world::daemon::{Daemon, until};

const DEFINITIONS: &str = r#"
[[saga]]
name = "Purchase"

[[saga.step]]
name = "STEP_PAY"
command = "Pay"
to = "INTERNAL:APP.CMD.SHOP.Pay.Q"
timeout = "30s"
on_failure = "pause"
park = true
"#;

/// Pays, or refuses, as the table `mood` says.
async fn shop(world: &World) -> String {
    let schema = &world.schema;
    world
        .run_sql(&format!(
            "create table {schema}.mood as select true as refuses;
             create function {schema}.on_pay(message jsonb) returns void language plpgsql set search_path = {schema} as $$
             declare
                 command jsonb := message->'payload';
                 refuses boolean := (select m.refuses from mood m);
                 kind text := case when refuses then 'CommandFailed' else 'CommandCompleted' end;
                 answer jsonb := case when refuses then '{{\"code\": \"NO_MONEY\", \"message\": \"the card was refused\"}}'
                                      else '{{\"receipt\": \"R-1\"}}' end;
             begin
                 perform outbox_append('INTERNAL:' || (command->'headers'->>'replyTo'), 'Shop', command->>'key', kind,
                     (command || jsonb_build_object('type', kind, 'messageId', gen_random_uuid(), 'payload', answer))::text,
                     correlation_id => command->>'correlationId');
             end $$"
        ))
        .await;
    world.write("shop.toml", DEFINITIONS);
    format!(
        "[sagas]\nfiles = [\"shop.toml\"]\n[[consumer]]\nname = \"shop\"\n\
         internal_queues = [\"APP.CMD.SHOP.Pay.Q\"]\nhandler = {{ sql = \"{schema}.on_pay\" }}\n"
    )
}

/// A purchase that waits for an operator: its id.
async fn waiting(world: &World, key: &str) -> String {
    let id = world.dipmo(&["command", "send", "Purchase", "--key", key, "-o", "name"]).ok().out.trim().to_owned();
    let paused = format!("select count(*) from process where id = '{id}' and status = 'PAUSED'");
    until("the saga waits for an operator", async || world.number(&paused).await == 1).await;
    id
}

async fn until_succeeded(world: &World, id: &str) {
    let done = format!("select count(*) from process where id = '{id}' and status = 'SUCCEEDED'");
    until("the saga has succeeded", async || world.number(&done).await == 1).await;
}

#[tokio::test]
async fn a_saga_that_waits_is_explained_and_repaired_from_the_command_line() {
    let world = World::new().await;
    let configuration = shop(&world).await;
    let daemon = Daemon::start(&world, &configuration, &[]);
    daemon.ready().await;
    let id = waiting(&world, "P-1").await;

    let told = world.dipmo(&["why", "P-1"]).ok().out;
    assert!(told.contains("paused because Pay failed for good") && told.contains("NO_MONEY"), "{told}");
    assert!(told.contains(&format!("next: dipmo process resubmit {id}")), "{told}");
    assert_eq!(
        world.dipmo(&["why", &id, "-o", "json"]).ok().json()["next_actions"][0],
        format!("dipmo process resubmit {id}")
    );

    let letter = world.dipmo(&["dlq", "list", "-o", "name"]).ok().out.trim().to_owned();
    let because = ["--reason", "the bank says it works again", "--actor", "ann"];
    let plan = world.dipmo(&[&["dlq", "resubmit", &letter, "--dry-run"], &because[..]].concat()).ok().out;
    assert!(plan.contains("would become RUNNING in STEP_PAY; Pay would be sent"), "{plan}");
    assert_eq!(world.number("select count(*) from audit").await, 0, "nothing was done yet");
    world.run_sql("update mood set refuses = false").await;
    world.dipmo(&[&["dlq", "resubmit", &letter], &because[..]].concat()).ok();
    until_succeeded(&world, &id).await;
    world.dipmo(&[&["dlq", "resubmit", &letter], &because[..]].concat()).fails(6, "not a dead letter");
    world.dipmo(&[&["process", "pause", &id], &because[..]].concat()).fails(6, "is SUCCEEDED");

    let journey = world.dipmo(&["journey", &id]).ok().out;
    for part in ["command Pay of STEP_PAY is SUCCEEDED", "orchestrator handled CommandCompleted", "(PAUSED)"] {
        assert!(journey.contains(part), "{part} is missing in:\n{journey}");
    }
    world.dipmo(&["journey", "nobody"]).fails(5, "nothing is known");
    world.dipmo(&["why", "nobody"]).fails(5, "nothing is in the way");
    let metrics = daemon.get("/metrics").unwrap().1;
    assert!(metrics.contains("saga_step_latency_ms_bucket{step=\"STEP_PAY\""), "{metrics}");
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_asked_for_twice_and_needs_its_evidence() {
    let world = World::new().await;
    let configuration = shop(&world).await;
    let daemon = Daemon::start(&world, &configuration, &[]);
    daemon.ready().await;
    let id = waiting(&world, "P-1").await;
    let because = ["--reason", "paid by hand", "--actor", "ann"];
    let force = ["process", "force-complete", &id, "--evidence", "bank statement 4711"];
    world.dipmo(&["process", "force-complete", &id]).fails(2, "--evidence");
    world.dipmo(&[&force[..], &because[..]].concat()).fails(3, "needs a yes");
    let version = world.dipmo(&["process", "show", &id, "-o", "json"]).ok().json()["version"].as_i64().unwrap();
    let old = (version - 1).to_string();
    world
        .dipmo(&[&force[..], &because[..], &["--yes", "--seen-version", &old]].concat())
        .fails(6, "changed in the meantime");
    world.dipmo(&[&force[..], &because[..], &["--yes"]].concat()).ok();
    until_succeeded(&world, &id).await;
    let kept = world.text("select actor || ' ' || action || ' ' || (detail ->> 'evidence') from audit").await;
    assert!(kept.contains("ann saga.force-complete bank statement 4711"), "{kept}");
    drop(daemon);
}

#[tokio::test]
async fn a_batch_that_is_asked_for_by_a_message_is_run_and_watched_to_its_end() {
    let world = World::new().await;
    let configuration = shop(&world).await;
    world.run_sql("update mood set refuses = false").await;
    let daemon = Daemon::start(&world, &configuration, &[]);
    daemon.ready().await;
    let batch = "018f0000-0000-7000-8000-0000000000aa";
    let items: Vec<String> =
        (1..=20).map(|n| format!(r#"{{"id": "P-{n}", "key": "P-{n}", "payload": {{}}}}"#)).collect();
    let envelope = format!(
        r#"{{"messageId": "{batch}", "type": "BatchItemsRequested", "name": "Purchase", "commandId": "{batch}",
             "correlationId": "{batch}", "occurredAt": "2026-11-16T00:00:00Z", "key": "{batch}",
             "payload": {{"batchId": "{batch}", "type": "Purchase", "tenant": "", "scheduledFor": "2026-11-16",
                          "items": [{}], "last": true, "total": 20}}}}"#,
        items.join(",")
    );
    let append = format!(
        "select outbox_append('INTERNAL:APP.BATCH.START.Q', 'Batch', '{batch}', 'BatchItemsRequested', '{envelope}')"
    );
    world.run_sql(&append).await;
    until("the batch has begun", async || world.number("select count(*) from batch_run").await == 1).await;
    let watched = world.dipmo(&["batch", "watch", batch]).ok().out;
    assert!(watched.contains("20"), "{watched}");
    let shown = world.dipmo(&["batch", "show", batch, "-o", "json"]).ok().json();
    assert_eq!((&shown["status"], &shown["scheduled_for"]), (&"SUCCEEDED".into(), &"2026-11-16".into()));
    assert_eq!(world.number("select count(*) from process where status = 'SUCCEEDED'").await, 20);
    drop(daemon);
}
