//! Commands and definitions on the command line: sent, seen, checked, with exit codes for scripts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use serde_json::json;
use world::World;
use world::daemon::Daemon;

const DEFINITIONS: &str = r#"
[[command]]
name = "Ping"
to = "INTERNAL:APP.CMD.NET.Ping.Q"
schema = { type = "object", properties = { host = { type = "string" } } }
"#;

async fn world() -> World {
    let world = World::new().await;
    world.write("ping.toml", DEFINITIONS);
    world.configure("[sagas]\nfiles = [\"ping.toml\"]\n");
    world
}

#[tokio::test]
async fn a_command_is_sent_once_and_seen() {
    let world = world().await;
    world.write("payload.json", r#"{ "host": "a" }"#);
    let send = ["command", "send", "Ping", "--key", "P-1", "--payload", "@payload.json", "--idempotency-key", "k"];
    let first = world.dipmo(&[&send[..], &["-o", "json"]].concat()).ok().json();
    assert_eq!((&first["status"], &first["repeated"]), (&json!("PENDING"), &json!(false)));
    let id = first["commandId"].as_str().unwrap();
    let again = world.dipmo(&[&send[..], &["-o", "json"]].concat()).ok().json();
    assert_eq!((&again["commandId"], &again["repeated"]), (&json!(id), &json!(true)));
    assert_eq!(world.dipmo(&[&send[..], &["-o", "name"]].concat()).ok().out, format!("{id}\n"));
    let shown = world.dipmo(&["command", "show", id, "-o", "json"]).ok().json();
    assert_eq!((&shown["key"], &shown["name"], &shown["status"]), (&json!("P-1"), &json!("Ping"), &json!("PENDING")));
    let listed = world.dipmo(&["command", "list", "--name", "Ping"]).ok().out;
    assert!(listed.starts_with("ID ") && listed.contains(id) && listed.contains("PENDING"), "{listed}");
    world
        .run_sql("insert into command_dlq (command_id, parked_by, attempts, error) select id, 'dipmo', 3, 'away' from command")
        .await;
    assert_eq!(world.dipmo(&["dlq", "list", "-o", "name"]).ok().out, format!("{id}\n"));
    assert!(world.dipmo(&["dlq", "list"]).ok().out.contains("away"));
    assert_eq!(world.number("select count(*) from outbox").await, 1);
}

#[tokio::test]
async fn what_cannot_be_sent_ends_with_the_code_of_its_reason() {
    let world = world().await;
    world.dipmo(&["command", "send", "Pong", "--key", "P-1"]).fails(5, "hint: known are Ping");
    let bad = ["command", "send", "Ping", "--key", "P-1", "--payload", r#"{"host": 7}"#];
    world.dipmo(&bad).fails(2, "/payload/host");
    world.dipmo(&["command", "send", "Ping", "--key", "P-1", "--payload", "{"]).fails(2, "--payload: not JSON");
    world.dipmo(&["command", "send", "Ping", "--key", "P-1", "--payload", "@none"]).fails(2, "cannot read none");
    world.dipmo(&["command", "send", "Ping", "--key", ""]).fails(2, "key is empty");
    world.dipmo(&["command", "send", "Ping", "--key", "P-1"]).ok();
    world.dipmo(&["command", "send", "Ping", "--key", "P-1"]).fails(6, "there is a command of this name for this key");
    world.dipmo(&["command", "show", "00000000-0000-0000-0000-000000000000"]).fails(5, "there is no command");
    world.dipmo(&["command", "list", "--status", "LOST"]).fails(2, "TIMED_OUT");
}

#[tokio::test]
async fn definitions_are_checked_and_the_registered_ones_shown() {
    let world = world().await;
    assert!(world.dipmo(&["process", "definitions", "check"]).ok().out.contains("1 definitions are valid: Ping"));
    world.write("bad.toml", "[[command]]\nname = \"X\"\nto = \"SMTP:x\"\nretri = 1\n");
    let checked = world.dipmo(&["process", "definitions", "check", "ping.toml", "bad.toml", "none.toml"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    let places: Vec<&str> = checked.out.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["bad.toml:3:6", "bad.toml:4:1", "none.toml:1:1"], "{checked:?}");
    let problems = world.dipmo(&["process", "definitions", "check", "bad.toml", "-o", "json"]).json();
    assert_eq!((&problems["valid"], &problems["problems"][0]["line"]), (&json!(false), &json!(3)));
    assert!(problems["problems"][0]["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{problems}");
    world.dipmo(&["process", "definitions", "show", "Ping"]).fails(5, "a daemon registers its files when it starts");
    let daemon = Daemon::start(&world, "[sagas]\nfiles = [\"ping.toml\"]\n", &["--role", "upkeep"]);
    daemon.ready().await;
    let shown = world.dipmo(&["process", "definitions", "show", "Ping", "-o", "json"]).ok().json();
    assert_eq!((&shown["current"], &shown["body"]["name"]), (&json!(true), &json!("Ping")));
    let hash = shown["hash"].as_str().unwrap();
    world.dipmo(&["process", "definitions", "show", "Ping", "--hash", &hash[..8]]).ok();
    assert!(world.dipmo(&["process", "definitions", "list"]).ok().out.contains(hash));
}

#[tokio::test]
async fn the_document_is_the_one_that_the_daemon_gives() {
    let world = World::new().await;
    let daemon = Daemon::start(&world, "", &["--role", "upkeep"]);
    daemon.ready().await;
    assert_eq!(world.dipmo(&["openapi"]).ok().json(), daemon.document());
}
