//! `doctor` finds each fault that can be made in a schema, and says what to do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use std::time::Duration;

use dipmo::clock::Clock;
use dipmo::operator::doctor::{Check, Diagnosis, DoctorOptions, Verdict, doctor};
use dipmo::upkeep::{Retention, UpkeepOptions};
use support::{World, postgres_url};

async fn diagnose(world: &World) -> Diagnosis {
    diagnose_with(world, DoctorOptions::default()).await
}

async fn diagnose_with(world: &World, options: DoctorOptions) -> Diagnosis {
    doctor(&world.db, &options).await.unwrap()
}

fn faults(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis.checks.iter().filter(|c| c.verdict == Verdict::Degraded).map(|c| c.name).collect()
}

fn check<'a>(diagnosis: &'a Diagnosis, name: &str) -> &'a Check {
    diagnosis.checks.iter().find(|c| c.name == name).unwrap()
}

#[tokio::test]
async fn a_fresh_schema_is_well() {
    let world = World::with_billing().await;
    let diagnosis = diagnose(&world).await;
    assert!(!diagnosis.degraded, "{diagnosis:?}");
}

#[tokio::test]
async fn a_schema_that_is_not_known_is_a_fault_and_not_an_error() {
    let world = World::with_billing().await;
    world.run("insert into schema_migration (version, name, checksum) values (999, 'future', 'x')").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["schema"]);
    assert!(check(&diagnosis, "schema").finding.contains("newer dipmo"));
}

#[tokio::test]
async fn partitions_that_end_today_and_sequences_left_behind_are_found() {
    let world = World::with_billing().await;
    for day in 1..=3 {
        let name = world
            .text(&format!("select 'journal_' || to_char((now() at time zone 'utc')::date + {day}, 'YYYYMMDD')"))
            .await;
        world.run(&format!("drop table {}", name.trim_matches(['(', ')']))).await;
    }
    world.run("select setval('outbox_seq', day_base((now() at time zone 'utc')::date - 2) + 5)").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["partitions", "sequences"]);
    assert_eq!(check(&diagnosis, "partitions").finding, "journal ends today");
    assert_eq!(check(&diagnosis, "sequences").finding, "outbox_seq is -2 days from today");
}

#[tokio::test]
async fn just_after_midnight_yesterdays_sequences_are_no_fault() {
    let midnight = time::OffsetDateTime::now_utc().replace_time(time::Time::MIDNIGHT);
    for (minutes, expected) in [(10, "in today's range"), (40, "outbox_seq is -1 days from today")] {
        let clock = Clock::manual(midnight + Duration::from_secs(60 * minutes));
        let world = World::on(&postgres_url(), clock).await;
        // Wherever a fresh schema has them: all in the range of the clock's day, and one a day behind it.
        let day = "select day_base((now() at time zone 'utc')::date";
        for sequence in ["inbox_seq", "journal_seq"] {
            world.run(&format!("select setval('{sequence}', ({day}) + 5))")).await;
        }
        world.run(&format!("select setval('outbox_seq', ({day} - 1) + 5))")).await;
        assert_eq!(check(&diagnose(&world).await, "sequences").finding, expected);
    }
}

#[tokio::test]
async fn work_in_a_bucket_that_nobody_holds_is_found() {
    let world = World::with_billing().await;
    assert!(!diagnose(&world).await.degraded, "a consumer without work needs no worker");
    world.message("k", "RECEIVED").await;
    assert_eq!(faults(&diagnose(&world).await), ["leases"], "no worker has ever run");
    let lease = "insert into lease (scope, bucket, owner, until)
                 select 'worker:billing', b, 'n1', now() + interval '1 minute' from generate_series(0, 15) b";
    world.run(lease).await;
    assert!(!diagnose(&world).await.degraded);
    world.run("update lease set until = now() - interval '1 s'").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(
        check(&diagnosis, "leases").finding,
        "work waits in buckets that nobody holds: 1 buckets of worker:billing"
    );
}

#[tokio::test]
async fn a_silent_relay_and_old_pending_messages_are_found() {
    let world = World::with_billing().await;
    world.run("insert into node (name, role, seen_at) values ('n1', 'relay', now() - interval '5 minutes')").await;
    assert!(!diagnose(&world).await.degraded, "silence with nothing to send is a note");
    world.outbox("KAFKA:orders", "k", None).await;
    world.run("update outbox set created_at = now() - interval '5 minutes'").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["relay", "pending"]);
    assert!(check(&diagnosis, "pending").finding.contains("KAFKA: 1 pending"));
}

