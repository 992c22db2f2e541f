//! Foreign exchange: a layer between our commands and a bank's REST interface, which speaks another language
//! and fails in its own ways.
//!
//! The ledger row is committed before the bank is called, by a connection of its own: whatever happens to the
//! call or to this process, it is known that the bank may have been asked. The bank gets our idempotency key,
//! so that asking again is safe.

mod breaker;
mod client;

pub use breaker::{Breaker, BreakerOptions};
pub use client::{BankClient, ClientOptions, Outcome};

use std::sync::Arc;

use async_trait::async_trait;
use dipmo::command::{Answer, CommandError, CommandHandler, Envelope};
use dipmo::handler::Enlisted;
use dipmo::store::postgres::Db;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::context::Domain;

pub const TABLES: &str = "
create table domain.fx_contract (
    payment_id      text primary key,
    -- What the bank knows the contract by; none where the bank was never asked.
    idempotency_key text unique,
    sell            text,
    buy             text,
    amount          bigint,
    status          text not null,
    contract_id     text,
    rate            text,
    -- The bank's code, for whoever is asked again before the answer was committed.
    refusal         text,
    asked_at        timestamptz not null default now(),
    constraint fx_contract_status_known check (status in ('ASKED', 'BOOKED', 'REFUSED', 'CANCELLED'))
);";

const ASK: &str = "
-- fx.ask
insert into domain.fx_contract as c (payment_id, idempotency_key, sell, buy, amount, status)
values ($1, $2, $3, $4, $5, 'ASKED')
on conflict (payment_id) do update set asked_at = now()
returning status, contract_id, rate, refusal";

const BOOKED: &str = "
-- fx.booked
update domain.fx_contract set status = 'BOOKED', contract_id = $2, rate = $3
where payment_id = $1 and status in ('ASKED', 'BOOKED')
returning payment_id";

const REFUSED: &str = "
-- fx.refused
update domain.fx_contract set status = 'REFUSED', refusal = $2
where payment_id = $1 and status = 'ASKED'";

const FIND: &str = "
-- fx.find
select status, idempotency_key from domain.fx_contract where payment_id = $1 for update";

const CANCELLED: &str = "
-- fx.cancelled
insert into domain.fx_contract (payment_id, status) values ($1, 'CANCELLED')
on conflict (payment_id) do update set status = 'CANCELLED'";

/// What the bank is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    pub sell: String,
    pub buy: String,
    pub amount: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookFxContract {
    payment_id: String,
    #[serde(flatten)]
    order: Order,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelFxContract {
    payment_id: String,
}

/// The handlers of the context, by command. `db` has connections that nothing else uses.
pub fn handlers(domain: &Domain, db: &Db, bank: &Arc<BankClient>) -> Vec<(&'static str, Arc<dyn CommandHandler>)> {
    let desk = || FxDesk { domain: domain.clone(), db: db.clone(), bank: bank.clone() };
    vec![("BookFxContract", Arc::new(Booking(desk()))), ("CancelFxContract", Arc::new(Cancelling(desk())))]
}

struct FxDesk {
    domain: Domain,
    db: Db,
    bank: Arc<BankClient>,
}

impl FxDesk {
    /// In a transaction of its own, so that it stays whatever becomes of the command.
    async fn note(
        &self,
        statement: &str,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, CommandError> {
        let away = |error: dipmo::Error| CommandError::retryable("DATABASE", error.to_string());
        let client = self.db.client().await.map_err(away)?;
        let prepared = client.prepare_cached(&self.domain.sql(statement)).await?;
        Ok(client.query(&prepared, params).await?)
    }
}

struct Booking(FxDesk);

#[async_trait]
impl CommandHandler for Booking {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        let BookFxContract { payment_id, order } = command.payload()?;
        let key = command.idempotency_key();
        let Order { sell, buy, amount } = &order;
        let noted = self.0.note(ASK, &[&payment_id, &key.as_ref(), sell, buy, amount]).await?;
        match noted[0].get::<_, &str>(0) {
            "CANCELLED" => return Err(CommandError::permanent("CANCELLED", "the payment was given up before")),
            "REFUSED" => {
                let code: Option<&str> = noted[0].get(3);
                let code = format!("FX_{}", code.unwrap_or("REFUSED"));
                return Err(CommandError::permanent(code, "the bank has refused it before"));
            }
            "BOOKED" => {
                let (contract, rate): (Option<&str>, Option<&str>) = (noted[0].get(1), noted[0].get(2));
                return Ok(json!({ "contractId": contract, "rate": rate }));
            }
            _ => {}
        }
        match self.0.bank.book(&key, &order).await {
            Outcome::Done(contract) => {
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&payment_id, &contract.contract_id, &contract.rate];
                if self.0.domain.query(enlisted, BOOKED, &params).await?.is_empty() {
                    return Err(CommandError::unknown("CANCELLED", "given up while the bank was being asked"));
                }
                let result = json!({ "contractId": contract.contract_id, "rate": contract.rate });
                self.0.domain.tell(enlisted, command, "FxContractBooked", result.clone()).await?;
                Ok(result)
            }
            Outcome::Refused { code, message } => {
                self.0.note(REFUSED, &[&payment_id, &code]).await?;
                Err(CommandError::permanent(format!("FX_{code}"), message))
            }
            Outcome::NotAsked(why) => Err(CommandError::retryable("BANK_UNAVAILABLE", why)),
            Outcome::Unknown(why) => Err(CommandError::unknown("BANK_SILENT", why)),
        }
    }
}

struct Cancelling(FxDesk);

#[async_trait]
impl CommandHandler for Cancelling {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        let CancelFxContract { payment_id } = command.payload()?;
        let found = self.0.domain.query(enlisted, FIND, &[&payment_id]).await?;
        let asked = found.first().filter(|row| ["ASKED", "BOOKED"].contains(&row.get::<_, &str>(0)));
        if let Some(key) = asked.and_then(|row| row.get::<_, Option<&str>>(1)) {
            match self.0.bank.cancel(key).await {
                Outcome::Done(_) => {}
                Outcome::Refused { code, message } => {
                    return Err(CommandError::permanent(format!("FX_{code}"), message));
                }
                Outcome::NotAsked(why) => return Err(CommandError::retryable("BANK_UNAVAILABLE", why)),
                Outcome::Unknown(why) => return Err(CommandError::unknown("BANK_SILENT", why)),
            }
        }
        self.0.domain.query(enlisted, CANCELLED, &[&payment_id]).await?;
        let result = json!({ "cancelled": asked.is_some() });
        self.0.domain.tell(enlisted, command, "FxContractCancelled", result.clone()).await?;
        Ok(result)
    }
}
