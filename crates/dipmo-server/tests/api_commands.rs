//! Commands over HTTP: accepted once, carried out, followed to their result, and refused with reasons.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use world::World;
use world::api::{ADMIN, Answer, CLIENT, Call, OPERATOR, VIEWER, get, post, tokens};
use world::daemon::{Daemon, free_address, until};
use world::silence::Silence;

const DEFINITIONS: &str = r#"
[[command]]
name = "SubmitPayment"
to = "INTERNAL:APP.CMD.PAY.SubmitPayment.Q"
schema = "payment.schema.json"

[[command]]
name = "Ping"
to = "INTERNAL:APP.CMD.PAY.Ping.Q"
"#;

const SCHEMA: &str = r#"{
    "type": "object",
    "required": ["amount", "iban"],
    "properties": { "amount": { "type": "string", "pattern": "^[0-9]+$" }, "iban": { "type": "string" } },
    "additionalProperties": false
}"#;

/// Tokens and definitions, for any daemon of this world.
fn configuration(world: &World) -> String {
    std::fs::create_dir_all(world.dir.join("sagas")).unwrap();
    world.write("sagas/payments.toml", DEFINITIONS);
    world.write("sagas/payment.schema.json", SCHEMA);
    format!("{}[sagas]\nfiles = [\"sagas/*.toml\"]\n", tokens())
}

/// A daemon that accepts and hands nothing on, so that commands stay as they were accepted.
async fn accepting(world: &World) -> Daemon {
    let daemon = Daemon::start(world, &configuration(world), &["--role", "upkeep"]);
    daemon.ready().await;
    daemon
}

fn payment(key: &str) -> Value {
    json!({ "key": key, "payload": { "amount": "100", "iban": "DE02" } })
}

fn pay(key: &str, idempotency_key: &str) -> Call {
    post("/v1/commands/SubmitPayment", CLIENT, &payment(key)).header("idempotency-key", idempotency_key)
}

