//! Accounts: money, and holds on it. A hold is placed, then taken or released, and never anything twice.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use dipmo::command::{Answer, CommandError, CommandHandler, Envelope};
use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use serde::Deserialize;
use serde_json::json;

use crate::context::{AtDesk, Desk, Domain, read_all};

pub const TABLES: &str = "
create table domain.account (
    id       text primary key,
    currency text not null,
    -- What was there at the beginning, for whoever adds it up at the end.
    initial  bigint not null,
    balance  bigint not null,
    held     bigint not null default 0,
    constraint account_covers_its_holds check (held >= 0 and balance >= held)
);
create table domain.hold (
    payment_id text primary key,
    -- Unknown when the release came before the hold: the row then keeps the hold from being placed.
    account_id text references domain.account,
    amount     bigint not null,
    status     text not null,
    constraint hold_status_known check (status in ('HELD', 'TAKEN', 'RELEASED'))
);";

const LOCK: &str = "
-- accounts.lock
select id, balance - held from domain.account
where id = any($1) or id in (select h.account_id from domain.hold h where h.payment_id = any($2))
-- In order, so that two nodes wait for each other instead of deadlocking.
order by id for update";

const HOLDS: &str = "
-- accounts.holds
select payment_id, status from domain.hold where payment_id = any($1)";

const PLACE: &str = "
-- accounts.place
with placed as (
    insert into domain.hold (payment_id, account_id, amount, status)
    select p.payment_id, p.account_id, p.amount, 'HELD'
    from unnest($1::text[], $2::text[], $3::bigint[]) as p (payment_id, account_id, amount)
    returning account_id, amount
)
update domain.account a set held = a.held + p.amount
from (select account_id, sum(amount)::bigint as amount from placed group by 1) p where a.id = p.account_id";

const TAKE: &str = "
-- accounts.take
with taken as (
    update domain.hold set status = 'TAKEN' where payment_id = any($1) and status = 'HELD'
    returning account_id, amount
)
update domain.account a set balance = a.balance - t.amount, held = a.held - t.amount
from (select account_id, sum(amount)::bigint as amount from taken group by 1) t where a.id = t.account_id";

const RELEASE: &str = "
-- accounts.release
with released as (
    insert into domain.hold as h (payment_id, amount, status)
    select p, 0, 'RELEASED' from unnest($1::text[]) p
    on conflict (payment_id) do update set status = 'RELEASED' where h.status = 'HELD'
    returning account_id, amount
)
update domain.account a set held = a.held - r.amount
from (select account_id, sum(amount)::bigint as amount from released group by 1) r where a.id = r.account_id";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckBalance {
    payment_id: String,
    account_id: String,
    amount: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OnHold {
    payment_id: String,
}

/// The handlers of the context, by command.
pub fn handlers(domain: &Domain) -> Vec<(&'static str, Arc<dyn CommandHandler>)> {
    vec![
        ("CheckBalance", Arc::new(AtDesk(Placing(domain.clone())))),
        ("TakeHold", Arc::new(AtDesk(Ending { domain: domain.clone(), end: End::Take }))),
        ("ReleaseHold", Arc::new(AtDesk(Ending { domain: domain.clone(), end: End::Release }))),
    ]
}

struct Placing(Domain);

#[async_trait]
impl Desk for Placing {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<CheckBalance>(commands);
        let readable = || asked.iter().flatten();
        let accounts: Vec<&str> = readable().map(|ask| ask.account_id.as_str()).collect();
        let payments: Vec<&str> = readable().map(|ask| ask.payment_id.as_str()).collect();
        let mut free: HashMap<String, i64> =
            pairs(&self.0.query(enlisted, LOCK, &[&accounts, &payments]).await?).collect();
        let holds: HashMap<String, String> = pairs(&self.0.query(enlisted, HOLDS, &[&payments]).await?).collect();
        let mut place: Vec<&CheckBalance> = Vec::new();
        let mut answers = Vec::with_capacity(asked.len());
        for ask in &asked {
            let checked = ask.as_ref().map_err(Clone::clone).and_then(|ask| {
                let is_new = check(ask, &mut free, holds.get(&ask.payment_id).map(String::as_str))?;
                place.extend(is_new.then_some(ask));
                Ok(json!({ "held": ask.amount }))
            });
            answers.push(checked);
        }
        let payments: Vec<&str> = place.iter().map(|ask| ask.payment_id.as_str()).collect();
        let accounts: Vec<&str> = place.iter().map(|ask| ask.account_id.as_str()).collect();
        let amounts: Vec<i64> = place.iter().map(|ask| ask.amount).collect();
        self.0.query(enlisted, PLACE, &[&payments, &accounts, &amounts]).await?;
        tell_each(&self.0, enlisted, commands, &answers, "HoldPlaced").await?;
        Ok(answers)
    }
}

