//! The REST API of a real daemon: who may do what, what is refused and how, and what operators do with it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use serde_json::{Value, json};
use world::World;
use world::api::{ADMIN, CLIENT, OPERATOR, VIEWER, get, post, tokens};
use world::daemon::{Daemon, until};

/// A daemon that only keeps the tables, so that what a test puts there stays.
async fn daemon(world: &World, more: &str) -> Daemon {
    let daemon = Daemon::start(world, more, &["--role", "upkeep"]);
    daemon.ready().await;
    daemon
}

const READS: [&str; 11] = [
    "/v1/status",
    "/v1/doctor",
    "/v1/relay",
    "/v1/inbox",
    "/v1/outbox",
    "/v1/keys",
    "/v1/processes",
    "/v1/audit",
    "/v1/commands",
    "/v1/dlq",
    "/v1/batches",
];

#[tokio::test]
async fn a_role_may_do_what_it_is_for_and_nothing_else() {
    let world = World::new().await;
    let message = world.message("k", "DEAD", b"{}").await;
    let daemon = daemon(&world, &tokens()).await;
    for path in READS {
        daemon.call(&get(path, CLIENT)).refused(403, "forbidden");
        for token in [VIEWER, OPERATOR, ADMIN] {
            daemon.call(&get(path, token)).is(200);
        }
    }
    let shown = format!("/v1/inbox/{message}");
    assert_eq!(daemon.call(&get(&shown, VIEWER)).is(200)["payload"], Value::Null);
    let refused = daemon.call(&get(&format!("{shown}?payload=true"), VIEWER)).refused(403, "forbidden");
    assert!(refused["hint"].as_str().unwrap().contains("operator, admin"), "{refused}");
    assert_eq!(daemon.call(&get(&format!("{shown}?payload=true"), OPERATOR)).is(200)["payload"]["text"], "{}");
    let why = json!({ "reason": "because" });
    for token in [CLIENT, VIEWER] {
        daemon.call(&post(&format!("{shown}/retry"), token, &why)).refused(403, "forbidden");
    }
    daemon.call(&post("/v1/commands/Any", VIEWER, &json!({ "key": "k" }))).refused(403, "forbidden");
    let reader = json!({ "reader": "poll", "reason": "because" });
    daemon.call(&post("/v1/relay/reader", OPERATOR, &reader)).refused(403, "forbidden");
    daemon.call(&post("/v1/relay/reader", ADMIN, &reader)).refused(409, "conflict");
}

#[tokio::test]
async fn whoever_has_no_valid_token_gets_nothing_but_health_metrics_and_the_document() {
    let world = World::new().await;
    let daemon = daemon(&world, &tokens()).await;
    for call in [
        get("/v1/status", ""),
        get("/v1/status", "viewer-sesame-012345678"),
        get("/v1/status", &format!("{VIEWER}x")),
        get("/v1/status", "").header("authorization", &format!("Basic {VIEWER}")),
        get("/v1/status", "").header("authorization", VIEWER),
    ] {
        let answer = daemon.call(&call);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"dipmo\""), "{answer:?}");
        answer.refused(401, "unauthorized");
    }
    daemon.call(&get("/v1/status", "").header("authorization", &format!("bearer {VIEWER}"))).is(200);
    for open in ["/healthz", "/readyz", "/metrics", "/v1/openapi.json"] {
        assert_eq!(daemon.get(open).unwrap().0, 200, "{open}");
    }
}

#[tokio::test]
async fn without_tokens_the_api_says_how_to_configure_it_and_the_rest_works() {
    let world = World::new().await;
    let daemon = daemon(&world, "").await;
    for token in ["", VIEWER] {
        let problem = daemon.call(&get("/v1/status", token)).refused(503, "api-not-configured");
        assert!(problem["hint"].as_str().unwrap().contains("[api]"), "{problem}");
    }
    assert_eq!(daemon.get("/healthz").unwrap().0, 200);
}

