//! The five ways a payment can go, end to end: databases, broker and Kafka are real, and each way is looked at
//! from every side: the rows of the core, the ledgers of the contexts, the answer on the queue of whoever
//! asked, and the events.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod outside;
mod stage;

use dipmo::command::accept::{Acceptance, Request, accept};
use dipmo::operator::Change;
use dipmo::operator::sagas::resubmit_dead_letter;
use dipmo::saga::{Orchestrator, Registry};
use payments::bank::{self, Behaviour};
use payments::context::Context;
use payments::payments::SAGA;
use payments::wiring::ORCHESTRATIONS;
use serde_json::{Value, json};
use stage::{AMOUNT, DAY, Stage};
use uuid::Uuid;

const DONE_ABROAD: [&str; 6] = [
    "BookFxContract SUCCEEDED 1",
    "CheckBalance SUCCEEDED 1",
    "CheckDailyLimit SUCCEEDED 1",
    "PaymentExecution SUCCEEDED 1",
    "SubmitPayment SUCCEEDED 1",
    "TakeHold SUCCEEDED 1",
];

/// Paid once, in every ledger.
async fn paid_once(stage: &Stage, payment: &str) {
    assert_eq!(stage.account().await, (AMOUNT, 0), "taken and held");
    let hold = stage.rows(Context::Accounts, "select payment_id, amount, status from domain.hold").await;
    assert_eq!(hold, [format!("{payment} {AMOUNT} TAKEN")]);
    let used = stage.rows(Context::Limits, "select account_id, used from domain.usage").await;
    assert_eq!(used, [format!("A {AMOUNT}")]);
    let submitted = "select payment_id, amount, reference, status from domain.payment_submission";
    let submitted = stage.rows(Context::Payments, submitted).await;
    assert_eq!(submitted, [format!("{payment} {AMOUNT} R-{payment} SUBMITTED")]);
}

