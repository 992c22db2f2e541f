//! Commands from outside: accepted once with the message that starts them, or not at all.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use std::time::Duration;

use dipmo::ErrorKind;
use dipmo::command::Envelope;
use dipmo::command::accept::{Acceptance, Accepted, Refusal, Request, accept};
use dipmo::operator::Page;
use dipmo::operator::commands::{self, CommandFilter};
use dipmo::upkeep::{Upkeep, UpkeepOptions};
use serde_json::json;
use support::World;
use uuid::Uuid;

fn request(key: &str) -> Request {
    Request {
        name: "SubmitPayment".to_owned(),
        business_key: key.to_owned(),
        payload: json!({ "amount": "1.00" }),
        ..Request::default()
    }
}

fn with_key(key: &str, idempotency_key: &str) -> Request {
    Request { idempotency_key: Some(idempotency_key.to_owned()), ..request(key) }
}

async fn accepted(world: &World, request: &Request) -> Accepted {
    match accept(&world.db, request).await.unwrap() {
        Acceptance::Accepted(accepted) => accepted,
        Acceptance::Refused(refusal) => panic!("{refusal}"),
    }
}

async fn refused(world: &World, request: &Request) -> Refusal {
    match accept(&world.db, request).await.unwrap() {
        Acceptance::Refused(refusal) => refusal,
        Acceptance::Accepted(accepted) => panic!("{accepted:?}"),
    }
}

/// Commands, start messages and remembered requests.
async fn counts(world: &World) -> String {
    world
        .text("select (select count(*) from command), (select count(*) from outbox), (select count(*) from command_request)")
        .await
}

#[tokio::test]
async fn a_command_is_accepted_with_the_message_that_starts_it() {
    let world = World::real_time().await;
    let request = Request { tenant: "acme".to_owned(), reply_to: Some("SHOP.Q".to_owned()), ..with_key("P-1", "k") };
    let id = accepted(&world, &request).await.command_id;
    assert_eq!(counts(&world).await, "(1,1,1)");
    let shown = commands::show(&world.db, id).await.unwrap();
    assert_eq!((shown.row.command_id, shown.row.process_id), (id, id), "it is its own saga");
    assert_eq!((&*shown.row.status, shown.row.attempts, &*shown.idempotency_key), ("PENDING", 0, "k"));
    assert_eq!(shown.process, None, "no saga has begun");
    assert_eq!(
        world.text("select destination, key, tenant, event_type, correlation_id from outbox").await,
        format!("(INTERNAL:APP.CMD.ORCHESTRATOR.Q,P-1,acme,CommandRequested,{id})")
    );
    let row = world.session().await.query_one("select payload from outbox", &[]).await.unwrap();
    let envelope: Envelope = serde_json::from_slice(row.get(0)).unwrap();
    assert_eq!((envelope.command_id, envelope.correlation_id), (id, id));
    assert_eq!(envelope.occurred_at, shown.row.requested_at, "the time of the database");
    assert_eq!(envelope.payload, request.payload);
}

#[tokio::test]
async fn the_same_request_again_has_the_first_answer_and_no_effect() {
    let world = World::real_time().await;
    let first = accepted(&world, &with_key("P-1", "k")).await;
    assert!(!first.repeated);
    let again = accepted(&world, &with_key("P-1", "k")).await;
    assert_eq!(again, Accepted { repeated: true, ..first });
    assert_eq!(counts(&world).await, "(1,1,1)");
}

#[tokio::test]
async fn an_idempotency_key_is_not_for_two_requests_but_tenants_have_their_own() {
    let world = World::real_time().await;
    let command_id = accepted(&world, &with_key("P-1", "k")).await.command_id;
    assert_eq!(refused(&world, &with_key("P-2", "k")).await, Refusal::AnotherRequest { command_id });
    let renamed = Request { name: "Other".to_owned(), ..with_key("P-1", "k") };
    assert_eq!(refused(&world, &renamed).await, Refusal::AnotherRequest { command_id });
    let elsewhere = Request { tenant: "acme".to_owned(), ..with_key("P-1", "k") };
    assert_ne!(accepted(&world, &elsewhere).await.command_id, command_id);
    assert_eq!(counts(&world).await, "(2,2,2)");
}

