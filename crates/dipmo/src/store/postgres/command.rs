//! What decisions change about commands and about the items of batches.

use std::collections::HashSet;

use metrics::{counter, histogram};
use uuid::Uuid;

use super::columns::column;
use super::settle::{Expect, Stop, first_failure};
use super::{Db, Tx, execute, query};
use crate::command::{BatchItemChange, CommandChange, End, Issue};
use crate::error::Result;

macro_rules! issue {
    ($name:literal, $on_conflict:literal) => {
        concat!("\n-- ", $name, "
insert into dipmo.command (id, name, tenant, business_key, status, process_id, step, destination,
    idempotency_key, attempts, lease_until, requested_at)
select c.id, c.name, c.tenant, c.business_key, c.status, c.process_id, c.step, c.destination,
    c.idempotency_key, c.attempts, coalesce($11, now()) + c.lease_ms * interval '1 millisecond', coalesce($11, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[],
            $9::integer[], $10::bigint[], $12::text[])
    as c (id, name, tenant, business_key, process_id, step, destination, idempotency_key, attempts, lease_ms, status)",
            $on_conflict)
    };
}

// Two fifths cheaper: nobody looks before it writes.
const ISSUE_NEW: &str = issue!("command.issue_new", "");
const ISSUE: &str = issue!(
    "command.issue",
    "
on conflict (id) do update
    set status = excluded.status, attempts = excluded.attempts, lease_until = excluded.lease_until,
        step = excluded.step, destination = excluded.destination, completed_at = null"
);

const UNPARK: &str = "
-- command.unpark
delete from dipmo.command_dlq where command_id = any($1)";

const RUN: &str = "
-- command.run
update dipmo.command c
set status = 'RUNNING', lease_until = coalesce($3, now()) + r.lease_ms * interval '1 millisecond'
from unnest($1::uuid[], $2::bigint[]) as r (id, lease_ms)
where c.id = r.id and c.status in ('PENDING', 'RUNNING')";

const END: &str = "
-- command.end
with ended as (
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $7::boolean[])
        as e (id, status, result, error_code, last_error, park)
), unparked as (
    delete from dipmo.command_dlq d using ended e where d.command_id = e.id and not e.park
)
update dipmo.command c
set status = e.status, completed_at = coalesce($6, now()), lease_until = null, result = e.result::json,
    error_code = coalesce(e.error_code, c.error_code), last_error = coalesce(e.last_error, c.last_error)
from ended e
where c.id = e.id
returning c.step, extract(epoch from c.completed_at - c.requested_at)::float8 * 1000";

const PARK: &str = "
-- command.park
insert into dipmo.command_dlq (command_id, parked_at, parked_by, attempts, error)
select c.id, coalesce($2, now()), 'dipmo', c.attempts, c.last_error from dipmo.command c where c.id = any($1)
on conflict (command_id) do update
    set parked_at = excluded.parked_at, attempts = excluded.attempts, error = excluded.error";

