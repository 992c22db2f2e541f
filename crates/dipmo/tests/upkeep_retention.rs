//! Upkeep: partitions are made ahead and dropped past their age, but never with anything unresolved.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use std::time::Duration;

use dipmo::upkeep::{Report, Retention, Upkeep, UpkeepOptions};
use support::World;

const DAY: Duration = Duration::from_secs(86_400);
/// The age in days of the partition that the tests put rows into.
const OLD: i64 = 30;

fn upkeep(world: &World) -> Upkeep {
    let retention = Retention { journal: Some(14 * DAY), ..Retention::default() };
    Upkeep::new(world.db.clone(), UpkeepOptions { retention, ..UpkeepOptions::default() }).unwrap()
}

/// A schema with partitions that are [`OLD`] days old.
async fn aged_world() -> World {
    let world = World::with_billing().await;
    world.run(&format!("select cut_partitions((now() at time zone 'utc')::date - {OLD}, 0)")).await;
    world
}

/// An id of the old day.
async fn old_id(world: &World, n: i64) -> i64 {
    world.number(&format!("select day_base((now() at time zone 'utc')::date - {OLD}) + {n}")).await
}

fn tables(names: &[String]) -> Vec<&str> {
    names.iter().map(|name| &name[..name.len() - 9]).collect()
}

fn kept(report: &Report) -> Vec<(&str, &str)> {
    report.partitions_kept.iter().map(|(name, why)| (&name[..name.len() - 9], why.as_str())).collect()
}

#[tokio::test]
async fn partitions_are_made_ahead_and_a_second_time_nothing_is_left_to_make() {
    let world = World::with_billing().await;
    let ahead = UpkeepOptions { partitions_ahead: 5, ..UpkeepOptions::default() };
    let upkeep = Upkeep::new(world.db.clone(), ahead).unwrap();
    assert_eq!(upkeep.run_once().await.unwrap().partitions_made, 8, "two more days for four tables");
    assert_eq!(upkeep.chores().await.unwrap(), Report::default());
    assert_eq!(world.text("select role from node").await, "(upkeep)");
}

