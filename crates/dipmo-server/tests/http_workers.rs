//! Contexts without a database take their commands over HTTP, from a real daemon.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use serde_json::{Value, json};
use world::World;
use world::api::{CLIENT, OPERATOR, VIEWER, get, post, tokens};
use world::daemon::{Daemon, until};
use world::worker::{Say, Worker, ok};

const DEFINITIONS: &str = r#"
[[command]]
name = "BookFx"
to = "INTERNAL:APP.CMD.FX.BookFx.Q"
timeout = "25s"
retry = { attempts_max = 3, delay_max = "50ms", jitter_max = "0s" }

[[command]]
name = "Ping"
to = "INTERNAL:APP.CMD.OTHER.Ping.Q"
"#;

const TAKEN: Say = Say::This(202, &[("dipmo-lease-seconds", "60")], "");

fn section(name: &str, queue: &str, worker: &Worker, more: &str) -> String {
    format!("[[worker]]\nname = \"{name}\"\nqueues = [\"{queue}\"]\nurl = \"{}\"\n{more}\n", worker.url())
}

fn configuration(world: &World, workers: &str) -> String {
    world.write("fx.toml", DEFINITIONS);
    format!("{}[sagas]\nfiles = [\"fx.toml\"]\n{workers}", tokens())
}

/// A daemon whose commands BookFx go to the worker.
async fn serving(world: &World, worker: &Worker, more: &str) -> Daemon {
    let section = section("fx", "APP.CMD.FX.BookFx.Q", worker, more);
    let daemon = Daemon::start(world, &configuration(world, &section), &[]);
    daemon.ready().await;
    daemon
}

/// Sends a command; its address.
fn send(daemon: &Daemon, name: &str, key: &str) -> String {
    let body = json!({ "key": key, "payload": { "amount": "100.00" } });
    let accepted = daemon.call(&post(&format!("/v1/commands/{name}"), CLIENT, &body)).is(202);
    accepted["links"]["self"].as_str().unwrap().to_owned()
}

/// The command, once it has this status.
async fn command(daemon: &Daemon, place: &str, status: &str) -> Value {
    let shown = || daemon.call(&get(place, CLIENT)).is(200);
    until(&format!("the command is {status}"), async || shown()["status"] == status).await;
    shown()
}

/// The failures that were answered, in order: code, message, retryable.
async fn failures(world: &World) -> Vec<Value> {
    let query = "select convert_from(payload, 'UTF8') from outbox
                 where event_type = 'CommandFailed' and destination = 'INTERNAL:APP.CMD.REPLY.Q' order by id";
    let rows = world.sql.query(query, &[]).await.unwrap();
    let payload = |text: &str| serde_json::from_str::<Value>(text).unwrap()["payload"].clone();
    rows.iter().map(|row| payload(row.get(0))).collect()
}

