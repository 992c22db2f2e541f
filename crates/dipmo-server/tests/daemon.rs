//! The daemon as a process: SQL handlers end to end, health, signals, and refusals at the start.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::net::TcpListener;

use world::World;
use world::daemon::{Daemon, free_address, until};

/// A consumer of INTERNAL that is handled by the function `on_order` of the test's schema.
fn consumer(world: &World) -> String {
    format!(
        "[[consumer]]\nname = \"billing\"\ninternal = [\"OrderPlaced\"]\nhandler = {{ sql = \"{}.on_order\" }}\n",
        world.schema
    )
}

async fn function(world: &World, body: &str) {
    world
        .run_sql(&format!(
            "
        create table effect (message_id text, key text, amount numeric);
        create function on_order(message jsonb) returns void language plpgsql set search_path = {} as
        $$ begin {body} end $$",
            world.schema
        ))
        .await;
}

async fn place(world: &World, key: &str) {
    world
        .run_sql(&format!("select outbox_append('INTERNAL', 'Order', '{key}', 'OrderPlaced', '{{\"amount\": 12.50}}')"))
        .await;
}

#[tokio::test]
async fn a_sql_handler_has_its_effect_once_and_a_stop_drains() {
    let world = World::new().await;
    function(
        &world,
        "insert into effect values (message->>'messageId', message->>'key', (message->'payload'->>'amount')::numeric);",
    )
    .await;
    let daemon = Daemon::start(&world, &consumer(&world), &[]);
    daemon.ready().await;
    for n in 0..20 {
        place(&world, &format!("o-{n}")).await;
    }
    until("every effect is there", async || world.number("select count(*) from effect").await >= 20).await;
    assert_eq!(daemon.get("/healthz"), Some((200, "alive\n".to_owned())));
    for gauge in [
        "dipmo_inbox_depth{consumer=\"billing\",state=\"DEAD\"}",
        "dipmo_inbox_oldest_age_seconds{consumer=\"billing\"}",
        "dipmo_parked_keys{consumer=\"billing\"}",
        "dipmo_outbox_pending{lane=\"INTERNAL\"}",
        "dipmo_outbox_oldest_age_seconds{lane=\"KAFKA\"}",
        "dipmo_relay_heartbeat_age_seconds",
    ] {
        until(gauge, async || daemon.get("/metrics").is_some_and(|(_, text)| text.contains(gauge))).await;
    }
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);
    assert_eq!(
        world.text("select count(*), count(distinct message_id), sum(amount) from effect").await,
        "(20,20,250.00)"
    );
    assert_eq!(world.number("select count(*) from inbox_status where state = 'PROCESSED'").await, 20);
}

#[tokio::test]
async fn the_code_that_a_function_raises_decides_what_becomes_of_the_message() {
    let world = World::new().await;
    function(
        &world,
        "
        if message->>'key' = 'later' then raise exception 'not yet' using errcode = 'DP001'; end if;
        if message->>'key' = 'never' then raise exception 'no such account' using errcode = 'DP002'; end if;
        if message->>'key' = 'old' then raise exception 'seen a newer one' using errcode = 'DP003'; end if;
        insert into effect values (message->>'messageId', message->>'key', 1);",
    )
    .await;
    let daemon = Daemon::start(&world, &consumer(&world), &[]);
    daemon.ready().await;
    for key in ["later", "never", "old", "fine"] {
        place(&world, key).await;
    }
    let states = "select key, state, coalesce(reason, error_code) from inbox_status order by key";
    let expected = "(fine,PROCESSED,)\n(later,RETRY,DP001)\n(never,DEAD,DP002)\n(old,IGNORED,\"seen a newer one\")";
    until("each has its state", async || world.text(states).await == expected).await;
    daemon.signal("-INT");
    assert_eq!(daemon.ended().code, 0);
    assert_eq!(world.text("select key from effect").await, "(fine)", "what failed left nothing behind");
}

#[tokio::test]
async fn an_operator_repairs_what_the_daemon_could_not_do() {
    let world = World::new().await;
    world.run_sql("create table closed (key text)").await;
    function(
        &world,
        "
        if exists (select 1 from closed c where c.key = message->>'key') then
            raise exception 'account closed' using errcode = 'DP002';
        end if;
        insert into effect values (message->>'messageId', message->>'key', 1);",
    )
    .await;
    world.run_sql("insert into closed values ('a'), ('b'), ('c')").await;
    let daemon = Daemon::start(&world, &consumer(&world), &[]);
    daemon.ready().await;
    for key in ["a", "a", "b", "b", "c", "c"] {
        place(&world, key).await;
    }
    let open = "select state, count(*) from inbox_work group by state order by state";
    until("the keys are parked", async || world.text(open).await == "(DEAD,3)\n(PARKED,3)").await;
    let head =
        |key: &str| world.dipmo(&["key", "show", "billing", key, "-o", "json"]).ok().json()["head_id"].to_string();
    let (a, b) = (head("a"), head("b"));
    world.run_sql("delete from closed").await;
    world.dipmo(&["inbox", "retry", &a, "--reason", "account reopened"]).ok();
    world.dipmo(&["inbox", "discard", &b, "--reason", "booked by hand", "--yes"]).ok();
    world.dipmo(&["key", "release", "billing", "c", "--reason", "the first can wait", "--yes"]).ok();
    until("the keys are free", async || world.number("select count(*) from parked_key").await == 0).await;
    assert_eq!(world.text("select key, count(*) from effect group by key order by key").await, "(a,2)\n(b,1)\n(c,1)");
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);
}

