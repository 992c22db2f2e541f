//! Each level of the id horizon against a real server, driven step by step.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use support::{Scripted, World, drain};
use tokio_postgres::Client;

const TOPIC: &str = "KAFKA:orders";

/// Opens a transaction and leaves messages of the key in it.
async fn leave_open(world: &World, key: &str, bodies: &[&str]) -> Client {
    let client = world.writer().await;
    client.batch_execute("begin").await.unwrap();
    for body in bodies {
        add(world, &client, key, body).await;
    }
    client
}

async fn add(world: &World, client: &Client, key: &str, body: &str) {
    let sql = world.sql("select dipmo.outbox_append($1, 'order', $2, 'Placed', $3)");
    client.query(&sql, &[&TOPIC, &key, &body]).await.unwrap();
}

async fn open_gaps(world: &World) -> i64 {
    world.count("dipmo.relay_shard where gaps <> '{}'").await
}

#[tokio::test]
async fn a_transaction_left_open_holds_up_only_its_own_messages() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    let open = leave_open(&world, "late", &["1", "2"]).await;
    world.append(TOPIC, "quick", &["1", "2"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("quick"), ["1", "2"]);
    assert!(open_gaps(&world).await > 0, "the gap is durable");
    add(&world, &open, "late", "3").await;
    world.append(TOPIC, "quick", &["3"]).await;
    drain(&relay).await;
    assert_eq!((broker.bodies_of("quick").len(), broker.bodies_of("late").len()), (3, 0));
    open.batch_execute("commit").await.unwrap();
    world.append(TOPIC, "late", &["4"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("late"), ["1", "2", "3", "4"]);
    relay.stop().await.unwrap();
    assert_eq!(open_gaps(&world).await, 0, "nothing is left open");
    assert_eq!(world.states("late").await, ["PUBLISHED"; 4]);
}

#[tokio::test]
async fn a_transaction_that_aborts_leaves_no_gap() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    let open = leave_open(&world, "late", &["1"]).await;
    world.append(TOPIC, "quick", &["1"]).await;
    drain(&relay).await;
    open.batch_execute("rollback").await.unwrap();
    drain(&relay).await;
    relay.stop().await.unwrap();
    assert_eq!(open_gaps(&world).await, 0);
    assert_eq!(broker.bodies(), ["1"]);
}

#[tokio::test]
async fn a_prepared_transaction_is_a_staller_like_any_other() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    // A transaction that has notified cannot be prepared.
    world.execute("update dipmo.relay_wake set quiet = false").await;
    let open = leave_open(&world, "late", &["1"]).await;
    let name = world.db.schema().to_owned();
    open.batch_execute(&format!("prepare transaction '{name}'")).await.unwrap();
    world.append(TOPIC, "quick", &["1"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("quick"), ["1"]);
    open.batch_execute(&format!("commit prepared '{name}'")).await.unwrap();
    drain(&relay).await;
    assert_eq!(broker.bodies_of("late"), ["1"]);
}

#[tokio::test]
async fn a_long_writer_elsewhere_holds_up_nothing_and_makes_no_gap() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    world.execute("create table dipmo.elsewhere (n bigint)").await;
    let long = world.writer().await;
    long.batch_execute(&world.sql("begin; insert into dipmo.elsewhere values (1)")).await.unwrap();
    world.append(TOPIC, "quick", &["1", "2"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("quick"), ["1", "2"]);
    relay.stop().await.unwrap();
    assert_eq!(open_gaps(&world).await, 0);
}

