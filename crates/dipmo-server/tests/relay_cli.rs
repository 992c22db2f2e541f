//! `dipmo relay` against a real server: readers and slots, answers, exit codes, audit rows, refusals.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use serde_json::Value;
use world::{Ran, World};

impl World {
    fn slot(&self) -> String {
        format!("dipmo_{}_outbox", self.schema)
    }

    fn verifying_slot(&self) -> String {
        format!("dipmo_{}_verify_outbox", self.schema)
    }

    fn reader(&self, reader: &str) -> Ran {
        self.dipmo(&["relay", "reader", reader, "--reason", "r"])
    }

    fn create_slot(&self) -> Ran {
        self.dipmo(&["relay", "slot", "create", "--reason", "r"])
    }

    fn drop_slot(&self, more: &[&str]) -> Ran {
        self.dipmo(&[&["relay", "slot", "drop", "--reason", "r"], more].concat())
    }

    /// As a relay that died leaves it.
    async fn slot_by_sql(&self, name: &str) {
        self.run_sql(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
    }

    async fn account(&self) -> String {
        self.text("select reader, slot, position from relay_lane where lane = 'KAFKA'").await
    }
}

#[tokio::test]
async fn the_reader_is_shown_changed_and_audited() {
    let world = World::new().await;
    assert_eq!(world.dipmo(&["relay", "reader", "-o", "name"]).ok().out, "poll\n");
    let unexplained = world.dipmo(&["relay", "reader", "wal"]);
    assert!(unexplained.code == 2 && unexplained.err.contains("--reason"), "{unexplained:?}");
    assert_eq!(world.reader("table").code, 2);
    world.reader("poll").fails(6, "lane KAFKA has the reader poll already");
    let done = world.reader("wal").ok().out;
    assert!(done.starts_with("relay.reader lane KAFKA: ") && done.contains("no relay for KAFKA is alive"), "{done}");
    assert_eq!(world.dipmo(&["relay", "reader", "-o", "json"]).ok().json()["reader"], "wal");
    world.run_sql("insert into node (name, role, detail) values ('n1', 'relay', '{\"lanes\": [\"KAFKA\"]}')").await;
    let done = world.reader("verify").ok().out;
    assert!(!done.contains("alive"), "{done}");
    let trail = "select action, target, detail->>'from', detail->>'to' from audit order by id";
    let expected = "(relay.reader,\"lane KAFKA\",poll,wal)\n(relay.reader,\"lane KAFKA\",wal,verify)";
    assert_eq!(world.text(trail).await, expected);
    assert_eq!(world.text("select reader from relay_lane where lane = 'INTERNAL'").await, "(poll)");
}

#[tokio::test]
async fn a_role_that_may_not_read_the_wal_cannot_ask_for_it() {
    let world = World::new().await;
    let (role, schema) = (format!("r_{}", world.schema), &world.schema);
    let grants =
        format!("grant usage on schema {schema} to {role}; grant all on all tables in schema {schema} to {role};");
    world
        .run_sql(&format!("create role {role} login; {grants} grant all on all sequences in schema {schema} to {role}"))
        .await;
    let url = world.url().replace("://postgres", &format!("://{role}"));
    world.write("dipmo.toml", &format!("[database]\nurl = \"{url}\"\nschema = \"{schema}\"\n"));
    let advice = format!("alter role {role} replication");
    let (wal, verify, create) = (world.reader("wal"), world.reader("verify"), world.create_slot());
    let status = world.dipmo(&["relay", "status"]);
    world.run_sql(&format!("drop owned by {role}; drop role {role}")).await;
    for refused in [wal, verify, create] {
        refused.fails(6, &advice);
    }
    assert!(status.ok().out.contains(&advice));
    assert_eq!(world.account().await, "(poll,,)");
    assert_eq!(world.number("select count(*) from audit").await, 0);
}

#[tokio::test]
async fn a_slot_is_made_beforehand_only_for_the_reader_that_needs_it() {
    let world = World::new().await;
    world.run_sql("create table messages (id uuid primary key)").await;
    world.configure(&format!("[relay]\nforeign_tables = [{{ table = \"{}.messages\" }}]\n", world.schema));
    world.create_slot().fails(6, "while the reader is poll");
    world.reader("verify").ok();
    world.create_slot().fails(6, "while the reader is verify");
    world.reader("wal").ok();
    let emit = "select outbox_emit('KAFKA:orders', 'Order', 'o-1', 'OrderPlaced', '{}')";
    assert!(world.sql.batch_execute(emit).await.is_err(), "nobody would keep it");
    let made = world.create_slot().ok().out;
    assert!(made.contains("WAL is kept from"), "{made}");
    world.run_sql(emit).await;
    world.create_slot().fails(6, "is there already");
    assert_eq!(world.account().await, format!("(wal,{},)", world.slot()));
    let published =
        "select tablename from pg_publication_tables where pubname = current_schema() || '_outbox' order by 1";
    assert_eq!(world.text(published).await, "(messages)\n(outbox)");
    assert_eq!(world.text("select action from audit order by id desc limit 1").await, "(relay.create_slot)");
    assert_eq!(world.dipmo(&["relay", "slot", "status", "-o", "name"]).ok().out, format!("{}\n", world.slot()));
}

#[tokio::test]
async fn the_status_shows_readers_slots_relays_and_what_is_in_the_way() {
    let world = World::new().await;
    let detail = r#"{"lanes": ["KAFKA"], "shards": 16, "wal_lag_bytes": 4096, "reader_problem": "no slot is free"}"#;
    world.run_sql(&format!("insert into node (name, role, detail) values ('n1', 'relay', '{detail}')")).await;
    world.reader("wal").ok();
    world.create_slot().ok();
    world.run_sql("insert into consumer (name) select 'c' || n from generate_series(1, 100) n").await;
    let status = world.dipmo(&["relay", "status", "-o", "json"]).ok().json();
    let (lane, slot, relay) = (&status["lanes"][0], &status["slots"][0], &status["relays"][0]);
    assert_eq!((&lane["lane"], &lane["reader"], &lane["slot"]), (&"KAFKA".into(), &"wal".into(), &slot["name"]));
    assert_eq!(
        (&slot["reader"], &slot["active"], &slot["wal_status"]),
        (&"wal".into(), &false.into(), &"reserved".into())
    );
    assert!(slot["kept_bytes"].as_i64() >= slot["behind_bytes"].as_i64() && slot["behind_bytes"].as_i64() > Some(0));
    assert_eq!((&relay["shards"], &relay["wal_lag_bytes"]), (&16.into(), &4096.into()));
    assert_eq!(relay["reader_problem"], "no slot is free");
    assert_eq!(status["server"]["wal_level"], "logical");
    let endless = |problem: &Value| problem.as_str().unwrap().starts_with("max_slot_wal_keep_size is -1");
    assert!(status["problems"].as_array().unwrap().iter().any(endless), "{status}");
    let table = world.dipmo(&["relay", "status"]).ok().out;
    for word in ["KAFKA", "nobody", "4 kB", "no slot is free", "WAL: max_slot_wal_keep_size is -1"] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    assert_eq!(world.dipmo(&["relay", "status", "-o", "name"]).ok().out, "KAFKA\twal\nINTERNAL\tpoll\nAMQP\tpoll\n");
    let lanes = &world.dipmo(&["status", "-o", "json"]).ok().json()["lanes"];
    let lane = |name: &str| lanes.as_array().unwrap().iter().find(|lane| lane["lane"] == name).unwrap();
    for name in ["INTERNAL", "AMQP"] {
        assert_eq!((&lane(name)["reader"], &lane(name)["wal_behind_bytes"]), (&"poll".into(), &Value::Null));
    }
    let kafka = lane("KAFKA");
    assert!(kafka["reader"] == "wal" && kafka["wal_behind_bytes"].as_i64() > Some(0), "{lanes}");
}

#[tokio::test]
async fn a_slot_that_a_relay_still_has_to_read_goes_only_by_force() {
    let world = World::new().await;
    world.reader("wal").ok();
    world.create_slot().ok();
    world.drop_slot(&[]).fails(3, "hint: add --yes");
    world.drop_slot(&["--yes"]).fails(6, "may hold messages that are nowhere else");
    world.reader("poll").ok();
    world.drop_slot(&["--yes"]).fails(6, "may hold messages that are nowhere else");
    world.reader("wal").ok();
    world.run_sql("update relay_lane set position = '0/1' where lane = 'KAFKA'").await;
    let done = world.drop_slot(&["--yes", "--force", "-o", "json"]).ok().json();
    assert_eq!((&done["action"], &done["detail"]["needed"]), (&"relay.drop_slot".into(), &true.into()));
    assert_eq!(world.dipmo(&["relay", "slot", "status", "-o", "json"]).ok().json(), Value::Array(Vec::new()));
    assert_eq!(world.account().await, format!("(wal,{},0/1)", world.slot()), "a relay must see what it has lost");
    assert_eq!(world.text("select action from audit order by id desc limit 1").await, "(relay.drop_slot)");
    world.drop_slot(&["--yes"]).fails(5, "there is no replication slot");
    world.drop_slot(&["someone_elses", "--yes"]).fails(2, "none of schema");
}

#[tokio::test]
async fn slots_that_were_left_behind_are_found_and_dropped() {
    let world = World::new().await;
    for slot in [world.slot(), world.verifying_slot()] {
        world.slot_by_sql(&slot).await;
        let ill = world.dipmo(&["doctor"]);
        assert_eq!(ill.code, 10, "{ill:?}");
        assert!(ill.out.contains(&format!("dipmo relay slot drop {slot} --reason")), "{ill:?}");
        world.drop_slot(&[&slot, "--yes"]).ok();
        world.dipmo(&["doctor"]).ok();
    }
}