/// Whether a hold is to be placed; what it takes is no longer free for the next one.
fn check(ask: &CheckBalance, free: &mut HashMap<String, i64>, hold: Option<&str>) -> Result<bool, CommandError> {
    match hold {
        Some("RELEASED") => return Err(CommandError::permanent("CANCELLED", "the payment was given up before")),
        Some(_) => return Ok(false),
        None => {}
    }
    if ask.amount <= 0 {
        return Err(CommandError::permanent("AMOUNT", "an amount is more than nothing"));
    }
    let Some(free) = free.get_mut(&ask.account_id) else {
        return Err(CommandError::permanent("ACCOUNT_UNKNOWN", "there is no such account"));
    };
    if *free < ask.amount {
        return Err(CommandError::permanent("INSUFFICIENT_FUNDS", "the account does not cover it"));
    }
    *free -= ask.amount;
    Ok(true)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Take,
    Release,
}

/// Takes or releases holds.
struct Ending {
    domain: Domain,
    end: End,
}

#[async_trait]
impl Desk for Ending {
    async fn serve(&self, enlisted: &mut Enlisted<'_>, commands: &[&Envelope]) -> Result<Vec<Answer>, Failure> {
        let asked = read_all::<OnHold>(commands);
        let payments: Vec<&str> = asked.iter().flatten().map(|ask| ask.payment_id.as_str()).collect();
        let none: Vec<&str> = Vec::new();
        self.domain.query(enlisted, LOCK, &[&none, &payments]).await?;
        let holds: HashMap<String, String> = pairs(&self.domain.query(enlisted, HOLDS, &[&payments]).await?).collect();
        let answer = |ask: &Result<OnHold, CommandError>| {
            let ask = ask.as_ref().map_err(Clone::clone)?;
            match (self.end, holds.get(&ask.payment_id).map(String::as_str)) {
                (End::Take, Some("HELD" | "TAKEN")) => Ok(json!({ "taken": true })),
                (End::Take, _) => Err(CommandError::permanent("NO_HOLD", "there is nothing to take")),
                (End::Release, Some("TAKEN")) => Err(CommandError::permanent("TAKEN", "the money has left")),
                (End::Release, _) => Ok(json!({ "released": true })),
            }
        };
        let answers: Vec<Answer> = asked.iter().map(answer).collect();
        let (statement, event) = if self.end == End::Take { (TAKE, "HoldTaken") } else { (RELEASE, "HoldReleased") };
        self.domain.query(enlisted, statement, &[&payments]).await?;
        tell_each(&self.domain, enlisted, commands, &answers, event).await?;
        Ok(answers)
    }
}

/// An event for each command that was done.
pub(crate) async fn tell_each(
    domain: &Domain,
    enlisted: &mut Enlisted<'_>,
    commands: &[&Envelope],
    answers: &[Answer],
    event: &str,
) -> Result<(), Failure> {
    for (command, answer) in commands.iter().zip(answers).filter(|(_, answer)| answer.is_ok()) {
        let result = answer.as_ref().ok().cloned().unwrap_or_default();
        domain.tell(enlisted, command, event, json!({ "payment": command.payload, "result": result })).await?;
    }
    Ok(())
}

/// The first two columns.
pub(crate) fn pairs<V>(rows: &[tokio_postgres::Row]) -> impl Iterator<Item = (String, V)>
where
    V: for<'a> tokio_postgres::types::FromSql<'a>,
{
    rows.iter().map(|row| (row.get(0), row.get(1)))
}