#[tokio::test]
async fn there_is_one_command_of_a_name_for_a_key_also_after_it_was_forgotten() {
    let world = World::real_time().await;
    let command_id = accepted(&world, &request("P-1")).await.command_id;
    assert_eq!(refused(&world, &request("P-1")).await, Refusal::KeyTaken { command_id });
    accepted(&world, &Request { name: "CancelPayment".to_owned(), ..request("P-1") }).await;
    accepted(&world, &Request { tenant: "acme".to_owned(), ..request("P-1") }).await;
    world
        .run(&format!(
            "insert into process (id, type, business_key, state, status, version, data)
             values ('{command_id}', 'SubmitPayment', 'P-1', 'SUCCEEDED', 'SUCCEEDED', 3, '{{}}');
             delete from command where id = '{command_id}'"
        ))
        .await;
    assert_eq!(refused(&world, &request("P-1")).await, Refusal::KeyTaken { command_id }, "its saga is still there");
}

#[tokio::test]
async fn of_many_requests_at_once_one_is_accepted_and_nobody_waits() {
    let world = World::real_time().await;
    let tries: Vec<_> = (0..20)
        .map(|_| {
            let db = world.db.clone();
            tokio::spawn(async move { accept(&db, &with_key("P-1", "k")).await.unwrap() })
        })
        .collect();
    let (mut ids, mut first) = (Vec::new(), 0);
    for one in tries {
        match one.await.unwrap() {
            Acceptance::Accepted(accepted) => {
                first += usize::from(!accepted.repeated);
                ids.push(accepted.command_id);
            }
            Acceptance::Refused(refusal) => assert_eq!(refusal, Refusal::InFlight),
        }
    }
    assert_eq!(first, 1);
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(counts(&world).await, "(1,1,1)");
}

