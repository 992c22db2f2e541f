//! The day of the demo: accounts, limits and payments, some of which are bound to fail in a known way.

use std::collections::BTreeMap;

use anyhow::Result;
use dipmo::command::CommandError;

use crate::context::Context;
use crate::payments::Rail;
use crate::wiring::Platform;

pub const DAY: &str = "2026-11-16";

/// What a payment is bound to come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    Paid,
    /// The account has less than any of its payments.
    Poor,
    /// The account may pay less in a day than any of its payments.
    Capped,
    /// The bank does not trade the currency.
    NoMarket,
    /// The rail refuses it, after everything else was done.
    Rejected,
    /// A defect: the code that submits it panics, whenever it is tried.
    Poison,
}

impl Fate {
    /// What the item of the batch says in the end; a bank that stays silent may stop any foreign payment.
    pub fn outcome(self) -> &'static str {
        match self {
            Fate::Paid => "SUCCEEDED",
            Fate::Poor => "INSUFFICIENT_FUNDS",
            Fate::Capped => "LIMIT_EXCEEDED",
            Fate::NoMarket => "FX_NO_MARKET",
            Fate::Rejected => "REJECTED",
            Fate::Poison => "TIMED_OUT",
        }
    }

    fn of(n: usize) -> Self {
        match n {
            11 => Fate::Poison,
            n if n % 50 == 7 => Fate::Poor,
            n if n % 50 == 13 => Fate::Capped,
            n if n % 60 == 28 => Fate::NoMarket,
            n if n % 60 == 44 => Fate::Rejected,
            _ => Fate::Paid,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Payment {
    pub id: String,
    pub account: String,
    pub amount: i64,
    pub pay_currency: &'static str,
    pub fate: Fate,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub payments: Vec<Payment>,
}

impl Plan {
    /// So many payments; every fourth is foreign.
    pub fn new(count: usize) -> Self {
        let payment = |n: usize| {
            let fate = Fate::of(n);
            let account = match fate {
                Fate::Poor => "A-poor".to_owned(),
                Fate::Capped => "A-capped".to_owned(),
                _ => format!("A-{:02}", n % 20),
            };
            let pay_currency = match fate {
                Fate::NoMarket => "XXX",
                _ if n.is_multiple_of(4) => "EUR",
                _ => "USD",
            };
            Payment { id: format!("P-{n:05}"), account, amount: 1_000 + (n as i64 * 37) % 900, pay_currency, fate }
        };
        Self { payments: (1..=count).map(payment).collect() }
    }

    pub fn with_fate(&self, fate: Fate) -> usize {
        self.payments.iter().filter(|payment| payment.fate == fate).count()
    }

    pub fn foreign(&self) -> usize {
        self.payments.iter().filter(|payment| payment.pay_currency != "USD").count()
    }

    /// Payments that came to something else than they were bound to, by what the items say.
    pub fn surprises(&self, items: &BTreeMap<String, (String, Option<String>)>) -> Vec<String> {
        let wrong = |payment: &Payment| {
            let Some((status, error)) = items.get(&payment.id) else { return Some(format!("{}: no item", payment.id)) };
            let code = error.as_deref().unwrap_or(status).split(':').next().unwrap_or_default();
            let bank = payment.pay_currency != "USD" && code.starts_with("BANK_");
            (code != payment.fate.outcome() && status != payment.fate.outcome() && !bank)
                .then(|| format!("{}: bound to be {:?}, came to {status} {code}", payment.id, payment.fate))
        };
        self.payments.iter().filter_map(wrong).collect()
    }

    /// Fills the tables of the contexts, with their own logins.
    pub async fn fill(&self, platform: &Platform) -> Result<()> {
        let column = |pick: fn(&Payment) -> &str| self.payments.iter().map(pick).collect::<Vec<&str>>();
        let (ids, accounts, currencies) =
            (column(|p| p.id.as_str()), column(|p| p.account.as_str()), column(|p| p.pay_currency));
        let amounts: Vec<i64> = self.payments.iter().map(|payment| payment.amount).collect();
        let account = "insert into domain.account (id, currency, initial, balance)
            select a, 'USD', b, b from (select distinct a, case a when 'A-poor' then 999 else 10000000 end as b
                                        from unnest($1::text[]) a) accounts";
        self.run(platform, Context::Accounts, account, &[&accounts]).await?;
        let limit = "insert into domain.daily_limit (account_id, amount)
            select distinct a, case a when 'A-capped' then 999 else 10000000 end from unnest($1::text[]) a";
        self.run(platform, Context::Limits, limit, &[&accounts]).await?;
        let payment = "insert into domain.scheduled_payment (id, day, account_id, amount, currency, pay_currency)
            select p.id, $5::text::date, p.account, p.amount, 'USD', p.currency
            from unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) as p (id, account, amount, currency)";
        self.run(platform, Context::Payments, payment, &[&ids, &accounts, &amounts, &currencies, &DAY]).await
    }

    async fn run(
        &self,
        platform: &Platform,
        context: Context,
        sql: &str,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<()> {
        let db = platform.db(&platform.contexts[&context], "demo")?;
        db.client().await?.execute(&platform.domain(context).sql(sql), params).await?;
        Ok(())
    }
}

/// Refuses and breaks on what the plan says.
impl Rail for Plan {
    fn accepts(&self, payment_id: &str) -> Result<(), CommandError> {
        let fate = self.payments.iter().find(|payment| payment.id == payment_id).map(|payment| payment.fate);
        match fate {
            Some(Fate::Poison) => panic!("a defect in the code that submits {payment_id}, as planned"),
            Some(Fate::Rejected) => Err(CommandError::permanent("REJECTED", "the creditor's bank is closed")),
            _ => Ok(()),
        }
    }
}
