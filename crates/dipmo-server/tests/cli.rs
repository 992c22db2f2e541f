//! Every verb of the command line against a real schema: answers, exit codes, audit rows, refusals.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use serde_json::Value;
use world::{World, ran};

fn items(value: &Value) -> Vec<i64> {
    value["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn the_schema_is_planned_made_and_checked() {
    let world = World::bare().await;
    world.dipmo(&["schema", "check"]).fails(1, "run `dipmo schema migrate`");
    let plan = world.dipmo(&["schema", "plan"]).ok();
    assert!(plan.out.contains("-- 1 spine") && plan.out.contains(&format!("create table {}.inbox", world.schema)));
    world.dipmo(&["status"]).fails(1, "hint: the schema is missing");
    assert!(world.dipmo(&["schema", "migrate"]).ok().out.contains("applied 1 spine"));
    assert!(world.dipmo(&["schema", "migrate"]).ok().out.contains("nothing to do"));
    assert!(world.dipmo(&["schema", "check"]).ok().out.contains("is up to date"));
    assert_eq!(world.dipmo(&["schema", "check", "-o", "json"]).ok().json()["up_to_date"], true);
}

#[tokio::test]
async fn the_status_shows_consumers_lanes_and_nodes() {
    let world = World::new().await;
    world.parked_key("k").await;
    world.run_sql("insert into node (name, role) values ('n1', 'relay')").await;
    let table = world.dipmo(&["status"]).ok().out;
    for word in ["billing", "KAFKA", "INTERNAL", "n1", "PARKED KEYS"] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    let json = world.dipmo(&["status", "-o", "json"]).ok().json();
    assert_eq!(json["consumers"][0]["dead"]["n"], 1);
    assert_eq!(world.dipmo(&["status", "-o", "name"]).ok().out, "billing\n");
}

#[tokio::test]
async fn lists_come_in_every_form_and_in_pages() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(world.message(&format!("k{n}"), "DEAD", b"{}").await);
    }
    let first = world.dipmo(&["inbox", "list", "--limit", "2", "-o", "json"]).ok().json();
    let after = first["next"].as_str().unwrap();
    let rest = world.dipmo(&["inbox", "list", "--limit", "2", "--after", after, "-o", "json"]).ok().json();
    assert_eq!([items(&first), items(&rest)].concat(), ids);
    for form in ["table", "jsonl", "name"] {
        let page = world.dipmo(&["inbox", "list", "--limit", "2", "-o", form]).ok();
        assert!(page.err.contains(&format!("more: --after {after}")), "a script must not take it for all: {page:?}");
    }
    assert!(world.dipmo(&["inbox", "list"]).ok().out.contains("NO_STOCK"));
    let names = world.dipmo(&["inbox", "list", "--state", "DEAD", "-o", "name"]).ok().out;
    assert_eq!(names.lines().map(|l| l.parse::<i64>().unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(world.dipmo(&["inbox", "list", "-o", "jsonl"]).ok().out.lines().count(), 3);
    world.dipmo(&["inbox", "list", "--state", "LOST"]).fails(2, "unknown state");
    world.dipmo(&["inbox", "list", "--after", "x"]).fails(2, "--after");
    world.dipmo(&["inbox", "list", "--limit", "0"]).fails(2, "1 to 1000");
}

#[tokio::test]
async fn a_message_is_shown_and_its_payload_only_when_asked_for() {
    let world = World::new().await;
    let id = world.message("k", "DEAD", b"{\"card\": 4711}").await.to_string();
    let veiled = world.dipmo(&["inbox", "show", &id]).ok().out;
    assert!(veiled.contains("out of stock") && !veiled.contains("4711"), "{veiled}");
    let shown = world.dipmo(&["inbox", "show", &id, "--payload", "-o", "json"]).ok().json();
    assert_eq!(shown["payload"]["text"], "{\"card\": 4711}");
    world.dipmo(&["inbox", "show", "1"]).fails(5, "there is no inbox message 1");
}

#[tokio::test]
async fn a_retry_is_audited_with_who_and_why() {
    let world = World::new().await;
    let (a, _) = world.parked_key("a").await;
    let (b, _) = world.parked_key("b").await;
    let (c, _) = world.parked_key("c").await;
    let (a, b, c) = (a.to_string(), b.to_string(), c.to_string());
    let missing = world.dipmo(&["inbox", "retry", &a]);
    assert!(missing.code == 2 && missing.err.contains("--reason"), "{missing:?}");
    world.dipmo(&["inbox", "retry", &a, "--reason", "  "]).fails(2, "a change needs its reason");
    world.dipmo(&["inbox", "retry", &a, "--reason", "stock is back", "--actor", "ann"]).ok();
    let by_variable = world.command().args(["inbox", "retry", &b, "--reason", "r"]).env("DIPMO_ACTOR", "bob").output();
    ran(by_variable.unwrap()).ok();
    world.dipmo(&["inbox", "retry", &c, "--reason", "r"]).ok();
    assert_eq!(world.text("select actor from audit order by id").await, "(ann)\n(bob)\n(shell-user)");
    assert_eq!(world.text("select distinct state, attempts from inbox_work where state = 'RETRY'").await, "(RETRY,0)");
    let nobody = world.command().args(["inbox", "retry", &a, "--reason", "r"]).env_remove("USER").output();
    ran(nobody.unwrap()).fails(2, "a change needs its actor");
    let trail = world.dipmo(&["audit", "list", "--actor", "ann", "-o", "json"]).ok().json();
    assert_eq!(trail["items"][0]["reason"], "stock is back");
    assert!(world.dipmo(&["audit", "list"]).ok().out.contains("inbox.retry"));
}

#[tokio::test]
async fn a_discard_needs_a_yes_where_nobody_can_be_asked() {
    let world = World::new().await;
    let (head, parked) = world.parked_key("k").await;
    let (head, parked) = (head.to_string(), parked.to_string());
    world.dipmo(&["inbox", "discard", &head, "--reason", "r"]).fails(3, "hint: add --yes");
    assert_eq!(world.number("select count(*) from audit").await, 0);
    world.dipmo(&["inbox", "discard", &parked, "--reason", "r", "--yes"]).fails(6, "waits behind");
    let done = world.dipmo(&["inbox", "discard", &head, "--reason", "r", "--yes", "-o", "json"]).ok().json();
    assert_eq!(done["detail"]["key_released"], true);
    world.dipmo(&["inbox", "discard", &head, "--reason", "r", "--yes"]).fails(6, "is IGNORED already");
    assert_eq!(world.text("select state from parked_key").await, "(DRAINING)");
}

#[tokio::test]
async fn what_could_not_be_decoded_is_decoded_by_the_rules_of_the_file() {
    let world = World::new().await;
    let id = world.message("k", "SERDE_ERROR", b"\xff\xfe").await.to_string();
    let redecode = ["inbox", "redecode", &id, "--reason", "format was wrong"];
    world.dipmo(&redecode).fails(1, "no consumer \"billing\"");
    let rules = |format: &str| {
        format!(
            "[[consumer]]\nname = \"billing\"\ninternal = [\"*\"]\nhandler = {{ sql = \"f\" }}\nformat = \"{format}\"\n"
        )
    };
    world.configure(&rules("json"));
    world.dipmo(&redecode).fails(1, "still cannot be decoded");
    world.configure(&rules("bytes"));
    assert!(world.dipmo(&redecode).ok().out.contains("received anew as"));
    assert_eq!(world.text("select state from inbox_work").await, "(RECEIVED)");
    assert_eq!(world.text("select action from audit").await, "(inbox.redecode)");
}

#[tokio::test]
async fn the_dedupe_memory_can_be_asked() {
    let world = World::new().await;
    world.run_sql("select inbox_once('billing', 'orders', 'm-1')").await;
    let ask =
        |id: &str| world.dipmo(&["inbox", "seen", "--consumer", "billing", "--source", "orders", "--message-id", id]);
    assert!(ask("m-1").ok().out.contains("seen_at"));
    ask("m-2").fails(5, "has not seen");
}

#[tokio::test]
async fn keys_are_listed_shown_and_released() {
    let world = World::new().await;
    let (head, _) = world.parked_key("k 1").await;
    let listed = world.dipmo(&["key", "list", "-o", "json"]).ok().json();
    assert_eq!((listed["items"][0]["head_id"].as_i64(), &listed["items"][0]["waiting"]["n"]), (Some(head), &1.into()));
    assert!(world.dipmo(&["key", "list", "--consumer", "billing"]).ok().out.contains("k 1"));
    assert_eq!(world.dipmo(&["key", "list", "-o", "name"]).ok().out, "billing\tk 1\n");
    assert!(world.dipmo(&["key", "show", "billing", "k 1"]).ok().out.contains("WAITING"));
    world.dipmo(&["key", "show", "billing", "other"]).fails(5, "is not parked");
    world.dipmo(&["key", "release", "billing", "k 1", "--reason", "r"]).fails(3, "--yes");
    world.dipmo(&["key", "release", "billing", "k 1", "--reason", "r", "--yes"]).ok();
    world.dipmo(&["key", "release", "billing", "k 1", "--reason", "r", "--yes"]).fails(6, "being released already");
    assert_eq!(world.text("select action, target from audit").await, "(key.release,\"key \"\"k 1\"\" of billing\")");
}

#[tokio::test]
async fn outbox_messages_are_listed_shown_retried_and_discarded() {
    let world = World::new().await;
    let dead = world.unsent("k", "DEAD").await;
    let parked = world.unsent("k", "PARKED").await;
    let listed = world.dipmo(&["outbox", "list", "-o", "json"]).ok().json();
    assert_eq!(items(&listed), [dead, parked]);
    let (dead, parked) = (dead.to_string(), parked.to_string());
    let shown = world.dipmo(&["outbox", "show", &dead, "--payload", "-o", "json"]).ok().json();
    assert_eq!((&shown["state"], &shown["payload"]["text"]), (&"DEAD".into(), &"{\"amount\": 1}".into()));
    world.dipmo(&["outbox", "show", "3"]).fails(5, "there is no outbox message 3");
    world.dipmo(&["outbox", "retry", &parked, "--reason", "r"]).fails(6, &format!("waits behind {dead}"));
    world.dipmo(&["outbox", "retry", &dead, "--reason", "r"]).ok();
    world.dipmo(&["outbox", "discard", &dead, "--reason", "r"]).fails(3, "--yes");
    world.dipmo(&["outbox", "discard", &dead, "--reason", "r", "--yes"]).ok();
    assert_eq!(world.text("select action from audit order by id").await, "(outbox.retry)\n(outbox.discard)");
    assert_eq!(world.text(&format!("select state from outbox_exception where id = {dead}")).await, "(DISCARDED)");
}

#[tokio::test]
async fn processes_are_listed_and_shown_with_their_journal() {
    let world = World::new().await;
    let id = "00000000-0000-0000-0000-000000000007";
    world.run_sql(&format!("
        insert into process (id, type, business_key, state, status, version, data)
        values ('{id}', 'kyc', 'c-1', 'REVIEW', 'RUNNING', 1, '{{}}');
        insert into journal (process_id, version, kind, to_state, status) values ('{id}', 1, 'MESSAGE', 'REVIEW', 'RUNNING')")).await;
    assert!(world.dipmo(&["process", "list", "--type", "kyc", "--status", "RUNNING"]).ok().out.contains("c-1"));
    let shown = world.dipmo(&["process", "show", id, "-o", "json"]).ok().json();
    assert_eq!((&shown["business_key"], &shown["journal"][0]["to_state"]), (&"c-1".into(), &"REVIEW".into()));
    world.dipmo(&["process", "show", "00000000-0000-0000-0000-000000000008"]).fails(5, "there is no process");
}

#[tokio::test]
async fn the_doctor_answers_with_ten_when_something_is_wrong() {
    let world = World::new().await;
    let well = world.dipmo(&["doctor"]).ok();
    assert!(well.out.contains("ok        schema"), "{well:?}");
    world.run_sql("alter table timer set unlogged").await;
    let ill = world.dipmo(&["doctor", "-o", "name"]);
    assert_eq!((ill.code, ill.out.as_str()), (10, "unlogged\n"));
    let ill = world.dipmo(&["doctor", "-o", "json"]);
    assert_eq!((ill.code, &ill.json()["degraded"]), (10, &true.into()));
}

#[tokio::test]
async fn what_cannot_be_reached_or_entered_is_told_apart() {
    let world = World::new().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    world.write("dipmo.toml", &format!("[database]\nurl = \"postgres://u:hunter2@{closed}/d\"\n"));
    let away = world.dipmo(&["status"]);
    assert!(!away.err.contains("hunter2"), "{away:?}");
    away.fails(7, "hint: is PostgreSQL running");
    let stranger = world.url().replace("://postgres", "://dipmo_no_such_user");
    world.write("dipmo.toml", &format!("[database]\nurl = \"{stranger}\"\n"));
    world.dipmo(&["status"]).fails(4, "hint: check user and password");
    world.write("dipmo.toml", "[database]\nurl = \"hunter2\"\n");
    let invalid = world.dipmo(&["status"]);
    assert!(!invalid.err.contains("hunter2"), "{invalid:?}");
    invalid.fails(2, "the database URL is not valid");
}

#[tokio::test]
async fn the_url_alone_is_enough_to_look() {
    let world = World::bare().await;
    std::fs::remove_file(world.dir.join("dipmo.toml")).unwrap();
    world.dipmo(&["status"]).fails(2, "DIPMO_DATABASE_URL");
    let asked = world.command().args(["schema", "plan"]).env("DIPMO_DATABASE_URL", world.url()).output().unwrap();
    // The schema `dipmo` of the test server may be there or not; either way the database answered.
    assert_ne!(ran(asked).code, 7);
}

#[tokio::test]
async fn a_configuration_is_checked_and_told_without_its_secrets() {
    let world = World::bare().await;
    world.write("pw", "hunter2");
    world.configure("[kafka]\nbrokers = \"b:9092\"\n[kafka.settings]\n\"sasl.password_file\" = \"pw\"\n");
    let checked = world.dipmo(&["config", "check"]).ok();
    assert!(checked.out.contains("is valid") && checked.out.contains("b:9092"), "{checked:?}");
    for form in ["table", "json", "jsonl"] {
        let all = world.dipmo(&["config", "check", "-o", form]).ok();
        assert!(!format!("{all:?}").contains("hunter2") && !all.out.contains(world.url()), "{all:?}");
    }
    std::fs::remove_file(world.dir.join("pw")).unwrap();
    world.dipmo(&["config", "check"]).fails(2, "kafka.settings.sasl.password_file");
    world.configure("shema = \"x\"\n");
    world.dipmo(&["config", "check"]).fails(2, "dipmo.toml:4: database.shema: unknown field");
    world.dipmo(&["config", "check", "-c", "nowhere.toml"]).fails(2, "nowhere.toml: cannot be read");
}

#[tokio::test]
async fn a_mistake_on_the_command_line_is_two() {
    let world = World::bare().await;
    for args in [&["inbox"][..], &["frobnicate"], &["inbox", "show", "x"], &["status", "-o", "xml"]] {
        assert_eq!(world.dipmo(args).code, 2, "{args:?}");
    }
    assert_eq!(world.dipmo(&["--version"]).code, 0);
}
