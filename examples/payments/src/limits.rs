//! Limits: what an account may pay in a day. A reservation counts until it is released.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use dipmo::command::{Answer, CommandError, CommandHandler, Envelope};
use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use serde::Deserialize;
use serde_json::json;

use crate::accounts::{pairs, tell_each};
use crate::context::{AtDesk, Desk, Domain, read_all};

pub const TABLES: &str = "
create table domain.daily_limit (
    account_id text primary key,
    amount     bigint not null
);
create table domain.usage (
    account_id text not null,
    day        date not null,
    used       bigint not null default 0,
    primary key (account_id, day),
    constraint usage_is_not_negative check (used >= 0)
);
create table domain.reservation (
    payment_id text primary key,
    -- Unknown when the release came before the reservation, which it then keeps from being made.
    account_id text,
    day        date,
    amount     bigint not null,
    status     text not null,
    constraint reservation_status_known check (status in ('RESERVED', 'RELEASED'))
);";

const BEGIN_DAY: &str = "
-- limits.begin_day
insert into domain.usage (account_id, day)
select distinct d.account_id, d.day::date from unnest($1::text[], $2::text[]) as d (account_id, day) order by 1, 2
on conflict do nothing";

const LOCK: &str = "
-- limits.lock
select concat(u.account_id, ' ', u.day), l.amount - u.used
from domain.usage u join domain.daily_limit l on l.account_id = u.account_id
where (u.account_id, u.day) in (select d.account_id, d.day::date
                                from unnest($1::text[], $2::text[]) as d (account_id, day)
                                union all
                                select r.account_id, r.day from domain.reservation r where r.payment_id = any($3))
-- In order, so that two nodes wait for each other instead of deadlocking.
order by u.account_id, u.day for update of u";

const RESERVATIONS: &str = "
-- limits.reservations
select payment_id, status from domain.reservation where payment_id = any($1)";

const RESERVE: &str = "
-- limits.reserve
with reserved as (
    insert into domain.reservation (payment_id, account_id, day, amount, status)
    select r.payment_id, r.account_id, r.day::date, r.amount, 'RESERVED'
    from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as r (payment_id, account_id, day, amount)
    returning account_id, day, amount
)
update domain.usage u set used = u.used + r.amount
from (select account_id, day, sum(amount)::bigint as amount from reserved group by 1, 2) r
where u.account_id = r.account_id and u.day = r.day";

const RELEASE: &str = "
-- limits.release
with released as (
    insert into domain.reservation as r (payment_id, amount, status)
    select p, 0, 'RELEASED' from unnest($1::text[]) p
    on conflict (payment_id) do update set status = 'RELEASED' where r.status = 'RESERVED'
    returning account_id, day, amount
)
update domain.usage u set used = u.used - r.amount
from (select account_id, day, sum(amount)::bigint as amount from released group by 1, 2) r
where u.account_id = r.account_id and u.day = r.day";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckDailyLimit {
    payment_id: String,
    account_id: String,
    day: String,
    amount: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseLimit {
    payment_id: String,
}

/// The handlers of the context, by command.
pub fn handlers(domain: &Domain) -> Vec<(&'static str, Arc<dyn CommandHandler>)> {
    vec![
        ("CheckDailyLimit", Arc::new(AtDesk(Reserving(domain.clone())))),
        ("ReleaseLimit", Arc::new(AtDesk(Releasing(domain.clone())))),
    ]
}

struct Reserving(Domain);

#[async_trait]
impl Desk for Reserving {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<CheckDailyLimit>(commands);
        let column = |pick: fn(&CheckDailyLimit) -> &str| asked.iter().flatten().map(pick).collect::<Vec<&str>>();
        let (accounts, days) = (column(|ask| &ask.account_id), column(|ask| &ask.day));
        let payments = column(|ask| &ask.payment_id);
        self.0.query(enlisted, BEGIN_DAY, &[&accounts, &days]).await?;
        let mut free: HashMap<String, i64> =
            pairs(&self.0.query(enlisted, LOCK, &[&accounts, &days, &payments]).await?).collect();
        let known: HashMap<String, String> =
            pairs(&self.0.query(enlisted, RESERVATIONS, &[&payments]).await?).collect();
        let mut reserve: Vec<&CheckDailyLimit> = Vec::new();
        let mut answers = Vec::with_capacity(asked.len());
        for ask in &asked {
            let checked = ask.as_ref().map_err(Clone::clone).and_then(|ask| {
                let is_new = check(ask, &mut free, known.get(&ask.payment_id).map(String::as_str))?;
                reserve.extend(is_new.then_some(ask));
                Ok(json!({ "reserved": ask.amount }))
            });
            answers.push(checked);
        }
        let column = |pick: fn(&CheckDailyLimit) -> &str| reserve.iter().map(|ask| pick(ask)).collect::<Vec<&str>>();
        let (accounts, days) = (column(|ask| &ask.account_id), column(|ask| &ask.day));
        let payments = column(|ask| &ask.payment_id);
        let amounts: Vec<i64> = reserve.iter().map(|ask| ask.amount).collect();
        self.0.query(enlisted, RESERVE, &[&payments, &accounts, &days, &amounts]).await?;
        tell_each(&self.0, enlisted, commands, &answers, "LimitReserved").await?;
        Ok(answers)
    }
}

fn check(ask: &CheckDailyLimit, free: &mut HashMap<String, i64>, known: Option<&str>) -> Result<bool, CommandError> {
    match known {
        Some("RELEASED") => return Err(CommandError::permanent("CANCELLED", "the payment was given up before")),
        Some(_) => return Ok(false),
        None => {}
    }
    let Some(free) = free.get_mut(&format!("{} {}", ask.account_id, ask.day)) else {
        return Err(CommandError::permanent("NO_LIMIT", "the account may not pay anything"));
    };
    if *free < ask.amount {
        return Err(CommandError::permanent("LIMIT_EXCEEDED", "the account has paid enough for the day"));
    }
    *free -= ask.amount;
    Ok(true)
}

struct Releasing(Domain);

#[async_trait]
impl Desk for Releasing {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<ReleaseLimit>(commands);
        let payments: Vec<&str> = asked.iter().flatten().map(|ask| ask.payment_id.as_str()).collect();
        let none: Vec<&str> = Vec::new();
        self.0.query(enlisted, LOCK, &[&none, &none, &payments]).await?;
        self.0.query(enlisted, RELEASE, &[&payments]).await?;
        let answer = |ask: Result<ReleaseLimit, CommandError>| ask.map(|_| json!({ "released": true }));
        let answers: Vec<Answer> = asked.into_iter().map(answer).collect();
        tell_each(&self.0, enlisted, commands, &answers, "LimitReleased").await?;
        Ok(answers)
    }
}