#[tokio::test]
async fn what_cannot_be_understood_is_refused_with_what_and_where() {
    let world = World::new().await;
    let daemon = daemon(
        &world,
        &format!("{}[log]\nlevel = \"trace\"\n", tokens().replace("[api]\n", "[api]\nbody_max_bytes = 2000\n")),
    )
    .await;
    let instance = daemon.call(&get("/v1/nothing?x=1", VIEWER)).refused(404, "no-such-route");
    assert_eq!(instance["instance"], "/v1/nothing");
    daemon.call(&get("/", "")).refused(404, "no-such-route");
    let answer = daemon.call(&get("/v1/inbox", VIEWER).method("DELETE"));
    assert!(answer.header("allow").is_some_and(|allow| allow.contains("GET")), "{answer:?}");
    answer.refused(405, "method-not-allowed");
    let cases = [
        (get("/v1/inbox?stat=DEAD", VIEWER), "unknown field `stat`"),
        (get("/v1/inbox?limit=many", VIEWER), "invalid digit"),
        (get("/v1/inbox?limit=0", VIEWER), "a page has 1 to 1000 rows"),
        (get("/v1/inbox?after=x", VIEWER), "is not a row of this list"),
        (get("/v1/inbox?state=LOST", VIEWER), "unknown state"),
        (get("/v1/inbox/x", VIEWER), "Cannot parse `x`"),
        (get("/v1/processes/x", VIEWER), "x"),
        (get("/v1/commands/x", CLIENT), "x"),
        (post("/v1/inbox/1/retry", OPERATOR, &json!({})), "missing field `reason`"),
        (post("/v1/inbox/1/retry", OPERATOR, &json!({ "reason": " " })), "a change needs its reason"),
        (post("/v1/inbox/1/retry", OPERATOR, &json!({ "reason": "r", "force": true })), "unknown field `force`"),
        (post("/v1/inbox/1/retry", OPERATOR, &json!({})).raw("{\"reason\": "), "line 1 column"),
        (post("/v1/inbox/1/retry", OPERATOR, &json!({})).raw(""), "no body"),
    ];
    for (call, expected) in cases {
        let problem = daemon.call(&call).refused(400, "invalid-request");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{problem} should say {expected:?}");
    }
    let form = post("/v1/inbox/1/retry", OPERATOR, &json!({})).header("content-type", "text/plain");
    daemon.call(&form).refused(415, "media-type");
    let long = post("/v1/inbox/1/retry", OPERATOR, &json!({ "reason": "x".repeat(2_000) }));
    daemon.call(&long).refused(413, "too-large");
    for missing in
        ["/v1/inbox/1", "/v1/outbox/1", "/v1/keys/billing/k", "/v1/processes/00000000-0000-0000-0000-000000000000"]
    {
        daemon.call(&get(missing, VIEWER)).refused(404, "not-found");
    }
    daemon.call(&post("/v1/inbox/1/retry", OPERATOR, &json!({ "reason": "r" }))).refused(404, "not-found");
    daemon.signal("-TERM");
    let ended = daemon.ended();
    assert!(!ended.err.contains("sesame") && !ended.out.contains("sesame"), "a token is in the log");
    assert!(ended.err.contains("TRACE"), "the log was asked for everything");
}

#[tokio::test]
async fn the_document_names_every_parameter_that_a_route_knows() {
    let world = World::new().await;
    let daemon = daemon(&world, &tokens()).await;
    let document = daemon.document();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let parameters = item["get"]["parameters"].as_array().cloned().unwrap_or_default();
        let documented: Vec<&str> =
            parameters.iter().filter(|p| p["in"] == "query").map(|p| p["name"].as_str().unwrap()).collect();
        if documented.is_empty() {
            continue;
        }
        let place = path.replace("{id}", "1");
        let problem = daemon.call(&get(&format!("{place}?zzz=1"), VIEWER)).refused(400, "invalid-request");
        let known: Vec<&str> = problem["detail"].as_str().unwrap().split('`').skip(3).step_by(2).collect();
        assert_eq!(known, documented, "{path}: {problem}");
        asked += 1;
    }
    assert!(asked >= 8, "{asked}");
}

