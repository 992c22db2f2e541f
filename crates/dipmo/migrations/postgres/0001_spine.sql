-- The spine: inbox, process, outbox, relay, and what operators need.
--
-- Every name is qualified with `dipmo.`; a store opened on another schema rewrites that prefix.
-- Ids carry their day: upkeep moves each sequence to day_number * 2^36 once a day, so a partition is
-- a fixed id range, `id` alone stays unique, and a cursor tells which partitions are done.

-- ---------------------------------------------------------------- consumers and who owns what

create table dipmo.consumer (
    id            integer generated always as identity primary key,
    name          text not null unique,
    registered_at timestamptz not null default now(),
    constraint consumer_name_shape check (name <> '' and length(name) <= 200)
);

-- What a consumer takes from INTERNAL: event types, of which '*' is every one, and queues as INTERNAL:<queue>.
create table dipmo.subscription (
    consumer_id integer not null references dipmo.consumer,
    event_type  text not null,
    primary key (consumer_id, event_type)
);

-- One row a bucket: a worker's share of a consumer, or a broker partition held by an ingress.
create table dipmo.lease (
    scope    text not null,
    bucket   integer not null,
    epoch    bigint not null default 0,
    owner    text,
    until    timestamptz,
    -- How often the bucket changed hands since its last commit: a message that kills its process
    -- makes this grow, and the ingress then stores before it decides.
    stalled  integer not null default 0,
    primary key (scope, bucket)
) with (fillfactor = 50);

create table dipmo.node (
    name       text not null,
    role       text not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now(),
    detail     jsonb not null default '{}',
    primary key (name, role)
) with (fillfactor = 50);

-- ---------------------------------------------------------------- inbox

create sequence dipmo.inbox_seq as bigint cache 1;

-- The whole memory of what was seen: 16 bytes of sha-256 over consumer, source and message id.
create table dipmo.inbox_dedupe (
    key     uuid primary key,
    seen_at timestamptz not null default now()
);
create index inbox_dedupe_seen on dipmo.inbox_dedupe using brin (seen_at);

-- Wide, written once, never updated. `outcome` says how it ended when it ended on arrival;
-- null means that inbox_work (open) or inbox_done (closed) knows.
create table dipmo.inbox (
    id                bigint not null default nextval('dipmo.inbox_seq') primary key,
    consumer_id       integer not null,
    source            text not null,
    message_id        text not null,
    topic             text not null,
    partition_no      integer,
    offset_no         bigint,
    key               text not null,
    key_bytes         bytea,
    tenant            text not null default '',
    aggregate_id      text,
    aggregate_version bigint,
    event_type        text,
    event_version     integer,
    correlation_id    text,
    causation_id      text,
    traceparent       text,
    headers           jsonb,
    payload           bytea,
    event_time        timestamptz,
    received_at       timestamptz not null default now(),
    outcome           text,
    reason            text,
    constraint inbox_outcome_known check (outcome in ('PROCESSED', 'IGNORED'))
) partition by range (id);

