//! The demo: a day of payments with everything that can go wrong, and the books at the end of it.

mod plan;

pub use plan::{DAY, Fate, Payment, Plan};

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dipmo::command::Envelope;
use dipmo::operator::batches::{self, BatchDetail};
use dipmo::saga::START_QUEUE;
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::Db;
use serde_json::json;
use uuid::Uuid;

use crate::bank::{self, Bank};
use crate::books::{Check, Facts};
use crate::context::Context;
use crate::fx::{BankClient, ClientOptions};
use crate::payments::batch_of;
use crate::setup;
use crate::wiring::{Outside, Platform};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// On a screen that is not one, a line now and then is enough.
const PLAIN_EVERY: Duration = Duration::from_secs(2);
/// No day of the demo takes so long, even on a machine that does much else.
const DAY_MAX: Duration = Duration::from_secs(300);

/// Runs the day on servers that are there, and prints it; true if every check passed.
pub async fn run(platform: &Platform, payments: usize) -> Result<bool> {
    let plan = Arc::new(Plan::new(payments));
    println!("{}", introduction(&plan, platform));
    setup::prepare(platform).await?;
    plan.fill(platform).await.context("filling the tables")?;
    let bank = Bank::open(bank::flaky).await?;
    let client = Arc::new(BankClient::new(ClientOptions::new(bank.address())));
    let outside = Outside { bank: client, rail: plan.clone() };
    let (trigger, shutdown) = ShutdownTrigger::new();
    let nodes: Vec<_> =
        platform.nodes(&outside)?.into_iter().map(|node| tokio::spawn(node.run(shutdown.clone()))).collect();
    let core = platform.db(&platform.core, "demo")?;
    let begun = Instant::now();
    start_day(&core, Uuid::now_v7()).await?;
    let watched = watch(platform, &core, begun).await;
    let took = begun.elapsed();
    trigger.stop();
    for node in nodes {
        node.await.context("a node panicked")??;
    }
    watched?;
    let facts = Facts::read(platform, &bank).await?;
    let mut checks = facts.checks(plan.with_fate(Fate::Poison) as i64);
    checks.push(Check {
        claim: "every payment came to what it was bound to come to",
        against: plan.surprises(&facts.items),
    });
    println!("{}", ledger(&facts, &bank, took));
    println!("{}", verdict(&checks));
    Ok(checks.iter().all(Check::passed))
}

/// Sends the one command that everything follows from.
pub async fn start_day(core: &Db, command: Uuid) -> Result<()> {
    let envelope: Envelope = serde_json::from_value(json!({
        "messageId": Uuid::now_v7(), "type": "CommandRequested", "name": "RunScheduledPaymentsForDay",
        "commandId": command, "correlationId": command, "occurredAt": "2026-11-16T06:00:00Z", "key": DAY,
        "headers": { "schemaVersion": "1", "idempotencyKey": command }, "payload": { "day": DAY },
    }))?;
    let message = envelope.into_message(format!("INTERNAL:{START_QUEUE}").parse()?, "Saga");
    let mut client = core.client().await?;
    let tx = client.transaction().await?;
    core.append(&tx, &[message]).await?;
    Ok(tx.commit().await?)
}

/// Shows how far the batch is until it has ended and nothing is under way any more.
async fn watch(platform: &Platform, core: &Db, begun: Instant) -> Result<()> {
    let live = std::io::stdout().is_terminal();
    let mut printed: Option<Instant> = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let batch = match batches::show(core, batch_of("", DAY)).await {
            Ok(batch) => batch,
            Err(error) if error.kind() == dipmo::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let ended = batch.row.completed_at.is_some();
        let line = progress(&batch, begun.elapsed());
        if live {
            // Back to the beginning of the line, and clear what was there.
            print!("\r\x1b[2K{line}{}", if ended { "\n" } else { "" });
            let _ = std::io::stdout().flush();
        } else if ended || printed.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            printed = Some(Instant::now());
            println!("{line}");
        }
        if ended && all_quiet(platform, core).await? {
            return Ok(());
        }
        if begun.elapsed() > DAY_MAX {
            bail!("the day did not end within {DAY_MAX:?}");
        }
    }
}

