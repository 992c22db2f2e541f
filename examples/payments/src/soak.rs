//! Payments at a steady rate for a while: how long each takes, what piles up, and the books at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dipmo::batch::{BatchItem, BatchItemsRequested};
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::Db;
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::MissedTickBehavior;

use crate::bank::{self, Bank};
use crate::books::{Check, Facts};
use crate::demo::{DAY, Fate, Plan, is_quiet, verdict};
use crate::fx::{BankClient, ClientOptions};
use crate::payments::{SAGA, batch_of};
use crate::setup;
use crate::wiring::{Outside, Platform};

/// Payments come in parts of this much time.
const PART: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After the last payment was asked for.
const DRAIN_MAX: Duration = Duration::from_secs(180);

const LOOK: &str = "select
    (select count(*) from dipmo.process p where p.type = 'PaymentExecution'
        and p.status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED')),
    (select count(*) from dipmo.inbox_work where state = 'RECEIVED'),
    (select count(*) from dipmo.outbox o join dipmo.relay_shard s using (shard) where o.id > s.cursor),
    coalesce(percentile_cont(0.5) within group (order by t.ms), 0),
    coalesce(percentile_cont(0.99) within group (order by t.ms), 0),
    count(t.ms)
from (select extract(epoch from updated_at - created_at)::float8 * 1000 as ms from dipmo.process
      where type = 'PaymentExecution' and status in ('SUCCEEDED', 'FAILED', 'COMPENSATED')
        and updated_at > now() - $1 * interval '1 second') t";

/// How it stands at one moment; the latencies are those of the sagas that ended since the last look.
#[derive(Debug, Clone, Copy)]
struct Look {
    active: i64,
    backlog: i64,
    p50: f64,
    p99: f64,
    ended: i64,
}

/// Asks for `rate` payments a second for the time given; true if the books are right and nothing piled up.
pub async fn run(platform: &Platform, rate: usize, lasting: Duration) -> Result<bool> {
    let parts = (lasting.as_secs_f64() / PART.as_secs_f64()).ceil() as usize;
    let part = (rate as f64 * PART.as_secs_f64()).round().max(1.0) as usize;
    let plan = Arc::new(Plan::new(parts * part));
    println!("{} payments, {rate} a second for {} s.\n", plan.payments.len(), lasting.as_secs());
    setup::prepare(platform).await?;
    plan.fill(platform).await.context("filling the tables")?;
    let bank = Bank::open(bank::flaky).await?;
    let outside = Outside { bank: Arc::new(BankClient::new(ClientOptions::new(bank.address()))), rail: plan.clone() };
    let (trigger, shutdown) = ShutdownTrigger::new();
    let nodes: Vec<_> =
        platform.nodes(&outside)?.into_iter().map(|node| tokio::spawn(node.run(shutdown.clone()))).collect();
    let core = platform.db(&platform.core, "soak")?;
    let looks = tokio::select! {
        looks = watch(&core) => looks,
        sent = send(&core, &plan, part) => { sent?; watch_until_quiet(&core).await }
    };
    trigger.stop();
    for node in nodes {
        node.await.context("a node panicked")??;
    }
    let last = looks?;
    let facts = Facts::read(platform, &bank).await?;
    let mut checks = facts.checks(plan.with_fate(Fate::Poison) as i64);
    // What is under way at the end of a steady stream is about what one second brings.
    let piled = (last.backlog > 10 * rate as i64).then(|| format!("{} messages waited at the end", last.backlog));
    checks.push(Check { claim: "nothing piled up", against: piled.into_iter().collect() });
    println!("\n{}", verdict(&checks));
    Ok(checks.iter().all(Check::passed))
}

/// Sends a part of the batch at every tick, whether or not the last is done.
async fn send(core: &Db, plan: &Plan, part: usize) -> Result<()> {
    let mut tick = tokio::time::interval(PART);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let total = i32::try_from(plan.payments.len()).context("too many payments")?;
    let parts: Vec<_> = plan.payments.chunks(part).collect();
    for (n, payments) in parts.iter().enumerate() {
        tick.tick().await;
        let item = |payment: &crate::demo::Payment| BatchItem {
            id: payment.id.clone(),
            key: payment.id.clone(),
            payload: json!({
                "accountId": payment.account, "amount": payment.amount, "currency": "USD",
                "payCurrency": payment.pay_currency, "day": DAY,
            }),
        };
        let request = BatchItemsRequested {
            batch_id: batch_of("", DAY),
            saga: SAGA.to_owned(),
            tenant: String::new(),
            scheduled_for: None,
            items: payments.iter().map(item).collect(),
            last: n + 1 == parts.len(),
            total: Some(total),
        };
        let message = request.into_message("INTERNAL", n, OffsetDateTime::now_utc())?;
        let mut client = core.client().await?;
        let tx = client.transaction().await?;
        core.append(&tx, &[message]).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// A line now and then, for as long as payments come in.
async fn watch(core: &Db) -> Result<Look> {
    println!("{:>7} {:>12} {:>8} {:>9} {:>9} {:>9}", "s", "ended a s", "active", "backlog", "p50 ms", "p99 ms");
    let begun = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        show(begun, &look(core).await?);
    }
}

async fn watch_until_quiet(core: &Db) -> Result<Look> {
    let at_the_end = look(core).await?;
    let begun = Instant::now();
    loop {
        let now = look(core).await?;
        if now.active == 0 && is_quiet(core).await? {
            println!("\nThe last payment ended {:.1} s after it was asked for.", begun.elapsed().as_secs_f64());
            return Ok(at_the_end);
        }
        if begun.elapsed() > DRAIN_MAX {
            bail!("{} payments are still under way after {DRAIN_MAX:?}", now.active);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn look(core: &Db) -> Result<Look> {
    let sql = LOOK.replace("dipmo.", &format!("{}.", core.schema()));
    let row = core.client().await?.query_one(&sql, &[&LOOK_EVERY.as_secs_f64()]).await?;
    let backlog = row.get::<_, i64>(1) + row.get::<_, i64>(2);
    Ok(Look { active: row.get(0), backlog, p50: row.get(3), p99: row.get(4), ended: row.get(5) })
}

fn show(begun: Instant, look: &Look) {
    println!(
        "{:7.0} {:12.1} {:8} {:9} {:9.1} {:9.1}",
        begun.elapsed().as_secs_f64(),
        look.ended as f64 / LOOK_EVERY.as_secs_f64(),
        look.active,
        look.backlog,
        look.p50,
        look.p99,
    );
}
