//! Writes a settlement: fence, dedupe, arrivals, open work, processes, outbox, in one transaction.

use std::collections::HashSet;

use uuid::Uuid;

use super::columns::column;
use super::inbox::PgInbox;
use super::{Db, Tx, execute, outbox, process, query};
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::{Arrival, Fence, Held, Park, RELAY_SCOPE, Settled, Settlement, Stored};
use crate::message::OutMessage;

const FENCE: &str = "
-- inbox.fence
select l.bucket
from dipmo.lease l
join unnest($1::text[], $2::integer[], $3::bigint[]) as f (scope, bucket, epoch)
  on l.scope = f.scope and l.bucket = f.bucket and l.epoch = f.epoch
order by l.scope, l.bucket
-- Shared: whoever wants to take the bucket waits until this transaction has ended.
for share of l";

const FENCE_SHARDS: &str = "
-- inbox.fence_shards
select s.shard
from dipmo.relay_shard s
join unnest($1::integer[], $2::bigint[]) as f (shard, epoch) on s.shard = f.shard and s.epoch = f.epoch
order by s.shard
for share of s";

const DEDUPE: &str = "
-- inbox.dedupe
insert into dipmo.inbox_dedupe (key, seen_at)
-- In order, so that two nodes with the same messages wait for each other instead of deadlocking.
select k, coalesce($2, now()) from unnest($1::uuid[]) k order by k
on conflict do nothing
returning key";

// A third cheaper: nobody looks before it writes.
const DEDUPE_NEW: &str = "
-- inbox.dedupe_new
insert into dipmo.inbox_dedupe (key, seen_at) select k, coalesce($2, now()) from unnest($1::uuid[]) k order by k";

const LOCK_PARKED: &str = "
-- inbox.lock_parked
select key, awaits_version from dipmo.parked_key
where consumer_id = $1 and key = any($2)
order by key
-- A key cannot be freed while something is being parked behind it.
for share";

const NEXT_IDS: &str = "
-- inbox.next_ids
select nextval('dipmo.inbox_seq') from generate_series(1, $1)";

const ARRIVE: &str = "
-- inbox.arrive
insert into dipmo.inbox (consumer_id, id, source, message_id, topic, partition_no, offset_no, key,
    key_bytes, tenant, aggregate_id, aggregate_version, event_type, event_version, correlation_id,
    causation_id, traceparent, headers, payload, event_time, outcome, reason, received_at)
select $1, coalesce(a.id, nextval('dipmo.inbox_seq')), a.source, a.message_id, a.topic, a.partition_no, a.offset_no, a.key,
    a.key_bytes, a.tenant, a.aggregate_id, a.aggregate_version, a.event_type, a.event_version, a.correlation_id,
    a.causation_id, a.traceparent, a.headers::jsonb, a.payload, a.event_time, a.outcome, a.reason,
    coalesce($23, now())
-- Straight from the arrays: a common table expression would copy every payload once more.
from unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::text[],
            $9::bytea[], $10::text[], $11::text[], $12::bigint[], $13::text[], $14::integer[], $15::text[],
            $16::text[], $17::text[], $18::text[], $19::bytea[], $20::timestamptz[], $21::text[], $22::text[])
    as a (id, source, message_id, topic, partition_no, offset_no, key, key_bytes, tenant, aggregate_id,
          aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers,
          payload, event_time, outcome, reason)";

const OPEN: &str = "
-- inbox.open
with opened as (
    insert into dipmo.inbox_work (consumer_id, id, bucket, key, aggregate_version, state, attempts,
        next_attempt_at, error_stage, error_code, error_message, changed_at)
    select $1, a.id, (hashtextextended(a.key, 0) & 15)::smallint, a.key, a.aggregate_version, a.state,
        -- An attempt was made by everything that was not just put aside.
        case when a.state in ('RECEIVED', 'PARKED') then 0 else 1 end,
        coalesce($12, now()) + a.delay_ms * interval '1 millisecond',
        a.error_stage, a.error_code, a.error_message, coalesce($12, now())
    from unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[])
        as a (id, key, aggregate_version, state, delay_ms, error_stage, error_code, error_message)
)
insert into dipmo.parked_key (consumer_id, key, bucket, head_id, state, awaits_version, parked_at)
-- One row a key, however many of its messages are set aside together.
select distinct on (p.key) $1, p.key, (hashtextextended(p.key, 0) & 15)::smallint, p.id, p.parks, p.awaits_version,
    coalesce($12, now())
