//! The payment saga of the documentation, built in Rust.

use std::time::Duration;

use dipmo::Destination;
use dipmo::backoff::RetryPolicy;
use dipmo::saga::{Compensation, Definition, Step};
use serde_json::{Value, json};

pub(crate) const ATTEMPTS: u32 = 3;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const CHECK_BALANCE: &str = "STEP_CHECK_BALANCE";
pub(crate) const CHECK_LIMIT: &str = "STEP_CHECK_LIMIT";
pub(crate) const BOOK_FX: &str = "STEP_BOOK_FX";
pub(crate) const SUBMIT: &str = "STEP_SUBMIT_PAYMENT";
pub(crate) const RELEASE_LIMIT: &str = "STEP_RELEASE_LIMIT";
pub(crate) const CANCEL_FX: &str = "STEP_CANCEL_FX";
pub(crate) const STEPS: [&str; 4] = [CHECK_BALANCE, CHECK_LIMIT, BOOK_FX, SUBMIT];

pub(crate) fn to(name: &str) -> Destination {
    format!("KAFKA:APP.CMD.{name}.Q").parse().unwrap()
}

pub(crate) fn retry() -> RetryPolicy {
    RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() }
}

fn step(name: &str, command: &str) -> Step {
    Step::new(name, command, to(command)).timeout(TIMEOUT).retry(retry())
}

pub(crate) fn undo(name: &str, command: &str) -> Compensation {
    Compensation::new(name, command, to(command)).timeout(TIMEOUT).retry(retry())
}

/// Balance, limit, foreign exchange where it is needed, payment; limit and exchange can be undone.
pub(crate) fn definition() -> Definition {
    let release = undo(RELEASE_LIMIT, "ReleaseLimit").payload(json!({ "paymentId": "saga.key" }));
    let cancel =
        undo(CANCEL_FX, "CancelFxContract").payload(json!({ "contractId": "steps.STEP_BOOK_FX.result.contractId" }));
    Definition::new("PaymentExecution")
        .events("KAFKA:events.Orchestrations".parse().unwrap())
        .step(
            step(CHECK_BALANCE, "CheckBalance")
                .payload(json!({ "account": "input.account", "amount": "input.amount" })),
        )
        .step(step(CHECK_LIMIT, "CheckDailyLimit").key("input.account").compensation(release))
        .step(
            step(BOOK_FX, "BookFxContract")
                .when("input.amount.currency != input.beneficiary.currency")
                .payload(
                    json!({ "from": "input.amount.currency", "to": "input.beneficiary.currency", "type": "'SPOT'" }),
                )
                .compensation(cancel),
        )
        .step(step(SUBMIT, "SubmitPayment").payload(json!({
            "paymentId": "saga.key",
            "rate": "steps.STEP_BOOK_FX.result != null ? steps.STEP_BOOK_FX.result.rate : '1'",
        })))
        .output(json!({ "reference": "steps.STEP_SUBMIT_PAYMENT.result.reference" }))
}

pub(crate) fn input(foreign: bool) -> Value {
    let currency = if foreign { "EUR" } else { "USD" };
    json!({
        "account": "A-7", "amount": { "currency": "USD", "value": "100.00" },
        "beneficiary": { "currency": currency, "iban": "XX00" }
    })
}

/// What a worker answers when all is well.
pub(crate) fn result_of(command: &str) -> Value {
    match command {
        "BookFxContract" => json!({ "contractId": "FX-1", "rate": "0.92" }),
        "SubmitPayment" => json!({ "reference": "R-1" }),
        other => json!({ "done": other }),
    }
}