#[tokio::test]
async fn operators_repair_over_the_api_and_the_audit_names_their_token() {
    let world = World::new().await;
    let (head, behind) = world.parked_key("a/b ü").await;
    let (retried, _) = world.parked_key("r").await;
    let (dead, broken) = (world.message("d", "DEAD", b"{}").await, world.message("s", "SERDE_ERROR", b"\xff").await);
    let unsent = world.unsent("o", "DEAD").await;
    let consumer = format!(
        "[[consumer]]\nname = \"billing\"\ninternal = [\"X\"]\nformat = \"bytes\"\nhandler = {{ sql = \"{}.f\" }}\n",
        world.schema
    );
    world.run_sql("create function f(m jsonb) returns void language sql as ''").await;
    let daemon = daemon(&world, &format!("{}{consumer}", tokens())).await;
    let why = |reason: &str| json!({ "reason": reason });
    let key = "/v1/keys/billing/a%2Fb%20%C3%BC";
    assert_eq!(daemon.call(&get(key, VIEWER)).is(200)["waiting"]["n"], 1);
    let waits = daemon.call(&post(&format!("/v1/inbox/{behind}/retry"), OPERATOR, &why("r"))).refused(409, "conflict");
    assert!(waits["detail"].as_str().unwrap().contains(&format!("it waits behind {head}")), "{waits}");
    let changes = [
        (format!("/v1/inbox/{retried}/retry"), "inbox.retry"),
        (format!("/v1/inbox/{dead}/discard"), "inbox.discard"),
        (format!("/v1/inbox/{broken}/redecode"), "inbox.redecode"),
        (format!("/v1/outbox/{unsent}/retry"), "outbox.retry"),
        (format!("/v1/outbox/{unsent}/discard"), "outbox.discard"),
    ];
    for (path, action) in &changes {
        let changed = daemon.call(&post(path, OPERATOR, &why("checked with the shop"))).is(200);
        assert_eq!(changed["action"], *action);
    }
    let release = json!({ "reason": "the first can wait", "skipGap": false });
    assert_eq!(daemon.call(&post(&format!("{key}/release"), ADMIN, &release)).is(200)["action"], "key.release");
    let audit = daemon.call(&get("/v1/audit?limit=4", VIEWER)).is(200);
    let rows = audit["items"].as_array().unwrap();
    assert_eq!((&rows[0]["actor"], &rows[0]["reason"]), (&json!("the-admin"), &json!("the first can wait")));
    let next = audit["next"].as_str().unwrap();
    let rest = daemon.call(&get(&format!("/v1/audit?limit=4&after={next}&actor=the-operator"), VIEWER)).is(200);
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
    assert_eq!(rest["items"][1]["action"], "inbox.retry");
    assert_eq!(daemon.call(&get("/v1/outbox?state=DISCARDED", VIEWER)).is(200)["items"][0]["id"], unsent);
    let metrics = "dipmo_api_requests_total{method=\"POST\",route=\"/v1/inbox/{id}/retry\",status=\"200\"} 1";
    until("it is counted", async || daemon.get("/metrics").is_some_and(|(_, text)| text.contains(metrics))).await;
}

#[tokio::test]
async fn a_token_may_be_kept_in_a_file_or_a_variable_and_one_that_is_not_there_stops_the_start() {
    let world = World::new().await;
    world.write("token", &format!("{OPERATOR}\n"));
    let file = "[[api.tokens]]\nname = \"ann\"\nrole = \"operator\"\ntoken_file = \"token\"\n";
    let daemon = daemon(&world, file).await;
    daemon.call(&get("/v1/status", OPERATOR)).is(200);
    drop(daemon);
    let checked = world.dipmo(&["config", "check", "-o", "json"]).ok();
    assert_eq!(checked.json()["api"]["tokens"], json!([{ "name": "ann", "role": "operator" }]));
    world.configure("[[api.tokens]]\nname = \"ann\"\nrole = \"operator\"\ntoken_env = \"NO_SUCH_TOKEN\"\n");
    world.dipmo(&["run"]).fails(2, "api.tokens[0].token_env: the environment variable NO_SUCH_TOKEN is not set");
    world.dipmo(&["config", "check"]).fails(2, "api.tokens[0].token_env");
    world.write("token", "short");
    world.configure(file);
    world.dipmo(&["run"]).fails(2, "could be guessed");
}

#[tokio::test]
async fn batches_are_listed_and_counted() {
    let world = World::new().await;
    let (batch, saga) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    world
        .run_sql(&format!(
            "insert into batch_run (batch_id, type, status, expected) values ('{batch}', 'Payout', 'RUNNING', 3);
             insert into batch_item (batch_id, item_id, status, last_error, saga_id) values
             ('{batch}', 'a', 'SUCCEEDED', null, '{saga}'), ('{batch}', 'b', 'FAILED', 'no funds', '{saga}')"
        ))
        .await;
    let daemon = daemon(&world, &tokens()).await;
    let listed = daemon.call(&get("/v1/batches?type=Payout&status=RUNNING", VIEWER)).is(200);
    assert_eq!(listed["items"][0]["id"], batch.to_string());
    let shown = daemon.call(&get(&format!("/v1/batches/{batch}"), VIEWER)).is(200);
    assert_eq!((&shown["counts"]["FAILED"], &shown["failures"][0]["error"]), (&json!(1), &json!("no funds")));
    daemon.call(&get(&format!("/v1/batches/{saga}"), VIEWER)).refused(404, "not-found");
    daemon.call(&get("/v1/batches?status=LOST", VIEWER)).refused(400, "invalid-request");
    daemon.call(&get("/v1/journeys/nothing", VIEWER)).refused(404, "not-found");
    daemon.call(&get("/v1/why/nothing", VIEWER)).refused(404, "not-found");
}