#[tokio::test]
async fn gaps_are_inherited_by_the_next_owner() {
    let world = World::new().await;
    let broker = Scripted::new();
    let first = world.relay(broker.options("first"));
    let (kept, ended) = (leave_open(&world, "kept", &["1"]).await, leave_open(&world, "ended", &["1"]).await);
    world.append(TOPIC, "quick", &["1"]).await;
    drain(&first).await;
    // The first relay dies. One transaction ends before anybody looks again, the other after.
    drop(first);
    ended.batch_execute("commit").await.unwrap();
    world.append(TOPIC, "ended", &["2"]).await;
    world.advance(16);
    let heir = world.relay(broker.options("heir"));
    drain(&heir).await;
    assert_eq!(broker.bodies_of("ended"), ["1", "2"]);
    kept.batch_execute("commit").await.unwrap();
    world.append(TOPIC, "kept", &["2"]).await;
    drain(&heir).await;
    assert_eq!(broker.bodies_of("kept"), ["1", "2"]);
    assert_eq!(broker.bodies_of("quick"), ["1"]);
}

#[tokio::test]
async fn the_daily_jump_of_the_sequence_passes_with_a_transaction_left_open() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    let open = leave_open(&world, "late", &["1"]).await;
    world.append(TOPIC, "quick", &["1"]).await;
    // The partitions of the coming days are there already, so only the sequence moves.
    world
        .execute("select setval('dipmo.outbox_seq', dipmo.day_base((now() at time zone 'utc')::date + 1) - 1, true)")
        .await;
    add(&world, &open, "late", "2").await;
    world.append(TOPIC, "quick", &["2"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("quick"), ["1", "2"]);
    open.batch_execute("commit").await.unwrap();
    drain(&relay).await;
    assert_eq!(broker.bodies_of("late"), ["1", "2"]);
}

#[tokio::test]
async fn with_too_many_gaps_the_relay_waits_and_says_so() {
    let world = World::new().await;
    let broker = Scripted::new();
    let mut options = broker.options("r1");
    options.horizon.gap_ranges_max = 1;
    let relay = world.relay(options);
    let open = leave_open(&world, "late", &["1"]).await;
    world.append(TOPIC, "quick", &["1"]).await;
    add(&world, &open, "late", "2").await;
    world.append(TOPIC, "quick", &["2"]).await;
    drain(&relay).await;
    assert_eq!(broker.bodies_of("quick"), [""; 0], "nothing moves");
    assert_eq!(world.texts("select detail ->> 'capped' from dipmo.node").await, ["true"]);
    open.batch_execute("commit").await.unwrap();
    drain(&relay).await;
    assert_eq!((broker.bodies_of("late").len(), broker.bodies_of("quick").len()), (2, 2));
}

#[tokio::test]
async fn a_large_transaction_that_was_left_open_comes_out_whole_and_in_order() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    let open = leave_open(&world, "late", &[]).await;
    let sql = "select dipmo.outbox_append('KAFKA:orders', 'order', 'late', 'Placed', n::text) from generate_series(1, 12000) n";
    open.batch_execute(&world.sql(sql)).await.unwrap();
    world.append(TOPIC, "quick", &["1"]).await;
    drain(&relay).await;
    open.batch_execute("commit").await.unwrap();
    world.append(TOPIC, "late", &["12001"]).await;
    drain(&relay).await;
    let expected: Vec<String> = (1..=12_001).map(|n: u32| n.to_string()).collect();
    assert_eq!(broker.bodies_of("late"), expected);
}

#[tokio::test]
async fn the_heartbeat_names_the_session_that_stalls() {
    let world = World::new().await;
    let broker = Scripted::new();
    let relay = world.relay(broker.options("r1"));
    let open = leave_open(&world, "late", &["1"]).await;
    let pid: i32 = open.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    world.append(TOPIC, "quick", &["1"]).await;
    drain(&relay).await;
    let detail = "select concat_ws(' ', detail ->> 'level', s ->> 'pid', s ->> 'application_name')
                  from dipmo.node, jsonb_array_elements(detail -> 'stallers') s where s ->> 'pid' = ";
    assert_eq!(world.texts(&format!("{detail} '{pid}'")).await, [format!("3 {pid} writer")]);
    open.batch_execute("rollback").await.unwrap();
    drain(&relay).await;
    assert_eq!(world.texts(&format!("{detail} '{pid}'")).await, [""; 0]);
}
