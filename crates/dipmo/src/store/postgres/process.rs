//! Process instances, their journal and their timers.

use std::collections::HashMap;

use deadpool_postgres::Object;
use time::OffsetDateTime;
use tokio_postgres::Row;
use uuid::Uuid;

use super::columns::column;
use super::settle::{Expect, Stop, first_failure};
use super::{Db, Tx, command, execute, look_up, query};
use crate::error::Result;
use crate::inbox::{FiredTimer, JournalEntry, ProcessWrite, Settled, Settlement, TimerWrite};
use crate::process::{Data, Instance, Status, TimerDue};
use crate::store::InstanceKey;

const LOAD_BY_KEY: &str = "
-- process.load_by_key
select p.id, p.tenant, p.business_key, p.state, p.status, p.version, p.data::text, p.deadline, p.correlation_id, p.type
from unnest($1::text[], $2::text[], $3::text[]) as k (type, tenant, business_key), lateral (
    select * from dipmo.process i
    where i.type = k.type and i.tenant = k.tenant and i.business_key = k.business_key
    -- Fenced off: one look into the index for each key, never a pass over the table.
    offset 0) p";

const LOAD_BY_ID: &str = "
-- process.load_by_id
select p.id, p.tenant, p.business_key, p.state, p.status, p.version, p.data::text, p.deadline, p.correlation_id, p.type
from dipmo.process p where p.id = any($1)";

macro_rules! create {
    ($name:literal, $on_conflict:literal) => {
        concat!(
            "\n-- ",
            $name,
            "
insert into dipmo.process (id, type, tenant, business_key, state, status, version, data, deadline,
    correlation_id, created_at, updated_at)
select s.id, s.type, s.tenant, s.business_key, s.state, s.status, s.version, s.data::json, s.deadline,
    s.correlation_id, coalesce($11, now()), coalesce($11, now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
            $9::timestamptz[], $10::text[])
    as s (id, type, tenant, business_key, state, status, version, data, deadline, correlation_id)
-- In order, so that two nodes that create the same instances wait for each other.
order by s.type, s.tenant, s.business_key",
            $on_conflict
        )
    };
}

// Where nobody is expected to have created them, nobody looks before it writes.
pub(super) const CREATE_NEW: &str = create!("process.create_new", "");
pub(super) const CREATE: &str = create!("process.create", "\non conflict do nothing");

pub(super) const ADVANCE: &str = "
-- process.advance
update dipmo.process p
set state = s.state, status = s.status, version = s.version, data = s.data::json,
    deadline = s.deadline, updated_at = coalesce($8, now())
from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::timestamptz[])
    as s (id, expected, state, status, version, data, deadline)
-- Whoever else moved it in the meantime has raised the version.
where p.id = s.id and p.version = s.expected";

const JOURNAL: &str = "
-- process.journal
insert into dipmo.journal (process_id, version, at, kind, from_state, to_state, status, message_id, detail,
    actor, reason)
select j.process_id, j.version, coalesce($9, now()), j.kind, j.from_state, j.to_state, j.status, j.message_id,
    j.detail::json, j.actor, j.reason
from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
            $10::text[], $11::text[])
    as j (process_id, version, kind, from_state, to_state, status, message_id, detail, actor, reason)";

const FIRE: &str = "
-- process.fire
delete from dipmo.timer t
using unnest($1::uuid[], $2::text[]) as f (process_id, name)
where t.process_id = f.process_id and t.name = f.name";

const POSTPONE_TIMERS: &str = "
-- process.postpone_timers
update dipmo.timer t set attempts = t.attempts + 1, due_at = coalesce($4, now()) + f.delay_ms * interval '1 millisecond'
from unnest($1::uuid[], $2::text[], $3::bigint[]) as f (process_id, name, delay_ms)
where t.process_id = f.process_id and t.name = f.name";

const SET_TIMERS: &str = "
-- process.set_timers
insert into dipmo.timer (process_id, name, consumer_id, bucket, due_at)
select t.process_id, t.name, $1, (hashtextextended(t.key, 0) & 15)::smallint,
    coalesce(t.due_at, coalesce($7, now()) + t.delay_ms * interval '1 millisecond')
from unnest($2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::bigint[])
    as t (process_id, name, key, due_at, delay_ms)