#[tokio::test]
async fn a_worker_gets_the_envelope_as_it_was_sent_and_its_answer_is_the_result() {
    let world = World::new().await;
    let worker = Worker::saying([ok(r#"{"contract":"FX-7"}"#)]).await;
    let daemon = serving(&world, &worker, "").await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = json!({ "key": "P-1", "payload": { "amount": "100.00" } });
    let accepted = daemon.call(&post("/v1/commands/BookFx", CLIENT, &body).header("traceparent", trace)).is(202);
    let done = command(&daemon, accepted["links"]["self"].as_str().unwrap(), "SUCCEEDED").await;
    assert_eq!(done["result"], json!({ "contract": "FX-7" }));
    let [call] = &worker.seen()[..] else { panic!("{:?}", worker.seen()) };
    let stored =
        world.sql.query_one("select payload from outbox where destination like '%BookFx.Q'", &[]).await.unwrap();
    assert_eq!(call.body, stored.get::<_, Vec<u8>>(0));
    assert_eq!(call.envelope()["payload"], json!({ "amount": "100.00" }));
    assert_eq!(call.header("idempotency-key"), call.envelope()["headers"]["idempotencyKey"]);
    assert_eq!((call.header("traceparent"), call.header("content-type")), (trace, "application/json"));
    assert!(call.headers.get("authorization").is_none());
}

#[tokio::test]
async fn a_workers_no_ends_the_command_and_is_kept() {
    let world = World::new().await;
    let no = Say::This(422, &[], r#"{"code":"NO_LIMIT","message":"the limit is used up"}"#);
    let worker = Worker::saying([no, ok("not json"), ok("{}")]).await;
    let daemon = serving(&world, &worker, "").await;
    let failed = command(&daemon, &send(&daemon, "BookFx", "P-1"), "FAILED").await;
    assert_eq!((&failed["errorCode"], &failed["error"]), (&json!("NO_LIMIT"), &json!("the limit is used up")));
    let garbled = command(&daemon, &send(&daemon, "BookFx", "P-2"), "FAILED").await;
    assert_eq!(garbled["errorCode"], "ANSWER_NOT_JSON");
    assert_eq!(worker.seen().len(), 2, "neither is tried again");
    again(&world, "P-1").await;
    until("the repetition is answered", async || failures(&world).await.len() == 3).await;
    assert_eq!(failures(&world).await[2]["code"], "NO_LIMIT");
    assert_eq!(worker.seen().len(), 2, "the ledger answered");
}

#[tokio::test]
async fn what_may_pass_is_tried_again_under_the_same_idempotency_key() {
    let world = World::new().await;
    let busy = Say::This(429, &[("retry-after", "7")], "");
    let worker = Worker::saying([busy, Say::This(500, &[], "oops"), ok("{}")]).await;
    let daemon = serving(&world, &worker, "").await;
    let done = command(&daemon, &send(&daemon, "BookFx", "P-1"), "SUCCEEDED").await;
    assert_eq!(done["attempts"], 3);
    let failures = failures(&world).await;
    assert_eq!(failures[0]["message"], "worker fx answered 429 Too Many Requests (Retry-After: 7)");
    assert_eq!((&failures[1]["code"], &failures[1]["unknown"]), (&json!("HTTP_500"), &json!(true)));
    let keys: Vec<String> = worker.seen().iter().map(|call| call.header("idempotency-key").to_owned()).collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert!(worker.seen().iter().all(|call| call.peer == worker.seen()[0].peer), "the connection is kept");
}

#[tokio::test]
async fn a_worker_that_does_not_answer_is_given_up_in_time_and_keeps_no_other_waiting() {
    let world = World::new().await;
    let (silent, other) = (Worker::saying([Say::Nothing]).await, Worker::saying([ok("{}")]).await);
    let workers = [
        section("fx", "APP.CMD.FX.BookFx.Q", &silent, "timeout = \"20s\""),
        section("other", "APP.CMD.OTHER.Ping.Q", &other, ""),
    ];
    let daemon = Daemon::start(&world, &configuration(&world, &workers.concat()), &[]);
    daemon.ready().await;
    let waiting = send(&daemon, "BookFx", "P-1");
    until("the worker has the command", async || silent.seen().len() == 1).await;
    command(&daemon, &send(&daemon, "Ping", "P-1"), "SUCCEEDED").await;
    command(&daemon, &waiting, "PENDING").await;
    drop(daemon);

    let world = World::new().await;
    let slow = Worker::saying([Say::Nothing, ok("{}")]).await;
    let daemon = serving(&world, &slow, "timeout = \"200ms\"").await;
    command(&daemon, &send(&daemon, "BookFx", "P-1"), "SUCCEEDED").await;
    let failures = failures(&world).await;
    assert_eq!((&failures[0]["code"], &failures[0]["unknown"]), (&json!("WORKER_TIMEOUT"), &json!(true)));
    assert_eq!((failures.len(), slow.seen().len()), (1, 2));
}

#[tokio::test]
async fn a_daemon_killed_during_a_call_calls_again_under_the_same_idempotency_key() {
    let world = World::new().await;
    let worker = Worker::saying([Say::Nothing, ok("{}")]).await;
    let daemon = serving(&world, &worker, "timeout = \"5s\"").await;
    let place = send(&daemon, "BookFx", "P-1");
    until("the worker has the command", async || worker.seen().len() == 1).await;
    drop(daemon);
    let daemon = serving(&world, &worker, "timeout = \"5s\"").await;
    command(&daemon, &place, "SUCCEEDED").await;
    let [first, second] = &worker.seen()[..] else { panic!("{:?}", worker.seen()) };
    assert_eq!(first.header("idempotency-key"), second.header("idempotency-key"));
    assert_eq!(first.body, second.body, "the very same message");
}

/// Has the command of this key sent again, as another message.
async fn again(world: &World, key: &str) {
    let append = "select outbox_append(destination, aggregate_type, aggregate_id, event_type,
            jsonb_set(convert_from(payload, 'UTF8')::jsonb, '{messageId}', to_jsonb(gen_random_uuid()))::text,
            correlation_id => correlation_id, headers => headers::jsonb)
        from outbox where destination like '%BookFx.Q' and aggregate_id = $1 order by id limit 1";
    assert_eq!(world.sql.execute(append, &[&key]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_command_that_comes_again_is_answered_from_the_ledger_without_a_call() {
    let world = World::new().await;
    let worker = Worker::saying([ok(r#"{"n":1}"#), ok(r#"{"n":2}"#)]).await;
    let daemon = serving(&world, &worker, "").await;
    command(&daemon, &send(&daemon, "BookFx", "P-1"), "SUCCEEDED").await;
    again(&world, "P-1").await;
    let answers = "select convert_from(payload, 'UTF8')::jsonb->'payload' from outbox
                   where event_type = 'CommandCompleted' and destination = 'INTERNAL:APP.CMD.REPLY.Q' order by id";
    let both = "(\"{\"\"n\"\": 1}\")\n(\"{\"\"n\"\": 1}\")";
    until("both are answered alike", async || world.text(answers).await == both).await;
    assert_eq!(worker.seen().len(), 1);
}

#[tokio::test]
async fn a_worker_may_take_a_command_ask_for_more_time_and_answer_once() {
    let world = World::new().await;
    let worker = Worker::saying([TAKEN]).await;
    let daemon = serving(&world, &worker, "").await;
    let place = send(&daemon, "BookFx", "P-1");
    command(&daemon, &place, "RUNNING").await;
    let left = format!(
        "select extract(epoch from lease_until - now())::bigint from command where id = '{}'",
        place.rsplit('/').next().unwrap()
    );
    assert!((40..=60).contains(&world.number(&left).await), "the lease that the worker asked for");
    let tell = |verb: &str, token: &str, body: Value| daemon.call(&post(&format!("{place}/{verb}"), token, &body));
    assert_eq!(tell("lease", CLIENT, json!({ "seconds": 600 })).is(200)["seconds"], 600);
    until("the lease is longer", async || world.number(&left).await > 500).await;
    tell("lease", CLIENT, json!({ "seconds": 0 })).refused(400, "invalid-request");
    let completed = json!({ "status": "completed", "result": { "contract": "FX-7" } });
    tell("answer", VIEWER, completed.clone()).refused(403, "forbidden");
    assert_eq!(tell("answer", CLIENT, completed.clone()).is(200)["repeated"], false);
    assert_eq!(tell("answer", OPERATOR, completed).is(200)["repeated"], true);
    let other = json!({ "status": "completed", "result": { "contract": "FX-8" } });
    tell("answer", CLIENT, other).refused(409, "conflict");
    let failed = json!({ "status": "failed", "error": { "code": "C", "message": "m" } });
    tell("answer", CLIENT, failed).refused(409, "conflict");
    tell("lease", CLIENT, json!({ "seconds": 5 })).refused(409, "conflict");
    assert_eq!(command(&daemon, &place, "SUCCEEDED").await["result"], json!({ "contract": "FX-7" }));
    again(&world, "P-1").await;
    let answers = "select count(*) from outbox where event_type = 'CommandCompleted' and destination like '%REPLY.Q'";
    until("the repetition is answered", async || world.number(answers).await == 2).await;
    assert_eq!(worker.seen().len(), 1, "the ledger answered");
}

#[tokio::test]
async fn a_failure_answered_later_that_may_pass_has_the_command_sent_again() {
    let world = World::new().await;
    let worker = Worker::saying([TAKEN]).await;
    let daemon = serving(&world, &worker, "").await;
    let place = send(&daemon, "BookFx", "P-1");
    command(&daemon, &place, "RUNNING").await;
    let answer = |body: Value| daemon.call(&post(&format!("{place}/answer"), CLIENT, &body));
    let failed = json!({ "status": "failed", "error": { "code": "BUSY", "message": "m", "retryable": true } });
    assert_eq!(answer(failed.clone()).is(200)["repeated"], false);
    until("the worker has it again", async || worker.seen().len() == 2).await;
    let retaken = "select count(*) from command_taken where answer is null";
    until("and has taken it", async || world.number(retaken).await == 1).await;
    let refused = json!({ "status": "failed", "error": { "code": "CLOSED", "message": "the market is closed" } });
    assert_eq!(answer(refused).is(200)["repeated"], false);
    let ended = command(&daemon, &place, "FAILED").await;
    assert_eq!((&ended["errorCode"], &ended["attempts"]), (&json!("CLOSED"), &json!(2)));
    answer(failed).refused(409, "conflict");
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_or_that_says_nothing_is_refused() {
    let world = World::new().await;
    let worker = Worker::saying([Say::Nothing]).await;
    let daemon = serving(&world, &worker, "").await;
    let place = send(&daemon, "BookFx", "P-1");
    until("the worker has the command", async || worker.seen().len() == 1).await;
    let completed = json!({ "status": "completed" });
    let early = daemon.call(&post(&format!("{place}/answer"), CLIENT, &completed));
    assert_eq!(early.header("retry-after"), Some("1"), "its 202 may be on the way");
    early.refused(409, "conflict");
    let unknown = format!("/v1/commands/{}", uuid::Uuid::new_v4());
    daemon.call(&post(&format!("{unknown}/answer"), CLIENT, &completed)).refused(404, "not-found");
    daemon.call(&post(&format!("{unknown}/lease"), CLIENT, &json!({ "seconds": 5 }))).refused(404, "not-found");
    for body in [
        json!({ "status": "done" }),
        json!({ "status": "failed" }),
        json!({ "status": "failed", "error": { "code": "", "message": "m" } }),
        json!({ "status": "completed", "error": { "code": "C", "message": "m" } }),
        json!({ "status": "completed", "result": { "text": "\u{0}" } }),
        json!({ "status": "completed", "reslt": {} }),
    ] {
        daemon.call(&post(&format!("{place}/answer"), CLIENT, &body)).refused(400, "invalid-request");
    }
}

#[tokio::test]
async fn the_token_of_a_worker_is_sent_and_never_shown() {
    let world = World::new().await;
    world.write("token", "fx-sesame-0123456789\n");
    let denied = Say::This(401, &[], r#"{"code":"UNAUTHORIZED","message":"another token is needed"}"#);
    let worker = Worker::saying([ok("{}"), denied]).await;
    let log = "token_file = \"token\"\n[log]\nlevel = \"trace\"";
    let daemon = serving(&world, &worker, log).await;
    command(&daemon, &send(&daemon, "BookFx", "P-1"), "SUCCEEDED").await;
    assert_eq!(worker.seen()[0].header("authorization"), "Bearer fx-sesame-0123456789");
    let failed = command(&daemon, &send(&daemon, "BookFx", "P-2"), "FAILED").await;
    assert_eq!(failed["errorCode"], "UNAUTHORIZED");
    daemon.signal("-TERM");
    let ended = daemon.ended();
    assert!(!ended.err.contains("sesame") && !ended.out.contains("sesame"), "a token is in the log");
    assert!(ended.err.contains("TRACE"), "the log was asked for everything");
    let checked = world.dipmo(&["config", "check", "-o", "json"]).ok();
    assert_eq!(checked.json()["worker"][0]["place"], worker.url());
    assert!(!checked.out.contains("sesame"));
    std::fs::remove_file(world.dir.join("token")).unwrap();
    world.dipmo(&["run"]).fails(2, "worker[0].token_file: cannot read token");
    world.dipmo(&["config", "check"]).fails(2, "worker[0].token_file");
}
