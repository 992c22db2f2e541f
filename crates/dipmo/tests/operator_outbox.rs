//! Operators and the outbox, processes, status: what is shown and what a change does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use dipmo::ErrorKind;
use dipmo::operator::outbox::{self, OutboxFilter};
use dipmo::operator::processes::{self, ProcessFilter};
use dipmo::operator::{Page, status};
use support::{World, ann};

fn state(state: &str) -> OutboxFilter {
    OutboxFilter { state: Some(state.into()), ..OutboxFilter::default() }
}

#[tokio::test]
async fn exceptions_are_listed_apart_from_what_is_merely_pending() {
    let world = World::with_billing().await;
    let dead = world.outbox("KAFKA:orders", "k", Some("DEAD")).await;
    let parked = world.outbox("KAFKA:orders", "k", Some("PARKED")).await;
    world.outbox("KAFKA:orders", "x", Some("DISCARDED")).await;
    world.relays_caught_up().await;
    let pending = world.outbox("INTERNAL", "k", None).await;
    let open = outbox::list(&world.db, &OutboxFilter::default(), &Page::default()).await.unwrap().items;
    assert_eq!(open.iter().map(|row| row.id).collect::<Vec<_>>(), [dead, parked]);
    let waiting = outbox::list(&world.db, &state("PENDING"), &Page::default()).await.unwrap().items;
    assert_eq!(waiting.iter().map(|row| (row.id, row.state.as_str())).collect::<Vec<_>>(), [(pending, "PENDING")]);
    assert_eq!(outbox::list(&world.db, &state("LOST"), &Page::default()).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn what_a_gap_held_back_is_pending() {
    let world = World::with_billing().await;
    let id = world.outbox("INTERNAL", "k", None).await;
    world.relays_caught_up().await;
    let gap = "update relay_shard s set gaps = int8multirange(int8range(o.id, o.id + 1)) from outbox o where o.shard = s.shard";
    world.run(gap).await;
    let waiting = outbox::list(&world.db, &state("PENDING"), &Page::default()).await.unwrap().items;
    assert_eq!(waiting.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
    let lanes = status(&world.db).await.unwrap().lanes;
    assert_eq!(lanes.iter().map(|lane| lane.pending.n).collect::<Vec<_>>(), [0, 1, 0], "AMQP, INTERNAL, KAFKA");
}

#[tokio::test]
async fn a_dead_message_is_sent_again_with_fresh_attempts() {
    let world = World::with_billing().await;
    let id = world.outbox("KAFKA:orders", "k", Some("DEAD")).await;
    outbox::retry(&world.db, id, &ann()).await.unwrap();
    let row = "select state, attempts, next_attempt_at <= now() from outbox_exception";
    assert_eq!(world.text(row).await, "(RETRY,0,t)");
    assert_eq!(world.text("select actor, action from audit").await, "(ann,outbox.retry)");
}

#[tokio::test]
async fn a_discarded_message_is_settled_and_cannot_be_sent_any_more() {
    let world = World::with_billing().await;
    let id = world.outbox("KAFKA:orders", "k", Some("RETRY")).await;
    outbox::discard(&world.db, id, &ann()).await.unwrap();
    assert_eq!(world.text("select state, next_attempt_at from outbox_exception").await, "(DISCARDED,)");
    let refused = outbox::retry(&world.db, id, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains("send a new one"), "{refused}");
    assert_eq!(outbox::show(&world.db, id, false).await.unwrap().state, "DISCARDED");
}

#[tokio::test]
async fn a_refusal_names_the_message_that_is_in_the_way() {
    let world = World::with_billing().await;
    let head = world.outbox("KAFKA:orders", "k", Some("DEAD")).await;
    let parked = world.outbox("KAFKA:orders", "k", Some("PARKED")).await;
    let pending = world.outbox("KAFKA:orders", "free", None).await;
    let refused = outbox::retry(&world.db, parked, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("waits behind {head}")), "{refused}");
    let refused = outbox::discard(&world.db, pending, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains("PENDING"), "{refused}");
    world.relays_caught_up().await;
    let refused = outbox::discard(&world.db, pending, &ann()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be taken back"), "{refused}");
    assert_eq!(outbox::retry(&world.db, 7, &ann()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_status_counts_what_is_open_by_state_and_how_long_it_waits() {
    let world = World::with_billing().await;
    world.parked_key("k", 2).await;
    let old = world.message("o", "RECEIVED").await;
    world.run(&format!("update inbox set received_at = now() - interval '90 seconds' where id = {old}")).await;
    world.message("s", "SERDE_ERROR").await;
    world.outbox("KAFKA:orders", "k", Some("DEAD")).await;
    world.run("insert into node (name, role, seen_at) values ('n1', 'relay', now() - interval '20 seconds')").await;
    world
        .run(
            "insert into process (id, type, business_key, state, status, version, data)
               select gen_random_uuid(), 'kyc', n::text, 'REVIEW', 'RUNNING', 1, '{}' from generate_series(1, 3) n",
        )
        .await;
    let status = status(&world.db).await.unwrap();
    let c = &status.consumers[0];
    assert_eq!([c.received.n, c.retry.n, c.parked.n, c.dead.n, c.serde_error.n, c.parked_keys.n], [1, 0, 2, 1, 1, 1]);
    assert!(c.oldest_age_seconds.is_some_and(|age| (89.0..200.0).contains(&age)), "{c:?}");
    assert_eq!((status.exceptions[0].state.as_str(), status.exceptions[0].count.n), ("DEAD", 1));
    assert_eq!(status.lanes.iter().find(|lane| lane.lane == "KAFKA").map(|lane| lane.pending.n), Some(1));
    assert!(status.nodes[0].heartbeat_age_seconds >= 20.0);
    let p = &status.processes[0];
    assert_eq!(
        (p.process_type.as_str(), p.status.as_str(), p.state.as_str(), p.count.n),
        ("kyc", "RUNNING", "REVIEW", 3)
    );
}

#[tokio::test]
async fn counts_stop_at_ten_thousand() {
    let world = World::with_billing().await;
    world
        .run(
            "insert into inbox_work (id, consumer_id, bucket, key, state)
               select n, 1, 0, 'k', 'RECEIVED' from generate_series(1, 10500) n",
        )
        .await;
    let status = status(&world.db).await.unwrap();
    assert_eq!((status.consumers[0].received.n, status.consumers[0].received.capped), (10_000, true));
}

#[tokio::test]
async fn a_process_is_shown_with_its_timers_and_its_journal_in_order() {
    let world = World::with_billing().await;
    world
        .run(
            "insert into process (id, type, business_key, state, status, version, data)
               values ('00000000-0000-0000-0000-000000000007', 'kyc', 'c-1', 'REVIEW', 'RUNNING', 2, '{\"hit\": 1}');
               insert into timer (process_id, name, consumer_id, bucket, due_at)
               values ('00000000-0000-0000-0000-000000000007', 'deadline', 1, 0, now());
               insert into journal (process_id, version, kind, from_state, to_state, status)
               values ('00000000-0000-0000-0000-000000000007', 1, 'MESSAGE', null, 'NEW', 'RUNNING'),
                      ('00000000-0000-0000-0000-000000000007', 2, 'MESSAGE', 'NEW', 'REVIEW', 'RUNNING')",
        )
        .await;
    let of_type = ProcessFilter { process_type: Some("kyc".into()), ..ProcessFilter::default() };
    let listed = processes::list(&world.db, &of_type, &Page::default()).await.unwrap().items;
    let detail = processes::show(&world.db, listed[0].id).await.unwrap();
    assert_eq!(detail.journal.iter().map(|line| line.to_state.as_str()).collect::<Vec<_>>(), ["NEW", "REVIEW"]);
    assert_eq!((detail.timers[0].name.as_str(), &detail.data["hit"]), ("deadline", &1.into()));
    let unknown = processes::show(&world.db, uuid::Uuid::new_v4()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let wrong = ProcessFilter { status: Some("DONE".into()), ..ProcessFilter::default() };
    assert_eq!(processes::list(&world.db, &wrong, &Page::default()).await.unwrap_err().kind(), ErrorKind::Invalid);
}
