//! Payments: what is scheduled, what was submitted, and the start of a day's batch.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use dipmo::batch::{BatchItem, BatchItemsRequested};
use dipmo::command::{Answer, CommandError, CommandHandler, Envelope};
use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use serde::Deserialize;
use serde_json::json;
use time::Date;
use uuid::Uuid;

use crate::accounts::{pairs, tell_each};
use crate::context::{AtDesk, Desk, Domain, read_all};

pub const TABLES: &str = "
create table domain.scheduled_payment (
    id           text primary key,
    day          date not null,
    account_id   text not null,
    amount       bigint not null,
    currency     text not null,
    pay_currency text not null
);
create index scheduled_payment_day on domain.scheduled_payment (day, id);
create table domain.payment_submission (
    id              uuid primary key,
    payment_id      text not null unique,
    -- sagaId:STEP_SUBMIT_PAYMENT; none where the withdrawal came first, which keeps it from being submitted.
    idempotency_key text unique,
    amount          bigint not null,
    reference       text,
    status          text not null,
    submitted_at    timestamptz not null default now(),
    constraint payment_submission_status_known check (status in ('SUBMITTED', 'WITHDRAWN'))
);";

/// The saga that each payment is.
pub const SAGA: &str = "PaymentExecution";
/// A part of a batch is a message: large enough to be few, small enough to be one.
const PART: usize = 500;

const SUBMISSIONS: &str = "
-- payments.submissions
select payment_id, status from domain.payment_submission where payment_id = any($1)";

const SUBMIT: &str = "
-- payments.submit
insert into domain.payment_submission (id, payment_id, idempotency_key, amount, reference, status)
select s.id, s.payment_id, s.key, s.amount, 'R-' || s.payment_id, 'SUBMITTED'
from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) as s (id, payment_id, key, amount)
order by s.payment_id";

const WITHDRAW: &str = "
-- payments.withdraw
insert into domain.payment_submission as s (id, payment_id, amount, status)
select w.id, w.payment_id, 0, 'WITHDRAWN' from unnest($1::uuid[], $2::text[]) as w (id, payment_id)
order by w.payment_id
on conflict (payment_id) do update set status = 'WITHDRAWN'";

const OF_DAY: &str = "
-- payments.of_day
select id, account_id, amount, currency, pay_currency from domain.scheduled_payment
where day = $1 order by id";

/// The way out of the house. The example's own takes everything.
pub trait Rail: Send + Sync + 'static {
    fn accepts(&self, payment_id: &str) -> Result<(), CommandError>;
}

/// Takes every payment.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenRail;

