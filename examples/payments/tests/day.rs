//! A day of payments over INTERNAL: every outcome, and books that add up, whatever is repeated.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use payments::bank;
use payments::demo::{Fate, start_day};
use support::World;
use uuid::Uuid;

const PAYMENTS: usize = 60;

#[tokio::test]
async fn every_payment_has_one_outcome_and_the_books_add_up() {
    let mut world = World::new(PAYMENTS, bank::flaky).await;
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    world.run_to_the_end(async |_| {}).await;
    let facts = world.check_the_books(world.poison()).await;
    let tally = facts.tally();
    for fate in [Fate::Paid, Fate::Poor, Fate::Capped, Fate::NoMarket, Fate::Rejected, Fate::Poison] {
        assert!(tally.contains_key(fate.outcome()), "{fate:?} is missing in {tally:?}");
    }
    assert_eq!(world.count("dipmo.batch_run where status = 'PARTIAL'").await, 1);
    assert!(world.bank.calls() > 15, "the bank was asked again where it had failed");
}

#[tokio::test]
async fn a_day_that_is_started_twice_is_one_day() {
    let mut world = World::new(PAYMENTS, bank::well).await;
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    world.round().await;
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    // The orchestrator refuses a second saga of the day; a worker that is asked once more must not start it either.
    let mut repeated = false;
    world
        .run_to_the_end(async |core| {
            if !repeated {
                repeated = repeat_run(core).await;
            }
        })
        .await;
    assert!(repeated, "the run was never asked for again");
    world.check_the_books(world.poison()).await;
    assert_eq!(world.count("dipmo.batch_run").await, 1);
    assert_eq!(world.count("dipmo.process where type = 'PaymentExecution'").await, PAYMENTS as i64);
    let refused = "dipmo.journal where detail::text like '%wanted to start the same%'";
    assert_eq!(world.count(refused).await, 1);
}

/// Asks the payments context again, under another idempotency key; false while it has not been asked at all.
async fn repeat_run(core: &dipmo::store::postgres::Db) -> bool {
    let again = "select dipmo.outbox_append(destination, aggregate_type, aggregate_id, event_type,
            replace(convert_from(payload, 'UTF8'), ':STEP_RUN', ':AGAIN_RUN'), key => key, message_id => gen_random_uuid())
        from dipmo.outbox where destination = 'INTERNAL:APP.CMD.PAYMENTS.RunScheduledPaymentsForDay.Q'";
    let sql = again.replace("dipmo.", &format!("{}.", core.schema()));
    !core.client().await.unwrap().query(&sql, &[]).await.unwrap().is_empty()
}

#[tokio::test]
async fn every_message_may_come_twice() {
    let mut world = World::new(PAYMENTS, bank::flaky).await;
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    let mut copied_to = 0_i64;
    let mut copies = 0;
    world
        .run_to_the_end(async |core| {
            let client = core.client().await.unwrap();
            let sql = |sql: &str| sql.replace("dipmo.", &format!("{}.", core.schema()));
            // Under new ids, so that nothing but the idempotency of each receiver keeps the effect single.
            let copy =
                "select dipmo.outbox_append_bytes(destination, aggregate_type, aggregate_id, event_type, payload,
                    key => key, message_id => gen_random_uuid(), correlation_id => correlation_id)
                from (select * from dipmo.outbox where id > $1 order by id) o";
            copies += client.query(&sql(copy), &[&copied_to]).await.unwrap().len();
            let last = client.query_one(&sql("select coalesce(max(id), 0) from dipmo.outbox"), &[]).await.unwrap();
            copied_to = last.get(0);
        })
        .await;
    assert!(copies > PAYMENTS * 8, "only {copies} messages were repeated");
    // The poison is poison twice.
    world.check_the_books(2 * world.poison()).await;
}