#[tokio::test]
async fn a_request_whose_twin_is_under_way_is_told_so_at_once() {
    let world = World::real_time().await;
    let other = world.another_session("twin").await;
    let name = |parts: &[&str]| json!([world.db.schema(), parts]).to_string();
    for lock in [name(&["request", "", "k"]), name(&["command", "SubmitPayment", "", "P-1"])] {
        other.batch_execute("begin").await.unwrap();
        other.query("select pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await.unwrap();
        assert_eq!(refused(&world, &with_key("P-1", "k")).await, Refusal::InFlight, "{lock}");
        other.batch_execute("rollback").await.unwrap();
    }
    assert_eq!(counts(&world).await, "(0,0,0)");
    assert!(!accepted(&world, &with_key("P-1", "k")).await.repeated);
}

#[tokio::test]
async fn a_request_that_fails_half_way_leaves_nothing_behind() {
    let world = World::real_time().await;
    world.run("alter table outbox add constraint closed check (key <> 'P-1')").await;
    let error = accept(&world.db, &with_key("P-1", "k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poison, "{error}");
    assert_eq!(counts(&world).await, "(0,0,0)");
    world.run("alter table outbox drop constraint closed").await;
    assert!(!accepted(&world, &with_key("P-1", "k")).await.repeated, "the key is free");
}

#[tokio::test]
async fn commands_are_listed_newest_first_in_pages_by_status_name_and_saga() {
    let world = World::real_time().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.insert(0, accepted(&world, &request(&format!("P-{n}"))).await.command_id);
    }
    let step = Uuid::from_u128(u128::MAX - 1);
    world
        .run(&format!(
            "insert into command (id, name, business_key, status, process_id, step, idempotency_key, completed_at, error_code)
             values ('{step}', 'CheckBalance', 'P-4', 'FAILED', '{}', 'STEP_CHECK', 'x', now(), 'NO_FUNDS');
             insert into command_dlq (command_id, parked_by, attempts, error) values ('{step}', 'dipmo', 3, 'no funds')",
            ids[0]
        ))
        .await;
    let list = async |filter: CommandFilter, limit, after| {
        let page = commands::list(&world.db, &filter, &Page { limit, after }).await.unwrap();
        (page.items.iter().map(|row| row.command_id).collect::<Vec<_>>(), page.next)
    };
    let (first, next) = list(CommandFilter::default(), 3, None).await;
    let (rest, end) = list(CommandFilter::default(), 3, next.map(|next| next.parse().unwrap())).await;
    assert_eq!(([first, rest].concat(), end), (ids.clone(), None), "steps are not among them");
    let of_saga = CommandFilter { process_id: Some(ids[0]), ..CommandFilter::default() };
    assert_eq!(list(of_saga, 50, None).await.0, [step, ids[0]]);
    let failed = CommandFilter { status: Some("FAILED".to_owned()), ..CommandFilter::default() };
    assert!(list(failed, 50, None).await.0.is_empty());
    let unknown = CommandFilter { status: Some("LOST".to_owned()), ..CommandFilter::default() };
    assert!(commands::list(&world.db, &unknown, &Page::default()).await.unwrap_err().to_string().contains("TIMED_OUT"));
    let dead = commands::dead_letters(&world.db, Some("CheckBalance"), &Page::default()).await.unwrap().items;
    assert_eq!((dead[0].command.command_id, dead[0].command.attempts), (step, 3));
    assert_eq!(commands::show(&world.db, step).await.unwrap().parked_at, Some(dead[0].parked_at));
    assert_eq!(commands::dead_letters(&world.db, Some("Other"), &Page::default()).await.unwrap().items, []);
    assert_eq!(commands::show(&world.db, Uuid::nil()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn old_requests_and_ended_commands_are_forgotten_but_nothing_that_waits_for_somebody() {
    let world = World::real_time().await;
    let dedupe = UpkeepOptions::default().retention.dedupe;
    let old = format!("now() - interval '{} seconds'", (dedupe + Duration::from_secs(60)).as_secs());
    let ids: Vec<Uuid> = (0..5).map(|n| Uuid::from_u128(n + 1)).collect();
    let command = |n: usize, status: &str, requested: &str, completed: &str| {
        let id = ids[n];
        format!(
            "insert into command (id, name, business_key, status, process_id, idempotency_key, requested_at, completed_at)
             values ('{id}', 'C', 'k{n}', '{status}', '{id}', 'k{n}', {requested}, {completed});"
        )
    };
    let rows = [
        command(0, "SUCCEEDED", &old, &old),
        command(1, "SUCCEEDED", &old, "now()"),
        command(2, "PENDING", &old, "null"),
        command(3, "FAILED", &old, &old),
        command(4, "FAILED", &old, &old),
        format!("insert into command_dlq (command_id, parked_by, attempts) values ('{}', 'dipmo', 1);", ids[3]),
        format!(
            "insert into process (id, type, business_key, state, status, version, data)
             values ('{}', 'C', 'k4', 'STEP', 'PAUSED', 1, '{{}}');",
            ids[4]
        ),
        format!(
            "insert into command_request (idempotency_key, fingerprint, command_id, response, requested_at)
             values ('old', '', '{0}', '{{}}', {old}), ('new', '', '{0}', '{{}}', now())",
            ids[0]
        ),
        format!(
            ";insert into command_taken (command_id, key, envelope, reply_to, taken_at)
             values ('{0}', '{0}', '{{}}', 'INTERNAL:Q', {old}), ('{1}', '{1}', '{{}}', 'INTERNAL:Q', now())",
            ids[0], ids[1]
        ),
    ];
    world.run(&rows.concat()).await;
    let upkeep = Upkeep::new(world.db.clone(), UpkeepOptions::default()).unwrap();
    assert_eq!(upkeep.chores().await.unwrap().entries_forgotten, 3);
    assert_eq!(world.text("select business_key from command order by 1").await, "(k1)\n(k2)\n(k3)\n(k4)");
    assert_eq!(world.text("select idempotency_key from command_request").await, "(new)");
    assert_eq!(world.text("select command_id from command_taken").await, format!("({})", ids[1]));
}