/// In every database of the platform.
async fn all_quiet(platform: &Platform, core: &Db) -> Result<bool> {
    for context in Context::ALL.into_iter().filter(|context| !platform.is_shared(*context)) {
        if !is_quiet(&platform.db(&platform.contexts[&context], "demo")?).await? {
            return Ok(false);
        }
    }
    is_quiet(core).await
}

/// Nothing waits for anybody but an operator.
pub async fn is_quiet(core: &Db) -> Result<bool> {
    let quiet = "select not exists (select 1 from dipmo.inbox_work where state in ('RECEIVED', 'RETRY'))
        and not exists (select 1 from dipmo.parked_key where state = 'DRAINING')
        and not exists (select 1 from dipmo.outbox_status where state in ('PENDING', 'RETRY'))";
    let quiet = quiet.replace("dipmo.", &format!("{}.", core.schema()));
    Ok(core.client().await?.query_one(&quiet, &[]).await?.get(0))
}

fn progress(batch: &BatchDetail, elapsed: Duration) -> String {
    let row = &batch.row;
    format!(
        "{:6.1} s  {} of {} payments ended: {} succeeded, {} did not; {:.0} a second",
        elapsed.as_secs_f64(),
        row.succeeded + row.failed,
        row.expected.unwrap_or_default(),
        row.succeeded,
        row.failed,
        row.rate.unwrap_or_default(),
    )
}

fn introduction(plan: &Plan, platform: &Platform) -> String {
    let broken: Vec<String> = [Fate::Poor, Fate::Capped, Fate::NoMarket, Fate::Rejected, Fate::Poison]
        .iter()
        .map(|fate| format!("{} {fate:?}", plan.with_fate(*fate)))
        .collect();
    let shape = match platform.amqp {
        None => "Four contexts with their own logins share one database; commands go over INTERNAL.",
        Some(_) => "Four contexts with their own databases; commands and replies go over AMQP.",
    };
    format!(
        "A day of {} scheduled payments, {} of them foreign. Bound to fail: {}.\n{shape}\n\
         The bank is a fake that misbehaves: a quarter of its answers are errors or never come.\n",
        plan.payments.len(),
        plan.foreign(),
        broken.join(", "),
    )
}

fn ledger(facts: &Facts, bank: &Bank, took: Duration) -> String {
    let mut text = format!("\nAfter {:.1} s the day is over. What became of the payments:\n", took.as_secs_f64());
    for (outcome, count) in facts.tally() {
        text.push_str(&format!("{count:8}  {outcome}\n"));
    }
    let paid: i64 = facts.submitted.values().sum();
    let initial: i64 = facts.accounts.values().map(|account| account.initial).sum();
    let balance: i64 = facts.accounts.values().map(|account| account.balance).sum();
    let used: i64 = facts.used.values().sum();
    text.push_str(&format!(
        "\nThe books, in cents:\n{initial:14}  in all accounts at the beginning\n{:14}  submitted\n\
         {balance:14}  in all accounts now\n{used:14}  of the daily limits used\n\
         {:14}  contracts open at the bank, which was called {} times\n",
        -paid,
        facts.bank.len(),
        bank.calls(),
    ));
    text
}

/// How a program of this example ends.
pub fn exit_code(ended: Result<bool>) -> ExitCode {
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is planned to break says so by a panic, whose message would only hide the progress.
pub fn hush_planned_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let planned = panic.payload().downcast_ref::<String>().is_some_and(|text| text.contains("as planned"));
        if !planned {
            eprintln!("{panic}");
        }
    }));
}

pub(crate) fn verdict(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        text.push_str(&format!("{}  {}\n", if check.passed() { "ok   " } else { "WRONG" }, check.claim));
        for against in check.against.iter().take(5) {
            text.push_str(&format!("         {against}\n"));
        }
    }
    let wrong = checks.iter().filter(|check| !check.passed()).count();
    text.push_str(&match wrong {
        0 => format!("\nAll {} claims hold.", checks.len()),
        _ => format!("\n{wrong} of {} claims do NOT hold.", checks.len()),
    });
    text
}