from unnest($2::bigint[], $3::text[], $10::text[], $11::bigint[]) as p (id, key, parks, awaits_version)
where p.parks is not null order by p.key, p.id
on conflict (consumer_id, key) do update
    set head_id = excluded.head_id, state = excluded.state, awaits_version = excluded.awaits_version
    -- What only queues up does not take the place of a head that the key waits for.
    where excluded.state = 'WAITING'";

const FINISH: &str = "
-- inbox.finish
with gone as (
    delete from dipmo.inbox_work w
    using unnest($1::bigint[], $2::text[], $3::text[]) as s (id, state, reason)
    where w.id = s.id and w.state in ('RECEIVED', 'RETRY', 'PARKED')
    returning w.id, w.attempts, s.state, s.reason
)
insert into dipmo.inbox_done (id, state, attempts, processed_at, reason)
select id, state, attempts, coalesce($4, now()), reason from gone";

const POSTPONE: &str = "
-- inbox.postpone
with postponed as (
    update dipmo.inbox_work w
    set state = s.state,
        next_attempt_at = coalesce($8, now()) + s.delay_ms * interval '1 millisecond',
        error_stage = coalesce(s.error_stage, w.error_stage),
        error_code = coalesce(s.error_code, w.error_code),
        error_message = coalesce(s.error_message, w.error_message),
        -- A message that was only put aside has not used up its attempt.
        attempts = case when s.state = 'PARKED' then greatest(w.attempts - 1, 0) else w.attempts end,
        changed_at = coalesce($8, now())
    from unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                $9::text[], $10::bigint[])
        as s (id, state, delay_ms, error_stage, error_code, error_message, parks, awaits_version)
    where w.id = s.id and w.state in ('RECEIVED', 'RETRY', 'PARKED')
    returning w.id, w.key, w.bucket, s.parks, s.awaits_version
), parked as (
    insert into dipmo.parked_key (consumer_id, key, bucket, head_id, state, awaits_version, parked_at)
    select distinct on (key) $1, key, bucket, id, parks, awaits_version, coalesce($8, now())
    from postponed where parks is not null order by key, id
    on conflict (consumer_id, key) do update
        set head_id = excluded.head_id, state = excluded.state, awaits_version = excluded.awaits_version
)
select id from postponed";

const RELEASE: &str = "
-- inbox.release
update dipmo.parked_key k set state = 'DRAINING', awaits_version = null
from unnest($2::text[], $3::bigint[]) as r (key, head_id)
where k.consumer_id = $1 and k.key = r.key and (r.head_id is null or k.head_id = r.head_id)";

const REMEMBER_VERSIONS: &str = "
-- inbox.remember_versions
insert into dipmo.inbox_version (consumer_id, key, version)
select $1, v.key, v.version from unnest($2::text[], $3::bigint[]) as v (key, version) order by v.key
on conflict (consumer_id, key) do update set version = excluded.version
where inbox_version.version < excluded.version";

const FOUND_AWAITED: &str = "
-- inbox.found_awaited
update dipmo.parked_key k set state = 'DRAINING', awaits_version = null
where k.consumer_id = $1 and k.key = any($2) and k.state = 'WAITING'
  -- The version that the key began to wait for is among those set aside: it came in the same batch, or
  -- was parked before. Nobody will bring it again.
  and exists (select 1 from dipmo.inbox_work w
              where w.consumer_id = $1 and w.key = k.key and w.state = 'PARKED'
                and w.aggregate_version = k.awaits_version)";

/// SQLSTATE of a statement in a transaction that has failed.
const ABORTED: &str = "25P02";

/// What is expected of the arrivals, and of the processes and commands that they begin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// All are new, so that nothing looks before it writes; if not, the transaction is lost.
    New,
    Duplicates,
}

