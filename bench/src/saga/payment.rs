//! What every contestant does: payments of three or four steps, each one idempotent insert.
//!
//! bench/peers/steps.mjs is the same for the peers.

use std::ops::Range;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::meter::Meter;

pub(super) const TABLE: &str = "
create table bench_effect (
    saga text not null, step text not null, at timestamptz not null default now(), primary key (saga, step))";

pub(super) const EFFECT: &str = "insert into bench_effect (saga, step) values ($1, $2) on conflict do nothing";

pub(super) const BOOK_FX: &str = "BookFx";
pub(super) const STEPS: [&str; 4] = ["CheckBalance", "CheckDailyLimit", BOOK_FX, "SubmitPayment"];

/// Every fourth payment is in a foreign currency.
fn is_foreign(n: usize) -> bool {
    n.is_multiple_of(4)
}

pub(super) fn steps(n: usize) -> impl Iterator<Item = &'static str> {
    STEPS.into_iter().filter(move |step| *step != BOOK_FX || is_foreign(n))
}

pub(super) fn input(n: usize) -> Value {
    let fx = is_foreign(n);
    json!({ "n": n, "fx": fx, "amount": { "currency": if fx { "USD" } else { "EUR" }, "value": "100.00" } })
}

/// Every step of every payment was done, and nothing else.
pub(super) async fn check(meter: &Meter, numbers: Range<usize>) -> Result<()> {
    let expected: usize = numbers.map(|n| steps(n).count()).sum();
    let done = meter.number("select count(*) from bench_effect").await?;
    ensure!(done == i64::try_from(expected)?, "{done} steps were done, not {expected}");
    Ok(())
}