/// The contract is booked once, here and at the bank.
async fn booked_once(stage: &Stage, saga: Uuid, payment: &str) {
    let key = format!("{saga}:STEP_BOOK_FX");
    let contracts = "select payment_id, idempotency_key, status from domain.fx_contract";
    assert_eq!(stage.rows(Context::Fx, contracts).await, [format!("{payment} {key} BOOKED")]);
    let answered = "select name, idempotency_key, answer from dipmo.command_ledger";
    let answered = stage.rows(Context::Fx, answered).await;
    assert_eq!(answered, [format!("BookFxContract {key} CommandCompleted")]);
    assert_eq!(stage.bank.open_contracts(), [key]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_abroad_succeeds_and_everybody_hears_of_it() {
    let mut stage = Stage::new(bank::well, None).await;
    // The saga of an item has the same id in every run of the day, and topics outlive a run.
    let payment = &format!("P-{}", Uuid::now_v7());
    let scheduled =
        format!("insert into domain.scheduled_payment values ('{payment}', '{DAY}', 'A', {AMOUNT}, 'USD', 'EUR')");
    stage.change(Context::Payments, &scheduled).await;
    let (run, start) = stage.start_of("RunScheduledPaymentsForDay", DAY, json!({ "day": DAY }));
    stage.send(&start).await;
    let reply = stage.reply_to(run).await;
    assert_eq!((&reply["type"], &reply["payload"]["items"]), (&json!("CommandCompleted"), &json!(1)), "{reply}");
    let batch = reply["payload"]["batchId"].as_str().unwrap().to_owned();
    let ended = format!("select type, status, expected from dipmo.batch_run where batch_id = '{batch}'");
    stage.until(vec![format!("{SAGA} SUCCEEDED 1")], async |stage| stage.core_rows(&ended).await).await;
    let item = format!("select saga_id from dipmo.batch_item where batch_id = '{batch}' and status = 'SUCCEEDED'");
    let saga: Uuid = stage.core_rows(&item).await.remove(0).parse().unwrap();
    assert_eq!(stage.saga(saga).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(stage.commands(saga).await, DONE_ABROAD);
    paid_once(&stage, payment).await;
    booked_once(&stage, saga, payment).await;
    let submitted = stage.events.one(saga, Context::Payments.topic(), "PaymentSubmitted").await;
    assert_eq!(submitted["payload"]["result"]["reference"], format!("R-{payment}"), "{submitted}");
    assert_eq!(submitted["payload"]["payment"]["rate"], "0.92", "the rate of the contract");
    stage.events.one(saga, Context::Fx.topic(), "FxContractBooked").await;
    stage.events.one(saga, Context::Accounts.topic(), "HoldTaken").await;
    stage.events.one(saga, Context::Limits.topic(), "LimitReserved").await;
    let succeeded = stage.events.one(saga, ORCHESTRATIONS, "SagaSucceeded").await;
    assert_eq!(succeeded["payload"]["result"], json!({ "reference": format!("R-{payment}") }));
    stage.end().await;
}

/// As often as the client asks by itself; the saga has to try again.
fn fails_at_first(call: u64) -> Behaviour {
    if call <= 3 { Behaviour::Fail } else { bank::well(call) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_passes_is_tried_again_and_what_comes_again_has_no_second_effect() {
    let mut stage = Stage::new(fails_at_first, None).await;
    let (saga, start) = stage.payment("P-2", "EUR");
    stage.send(&start).await;
    // Until the saga waits for its next attempt, which is sooner than any timeout of a step.
    let soon = stage.platform.clock.now().unix_timestamp() + 10;
    let retry = format!("select name from dipmo.timer where process_id = '{saga}' and due_at < to_timestamp({soon})");
    stage.until(1, async |stage| stage.core_rows(&retry).await.len()).await;
    assert_eq!(stage.saga(saga).await, "RUNNING STEP_BOOK_FX");
    assert!(stage.bank.open_contracts().is_empty());
    stage.advance(5);
    let reply = stage.reply_to(saga).await;
    assert_eq!(reply["type"], "CommandCompleted", "{reply}");
    // The broker gives the command out once more, and somebody sends it as another message.
    let queue = Context::Fx.queue("BookFxContract");
    let sent = format!(
        "select convert_from(payload, 'UTF8') from dipmo.outbox where destination = 'AMQP:{queue}' order by id"
    );
    let sent: Vec<Value> =
        stage.core_rows(&sent).await.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    assert_eq!(sent.iter().map(|command| &command["headers"]["attempt"]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(sent[0]["headers"]["idempotencyKey"], sent[1]["headers"]["idempotencyKey"]);
    let mut copy = sent[1].clone();
    copy["messageId"] = json!(Uuid::now_v7());
    stage.client.put(&queue, &sent[1]).await;
    stage.client.put(&queue, &copy).await;
    // Taken in order: when the second is answered, the first was there.
    let answered =
        format!("select state from dipmo.inbox_status where message_id = '{}'", copy["messageId"].as_str().unwrap());
    stage.until(vec!["PROCESSED".to_owned()], async |stage| stage.rows(Context::Fx, &answered).await).await;
    let kept =
        format!("select state from dipmo.inbox_status where message_id = '{}'", sent[1]["messageId"].as_str().unwrap());
    assert_eq!(stage.rows(Context::Fx, &kept).await, ["PROCESSED"], "known by its id");
    let mut commands = DONE_ABROAD;
    commands[0] = "BookFxContract SUCCEEDED 2";
    assert_eq!(stage.commands(saga).await, commands);
    assert_eq!(stage.saga(saga).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(stage.bank.calls(), 4, "three failures and one booking");
    paid_once(&stage, "P-2").await;
    booked_once(&stage, saga, "P-2").await;
    stage.events.one(saga, Context::Fx.topic(), "FxContractBooked").await;
    stage.events.one(saga, ORCHESTRATIONS, "SagaSucceeded").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_good_is_a_dead_letter_that_succeeds_when_an_operator_resubmits_it() {
    let mut stage = Stage::new(bank::well, Some(Context::Payments)).await;
    let (saga, start) = stage.payment("P-3", "USD");
    stage.send(&start).await;
    stage.until("RUNNING STEP_SUBMIT_PAYMENT".to_owned(), async |stage| stage.saga(saga).await).await;
    // Somebody in accounts releases the hold by hand, and there is nothing to take.
    let hold = |status: &str, held: i64| {
        format!("update domain.hold set status = '{status}'; update domain.account set held = {held}")
    };
    stage.change(Context::Accounts, &hold("RELEASED", 0)).await;
    stage.start_the_rest();
    stage.until("PAUSED STEP_TAKE_HOLD".to_owned(), async |stage| stage.saga(saga).await).await;
    assert_eq!(stage.dead_letters().await, ["TakeHold FAILED there is nothing to take"]);
    let paused = stage.events.one(saga, ORCHESTRATIONS, "SagaPaused").await;
    assert_eq!(paused["payload"]["status"], "PAUSED", "{paused}");
    let answers = format!("select count(*) from dipmo.outbox where destination = 'AMQP:{}'", stage.client.reply_queue);
    assert_eq!(stage.core_rows(&answers).await, ["0"], "the caller is not told of an end that is none");
    stage.change(Context::Accounts, &hold("HELD", AMOUNT)).await;
    resubmit(&stage).await;
    let reply = stage.reply_to(saga).await;
    assert_eq!((&reply["type"], &reply["payload"]), (&json!("CommandCompleted"), &json!({ "reference": "R-P-3" })));
    assert_eq!(stage.saga(saga).await, "SUCCEEDED SUCCEEDED");
    assert_eq!(stage.dead_letters().await, [""; 0]);
    let key = format!("{saga}:STEP_TAKE_HOLD");
    let sent = "select convert_from(payload, 'UTF8')::json #>> '{headers,idempotencyKey}',
                       convert_from(payload, 'UTF8')::json #>> '{headers,resubmitted}'
                from dipmo.outbox where destination = 'AMQP:APP.CMD.ACCOUNTS.TakeHold.Q' order by id";
    assert_eq!(stage.core_rows(sent).await, [key.clone(), format!("{key} true")], "the same key both times");
    let answered = format!("select answer from dipmo.command_ledger where idempotency_key = '{key}'");
    assert_eq!(stage.rows(Context::Accounts, &answered).await, ["CommandCompleted"]);
    let audit = "select actor, action, reason from dipmo.audit";
    assert_eq!(stage.core_rows(audit).await, ["ann saga.resubmit accounts has put the hold back"]);
    paid_once(&stage, "P-3").await;
    stage.events.one(saga, Context::Accounts.topic(), "HoldTaken").await;
    stage.events.one(saga, Context::Payments.topic(), "PaymentSubmitted").await;
    stage.events.one(saga, ORCHESTRATIONS, "SagaSucceeded").await;
    stage.end().await;
}

/// Has the only dead letter sent again.
async fn resubmit(stage: &Stage) {
    let mut registry = Registry::new();
    for definition in stage.platform.definitions().unwrap() {
        registry.register(definition).unwrap();
    }
    let letter = stage.core_rows("select command_id from dipmo.command_dlq").await.remove(0).parse().unwrap();
    let ann = Change::new("ann", "accounts has put the hold back").unwrap();
    let sagas = Orchestrator::new(registry);
    resubmit_dead_letter(&stage.core, &sagas, "orchestrator", (letter, false), &ann).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_nobody_answers_in_time_is_timed_out_and_the_payment_is_undone() {
    let mut stage = Stage::new(bank::well, Some(Context::Payments)).await;
    let (saga, start) = stage.payment("P-4", "EUR");
    stage.send(&start).await;
    stage.until("RUNNING STEP_SUBMIT_PAYMENT".to_owned(), async |stage| stage.saga(saga).await).await;
    assert_eq!(stage.account().await, (0, AMOUNT), "held");
    stage.advance(11);
    stage.until("COMPENSATING STEP_WITHDRAW_PAYMENT".to_owned(), async |stage| stage.saga(saga).await).await;
    assert!(stage.commands(saga).await.contains(&"SubmitPayment TIMED_OUT 1".to_owned()));
    assert_eq!(stage.dead_letters().await.len(), 1);
    // The payments context is back, and finds the old command before the one that takes it back.
    stage.start_the_rest();
    let reply = stage.reply_to(saga).await;
    assert_eq!(reply["type"], "CommandTimedOut", "{reply}");
    assert_eq!(reply["payload"]["step"], "STEP_SUBMIT_PAYMENT", "{reply}");
    assert_eq!(reply["payload"]["compensated"], true, "{reply}");
    assert_eq!(stage.saga(saga).await, "COMPENSATED COMPENSATED");
    assert!(stage.commands(saga).await.contains(&"PaymentExecution TIMED_OUT 1".to_owned()));
    assert_eq!(stage.account().await, (0, 0), "nothing taken, nothing held");
    assert_eq!(stage.rows(Context::Accounts, "select status from domain.hold").await, ["RELEASED"]);
    assert_eq!(stage.rows(Context::Limits, "select used from domain.usage").await, ["0"]);
    assert_eq!(stage.rows(Context::Fx, "select status from domain.fx_contract").await, ["CANCELLED"]);
    assert_eq!(stage.rows(Context::Payments, "select status from domain.payment_submission").await, ["WITHDRAWN"]);
    assert!(stage.bank.open_contracts().is_empty());
    stage.events.one(saga, Context::Payments.topic(), "PaymentWithdrawn").await;
    stage.events.one(saga, Context::Fx.topic(), "FxContractCancelled").await;
    stage.events.one(saga, ORCHESTRATIONS, "SagaCompensated").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_is_submitted_again_and_again_is_paid_once() {
    let mut stage = Stage::new(bank::well, None).await;
    let (saga, start) = stage.payment("P-5", "EUR");
    let mut again = start.clone();
    again["messageId"] = json!(Uuid::now_v7());
    for submission in [&start, &start, &again] {
        stage.send(submission).await;
    }
    let reply = stage.reply_to(saga).await;
    assert_eq!(reply["type"], "CommandCompleted", "{reply}");
    // After the end the same start is answered again, and another command for the payment is refused.
    again["messageId"] = json!(Uuid::now_v7());
    stage.send(&again).await;
    let repeated = stage.reply_to(saga).await;
    assert_eq!((&repeated["type"], &repeated["payload"]), (&reply["type"], &reply["payload"]));
    let (other, start) = stage.payment("P-5", "EUR");
    stage.send(&start).await;
    let refused = stage.reply_to(other).await;
    assert_eq!((&refused["type"], &refused["payload"]["code"]), (&json!("CommandFailed"), &json!("KEY_TAKEN")));
    refused_at_the_door(&stage, saga).await;
    assert_eq!(stage.core_rows("select id, status from dipmo.process").await, [format!("{saga} SUCCEEDED")]);
    assert_eq!(stage.commands(saga).await, DONE_ABROAD);
    paid_once(&stage, "P-5").await;
    booked_once(&stage, saga, "P-5").await;
    assert_eq!(stage.bank.calls(), 1);
    stage.events.one(saga, Context::Payments.topic(), "PaymentSubmitted").await;
    stage.events.one(saga, ORCHESTRATIONS, "SagaSucceeded").await;
    stage.end().await;
}

/// Whoever asks by the API for a payment that is there is told so at once.
async fn refused_at_the_door(stage: &Stage, saga: Uuid) {
    let request = Request { name: SAGA.into(), business_key: "P-5".into(), payload: json!({}), ..Request::default() };
    let refusal = accept(&stage.core, &request).await.unwrap();
    assert!(matches!(&refusal, Acceptance::Refused(why) if why.to_string().contains(&saga.to_string())), "{refusal:?}");
}