#[tokio::test]
async fn a_session_that_holds_the_outbox_is_named() {
    let world = World::with_billing().await;
    let held = world.another_session("other").await;
    held.batch_execute(
        "set application_name = 'forgetful'; begin; select outbox_append('INTERNAL', 'a', 'k', 'E', '{}')",
    )
    .await
    .unwrap();
    let options = DoctorOptions { transaction_age_max: Duration::ZERO, ..DoctorOptions::default() };
    let diagnosis = diagnose_with(&world, options).await;
    assert_eq!(faults(&diagnosis), ["sessions"]);
    let finding = &check(&diagnosis, "sessions").finding;
    assert!(finding.contains("application forgetful") && finding.contains("idle in transaction"), "{finding}");
    held.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn a_forgotten_prepared_transaction_is_named() {
    let world = World::with_billing().await;
    let gid = world.db.schema().to_owned();
    let session = world.another_session("other").await;
    let prepared = session
        .batch_execute(&format!("begin; insert into consumer (name) values ('p'); prepare transaction '{gid}'"))
        .await;
    if let Err(error) = prepared {
        // The test server may have been started without room for them; then there is nothing to find.
        assert_eq!(error.code().map(|c| c.code()), Some("55000"), "{error:?}");
        return;
    }
    let options = DoctorOptions { prepared_age_max: Duration::ZERO, ..DoctorOptions::default() };
    let diagnosis = diagnose_with(&world, options).await;
    session.batch_execute(&format!("rollback prepared '{gid}'")).await.unwrap();
    assert!(check(&diagnosis, "prepared").finding.contains(&gid), "{diagnosis:?}");
}

#[tokio::test]
async fn tables_that_a_crash_would_empty_and_disabled_triggers_are_found() {
    let world = World::with_billing().await;
    world.run("alter table timer set unlogged; alter table audit disable trigger audit_is_append_only").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["unlogged", "triggers"]);
    assert!(check(&diagnosis, "unlogged").finding.contains("timer"));
    assert!(check(&diagnosis, "triggers").finding.contains("audit_is_append_only on audit"));
}

#[tokio::test]
async fn a_dedupe_window_that_is_too_short_and_a_silent_upkeep_are_found() {
    let world = World::with_billing().await;
    world.run("insert into node (name, role, seen_at) values ('n1', 'upkeep', now() - interval '2 hours')").await;
    let retention = Retention { dedupe: Duration::from_secs(3_600), ..Retention::default() };
    let upkeep = Some(UpkeepOptions { retention, ..UpkeepOptions::default() });
    let diagnosis = diagnose_with(&world, DoctorOptions { upkeep, ..DoctorOptions::default() }).await;
    assert_eq!(faults(&diagnosis), ["upkeep", "retention"]);
}

#[tokio::test]
async fn a_reader_that_is_wanted_and_not_at_work_is_found() {
    let world = World::with_billing().await;
    world.run("update relay_lane set reader = 'wal', changed_at = now() where lane = 'KAFKA'").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(check(&diagnosis, "reader").verdict, Verdict::Note, "a relay needs a moment");
    world.run("update relay_lane set changed_at = now() - interval '1 minute'").await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["reader"]);
    let found = check(&diagnosis, "reader");
    assert_eq!(found.finding, "wal is wanted, and its slot is not there");
    assert!(found.advice.as_ref().unwrap().contains("dipmo run --role relay"), "{found:?}");
    let detail = r#"{"lanes": ["KAFKA"], "reader_problem": "wal_level is replica"}"#;
    world.run(&format!("insert into node (name, role, detail) values ('n1', 'relay', '{detail}')")).await;
    let diagnosis = diagnose(&world).await;
    assert_eq!(faults(&diagnosis), ["reader"]);
    assert_eq!(check(&diagnosis, "reader").finding, "n1 cannot read the WAL: wal_level is replica");
    world.run("update relay_lane set reader = 'poll'; update node set detail = '{}'").await;
    assert!(!diagnose(&world).await.degraded);
}

#[tokio::test]
async fn a_slot_that_was_left_behind_is_found() {
    let world = World::with_billing().await;
    let slot = format!("dipmo_{}_outbox", world.db.schema());
    world.run(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
    let left = diagnose(&world).await;
    world.run(&format!("update relay_lane set slot = '{slot}', changed_at = now() where lane = 'KAFKA'")).await;
    let going_back = diagnose(&world).await;
    world.run(&format!("select pg_drop_replication_slot('{slot}')")).await;
    assert_eq!(faults(&left), ["slot"]);
    assert!(check(&left, "slot").finding.starts_with(&format!("{slot} was left behind and keeps ")), "{left:?}");
    assert!(check(&left, "slot").advice.as_ref().unwrap().contains(&format!("dipmo relay slot drop {slot}")));
    assert!(!going_back.degraded, "a relay reads it to its end and drops it: {going_back:?}");
}