order by t.process_id, t.name
on conflict (process_id, name) do update set due_at = excluded.due_at, attempts = 0";

pub(super) const DUE_TIMERS: &str = "
-- process.due_timers
select t.process_id, t.name, b.bucket, t.attempts
from unnest($2::integer[]) as b (bucket), lateral (
    select process_id, name, attempts, due_at from dipmo.timer
    where consumer_id = $1 and bucket = b.bucket and due_at <= coalesce($3, now())
    order by due_at limit $4) t
order by t.due_at limit $4";

pub(super) async fn load_by_key(db: &Db, client: &Object, keys: &[InstanceKey]) -> Result<Vec<Instance>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let types = column(keys, |key| key.process_type.as_str());
    let tenants = column(keys, |key| key.tenant.as_str());
    let business_keys = column(keys, |key| key.business_key.as_str());
    let rows = look_up(db, client, LOAD_BY_KEY, &[&types, &tenants, &business_keys]).await?;
    Ok(rows.iter().map(instance).collect())
}

pub(super) async fn load_by_ids(db: &Db, client: &Object, ids: &[Uuid]) -> Result<Vec<Instance>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    Ok(look_up(db, client, LOAD_BY_ID, &[&ids]).await?.iter().map(instance).collect())
}

pub(super) async fn load_by_id(db: &Db, tx: &Tx<'_>, ids: &[Uuid]) -> Result<HashMap<Uuid, Instance>> {
    let rows = query(db, tx, LOAD_BY_ID, &[&ids]).await?;
    Ok(rows.iter().map(instance).map(|instance| (instance.id, instance)).collect())
}

fn instance(row: &Row) -> Instance {
    Instance {
        id: row.get(0),
        process_type: row.get(9),
        tenant: row.get(1),
        business_key: row.get(2),
        state: row.get(3),
        status: Status::from_name(row.get(4)).expect("the table's CHECK repeats the enum"),
        version: row.get(5),
        data: Data::from_stored(row.get(6)),
        deadline: row.get(7),
        correlation_id: row.get(8),
    }
}

pub(super) async fn write(db: &Db, consumer_id: i32, tx: &Tx<'_>, s: &Settlement, expect: Expect) -> Result<(), Stop> {
    let timers = async {
        // A timer that fired may be set anew by the same batch.
        fire(db, tx, s).await?;
        set_timers(db, consumer_id, tx, s).await.map_err(Stop::from)
    };
    let (advanced, created, journaled, timed, commanded, counted) = tokio::join!(
        advance(db, tx, &s.processes),
        create(db, tx, &s.processes, expect),
        journal(db, tx, &s.journal),
        timers,
        command::write(db, tx, &s.commands, expect),
        command::write_batch_items(db, tx, &s.batch_items),
    );
    let [journaled, counted] = [journaled, counted].map(|part| part.map_err(Stop::from));
    first_failure([advanced, created, journaled, timed, commanded, counted])
}

async fn create(db: &Db, tx: &Tx<'_>, processes: &[ProcessWrite], expect: Expect) -> Result<(), Stop> {
    let new: Vec<&Instance> = processes.iter().filter(|p| p.expected.is_none()).map(|p| &p.instance).collect();
    if new.is_empty() {
        return Ok(());
    }
    let created = execute(
        db,
        tx,
        if expect == Expect::New { CREATE_NEW } else { CREATE },
        &[
            &column(&new, |p| p.id),
            &column(&new, |p| p.process_type.as_str()),
            &column(&new, |p| p.tenant.as_str()),
            &column(&new, |p| p.business_key.as_str()),
            &column(&new, |p| p.state.as_str()),
            &column(&new, |p| p.status.name()),
            &column(&new, |p| p.version),
            &column(&new, |p| p.data.as_str()),
            &column(&new, |p| p.deadline),
            &column(&new, |p| p.correlation_id.as_deref()),
            &db.clock().for_statement(),
        ],
    )
    .await;
    all_written(expect.new_rows(created)?, new.len())
}