#[tokio::test]
async fn old_partitions_with_nothing_unresolved_are_dropped() {
    let world = aged_world().await;
    let id = old_id(&world, 1).await;
    world.run(&format!("
        insert into inbox (id, consumer_id, source, message_id, topic, key, received_at, outcome)
        values ({id}, 1, 's', 'm', 't', 'k', now() - interval '{OLD} days', 'PROCESSED');
        insert into inbox_done (id, state, attempts, processed_at) values ({id}, 'PROCESSED', 1, now() - interval '{OLD} days');
        insert into outbox (id, shard, destination, key, aggregate_type, aggregate_id, event_type, created_at)
        values ({id}, 0, 'INTERNAL', 'k', 'a', 'k', 'E', now() - interval '{OLD} days');
        insert into outbox_exception (id, shard, destination, key, state) values ({id}, 0, 'INTERNAL', 'k', 'DISCARDED')")).await;
    let report = upkeep(&world).chores().await.unwrap();
    assert_eq!(tables(&report.partitions_dropped), ["inbox", "inbox_done", "journal", "outbox"]);
    assert_eq!(kept(&report), []);
    assert_eq!(world.number("select count(*) from outbox_exception").await, 0, "it went with its row");
    let left = "select count(*) from pg_class where relnamespace = current_schema::regnamespace and relkind = 'r'
                and relname ~ '_[0-9]{8}$'";
    assert_eq!(world.number(left).await, 16, "today and three days ahead, for four tables");
}

#[tokio::test]
async fn an_open_message_keeps_its_partition_however_old() {
    let world = aged_world().await;
    let id = old_id(&world, 1).await;
    world
        .run(&format!(
            "
        insert into inbox (id, consumer_id, source, message_id, topic, key, received_at)
        values ({id}, 1, 's', 'm', 't', 'k', now() - interval '{OLD} days');
        insert into inbox_work (id, consumer_id, bucket, key, state, error_code) values ({id}, 1, 0, 'k', 'DEAD', 'X')"
        ))
        .await;
    let report = upkeep(&world).chores().await.unwrap();
    assert_eq!(kept(&report), [("inbox", "1 open messages"), ("inbox_done", "1 open messages")]);
    assert_eq!(tables(&report.partitions_dropped), ["journal", "outbox"]);
    world.run("delete from inbox_work").await;
    assert_eq!(tables(&upkeep(&world).chores().await.unwrap().partitions_dropped), ["inbox", "inbox_done"]);
}

#[tokio::test]
async fn a_message_not_sent_keeps_its_partition() {
    for (unresolved, why) in [
        ("update relay_shard set cursor = {id} - 1 where shard = 3", "1 messages not sent yet"),
        (
            "update relay_shard set gaps = int8multirange(int8range({id}, {id} + 1)) where shard = 3",
            "1 shards with open gaps",
        ),
        (
            "insert into outbox_exception (id, shard, destination, key, state) values ({id}, 3, 'INTERNAL', 'k', 'DEAD')",
            "1 messages that could not be sent",
        ),
    ] {
        let world = aged_world().await;
        let id = old_id(&world, 9).await;
        world
            .run(&format!(
                "
            insert into outbox (id, shard, destination, key, aggregate_type, aggregate_id, event_type, created_at)
            values ({id}, 3, 'INTERNAL', 'k', 'a', 'k', 'E', now() - interval '{OLD} days')"
            ))
            .await;
        world.run(&unresolved.replace("{id}", &id.to_string())).await;
        assert_eq!(kept(&upkeep(&world).chores().await.unwrap()), [("outbox", why)]);
        assert_eq!(world.number("select count(*) from outbox").await, 1);
    }
}

#[tokio::test]
async fn a_lane_without_a_relay_does_not_keep_partitions_that_hold_nothing_for_it() {
    let world = aged_world().await;
    world.run("update relay_shard set cursor = 0").await;
    let report = upkeep(&world).chores().await.unwrap();
    assert!(tables(&report.partitions_dropped).contains(&"outbox"), "{report:?}");
}

#[tokio::test]
async fn the_history_of_an_open_process_is_kept() {
    let world = aged_world().await;
    let id = old_id(&world, 1).await;
    world.run(&format!("
        insert into process (id, type, business_key, state, status, version, data)
        values ('00000000-0000-0000-0000-000000000007', 'kyc', 'c', 'REVIEW', 'PAUSED', 1, '{{}}');
        insert into journal (id, process_id, version, kind, to_state, status, at)
        values ({id}, '00000000-0000-0000-0000-000000000007', 1, 'MESSAGE', 'REVIEW', 'RUNNING', now() - interval '{OLD} days')")).await;
    let report = upkeep(&world).chores().await.unwrap();
    assert_eq!(kept(&report), [("journal", "1 open processes with history in it")]);
}

#[tokio::test]
async fn the_journal_is_kept_for_ever_unless_a_retention_is_given() {
    let world = aged_world().await;
    let upkeep = Upkeep::new(world.db.clone(), UpkeepOptions::default()).unwrap();
    assert_eq!(tables(&upkeep.chores().await.unwrap().partitions_dropped), ["inbox", "inbox_done", "outbox"]);
}

#[tokio::test]
async fn a_partition_that_was_cut_late_is_as_old_as_its_newest_row() {
    let world = aged_world().await;
    let id = old_id(&world, 1).await;
    world
        .run(&format!(
            "
        insert into inbox (id, consumer_id, source, message_id, topic, key, received_at, outcome)
        values ({id}, 1, 's', 'm', 't', 'k', now() - interval '2 days', 'PROCESSED')"
        ))
        .await;
    let report = upkeep(&world).chores().await.unwrap();
    assert_eq!(kept(&report), [("inbox", "rows younger than the retention")]);
}

#[tokio::test]
async fn an_inserter_left_open_delays_the_drop_and_blocks_nobody() {
    let world = aged_world().await;
    let idle = world.another_session("other").await;
    idle.batch_execute("begin; select outbox_append('INTERNAL', 'a', 'k', 'E', '{}')").await.unwrap();
    let upkeep = upkeep(&world);
    let dropping = upkeep.chores();
    let inserting = async {
        // While the drop waits, others insert without waiting for it.
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let began = std::time::Instant::now();
            world.outbox("INTERNAL", "other", None).await;
            slowest = slowest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slowest
    };
    let (report, slowest) = tokio::join!(dropping, inserting);
    let report = report.unwrap();
    // Whoever waits for the drop waits until its lock_timeout of three seconds.
    assert!(slowest < Duration::from_secs(2), "an insert waited {slowest:?}");
    assert_eq!(kept(&report), [("outbox", "a transaction that uses the table is still open")]);
    idle.batch_execute("rollback").await.unwrap();
    assert_eq!(tables(&upkeep.chores().await.unwrap().partitions_dropped), ["outbox"], "finished by the next run");
}

#[tokio::test]
async fn a_partition_left_detached_by_a_crash_is_dropped_or_given_back() {
    let world = aged_world().await;
    let id = old_id(&world, 1).await;
    let names = world
        .text(
            "select relname from pg_class where relnamespace = current_schema::regnamespace
                            and relkind = 'r' and relname ~ '^(inbox|journal)_[0-9]{8}$' order by relname",
        )
        .await;
    let old: Vec<&str> = names.lines().map(|l| l.trim_matches(['(', ')'])).collect();
    let (inbox, journal) = (old[0], old.iter().find(|n| n.starts_with("journal")).unwrap());
    world
        .run(&format!("alter table inbox detach partition {inbox}; alter table journal detach partition {journal}"))
        .await;
    world
        .run(&format!(
            "
        insert into {inbox} (id, consumer_id, source, message_id, topic, key, received_at)
        values ({id}, 1, 's', 'm', 't', 'k', now() - interval '{OLD} days');
        insert into inbox_work (id, consumer_id, bucket, key, state, error_code) values ({id}, 1, 0, 'k', 'DEAD', 'X')"
        ))
        .await;
    let report = upkeep(&world).chores().await.unwrap();
    assert!(tables(&report.partitions_dropped).contains(&"journal"), "{report:?}");
    assert_eq!(world.number("select count(*) from inbox").await, 1, "the open message is visible again");
}

#[tokio::test]
async fn old_memory_is_forgotten_and_young_memory_is_kept() {
    let world = World::with_billing().await;
    world
        .run(
            "
        insert into inbox_dedupe (key, seen_at)
        select gen_random_uuid(), now() - n * interval '1 day' from generate_series(1, 40) n;
        insert into outbox_version (key, seen_at)
        select gen_random_uuid(), now() - n * interval '1 day' from generate_series(1, 40) n;
        insert into relay_batch (shard, from_id, to_id, sent, at)
        select 0, n, n, 1, now() - n * interval '1 day' from generate_series(1, 40) n;
        insert into node (name, role, seen_at) values ('gone', 'relay', now() - interval '2 days');
        insert into node (name, role) values ('here', 'relay')",
        )
        .await;
    upkeep(&world).chores().await.unwrap();
    assert_eq!(world.number("select count(*) from inbox_dedupe").await, 34, "35 days");
    assert_eq!(world.number("select count(*) from outbox_version").await, 34);
    assert_eq!(world.number("select count(*) from relay_batch").await, 13, "14 days");
    assert_eq!(world.text("select name from node").await, "(here)");
}

#[tokio::test]
async fn a_dedupe_window_that_is_too_short_is_refused_before_anything_runs() {
    let world = World::with_billing().await;
    let retention = Retention { dedupe: 3 * DAY, ..Retention::default() };
    let refused = Upkeep::new(world.db.clone(), UpkeepOptions { retention, ..UpkeepOptions::default() });
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("retention.dedupe = 3d is too short") && why.contains("= 21d"), "{why}");
}