impl Expect {
    /// In the order to be tried. What comes from the outbox comes again only after a crash.
    pub(super) fn of(s: &Settlement) -> &'static [Expect] {
        if s.is_from_outbox() { &[Expect::New, Expect::Duplicates] } else { &[Expect::Duplicates] }
    }

    /// What a statement that inserts says; if something was there that was expected to be new, it is a surprise.
    pub(super) fn new_rows<T>(self, inserted: Result<T>) -> Result<T, Stop> {
        inserted.map_err(|error| match error.kind() {
            ErrorKind::Conflict if self == Expect::New => Stop::Surprise,
            _ => Stop::Failed(error),
        })
    }
}

/// What makes a transaction roll back instead of commit.
pub(super) enum Stop {
    Retry(Settled),
    /// Something that was expected to be new is not.
    Surprise,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

pub(super) async fn settle(inbox: &PgInbox, settlement: &Settlement) -> Result<Settled> {
    for expect in Expect::of(settlement) {
        if let Some(settled) = settle_expecting(inbox, settlement, *expect).await? {
            return Ok(settled);
        }
    }
    Err(surprised_for_good())
}

/// Whoever expects duplicates is not surprised by any.
pub(super) fn surprised_for_good() -> Error {
    Error::new(ErrorKind::Bug, "a duplicate was not found among the arrivals")
}

/// `None` when it expected too much.
async fn settle_expecting(inbox: &PgInbox, settlement: &Settlement, expect: Expect) -> Result<Option<Settled>> {
    let mut client = inbox.db().client().await?;
    let tx = Tx::begin(&mut client)?;
    prepare_locks(inbox.db(), &tx).await?;
    // Nobody's code runs in between, so nothing need wait for the guard: it is all undone if that objects.
    let (guarded, written, appended) = tokio::join!(
        biased;
        guard(inbox, &tx, settlement, expect),
        write_messages_and_processes(inbox, &tx, settlement, expect),
        write_outbox(inbox, &tx, &settlement.outbox),
    );
    match first_failure([guarded, written, appended]) {
        Ok(()) => tx.commit().await.map(|()| Some(Settled::Committed)),
        Err(Stop::Retry(outcome)) => rolled_back(tx, Some(outcome)).await,
        Err(Stop::Surprise) => rolled_back(tx, None).await,
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// What is prepared is on the wire as soon as it is polled: the guard first, then what gets hold of keys and
/// processes, then the outbox, always in this order.
async fn prepare_locks(db: &Db, tx: &Tx<'_>) -> Result<()> {
    for statement in
        [FENCE, FENCE_SHARDS, DEDUPE, DEDUPE_NEW, FINISH, process::CREATE, process::CREATE_NEW, process::ADVANCE]
    {
        tx.prepare_cached(&db.sql(statement)).await.map_err(|e| super::failed(statement, e))?;
    }
    Ok(())
}

/// Ends the transaction before the connection goes back to the pool.
pub(super) async fn rolled_back<T>(tx: Tx<'_>, outcome: T) -> Result<T> {
    tx.rollback().await?;
    Ok(outcome)
}

/// Everything that must hold before user code may run in the transaction.
pub(super) async fn guard(inbox: &PgInbox, tx: &Tx<'_>, s: &Settlement, expect: Expect) -> Result<(), Stop> {
    let (fence, duplicates, parked) = tokio::join!(
        check_fence(inbox.db(), tx, &s.fence),
        dedupe(inbox.db(), tx, &s.arrivals, expect),
        lock_parked(inbox, tx, &s.still_parked),
    );
    fence?;
    let duplicates = duplicates?;
    if !duplicates.is_empty() {
        return Err(Stop::Retry(Settled::Duplicates(duplicates)));
    }
    // Freed meanwhile, or waiting for a version that may be the one about to be put behind it.
    if parked? { Ok(()) } else { Err(Stop::Retry(Settled::Conflict)) }
}

/// True if all of them still wait as they did.
async fn lock_parked(inbox: &PgInbox, tx: &Tx<'_>, keys: &[(String, Option<i64>)]) -> Result<bool> {
    if keys.is_empty() {
        return Ok(true);
    }
    let names = column(keys, |(key, _)| key.as_str());
    let rows = query(inbox.db(), tx, LOCK_PARKED, &[&inbox.consumer_id(), &names]).await?;
    let found: HashSet<(String, Option<i64>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    Ok(keys.iter().all(|parked| found.contains(parked)))
}

/// Everything that the settlement leaves behind. The outbox comes last: its ids are then in the order in which
/// transactions got hold of their process or key, and are held open for the shortest time.
pub(super) async fn write(
    inbox: &PgInbox,
    tx: &Tx<'_>,
    s: &Settlement,
    handlers_outbox: Vec<OutMessage>,
) -> Result<(), Stop> {
    write_messages_and_processes(inbox, tx, s, Expect::Duplicates).await?;
    let mut outbox = s.outbox.clone();
    outbox.extend(handlers_outbox);
    write_outbox(inbox, tx, &outbox).await
}

/// Sent without waiting for each answer: parts that are polled together touch different rows.
async fn write_messages_and_processes(
    inbox: &PgInbox,
    tx: &Tx<'_>,
    s: &Settlement,
    expect: Expect,
) -> Result<(), Stop> {
    let db = inbox.db();
    let messages = async {
        finish(db, tx, &s.stored).await?;
        postpone(inbox, tx, &s.stored).await?;
        release(inbox, tx, &s.released).await?;
        arrive(inbox, tx, s).await?;
        find_awaited(inbox, tx, s).await.map_err(Stop::from)
    };
    let (processes, versions, messages) = tokio::join!(
        process::write(db, inbox.consumer_id(), tx, s, expect),
        remember_versions(inbox, tx, &s.versions),
        messages,
    );
    first_failure([processes, versions.map_err(Stop::from), messages])
}

async fn write_outbox(inbox: &PgInbox, tx: &Tx<'_>, messages: &[OutMessage]) -> Result<(), Stop> {
    let taken = outbox::append(inbox.db(), tx, messages).await?;
    if !taken.is_empty() {
        return Err(Stop::Retry(Settled::VersionsTaken(taken)));
    }
    Ok(())
}

/// The reason, rather than the refusal of what came behind it in a transaction that was lost already.
pub(super) fn first_failure<const N: usize>(parts: [Result<(), Stop>; N]) -> Result<(), Stop> {
    let mut failures: Vec<Stop> = parts.into_iter().filter_map(Result::err).collect();
    let echo = |stop: &Stop| matches!(stop, Stop::Failed(error) if error.to_string().contains(ABORTED));
    match failures.iter().position(|stop| !echo(stop)) {
        Some(reason) => Err(failures.swap_remove(reason)),
        None => failures.pop().map_or(Ok(()), Err),
    }
}

async fn remember_versions(inbox: &PgInbox, tx: &Tx<'_>, versions: &[(String, i64)]) -> Result<()> {
    if versions.is_empty() {
        return Ok(());
    }
    let (keys, versions) = (column(versions, |(key, _)| key.as_str()), column(versions, |(_, version)| *version));
    execute(inbox.db(), tx, REMEMBER_VERSIONS, &[&inbox.consumer_id(), &keys, &versions]).await.map(drop)
}

async fn release(inbox: &PgInbox, tx: &Tx<'_>, released: &[(String, Option<i64>)]) -> Result<()> {
    if released.is_empty() {
        return Ok(());
    }
    let (keys, heads) = (column(released, |(key, _)| key.as_str()), column(released, |(_, head)| *head));
    execute(inbox.db(), tx, RELEASE, &[&inbox.consumer_id(), &keys, &heads]).await.map(drop)
}

pub(super) async fn check_fence(db: &Db, tx: &Tx<'_>, fence: &Fence) -> Result<()> {
    if fence.is_empty() {
        return Ok(());
    }
    let (shards, buckets): (Vec<&Held>, Vec<&Held>) = fence.iter().partition(|held| held.scope == RELAY_SCOPE);
    let mut held = 0;
    if !buckets.is_empty() {
        let scopes = column(&buckets, |held| held.scope.as_str());
        let numbers = column(&buckets, |held| held.bucket);
        let epochs = column(&buckets, |held| held.epoch);
        held += query(db, tx, FENCE, &[&scopes, &numbers, &epochs]).await?.len();
    }
    if !shards.is_empty() {
        let (numbers, epochs) = (column(&shards, |held| held.bucket), column(&shards, |held| held.epoch));
        held += query(db, tx, FENCE_SHARDS, &[&numbers, &epochs]).await?.len();
    }
    if held < fence.len() {
        return Err(Error::lease_lost("another node has taken a bucket of this batch"));
    }
    Ok(())
}

/// Answers with those that were seen before.
async fn dedupe(db: &Db, tx: &Tx<'_>, arrivals: &[Arrival], expect: Expect) -> Result<HashSet<Uuid>, Stop> {
    if arrivals.is_empty() {
        return Ok(HashSet::new());
    }
    let (keys, now) = (column(arrivals, |a| a.dedupe_key), db.clock().for_statement());
    if expect == Expect::New {
        return expect.new_rows(execute(db, tx, DEDUPE_NEW, &[&keys, &now]).await).map(|_| HashSet::new());
    }
    let rows = query(db, tx, DEDUPE, &[&keys, &now]).await?;
    if rows.len() == keys.len() {
        return Ok(HashSet::new());
    }
    let new: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    Ok(keys.into_iter().filter(|key| !new.contains(key)).collect())
}

async fn arrive(inbox: &PgInbox, tx: &Tx<'_>, s: &Settlement) -> Result<()> {
    let arrivals: Vec<&Arrival> = s.arrivals.iter().filter(|a| !(s.is_from_outbox() && a.is_processed())).collect();
    if arrivals.is_empty() {
        return Ok(());
    }
    let arrivals = arrivals.as_slice();
    // Only open work has to be told its id.
    let ids: Vec<Option<i64>> = match arrivals.iter().all(|a| a.disposition.state().is_closed()) {
        true => vec![None; arrivals.len()],
        false => {
            let rows = query(inbox.db(), tx, NEXT_IDS, &[&(arrivals.len() as i32)]).await?;
            rows.iter().map(|row| row.get(0)).collect()
        }
    };
    let headers = column(arrivals, |a| {
        a.message.headers.as_ref().map(|h| serde_json::to_string(h).expect("a JSON map has text keys"))
    });
    execute(
        inbox.db(),
        tx,
        ARRIVE,
        &[
            &inbox.consumer_id(),
            &ids,
            &column(arrivals, |a| a.message.source.as_str()),
            &column(arrivals, |a| a.message.message_id.as_str()),
            &column(arrivals, |a| a.message.topic.as_str()),
            &column(arrivals, |a| a.message.partition),
            &column(arrivals, |a| a.message.offset),
            &column(arrivals, |a| a.message.key.as_str()),
            &column(arrivals, |a| a.message.key_bytes.as_deref()),
            &column(arrivals, |a| a.message.tenant.as_str()),
            &column(arrivals, |a| a.message.aggregate_id.as_deref()),
            &column(arrivals, |a| a.message.aggregate_version),
            &column(arrivals, |a| a.message.event_type.as_deref()),
            &column(arrivals, |a| a.message.event_version),
            &column(arrivals, |a| a.message.correlation_id.as_deref()),
            &column(arrivals, |a| a.message.causation_id.as_deref()),
            &column(arrivals, |a| a.message.traceparent.as_deref()),
            &headers,
            &column(arrivals, |a| a.message.payload.as_deref()),
            &column(arrivals, |a| a.message.event_time),
            &column(arrivals, |a| Some(a.disposition.state()).filter(|s| s.is_closed()).map(|s| s.name())),
            &column(arrivals, |a| a.disposition.reason()),
            &inbox.db().clock().for_statement(),
        ],
    )
    .await?;
    open(inbox, tx, arrivals, &ids).await
}

/// What did not end on arrival is open work; some of it parks its key.
async fn open(inbox: &PgInbox, tx: &Tx<'_>, arrivals: &[&Arrival], ids: &[Option<i64>]) -> Result<()> {
    let known = arrivals.iter().zip(ids).filter_map(|(arrival, id)| Some((*arrival, (*id)?)));
    let open: Vec<(&Arrival, i64)> = known.filter(|(a, _)| !a.disposition.state().is_closed()).collect();
    if open.is_empty() {
        return Ok(());
    }
    execute(
        inbox.db(),
        tx,
        OPEN,
        &[
            &inbox.consumer_id(),
            &column(&open, |(_, id)| *id),
            &column(&open, |(a, _)| a.message.key.as_str()),
            &column(&open, |(a, _)| a.message.aggregate_version),
            &column(&open, |(a, _)| a.disposition.state().name()),
            &column(&open, |(a, _)| a.disposition.delay().map(|d| d.as_millis() as i64)),
            &column(&open, |(a, _)| a.disposition.fault().map(|f| f.stage.name())),
            &column(&open, |(a, _)| a.disposition.fault().map(|f| f.code.as_str())),
            &column(&open, |(a, _)| a.disposition.fault().map(|f| f.message.as_str())),
            &column(&open, |(a, _)| a.parks.map(Park::state)),
            &column(&open, |(a, _)| a.parks.and_then(Park::awaits_version)),
            &inbox.db().clock().for_statement(),
        ],
    )
    .await?;
    Ok(())
}

async fn finish(db: &Db, tx: &Tx<'_>, stored: &[Stored]) -> Result<(), Stop> {
    let closed: Vec<&Stored> = stored.iter().filter(|s| s.disposition.state().is_closed()).collect();
    if closed.is_empty() {
        return Ok(());
    }
    let ids = column(&closed, |s| s.inbox_id);
    let states = column(&closed, |s| s.disposition.state().name());
    let reasons = column(&closed, |s| s.disposition.reason());
    let gone = execute(db, tx, FINISH, &[&ids, &states, &reasons, &db.clock().for_statement()]).await?;
    settled_all(gone, ids.len())
}

async fn postpone(inbox: &PgInbox, tx: &Tx<'_>, stored: &[Stored]) -> Result<(), Stop> {
    let open: Vec<&Stored> = stored.iter().filter(|s| !s.disposition.state().is_closed()).collect();
    if open.is_empty() {
        return Ok(());
    }
    let rows = query(
        inbox.db(),
        tx,
        POSTPONE,
        &[
            &inbox.consumer_id(),
            &column(&open, |s| s.inbox_id),
            &column(&open, |s| s.disposition.state().name()),
            &column(&open, |s| s.disposition.delay().map(|d| d.as_millis() as i64)),
            &column(&open, |s| s.disposition.fault().map(|f| f.stage.name())),
            &column(&open, |s| s.disposition.fault().map(|f| f.code.as_str())),
            &column(&open, |s| s.disposition.fault().map(|f| f.message.as_str())),
            &inbox.db().clock().for_statement(),
            &column(&open, |s| s.parks.map(Park::state)),
            &column(&open, |s| s.parks.and_then(Park::awaits_version)),
        ],
    )
    .await?;
    settled_all(rows.len() as u64, open.len())
}

/// A key that began to wait for a version drains at once if that version is parked already.
async fn find_awaited(inbox: &PgInbox, tx: &Tx<'_>, s: &Settlement) -> Result<()> {
    let awaits = |parks: Option<Park>| matches!(parks, Some(Park::ForVersion(_)));
    let stored = s.stored.iter().filter(|stored| awaits(stored.parks)).map(|stored| stored.key.as_str());
    let arrived = s.arrivals.iter().filter(|a| awaits(a.parks)).map(|a| a.message.key.as_str());
    let keys: Vec<&str> = stored.chain(arrived).collect();
    if keys.is_empty() {
        return Ok(());
    }
    execute(inbox.db(), tx, FOUND_AWAITED, &[&inbox.consumer_id(), &keys]).await.map(drop)
}

/// Fewer rows than messages: an operator was quicker with one of them.
fn settled_all(rows: u64, messages: usize) -> Result<(), Stop> {
    if rows < messages as u64 { Err(Stop::Retry(Settled::Conflict)) } else { Ok(()) }
}