-- Narrow state of what is still open. Rows leave for inbox_done, so the indexes stay small.
create table dipmo.inbox_work (
    id                bigint primary key,
    consumer_id       integer not null,
    bucket            smallint not null,
    key               text not null,
    aggregate_version bigint,
    state             text not null,
    attempts          integer not null default 0,
    next_attempt_at   timestamptz,
    error_stage       text,
    error_code        text,
    error_message     text,
    changed_at        timestamptz not null default now(),
    constraint inbox_work_state_known
        check (state in ('RECEIVED', 'RETRY', 'PARKED', 'DEAD', 'SERDE_ERROR')),
    constraint inbox_work_due_iff_retry check ((state = 'RETRY') = (next_attempt_at is not null)),
    constraint inbox_work_dead_has_reason
        check (state not in ('DEAD', 'SERDE_ERROR') or error_code is not null)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
create index inbox_work_claim on dipmo.inbox_work (consumer_id, bucket, id) where state = 'RECEIVED';
create index inbox_work_due on dipmo.inbox_work (consumer_id, bucket, next_attempt_at) where state = 'RETRY';
create index inbox_work_parked on dipmo.inbox_work (consumer_id, key, id) where state = 'PARKED';
create index inbox_work_stuck on dipmo.inbox_work (consumer_id, state, id)
    where state in ('DEAD', 'SERDE_ERROR');

create table dipmo.inbox_done (
    id           bigint primary key,
    state        text not null,
    attempts     integer not null,
    processed_at timestamptz not null default now(),
    reason       text,
    constraint inbox_done_state_known check (state in ('PROCESSED', 'IGNORED'))
) partition by range (id);

-- A key whose head failed. Later messages of the key wait behind it in state PARKED.
create table dipmo.parked_key (
    consumer_id    integer not null,
    key            text not null,
    bucket         smallint not null,
    head_id        bigint not null,
    state          text not null,
    -- Set while the head waits for an earlier version: that version alone may pass.
    awaits_version bigint,
    parked_at      timestamptz not null default now(),
    primary key (consumer_id, key),
    constraint parked_key_state_known check (state in ('WAITING', 'DRAINING'))
);
create index parked_key_draining on dipmo.parked_key (consumer_id, bucket) where state = 'DRAINING';

-- The last version applied per key, for consumers that check versions.
create table dipmo.inbox_version (
    consumer_id integer not null,
    key         text not null,
    version     bigint not null,
    primary key (consumer_id, key)
) with (fillfactor = 70);

-- ---------------------------------------------------------------- process

create table dipmo.process (
    id             uuid primary key,
    type           text not null,
    tenant         text not null default '',
    business_key   text not null,
    state          text not null,
    status         text not null,
    version        bigint not null,
    data           json not null,
    deadline       timestamptz,
    correlation_id text,
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    unique (type, tenant, business_key),
    constraint process_status_known check (status in
        ('NEW', 'RUNNING', 'SUCCEEDED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'PAUSED')),
    constraint process_version_positive check (version > 0),
    constraint process_key_fits check (octet_length(type) + octet_length(tenant) + octet_length(business_key) <= 2000)
-- Room for the next versions of a row on its own page: a process is updated with every step.
) with (fillfactor = 50);
create index process_open on dipmo.process (type, id)
    where status in ('NEW', 'RUNNING', 'COMPENSATING', 'PAUSED');

create sequence dipmo.journal_seq as bigint cache 1;

-- Every decision and operator action, for ever; the database refuses to change it.
create table dipmo.journal (
    id         bigint not null default nextval('dipmo.journal_seq') primary key,
    process_id uuid not null,
    version    bigint not null,
    at         timestamptz not null default now(),
    kind       text not null,
    from_state text,
    to_state   text not null,
    status     text not null,
    message_id text,
    detail     json,
    actor      text,
    reason     text,
    constraint journal_kind_known check (kind in ('MESSAGE', 'TIMER', 'OPERATOR'))
) partition by range (id);
create index journal_process on dipmo.journal (process_id, id);

create function dipmo.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception '% is append-only: % refused', tg_table_name, lower(tg_op)
        using errcode = 'restrict_violation';
end $$;
create trigger journal_is_append_only before update or delete on dipmo.journal
    for each row execute function dipmo.refuse_change();

create table dipmo.timer (
    process_id  uuid not null,
    name        text not null,
    consumer_id integer not null,
    bucket      smallint not null,
    due_at      timestamptz not null,
    attempts    integer not null default 0,
    primary key (process_id, name)
);
create index timer_due on dipmo.timer (consumer_id, bucket, due_at);

-- ---------------------------------------------------------------- outbox

create sequence dipmo.outbox_seq as bigint cache 1;

-- Insert-only. The default takes the transaction id before the sequence moves: the id horizon
-- (docs/decisions) rests on that order, so no client may give an id of its own.
create table dipmo.outbox (
    id                bigint not null default
        (case when pg_current_xact_id() is not null then nextval('dipmo.outbox_seq') end),
    shard             smallint not null,
    message_id        uuid not null default gen_random_uuid(),
    destination       text not null,
    key               text not null,
    tenant            text not null default '',
    aggregate_type    text not null,
    aggregate_id      text not null,
    aggregate_version bigint,
    event_type        text not null,
    event_version     integer not null default 1,
    correlation_id    text,
    causation_id      text,
    traceparent       text,
    headers           jsonb,
    payload           bytea,
    occurred_at       timestamptz not null default now(),
    created_at        timestamptz not null default now(),
    -- No checks: those of a partition are compiled anew by every statement, which was two fifths of the
    -- price of an append. Whoever appends checks destination and key instead.
    primary key (shard, id)
) partition by range (id);

-- Uniqueness across partitions of (tenant, aggregate type, aggregate id, version, event type).
create table dipmo.outbox_version (
    key     uuid primary key,
    seen_at timestamptz not null default now()
);
create index outbox_version_seen on dipmo.outbox_version using brin (seen_at);

-- A lane is a transport; each lane has 16 shards of its own, so that a broker that is away
-- does not hold up INTERNAL.
create function dipmo.outbox_shard(destination text, key text) returns smallint
    language sql immutable parallel safe as
$$ select ((case split_part(destination, ':', 1) when 'INTERNAL' then 0 when 'AMQP' then 32 else 16 end)
           + (hashtextextended(key, 0) & 15))::smallint $$;

-- Only what could not be sent at once has a row here.
create table dipmo.outbox_exception (
    id              bigint primary key,
    shard           smallint not null,
    destination     text not null,
    key             text not null,
    state           text not null,
    attempts        integer not null default 0,
    next_attempt_at timestamptz,
    error_code      text,
    error_message   text,
    created_at      timestamptz not null default now(),
    changed_at      timestamptz not null default now(),
    constraint outbox_exception_state_known
        check (state in ('RETRY', 'PARKED', 'DEAD', 'PUBLISHED', 'DISCARDED')),
    constraint outbox_exception_due_iff_retry check ((state = 'RETRY') = (next_attempt_at is not null))
) with (fillfactor = 80);
create index outbox_exception_due on dipmo.outbox_exception (shard, next_attempt_at) where state = 'RETRY';
create index outbox_exception_open on dipmo.outbox_exception (shard, destination, key, id)
    where state in ('RETRY', 'PARKED', 'DEAD');

create table dipmo.relay_shard (
    shard       smallint primary key,
    lane        text not null,
    cursor      bigint not null default 0,
    -- Ids at or below the cursor whose transaction had not ended when the cursor passed them.
    gaps        int8multirange not null default '{}',
    epoch       bigint not null default 0,
    owner       text,
    until       timestamptz,
    -- How often it changed hands since anything was settled for it: see dipmo.lease.
    stalled     integer not null default 0,
    changed_at  timestamptz not null default now()
) with (fillfactor = 20);
insert into dipmo.relay_shard (shard, lane)
    select s, (array['INTERNAL', 'KAFKA', 'AMQP'])[s / 16 + 1] from generate_series(0, 47) s;

-- When what was published: the publish time of a row is that of the latest batch that covers it.
create table dipmo.relay_batch (
    shard   smallint not null,
    from_id bigint not null,
    to_id   bigint not null,
    sent    integer not null,
    at      timestamptz not null default now()
);
create index relay_batch_range on dipmo.relay_batch (shard, to_id, from_id);
create index relay_batch_at on dipmo.relay_batch using brin (at);

-- While the relays are quiet, an insert wakes them by NOTIFY; under load they poll and nobody notifies,
-- because NOTIFY serialises commits. A transaction that has notified cannot be prepared: sessions that
-- use two-phase commit say `set dipmo.notify = off`, and their messages wait for the next poll.
create table dipmo.relay_wake (
    one   boolean primary key default true check (one),
    quiet boolean not null default true
) with (fillfactor = 10);
insert into dipmo.relay_wake default values;

create function dipmo.outbox_wake() returns trigger language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('dipmo.notify', true), '') <> 'off' and (select quiet from dipmo.relay_wake) then
        perform pg_notify(tg_table_schema || '_outbox', '');
    end if;
    return null;
end $$;
create trigger outbox_wakes_relays after insert on dipmo.outbox
    for each statement execute function dipmo.outbox_wake();

-- ---------------------------------------------------------------- operators

create table dipmo.audit (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default now(),
    actor  text not null,
    action text not null,
    target text not null,
    reason text not null,
    detail jsonb not null default '{}'
);
create trigger audit_is_append_only before update or delete on dipmo.audit
    for each row execute function dipmo.refuse_change();

create view dipmo.inbox_status as
select i.id, c.name as consumer, i.source, i.message_id, i.topic, i.partition_no, i.offset_no, i.key,
       i.tenant, i.aggregate_id, i.aggregate_version, i.event_type, i.event_version,
       i.correlation_id, i.causation_id, i.traceparent, i.headers, i.payload,
       i.event_time, i.received_at,
       coalesce(w.state, d.state, i.outcome) as state,
       coalesce(w.attempts, d.attempts, 1) as attempts,
       w.next_attempt_at,
       coalesce(d.processed_at, case when i.outcome is not null then i.received_at end) as processed_at,
       w.error_stage, w.error_code, w.error_message,
       coalesce(d.reason, i.reason) as reason
from dipmo.inbox i
join dipmo.consumer c on c.id = i.consumer_id
left join dipmo.inbox_work w on w.id = i.id
left join dipmo.inbox_done d on d.id = i.id;

create view dipmo.outbox_status as
select o.id, o.shard, o.message_id, o.destination, o.key, o.tenant,
       o.aggregate_type, o.aggregate_id, o.aggregate_version, o.event_type, o.event_version,
       o.correlation_id, o.causation_id, o.traceparent, o.headers, o.payload, o.occurred_at, o.created_at,
       coalesce(x.state,
                case when o.id <= s.cursor and not s.gaps @> o.id then 'PUBLISHED' else 'PENDING' end) as state,
       coalesce(x.attempts, 0) as attempts,
       x.next_attempt_at, x.error_code, x.error_message,
       case when x.state = 'PUBLISHED' then x.changed_at
            when x.state is null and o.id <= s.cursor and not s.gaps @> o.id then
                (select max(b.at) from dipmo.relay_batch b
                 where b.shard = o.shard and b.from_id <= o.id and b.to_id >= o.id)
       end as published_at
from dipmo.outbox o
join dipmo.relay_shard s on s.shard = o.shard
left join dipmo.outbox_exception x on x.id = o.id;

-- ---------------------------------------------------------------- for any language, in its own transaction

-- Text cannot hold a NUL, so joining with it keeps ('a', 'bc') and ('ab', 'c') apart.
create function dipmo.dedupe_key(variadic parts text[]) returns uuid
    language sql immutable parallel safe as
$$ select encode(substring(sha256(string_agg(convert_to(part, 'UTF8'), '\x00'::bytea order by n))
                           from 1 for 16), 'hex')::uuid
   from unnest(parts) with ordinality as p (part, n) $$;

-- True the first time this consumer sees the message, false ever after; part of the caller's transaction.
create function dipmo.inbox_once(consumer text, source text, message_id text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if consumer is null or source is null or message_id is null then
        raise exception 'inbox_once: consumer, source and message_id must not be null'
            using errcode = 'null_value_not_allowed';
    end if;
    insert into dipmo.inbox_dedupe (key) values (dipmo.dedupe_key(consumer, source, message_id))
        on conflict do nothing;
    return found;
end $$;

-- Appends a message to send; it goes out if and only if the caller's transaction commits.
create function dipmo.outbox_append_bytes(
    destination text, aggregate_type text, aggregate_id text, event_type text, payload bytea,
    aggregate_version bigint default null, event_version integer default 1, tenant text default '',
    key text default null, correlation_id text default null, causation_id text default null,
    traceparent text default null, headers jsonb default null, occurred_at timestamptz default null,
    message_id uuid default null) returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    appended bigint;
begin
    if outbox_append_bytes.destination is distinct from 'INTERNAL'
       and not coalesce(outbox_append_bytes.destination, '') like any (array['INTERNAL:_%', 'KAFKA:_%', 'AMQP:_%']) then
        raise exception 'outbox_append: unknown destination %', coalesce(outbox_append_bytes.destination, 'null')
            using errcode = 'invalid_parameter_value',
                  hint = 'use INTERNAL, INTERNAL:<queue>, KAFKA:<topic> or AMQP:<queue>';
    end if;
    if outbox_append_bytes.aggregate_type is null or outbox_append_bytes.aggregate_id is null
       or outbox_append_bytes.event_type is null then
        raise exception 'outbox_append: aggregate type, aggregate id and event type must not be null'
            using errcode = 'null_value_not_allowed';
    end if;
    -- What may end up in an index entry must fit into one.
    if octet_length(coalesce(outbox_append_bytes.key, outbox_append_bytes.aggregate_id)) > 1000
       or octet_length(outbox_append_bytes.destination) > 300 then
        raise exception 'outbox_append: key or destination is too long'
            using errcode = 'invalid_parameter_value',
                  hint = 'a key has at most 1000 bytes, a destination 300';
    end if;
    if outbox_append_bytes.aggregate_version is not null then
        insert into dipmo.outbox_version (key) values (dipmo.dedupe_key(
            coalesce(outbox_append_bytes.tenant, ''), outbox_append_bytes.aggregate_type,
            outbox_append_bytes.aggregate_id, outbox_append_bytes.aggregate_version::text,
            outbox_append_bytes.event_type)) on conflict do nothing;
        if not found then
            raise exception 'outbox_append: % of % % version % is in the outbox already',
                outbox_append_bytes.event_type, outbox_append_bytes.aggregate_type,
                outbox_append_bytes.aggregate_id, outbox_append_bytes.aggregate_version
                using errcode = 'unique_violation', hint = 'a version of an aggregate emits each event type once';
        end if;
    end if;
    insert into dipmo.outbox (shard, message_id, destination, key, tenant, aggregate_type, aggregate_id,
                              aggregate_version, event_type, event_version, correlation_id, causation_id,
                              traceparent, headers, payload, occurred_at)
    values (dipmo.outbox_shard(outbox_append_bytes.destination,
                               coalesce(outbox_append_bytes.key, outbox_append_bytes.aggregate_id)),
            coalesce(outbox_append_bytes.message_id, gen_random_uuid()), outbox_append_bytes.destination,
            coalesce(outbox_append_bytes.key, outbox_append_bytes.aggregate_id),
            coalesce(outbox_append_bytes.tenant, ''), outbox_append_bytes.aggregate_type,
            outbox_append_bytes.aggregate_id, outbox_append_bytes.aggregate_version,
            outbox_append_bytes.event_type, outbox_append_bytes.event_version,
            outbox_append_bytes.correlation_id, outbox_append_bytes.causation_id,
            outbox_append_bytes.traceparent, outbox_append_bytes.headers, outbox_append_bytes.payload,
            coalesce(outbox_append_bytes.occurred_at, now()))
    returning id into appended;
    return appended;
end $$;

create function dipmo.outbox_append(
    destination text, aggregate_type text, aggregate_id text, event_type text, payload text,
    aggregate_version bigint default null, event_version integer default 1, tenant text default '',
    key text default null, correlation_id text default null, causation_id text default null,
    traceparent text default null, headers jsonb default null, occurred_at timestamptz default null,
    message_id uuid default null) returns bigint
    -- plpgsql, which keeps the plan of its one expression; an SQL function would be planned at every call.
    language plpgsql security definer set search_path = pg_catalog, pg_temp as
$$ begin
    return dipmo.outbox_append_bytes(destination, aggregate_type, aggregate_id, event_type,
        convert_to(payload, 'UTF8'), aggregate_version, event_version, tenant, key, correlation_id,
        causation_id, traceparent, headers, occurred_at, message_id);
end $$;

-- ---------------------------------------------------------------- partitions

create function dipmo.day_base(day date) returns bigint language sql immutable parallel safe as
$$ select (day - date '1970-01-01')::bigint << 36 $$;

-- Makes the partitions of the coming days and moves the sequences into today's. Safe to call at any time
-- and by several at once; late calls only mean that a partition holds more than a day.
create function dipmo.cut_partitions(today date default (now() at time zone 'utc')::date, ahead integer default 3)
    returns integer language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    parent text;
    seq    text;
    day    date;
    made   integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('dipmo.cut_partitions', 0));
    for parent, seq in values ('inbox', 'inbox_seq'), ('inbox_done', null), ('journal', 'journal_seq'),
                              ('outbox', 'outbox_seq') loop
        for day in select today + n from generate_series(0, ahead) n loop
            if to_regclass(format('dipmo.%I', parent || '_' || to_char(day, 'YYYYMMDD'))) is null then
                -- Created apart and attached empty: ATTACH lets inserts go on, PARTITION OF does not.
                execute format('create table dipmo.%I (like dipmo.%I including all)',
                    parent || '_' || to_char(day, 'YYYYMMDD'), parent);
                execute format('alter table dipmo.%I attach partition dipmo.%I for values from (%s) to (%s)',
                    parent, parent || '_' || to_char(day, 'YYYYMMDD'),
                    dipmo.day_base(day), dipmo.day_base(day + 1));
                made := made + 1;
            end if;
        end loop;
        -- Forward only, and far beyond any id handed out in between: never the same id twice.
        if seq is not null and coalesce(pg_sequence_last_value(format('dipmo.%I', seq)::regclass), 0)
                               < dipmo.day_base(today) - 1 then
            perform setval(format('dipmo.%I', seq)::regclass, dipmo.day_base(today) - 1, true);
        end if;
    end loop;
    return made;
end $$;

select dipmo.cut_partitions();
update dipmo.relay_shard set cursor = dipmo.day_base((now() at time zone 'utc')::date) - 1;
