-- Commands to other contexts, sagas that issue them, and batches of sagas.

-- ---------------------------------------------------------------- commands

-- The life of a command as its issuer knows it. The command itself, with its payload, is in the outbox.
create table dipmo.command (
    id              uuid primary key,
    name            text not null,
    tenant          text not null default '',
    business_key    text not null,
    status          text not null,
    -- The saga that issued it; a command that came from outside is its own saga.
    process_id      uuid not null,
    step            text not null default '',
    destination     text,
    -- What the receiver must not do twice.
    idempotency_key text not null,
    attempts        integer not null default 0,
    -- While it runs: by then an answer is due.
    lease_until     timestamptz,
    requested_at    timestamptz not null default now(),
    completed_at    timestamptz,
    result          json,
    error_code      text,
    last_error      text,
    constraint command_status_known check (status in ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT')),
    constraint command_ended_has_time
        check ((status in ('SUCCEEDED', 'FAILED', 'TIMED_OUT')) = (completed_at is not null))
) with (fillfactor = 50);
-- Those of a saga, and the list of those from outside, whose id is that of their saga.
create index command_process on dipmo.command (process_id);
create index command_start_key on dipmo.command (business_key, name, tenant) where process_id = id;
create index command_age on dipmo.command using brin (requested_at);

-- Commands that were given up, until an operator sends them again or ends their saga.
create table dipmo.command_dlq (
    command_id uuid primary key,
    parked_at  timestamptz not null default now(),
    parked_by  text not null,
    attempts   integer not null,
    error      text
);

-- Requests from outside by their idempotency key: the same key again gets the first answer.
create table dipmo.command_request (
    tenant          text not null default '',
    idempotency_key text not null,
    -- SHA-256 over name and body: another request under the same key is refused.
    fingerprint     bytea not null,
    command_id      uuid not null,
    response        json not null,
    requested_at    timestamptz not null default now(),
    primary key (tenant, idempotency_key),
    constraint command_request_key_fits check (octet_length(idempotency_key) between 1 and 200)
);
create index command_request_age on dipmo.command_request using brin (requested_at);

-- ---------------------------------------------------------------- sagas

-- Every version of every definition that was ever used: instances keep to the one they began with.
create table dipmo.saga_definition (
    name          text not null,
    hash          text not null,
    body          json not null,
    registered_at timestamptz not null default now(),
    -- New sagas begin with this one.
    current       boolean not null,
    primary key (name, hash)
);
create unique index saga_definition_current on dipmo.saga_definition (name) where current;

-- ---------------------------------------------------------------- batches

create table dipmo.batch_run (
    batch_id      uuid primary key,
    type          text not null,
    tenant        text not null default '',
    scheduled_for date,
    status        text not null,
    -- How many items there are; null until the last of them is known.
    expected      integer,
    counts        jsonb not null default '{}',
    -- How often it has ended: an operator may take up again what had failed.
    endings       integer not null default 0,
    created_at    timestamptz not null default now(),
    completed_at  timestamptz,
    constraint batch_run_status_known check (status in ('NEW', 'RUNNING', 'PARTIAL', 'SUCCEEDED', 'FAILED'))
);
create index batch_run_open on dipmo.batch_run (batch_id) where status in ('NEW', 'RUNNING');

create table dipmo.batch_item (
    batch_id   uuid not null,
    item_id    text not null,
    tenant     text not null default '',
    status     text not null,
    last_error text,
    saga_id    uuid not null,
    changed_at timestamptz not null default now(),
    primary key (batch_id, item_id),
    constraint batch_item_status_known check (status in ('NEW', 'RUNNING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT'))
) with (fillfactor = 80);
create index batch_item_status on dipmo.batch_item (batch_id, status);

-- ---------------------------------------------------------------- the receiver's side

-- What this side has answered, by idempotency key: asked again, it says the same and does nothing.
create table dipmo.command_ledger (
    -- dipmo.dedupe_key(tenant, name, idempotency_key)
    key             uuid primary key,
    name            text not null,
    idempotency_key text not null,
    command_id      uuid not null,
    answer          text not null,
    payload         json not null,
    answered_at     timestamptz not null default now(),
    constraint command_ledger_answer_known check (answer in ('CommandCompleted', 'CommandFailed'))
);
create index command_ledger_age on dipmo.command_ledger using brin (answered_at);

-- ---------------------------------------------------------------- journeys

-- A saga is found by its id, which is its correlation id: it needs no entry.
create index process_correlation on dipmo.process (correlation_id) where correlation_id <> id::text;

-- The first id of the inbox or the outbox at or after a time, found by halving the id range of its day: ids
-- grow with time, so a journey can be read without an index on the correlation id, which every message would
-- pay for.
create function dipmo.id_at(source text, wanted timestamptz) returns bigint
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    low      bigint := dipmo.day_base((wanted at time zone 'utc')::date);
    high     bigint := dipmo.day_base((wanted at time zone 'utc')::date + 1);
    middle   bigint;
    found_id bigint;
    found_at timestamptz;
begin
    while low < high loop
        middle := low + (high - low) / 2;
        if source = 'inbox' then
            select i.id, i.received_at into found_id, found_at
            from dipmo.inbox i where i.id >= middle and i.id < high order by i.id limit 1;
        else
            select o.id, o.created_at into found_id, found_at
            from dipmo.relay_shard s, lateral (
                select id, created_at from dipmo.outbox
                where shard = s.shard and id >= middle and id < high order by id limit 1) o
            order by o.id limit 1;
        end if;
        if found_id is null or found_at >= wanted then
            high := middle;
        else
            low := found_id + 1;
        end if;
    end loop;
    return low;
end $$;