impl Rail for OpenRail {
    fn accepts(&self, _: &str) -> Result<(), CommandError> {
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubmitPayment {
    payment_id: String,
    amount: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WithdrawPayment {
    payment_id: String,
}

#[derive(Debug, Deserialize)]
struct RunScheduledPaymentsForDay {
    day: String,
}

/// The handlers of the context, by command. Batches are asked for by `transport`.
pub fn handlers(domain: &Domain, rail: Arc<dyn Rail>, transport: &str) -> Vec<(&'static str, Arc<dyn CommandHandler>)> {
    let running = Running { domain: domain.clone(), transport: transport.to_owned() };
    vec![
        ("SubmitPayment", Arc::new(AtDesk(Submitting { domain: domain.clone(), rail }))),
        ("WithdrawPayment", Arc::new(AtDesk(Withdrawing(domain.clone())))),
        ("RunScheduledPaymentsForDay", Arc::new(running)),
    ]
}

/// The batch of a day is the same however often it is run.
pub fn batch_of(tenant: &str, day: &str) -> Uuid {
    BatchItemsRequested::id_of(&[SAGA, tenant, day])
}

struct Submitting {
    domain: Domain,
    rail: Arc<dyn Rail>,
}

#[async_trait]
impl Desk for Submitting {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<SubmitPayment>(commands);
        let payments: Vec<&str> = asked.iter().flatten().map(|ask| ask.payment_id.as_str()).collect();
        let known: HashMap<String, String> =
            pairs(&self.domain.query(enlisted, SUBMISSIONS, &[&payments]).await?).collect();
        let mut submit: Vec<(&SubmitPayment, String)> = Vec::new();
        let mut answers = Vec::with_capacity(asked.len());
        for (ask, command) in asked.iter().zip(commands) {
            let answer = ask.as_ref().map_err(Clone::clone).and_then(|ask| {
                match known.get(&ask.payment_id).map(String::as_str) {
                    Some("WITHDRAWN") => {
                        return Err(CommandError::permanent("CANCELLED", "the payment was given up before"));
                    }
                    Some(_) => {}
                    None => {
                        self.rail.accepts(&ask.payment_id)?;
                        submit.push((ask, command.idempotency_key().into_owned()));
                    }
                }
                Ok(json!({ "reference": format!("R-{}", ask.payment_id) }))
            });
            answers.push(answer);
        }
        let ids: Vec<Uuid> = submit.iter().map(|_| Uuid::now_v7()).collect();
        let payments: Vec<&str> = submit.iter().map(|(ask, _)| ask.payment_id.as_str()).collect();
        let keys: Vec<&str> = submit.iter().map(|(_, key)| key.as_str()).collect();
        let amounts: Vec<i64> = submit.iter().map(|(ask, _)| ask.amount).collect();
        self.domain.query(enlisted, SUBMIT, &[&ids, &payments, &keys, &amounts]).await?;
        tell_each(&self.domain, enlisted, commands, &answers, "PaymentSubmitted").await?;
        Ok(answers)
    }
}

struct Withdrawing(Domain);

#[async_trait]
impl Desk for Withdrawing {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<WithdrawPayment>(commands);
        let payments: Vec<&str> = asked.iter().flatten().map(|ask| ask.payment_id.as_str()).collect();
        let ids: Vec<Uuid> = payments.iter().map(|_| Uuid::now_v7()).collect();
        self.0.query(enlisted, WITHDRAW, &[&ids, &payments]).await?;
        let answer = |ask: Result<WithdrawPayment, CommandError>| ask.map(|_| json!({ "withdrawn": true }));
        let answers: Vec<Answer> = asked.into_iter().map(answer).collect();
        tell_each(&self.0, enlisted, commands, &answers, "PaymentWithdrawn").await?;
        Ok(answers)
    }
}

/// Has the payments of a day carried out, as a batch.
struct Running {
    domain: Domain,
    transport: String,
}

#[async_trait]
impl CommandHandler for Running {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        let RunScheduledPaymentsForDay { day: text } = command.payload()?;
        let wrong = || CommandError::permanent("DAY", "the day must be written as 2026-11-16");
        let format = time::macros::format_description!("[year]-[month]-[day]");
        let day = Date::parse(&text, format).map_err(|_| wrong())?;
        let tenant = command.header("tenantId").unwrap_or_default();
        let items: Vec<BatchItem> =
            self.domain.query(enlisted, OF_DAY, &[&day]).await?.iter().map(|row| item(row, &text)).collect();
        let (batch_id, total) = (batch_of(tenant, &text), items.len());
        let now = enlisted.now().await?;
        let mut parts: Vec<&[BatchItem]> = items.chunks(PART).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        for (n, part) in parts.iter().enumerate() {
            let request = BatchItemsRequested {
                batch_id,
                saga: SAGA.to_owned(),
                tenant: tenant.to_owned(),
                scheduled_for: Some(day),
                items: part.to_vec(),
                last: n + 1 == parts.len(),
                total: Some(i32::try_from(total).map_err(|_| CommandError::permanent("SIZE", "too many payments"))?),
            };
            let message = request
                .into_message(&self.transport, n, now)
                .map_err(|error| CommandError::permanent("TRANSPORT", error.to_string()))?;
            enlisted.publish(message);
        }
        Ok(json!({ "batchId": batch_id, "items": total }))
    }
}

fn item(row: &tokio_postgres::Row, day: &str) -> BatchItem {
    let id: String = row.get(0);
    let payload = json!({
        "accountId": row.get::<_, &str>(1), "amount": row.get::<_, i64>(2), "currency": row.get::<_, &str>(3),
        "payCurrency": row.get::<_, &str>(4), "day": day,
    });
    BatchItem { key: id.clone(), id, payload }
}