#[tokio::test]
async fn a_key_that_waits_for_a_version_goes_on_when_the_gap_is_skipped() {
    let world = World::new().await;
    function(
        &world,
        "insert into effect values (message->>'messageId', message->>'key', (message->>'aggregateVersion')::numeric);",
    )
    .await;
    let daemon = Daemon::start(&world, &format!("{}versions = \"park-on-gap\"\n", consumer(&world)), &[]);
    daemon.ready().await;
    for version in [1, 4, 5] {
        world
            .run_sql(&format!(
                "select outbox_append('INTERNAL', 'Order', 'o', 'OrderPlaced', '{{}}', aggregate_version => {version})"
            ))
            .await;
    }
    until("the key waits", async || world.text("select awaits_version from parked_key").await == "(2)").await;
    until("both wait", async || world.number("select count(*) from inbox_work where state = 'PARKED'").await == 2)
        .await;
    world.dipmo(&["key", "release", "billing", "o", "--reason", "r", "--yes"]).fails(6, "waits for version 2");
    world.dipmo(&["key", "release", "billing", "o", "--skip-gap", "--reason", "2 and 3 are lost", "--yes"]).ok();
    until("the key is free", async || world.number("select count(*) from parked_key").await == 0).await;
    assert_eq!(world.text("select amount from effect order by amount").await, "(1)\n(4)\n(5)");
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);
}

#[tokio::test]
async fn a_second_signal_ends_a_drain_at_once() {
    let world = World::new().await;
    function(&world, "perform pg_sleep(60);").await;
    let daemon = Daemon::start(&world, &consumer(&world), &[]);
    daemon.ready().await;
    place(&world, "slow").await;
    let busy = "select count(*) from pg_stat_activity where query like '%on_order%' and wait_event = 'PgSleep'
                and query like '%' || current_schema || '%'";
    until("the handler runs", async || world.number(busy).await == 1).await;
    daemon.signal("-TERM");
    let draining = || daemon.get("/readyz").is_some_and(|(code, body)| code == 503 && body.contains("draining"));
    until("it says that it drains", async || draining()).await;
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 130);
    world
        .run_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity
                   where query like '%' || current_schema || '%' and wait_event = 'PgSleep'",
        )
        .await;
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for_and_said() {
    let world = World::new().await;
    let (closed, http) = (free_address(), free_address());
    let text = format!("[database]\nurl = \"postgres://u:hunter2@{closed}/d\"\n[http]\nlisten = \"{http}\"\n");
    world.write("dipmo.toml", &text);
    let daemon = Daemon::start_as_configured(&world, http, &[]);
    until("it says why it is not ready", async || {
        daemon.get("/readyz").is_some_and(|(code, body)| code == 503 && body.contains("connecting to PostgreSQL"))
    })
    .await;
    assert_eq!(daemon.get("/healthz").map(|(code, _)| code), Some(200), "alive all the same");
    daemon.signal("-TERM");
    let ended = daemon.ended();
    assert!(ended.code == 0 && ended.err.contains("waiting for the database"), "{ended:?}");
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
}

#[tokio::test]
async fn a_start_that_cannot_work_is_refused_with_the_reason() {
    let world = World::new().await;
    let missing = Daemon::start(&world, &consumer(&world), &[]).ended();
    missing.fails(2, &format!("there is no SQL function {}.on_order(jsonb)", world.schema));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    world.configure(&format!("[http]\nlisten = \"{}\"\n", taken.local_addr().unwrap()));
    world.dipmo(&["run"]).fails(1, "cannot listen on");
    let bare = World::bare().await;
    Daemon::start(&bare, "", &[]).ended().fails(1, "run `dipmo schema migrate`");
    world.configure("[http]\nlisten = \"off\"\n");
    world.dipmo(&["run", "--role", "worker"]).fails(2, "there is nothing to run");
}

#[tokio::test]
async fn only_the_roles_asked_for_run() {
    let world = World::new().await;
    let daemon = Daemon::start(&world, "[node]\nname = \"keeper\"\n[log]\nformat = \"json\"\n", &["--role", "upkeep"]);
    daemon.ready().await;
    until("upkeep beats", async || world.text("select name, role from node").await == "(keeper,upkeep)").await;
    daemon.signal("-TERM");
    let ended = daemon.ended();
    assert_eq!(ended.code, 0);
    let running = ended.err.lines().find(|line| line.contains("\"running\"")).unwrap_or_else(|| panic!("{ended:?}"));
    let line: serde_json::Value = serde_json::from_str(running).unwrap();
    assert_eq!(line["loops"], "batches, upkeep");
}