fn id(answer: &Value) -> String {
    answer["commandId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn a_command_is_carried_out_and_its_result_can_be_read() {
    let world = World::new().await;
    let worker = format!(
        "[[consumer]]\nname = \"pay\"\ninternal_queues = [\"APP.CMD.PAY.SubmitPayment.Q\"]\n\
         handler = {{ sql = \"{}.on_payment\" }}\n",
        world.schema
    );
    world
        .run_sql(&format!(
            "create function on_payment(message jsonb) returns void language plpgsql set search_path = {} as $$
             declare command jsonb := message->'payload';
             begin
                 perform outbox_append('INTERNAL:' || (command->'headers'->>'replyTo'), 'Payment', command->>'key',
                     'CommandCompleted', (command || jsonb_build_object('type', 'CommandCompleted', 'messageId',
                         gen_random_uuid(), 'payload', jsonb_build_object('paid', command->'payload'->'amount')))::text,
                     correlation_id => command->>'correlationId');
             end $$",
            world.schema
        ))
        .await;
    let daemon = Daemon::start(&world, &format!("{}{worker}", configuration(&world)), &[]);
    daemon.ready().await;
    let answer = daemon.call(&pay("P-1", "k-1"));
    let place = answer.header("location").unwrap().to_owned();
    let accepted = answer.is(202);
    assert_eq!((&accepted["status"], &accepted["links"]["self"]), (&json!("PENDING"), &json!(place)));
    assert_eq!(place, format!("/v1/commands/{}", id(&accepted)));
    let status = || daemon.call(&get(&place, CLIENT)).is(200)["status"].clone();
    until("the command has succeeded", async || status() == "SUCCEEDED").await;
    let command = daemon.call(&get(&place, CLIENT)).is(200);
    assert_eq!((&command["result"]["paid"], &command["process"]["status"]), (&json!("100"), &json!("SUCCEEDED")));
    assert_eq!((&command["key"], &command["idempotencyKey"]), (&json!("P-1"), &json!("k-1")));
    let saga = daemon.call(&get(accepted["links"]["process"].as_str().unwrap(), VIEWER)).is(200);
    assert_eq!((&saga["type"], &saga["business_key"]), (&json!("SubmitPayment"), &json!("P-1")));
    assert!(saga["journal"].as_array().unwrap().len() >= 2, "{saga}");
    let again = daemon.call(&pay("P-1", "k-1"));
    assert_eq!(again.is(202), accepted, "the first answer, whatever has become of the command");
}

/// A daemon that starts sagas whose commands nobody takes.
async fn unanswered(world: &World) -> (Daemon, String) {
    let daemon = Daemon::start(world, &configuration(world), &[]);
    daemon.ready().await;
    let saga = id(&daemon.call(&pay("P-1", "k-1")).is(202));
    let command = format!("/v1/commands/{saga}");
    until("the saga waits for its worker", async || {
        daemon.call(&get(&command, CLIENT)).is(200)["process"]["status"] == "RUNNING"
    })
    .await;
    (daemon, saga)
}

#[tokio::test]
async fn an_operator_acts_on_a_saga_and_is_told_why_it_waits() {
    let world = World::new().await;
    let (daemon, saga) = unanswered(&world).await;
    let act = |verb: &str, token: &str, body: Value| {
        daemon.call(&post(&format!("/v1/processes/{saga}/{verb}"), token, &body))
    };
    act("pause", VIEWER, json!({ "reason": "r" })).refused(403, "forbidden");
    let tried = act("pause", OPERATOR, json!({ "reason": "r", "dryRun": true })).is(200);
    assert_eq!(tried["detail"]["dry_run"], true);
    act("pause", OPERATOR, json!({ "reason": "r", "version": 99 })).refused(409, "conflict");
    assert_eq!(act("pause", OPERATOR, json!({ "reason": "the worker is away" })).is(200)["action"], "saga.pause");
    act("pause", OPERATOR, json!({ "reason": "again" })).refused(409, "conflict");
    act("explode", OPERATOR, json!({ "reason": "r" })).refused(404, "no-such-route");
    let proof = json!({ "reason": "r", "evidence": "statement of the bank" });
    act("force-complete", OPERATOR, proof.clone()).refused(403, "forbidden");
    act("force-complete", ADMIN, json!({ "reason": "r" })).refused(400, "invalid-request");
    let why = daemon.call(&get(&format!("/v1/why/{saga}"), VIEWER)).is(200);
    assert!(why["sentence"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{why}");
    assert_eq!(act("force-complete", ADMIN, proof).is(200)["action"], "saga.force-complete");
    let ended = daemon.call(&get(&format!("/v1/commands/{saga}"), CLIENT)).is(200);
    assert_eq!((&ended["status"], &ended["process"]["status"]), (&json!("SUCCEEDED"), &json!("SUCCEEDED")));
    let journey = daemon.call(&get(&format!("/v1/journeys/{saga}"), VIEWER)).is(200);
    assert!(journey["lines"].as_array().unwrap().len() >= 4, "{journey}");
    let audit = daemon.call(&get("/v1/audit?actor=the-admin", VIEWER)).is(200);
    assert_eq!(audit["items"][0]["action"], "saga.force-complete");
}

#[tokio::test]
async fn a_repetition_gets_the_first_answer_and_anything_else_under_the_key_is_refused() {
    let world = World::new().await;
    let daemon = accepting(&world).await;
    let first = daemon.call(&pay("P-1", "k-1"));
    assert_eq!(first.header("idempotency-replayed"), None);
    let first = first.is(202);
    let again = daemon.call(&pay("P-1", "k-1"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.is(202), first);
    let other = daemon.call(&pay("P-2", "k-1")).refused(422, "idempotency-key-reused");
    assert_eq!(other["commandId"], first["commandId"]);
    let ping = post("/v1/commands/Ping", CLIENT, &payment("P-1")).header("idempotency-key", "k-1");
    daemon.call(&ping).refused(422, "idempotency-key-reused");
    let taken = daemon.call(&pay("P-1", "k-2")).refused(409, "key-taken");
    assert_eq!(taken["commandId"], first["commandId"]);
    let free = post("/v1/commands/Ping", OPERATOR, &json!({ "key": "P-1" }));
    assert_ne!(id(&daemon.call(&free).is(202)), id(&first), "without an idempotency key each request is new");
    daemon.call(&free).refused(409, "key-taken");
    let lock = json!([world.schema, ["request", "", "k-3"]]).to_string();
    world.sql.batch_execute("begin").await.unwrap();
    world.sql.query("select pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await.unwrap();
    let in_flight = daemon.call(&pay("P-3", "k-3"));
    assert_eq!(in_flight.header("retry-after"), Some("1"));
    in_flight.refused(409, "request-in-flight");
    world.sql.batch_execute("rollback").await.unwrap();
    daemon.call(&pay("P-3", "k-3")).is(202);
    assert_eq!(world.number("select count(*) from command").await, 3);
    assert_eq!(world.number("select count(*) from outbox where event_type = 'CommandRequested'").await, 3);
}

#[tokio::test]
async fn a_command_that_nobody_knows_or_that_does_not_fit_is_refused_with_every_reason() {
    let world = World::new().await;
    let daemon = accepting(&world).await;
    let unknown =
        daemon.call(&post("/v1/commands/SubmitPaymnt", CLIENT, &payment("P-1"))).refused(404, "unknown-command");
    assert_eq!(unknown["known"], json!(["Ping", "SubmitPayment"]));
    let wrong = json!({ "key": "P-1", "payload": { "amount": "1.00", "note": "x" } });
    let problem = daemon.call(&post("/v1/commands/SubmitPayment", CLIENT, &wrong)).refused(422, "payload-invalid");
    let mut pointers: Vec<&str> =
        problem["violations"].as_array().unwrap().iter().map(|v| v["pointer"].as_str().unwrap()).collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        ["/payload", "/payload", "/payload/amount"],
        "missing, too much, and the wrong form: {problem}"
    );
    let cases = [
        (json!({ "payload": {} }), "missing field `key`"),
        (json!({ "key": "", "payload": {} }), "key is empty"),
        (json!({ "key": "k", "payload": [1] }), "payload must be a JSON object"),
        (json!({ "key": "k", "paylod": {} }), "unknown field `paylod`"),
        (json!({ "key": "k", "replyTo": "" }), "must not be empty"),
        (json!({ "key": "k".repeat(501) }), "at most 500 bytes"),
    ];
    for (body, expected) in cases {
        let problem = daemon.call(&post("/v1/commands/Ping", CLIENT, &body)).refused(400, "invalid-request");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{problem} should say {expected:?}");
    }
    let long = post("/v1/commands/Ping", CLIENT, &json!({ "key": "k" })).header("idempotency-key", &"k".repeat(201));
    daemon.call(&long).refused(400, "invalid-request");
    let large = json!({ "key": "k", "payload": { "x": "x".repeat(1024 * 1024) } });
    daemon.call(&post("/v1/commands/Ping", CLIENT, &large)).refused(413, "too-large");
    assert_eq!(world.number("select count(*) from command").await, 0);
}

#[tokio::test]
async fn twenty_requests_at_once_under_one_key_make_one_command() {
    let world = World::new().await;
    let daemon = Arc::new(accepting(&world).await);
    let posts: Vec<_> = (0..20)
        .map(|_| {
            let daemon = Arc::clone(&daemon);
            std::thread::spawn(move || daemon.send(&pay("P-1", "k-1")).unwrap())
        })
        .collect();
    let answers: Vec<Answer> = posts.into_iter().map(|post| post.join().unwrap()).collect();
    let (accepted, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 202);
    let first: Vec<_> = accepted.iter().filter(|answer| answer.header("idempotency-replayed").is_none()).collect();
    assert_eq!(first.len(), 1, "{accepted:?}");
    assert!(accepted.iter().all(|answer| answer.body == first[0].body), "{accepted:?}");
    for other in others {
        other.refused(409, "request-in-flight");
    }
    assert_eq!(id(&daemon.call(&pay("P-1", "k-1")).is(202)), id(&first[0].body));
    assert_eq!(world.number("select count(*) from command").await, 1);
    assert_eq!(world.number("select count(*) from outbox where event_type = 'CommandRequested'").await, 1);
}

#[tokio::test]
async fn a_daemon_killed_between_accepting_and_answering_has_accepted_once() {
    let world = World::new().await;
    let server = format!("127.0.0.1:{}", world.url().rsplit(':').next().unwrap().split('/').next().unwrap());
    let silence = Silence::before(server.parse().unwrap(), "command.remember_request");
    let (http, more) = (free_address(), configuration(&world));
    let url = world.url().replace(&server, &silence.address.to_string());
    let text =
        format!("[database]\nurl = \"{url}\"\nschema = \"{}\"\n[http]\nlisten = \"{http}\"\n{more}", world.schema);
    world.write("dipmo.toml", &text);
    let doomed = Arc::new(Daemon::start_as_configured(&world, http, &["--role", "upkeep"]));
    doomed.ready().await;
    let asking = std::thread::spawn({
        let doomed = Arc::clone(&doomed);
        move || doomed.send(&pay("P-1", "k-1"))
    });
    until("it is committed", async || world.number("select count(*) from command").await == 1).await;
    assert!(!asking.is_finished(), "nobody has been told");
    doomed.signal("-KILL");
    assert!(asking.join().unwrap().is_none(), "the caller never hears");
    let kept = world.text("select id from command").await;
    let daemon = accepting(&world).await;
    let again = daemon.call(&pay("P-1", "k-1"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(format!("({})", id(&again.is(202))), kept);
    assert_eq!(world.number("select count(*) from command").await, 1);
}

#[tokio::test]
async fn commands_and_dead_letters_are_listed_for_those_who_may() {
    let world = World::new().await;
    let daemon = accepting(&world).await;
    let ids: Vec<String> = ["P-1", "P-2", "P-3"].map(|key| id(&daemon.call(&pay(key, key)).is(202))).into();
    let listed = |query: &str| {
        let page = daemon.call(&get(&format!("/v1/commands{query}"), VIEWER)).is(200);
        (page["items"].as_array().unwrap().iter().map(id).collect::<Vec<_>>(), page["next"].clone())
    };
    let (first, next) = listed("?limit=2");
    assert_eq!(first, [ids[2].clone(), ids[1].clone()], "newest first");
    assert_eq!(listed(&format!("?limit=2&after={}", next.as_str().unwrap())), (vec![ids[0].clone()], Value::Null));
    assert_eq!(listed("?name=SubmitPayment&status=PENDING").0.len(), 3);
    assert!(listed("?status=FAILED").0.is_empty());
    daemon.call(&get("/v1/commands?status=LOST", VIEWER)).refused(400, "invalid-request");
    world
        .run_sql(&format!(
            "update command set status = 'FAILED', completed_at = now(), error_code = 'NO_FUNDS', last_error = 'empty'
             where id = '{0}'; insert into command_dlq (command_id, parked_by, attempts, error)
             values ('{0}', 'dipmo', 3, 'empty')",
            ids[0]
        ))
        .await;
    let dead = daemon.call(&get("/v1/dlq?name=SubmitPayment", VIEWER)).is(200);
    assert_eq!((id(&dead["items"][0]), &dead["items"][0]["error"]), (ids[0].clone(), &json!("empty")));
    let shown = daemon.call(&get(&format!("/v1/commands/{}", ids[0]), CLIENT)).is(200);
    assert_eq!((&shown["status"], &shown["errorCode"]), (&json!("FAILED"), &json!("NO_FUNDS")));
    assert!(shown["parkedAt"].is_string(), "{shown}");
    let nobody = format!("/v1/commands/{}", uuid::Uuid::nil());
    daemon.call(&get(&nobody, CLIENT)).refused(404, "not-found");
}

#[tokio::test]
async fn a_database_that_goes_away_is_told_and_waited_for_by_nobody() {
    let world = World::new().await;
    let daemon = accepting(&world).await;
    world.run_sql("alter table command rename to command_away").await;
    let broken = daemon.call(&pay("P-1", "k-1")).refused(503, "unavailable");
    assert!(!broken.to_string().contains("command_away"), "{broken}");
    world.run_sql("alter table command_away rename to command").await;
    let began = std::time::Instant::now();
    daemon.call(&pay("P-1", "k-1")).is(202);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_version_that_another_node_registers_is_used_without_a_restart() {
    let world = World::new().await;
    let daemon = Daemon::start(&world, &configuration(&world), &[]);
    daemon.ready().await;
    let current = "select hash from saga_definition where name = 'SubmitPayment' and current";
    let first = world.text(current).await;
    let more = configuration(&world);
    world.write(
        "sagas/payments.toml",
        &DEFINITIONS.replacen("SubmitPayment.Q\"", "SubmitPayment.Q\"\ntimeout = \"9m\"", 1),
    );
    let other = Daemon::start(&world, &more, &["--role", "upkeep"]);
    other.ready().await;
    let second = world.text(current).await;
    assert_ne!(first, second);
    let began = std::cell::Cell::new(0);
    until("the first node begins sagas with the new version", async || {
        began.set(began.get() + 1);
        let key = format!("P-{}", began.get());
        daemon.call(&pay(&key, &key)).is(202);
        let used = format!("select data->>'definition' from process where business_key = '{key}'");
        until("the saga has begun", async || !world.text(&used).await.is_empty()).await;
        world.text(&used).await == second
    })
    .await;
    assert_eq!(world.number("select count(*) from saga_definition where name = 'SubmitPayment'").await, 2);
}

#[tokio::test]
async fn definitions_with_mistakes_stop_the_start_with_file_line_and_column() {
    let world = World::new().await;
    let more = configuration(&world);
    world.write("sagas/broken.toml", "[[command]]\nname = \"X\"\nto = \"SMTP:x\"\nretri = 1\n");
    world.configure(&more);
    let ran = world.dipmo(&["run"]);
    assert!(ran.err.contains("sagas/broken.toml:3:") && ran.err.contains("sagas/broken.toml:4:"), "{ran:?}");
    ran.fails(2, "sagas/broken.toml");
    world.write("sagas/broken.toml", "[[command]]\nname = \"Ping\"\nto = \"INTERNAL:Q\"\n");
    world.dipmo(&["run"]).fails(2, "Ping is defined in sagas/broken.toml too");
    world.write("sagas/broken.toml", "[[command]]\nname = \"X\"\nto = \"INTERNAL:Q\"\nschema = \"none.json\"\n");
    world.dipmo(&["config", "check"]).fails(2, "the schema of X cannot be used");
    world.configure("[sagas]\nfiles = [\"nowhere/*.toml\"]\n");
    world.dipmo(&["run"]).fails(2, "sagas.files[0]: cannot read nowhere");
}