async fn advance(db: &Db, tx: &Tx<'_>, processes: &[ProcessWrite]) -> Result<(), Stop> {
    let mut moved: Vec<&ProcessWrite> = processes.iter().filter(|p| p.expected.is_some()).collect();
    if moved.is_empty() {
        return Ok(());
    }
    // In order, so that two nodes that move the same instances rarely deadlock; if they do, one retries.
    moved.sort_by_key(|p| p.instance.id);
    let advanced = execute(
        db,
        tx,
        ADVANCE,
        &[
            &column(&moved, |p| p.instance.id),
            &column(&moved, |p| p.expected),
            &column(&moved, |p| p.instance.state.as_str()),
            &column(&moved, |p| p.instance.status.name()),
            &column(&moved, |p| p.instance.version),
            &column(&moved, |p| p.instance.data.as_str()),
            &column(&moved, |p| p.instance.deadline),
            &db.clock().for_statement(),
        ],
    )
    .await?;
    all_written(advanced, moved.len())
}

fn all_written(rows: u64, processes: usize) -> Result<(), Stop> {
    if rows < processes as u64 { Err(Stop::Retry(Settled::Conflict)) } else { Ok(()) }
}

async fn journal(db: &Db, tx: &Tx<'_>, entries: &[JournalEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    execute(
        db,
        tx,
        JOURNAL,
        &[
            &column(entries, |j| j.process_id),
            &column(entries, |j| j.version),
            &column(entries, |j| j.kind),
            &column(entries, |j| j.from_state.as_deref()),
            &column(entries, |j| j.to_state.as_str()),
            &column(entries, |j| j.status.name()),
            &column(entries, |j| j.message_id.as_deref()),
            &column(entries, |j| j.detail.as_ref().map(ToString::to_string)),
            &db.clock().for_statement(),
            &column(entries, |j| j.by.as_ref().map(|(actor, _)| actor.as_str())),
            &column(entries, |j| j.by.as_ref().map(|(_, reason)| reason.as_str())),
        ],
    )
    .await?;
    Ok(())
}

async fn fire(db: &Db, tx: &Tx<'_>, s: &Settlement) -> Result<(), Stop> {
    if !s.fired.is_empty() {
        let ids = column(&s.fired, |t: &FiredTimer| t.process_id);
        let names = column(&s.fired, |t| t.name.as_str());
        let fired = execute(db, tx, FIRE, &[&ids, &names]).await?;
        all_written(fired, s.fired.len())?;
    }
    if !s.postponed.is_empty() {
        let ids = column(&s.postponed, |(t, _)| t.process_id);
        let names = column(&s.postponed, |(t, _)| t.name.as_str());
        let delays = column(&s.postponed, |(_, delay)| delay.as_millis() as i64);
        execute(db, tx, POSTPONE_TIMERS, &[&ids, &names, &delays, &db.clock().for_statement()]).await?;
    }
    Ok(())
}

async fn set_timers(db: &Db, consumer_id: i32, tx: &Tx<'_>, s: &Settlement) -> Result<()> {
    let (set, cancelled): (Vec<_>, Vec<_>) = s.timers.iter().partition(|t| t.due.is_some());
    // Of several changes to one timer the last counts, so these are different timers.
    let (cancelled, set) = tokio::join!(cancel(db, tx, &cancelled), set_due(db, consumer_id, tx, &set));
    cancelled.and(set)
}

async fn cancel(db: &Db, tx: &Tx<'_>, cancelled: &[&TimerWrite]) -> Result<()> {
    if cancelled.is_empty() {
        return Ok(());
    }
    let (ids, names) = (column(cancelled, |t| t.process_id), column(cancelled, |t| t.name.as_str()));
    execute(db, tx, FIRE, &[&ids, &names]).await.map(drop)
}

async fn set_due(db: &Db, consumer_id: i32, tx: &Tx<'_>, set: &[&TimerWrite]) -> Result<()> {
    if set.is_empty() {
        return Ok(());
    }
    let at: Vec<Option<OffsetDateTime>> = column(set, |t| match t.due {
        Some(TimerDue::At(at)) => Some(at),
        _ => None,
    });
    let after: Vec<Option<i64>> = column(set, |t| match t.due {
        Some(TimerDue::After(delay)) => Some(delay.as_millis() as i64),
        _ => None,
    });
    execute(
        db,
        tx,
        SET_TIMERS,
        &[
            &consumer_id,
            &column(set, |t| t.process_id),
            &column(set, |t| t.name.as_str()),
            &column(set, |t| t.key.as_str()),
            &at,
            &after,
            &db.clock().for_statement(),
        ],
    )
    .await?;
    Ok(())
}