const BATCH_ITEMS: &str = "
-- batch.items
update dipmo.batch_item i
set status = s.status, last_error = s.error, changed_at = coalesce($5, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as s (batch_id, item_id, status, error)
where i.batch_id = s.batch_id and i.item_id = s.item_id";

const LOCK_RUNS: &str = "
-- batch.lock_runs
select from dipmo.batch_run where batch_id = any($1) order by batch_id for update";

const REOPEN: &str = "
-- batch.reopen
update dipmo.batch_run set status = 'RUNNING', completed_at = null
where batch_id = any($1) and status in ('PARTIAL', 'SUCCEEDED', 'FAILED')";

/// Of several changes to one command in a batch, what was issued comes first and its end last.
pub(super) async fn write(db: &Db, tx: &Tx<'_>, changes: &[CommandChange], expect: Expect) -> Result<(), Stop> {
    if changes.is_empty() {
        return Ok(());
    }
    let (mut issues, mut runs, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for change in changes {
        match change {
            CommandChange::Issue(issue) => issues.push(issue),
            CommandChange::Run { id, lease } => runs.push((*id, lease.map(|lease| lease.as_millis() as i64))),
            CommandChange::End(end) => ends.push(end),
        }
    }
    let issues = last_of_each(issues, |issue| issue.id);
    let ends = last_of_each(ends, |end| end.id);
    // What is issued and taken up at once is written once, as running.
    let (begun, runs): (Vec<_>, Vec<_>) = last_of_each(runs, |(id, _)| *id)
        .into_iter()
        .partition(|(id, lease)| lease.is_none() && is_issued(&issues, *id));
    let begun: HashSet<Uuid> = begun.into_iter().map(|(id, _)| id).collect();
    let again = ends.iter().any(|end| is_issued(&issues, end.id));
    if again || !runs.is_empty() {
        issue_all(db, tx, ISSUE, &issues, &begun).await?;
        run(db, tx, &runs).await?;
        return Ok(end(db, tx, &ends).await?);
    }
    let (issued, ended) = tokio::join!(issue(db, tx, &issues, &begun, expect), end(db, tx, &ends));
    first_failure([issued, ended.map_err(Stop::from)])
}

/// One change a command, so that a set statement touches each row once; ordered, so that two nodes wait
/// for each other instead of deadlocking.
fn last_of_each<T>(mut changes: Vec<T>, id: impl Fn(&T) -> Uuid) -> Vec<T> {
    changes.reverse();
    changes.sort_by_key(&id);
    changes.dedup_by_key(|change| id(change));
    changes
}

/// `issues` are in the order of their ids.
fn is_issued(issues: &[&Issue], id: Uuid) -> bool {
    issues.binary_search_by_key(&id, |issue| issue.id).is_ok()
}

/// The first time that a step is asked for is told apart: nothing is there yet. What came from outside may have
/// been written down when it was accepted.
async fn issue(db: &Db, tx: &Tx<'_>, issues: &[&Issue], begun: &HashSet<Uuid>, expect: Expect) -> Result<(), Stop> {
    let is_first = |c: &&&Issue| expect == Expect::New && c.attempt == 1 && c.id != c.process_id;
    let (first, others): (Vec<&Issue>, Vec<&Issue>) = issues.iter().partition(is_first);
    let (first, others) =
        tokio::join!(issue_all(db, tx, ISSUE_NEW, &first, begun), issue_all(db, tx, ISSUE, &others, begun));
    first_failure([expect.new_rows(first).map(drop), others.map_err(Stop::from)])
}

async fn issue_all(
    db: &Db,
    tx: &Tx<'_>,
    statement: &'static str,
    issues: &[&Issue],
    begun: &HashSet<Uuid>,
) -> Result<()> {
    if issues.is_empty() {
        return Ok(());
    }
    execute(
        db,
        tx,
        statement,
        &[
            &column(issues, |c| c.id),
            &column(issues, |c| c.name.as_str()),
            &column(issues, |c| c.tenant.as_str()),
            &column(issues, |c| c.business_key.as_str()),
            &column(issues, |c| c.process_id),
            &column(issues, |c| c.step.as_str()),
            &column(issues, |c| c.destination.as_deref()),
            &column(issues, |c| c.idempotency_key.as_str()),
            &column(issues, |c| c.attempt as i32),
            &column(issues, |c| c.lease.map(|lease| lease.as_millis() as i64)),
            &db.clock().for_statement(),
            &column(issues, |c| if begun.contains(&c.id) { "RUNNING" } else { "PENDING" }),
        ],
    )
    .await?;
    // Only what was sent before can be among the dead letters.
    let again: Vec<Uuid> = issues.iter().filter(|c| c.attempt > 1).map(|c| c.id).collect();
    if !again.is_empty() {
        counter!("saga_retries_total").increment(again.len() as u64);
        execute(db, tx, UNPARK, &[&again]).await?;
    }
    Ok(())
}

async fn run(db: &Db, tx: &Tx<'_>, runs: &[(Uuid, Option<i64>)]) -> Result<()> {
    if !runs.is_empty() {
        let (ids, leases) = (column(runs, |(id, _)| *id), column(runs, |(_, lease)| *lease));
        execute(db, tx, RUN, &[&ids, &leases, &db.clock().for_statement()]).await?;
    }
    Ok(())
}

async fn end(db: &Db, tx: &Tx<'_>, ends: &[&End]) -> Result<()> {
    if ends.is_empty() {
        return Ok(());
    }
    let now = db.clock().for_statement();
    let ended = query(
        db,
        tx,
        END,
        &[
            &column(ends, |e| e.id),
            &column(ends, |e| e.status.name()),
            &column(ends, |e| e.result.as_ref().map(ToString::to_string)),
            &column(ends, |e| e.error.as_ref().map(|error| error.code.as_str())),
            &column(ends, |e| e.error.as_ref().map(|error| error.message.as_str())),
            &now,
            &column(ends, |e| e.park),
        ],
    )
    .await?;
    // Before the commit, so that a rare rollback counts too.
    for row in &ended {
        histogram!("saga_step_latency_ms", "step" => row.get::<_, String>(0)).record(row.get::<_, f64>(1));
    }
    let parked: Vec<Uuid> = ends.iter().filter(|end| end.park).map(|end| end.id).collect();
    if !parked.is_empty() {
        execute(db, tx, PARK, &[&parked, &now]).await?;
    }
    Ok(())
}

pub(super) async fn write_batch_items(db: &Db, tx: &Tx<'_>, items: &[BatchItemChange]) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let mut last: Vec<&BatchItemChange> = items.iter().rev().collect();
    last.sort_by_key(|item| (item.batch_id, &item.item_id));
    last.dedup_by_key(|item| (item.batch_id, &item.item_id));
    execute(
        db,
        tx,
        BATCH_ITEMS,
        &[
            &column(&last, |i| i.batch_id),
            &column(&last, |i| i.item_id.as_str()),
            &column(&last, |i| i.status.name()),
            &column(&last, |i| i.error.as_deref()),
            &db.clock().for_statement(),
        ],
    )
    .await?;
    let reopened: Vec<Uuid> = last.iter().filter(|item| item.reopens).map(|item| item.batch_id).collect();
    if !reopened.is_empty() {
        // Whoever counts it at this moment is waited for: it may be about to say that the batch has ended.
        query(db, tx, LOCK_RUNS, &[&reopened]).await?;
        execute(db, tx, REOPEN, &[&reopened]).await?;
    }
    Ok(())
}
