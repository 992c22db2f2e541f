//! What the reader sees at the end: the numbers, the checks, and where to look.

use std::time::Duration;

use super::checks::Check;
use super::facts::Facts;
use super::plan::{Fate, Plan};

/// More problems than this tell nothing new.
const PROBLEMS_MAX: usize = 5;

pub(super) fn introduction(plan: &Plan, kafka: bool) -> String {
    let way = if kafka { "over Kafka" } else { "over INTERNAL, without a broker" };
    let count = |name: &str, count: usize| format!("  {count:>6} {name}\n");
    let garbled = plan.inputs.iter().filter(|input| input.garbled).count();
    let slow = plan.cases.iter().filter(|case| case.slow > 0).count();
    let mut text = format!(
        "A payment-style flow (sanctions hits, and onboarding of customers) is put under load {way}.\n\
         In the middle of the work its process is killed with SIGKILL, more than once, and started again.\n\
         {} messages about {} customers are sent, among them (seed {}):\n",
        plan.inputs.len(),
        plan.customers,
        plan.seed,
    );
    text += &count("repeated: the same message sent once more", plan.inputs.len() - plan.distinct());
    text += &count("reordered: sent after a later message of the same customer", plan.reordered);
    text += &count("undecodable: cut off, or not text at all", garbled);
    text += &count("poison: readable, and never valid", plan.count(|fate| fate == Fate::Poison));
    text += &count("flaky: a service they need times out at first", slow);
    text
}

pub(super) fn ledger(plan: &Plan, facts: &Facts, kills: usize, took: Duration) -> String {
    let sent = plan.inputs.len();
    let mut lines = vec![
        ("messages sent", sent.to_string(), "by the outside world"),
        ("received", facts.arrived.len().to_string(), "stored, each once"),
        ("duplicates absorbed", sent.saturating_sub(facts.arrived.len()).to_string(), "no effect, no trace"),
        ("processes", facts.processes.len().to_string(), "one a case"),
        ("steps", facts.steps.to_string(), "messages handled inside the flow, inputs included"),
        ("effects", facts.effects.len().to_string(), "rows written for the business"),
        ("retried", facts.retried.to_string(), "steps that took more than one attempt: timeouts and kills"),
        ("undecodable", facts.open_in("SERDE_ERROR").to_string(), "kept with their bytes for a later fix"),
        ("dead", facts.open_in("DEAD").to_string(), "poison, waits for an operator"),
        ("parked", facts.open_in("PARKED").to_string(), "sound, wait in order behind the poison of their customer"),
        ("outbox sent", facts.sent.to_string(), "messages between the modules and out"),
    ];
    let repeated;
    if let Some((meant, published)) = &facts.kafka {
        let more = published.len().saturating_sub(meant.len());
        repeated = format!("{} events, and {more} sent again because of a kill", meant.len());
        lines.push(("records on Kafka", published.len().to_string(), &repeated));
    }
    lines.push(("kills survived", kills.to_string(), "SIGKILL"));
    let seconds = format!("{:.1} s", took.as_secs_f64());
    lines.push(("time", seconds, "from the first message to the last effect"));
    let mut text = String::from("The ledger\n");
    for (name, value, meaning) in lines {
        text.push_str(&format!("  {name:<20} {value:>8}   {meaning}\n"));
    }
    text
}

pub(super) fn verdict(checks: &[Check], kills: usize) -> String {
    let mut text = String::from("The checks\n");
    for check in checks {
        let mark = if check.passed() { "ok    " } else { "FAILED" };
        text.push_str(&format!("  {mark}  {}\n", check.claim));
        for problem in check.problems.iter().take(PROBLEMS_MAX) {
            text.push_str(&format!("            {problem}\n"));
        }
        if check.problems.len() > PROBLEMS_MAX {
            text.push_str(&format!("            and {} more\n", check.problems.len() - PROBLEMS_MAX));
        }
    }
    let failed = checks.iter().filter(|check| !check.passed()).count();
    text.push_str(&match failed {
        0 => format!("\nThe flow was killed {kills} times in the middle; nothing was lost, doubled or reordered.\n"),
        _ => format!("\n{failed} of {} checks FAILED.\n", checks.len()),
    });
    text
}

pub(super) fn look_around(postgres: &str, kafka: Option<&str>) -> String {
    let mut text = format!(
        "\nEverything is still running. Look around, and press Ctrl-C to end it.\n\n\
         export DIPMO_DATABASE_URL={postgres}\n\
         cargo run -p dipmo-server -- status\n\
         cargo run -p dipmo-server -- inbox list\n\
         psql $DIPMO_DATABASE_URL\n\n\
         -- what is set aside, and why\n\
         select consumer, key, state, error_code, error_message from dipmo.inbox_status\n\
             where state in ('DEAD', 'SERDE_ERROR', 'PARKED') order by key, id;\n\
         -- the journal of one process\n\
         select j.at, j.from_state, j.to_state, j.detail from dipmo.journal j join dipmo.process p on p.id = j.process_id\n\
             where p.business_key = (select min(business_key) from dipmo.process) order by j.id;\n\
         -- the effects of one customer, in order\n\
         select feature, seq, kind, case_id, at from kyc.effect where key = 'c-0001' order by n;\n\
         -- what went out, and when\n\
         select event_type, destination, state, published_at from dipmo.outbox_status order by id desc limit 20;\n"
    );
    if let Some(brokers) = kafka {
        let topics = [crate::NOTIFICATION_TOPIC, crate::ONBOARDING_TOPIC, crate::REVIEW_TOPIC].join(", ");
        text.push_str(&format!("\nKafka listens on {brokers}; topics: {topics}.\n"));
    }
    text
}
