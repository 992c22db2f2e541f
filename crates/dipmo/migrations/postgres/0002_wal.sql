-- The WAL as a second reader of the outbox, and messages that never become rows.

-- How the rows of a lane are read. `position` is what the reader of the WAL has dealt with: everything
-- committed before it was sent or is an exception. The slot never stands beyond it; one that does was
-- moved or made anew by somebody else, and the relay catches up from the table. `ended` is a transaction id:
-- all below it had ended before the position.
create table dipmo.relay_lane (
    lane       text primary key,
    reader     text not null default 'poll',
    slot       text,
    position   pg_lsn,
    ended      bigint,
    changed_at timestamptz not null default now(),
    constraint relay_lane_reader_known check (reader in ('poll', 'wal', 'verify')),
    constraint relay_lane_only_kafka_reads_wal check (lane = 'KAFKA' or reader = 'poll')
) with (fillfactor = 20);
insert into dipmo.relay_lane (lane) values ('INTERNAL'), ('KAFKA'), ('AMQP');

-- Sends a message without keeping a row: it exists only in the WAL, and goes out if and only if the caller's
-- transaction commits. One that cannot be sent becomes a row of the outbox and an exception, like any other.
create function dipmo.outbox_emit_bytes(
    destination text, aggregate_type text, aggregate_id text, event_type text, payload bytea,
    aggregate_version bigint default null, event_version integer default 1, tenant text default '',
    key text default null, correlation_id text default null, causation_id text default null,
    traceparent text default null, headers jsonb default null, occurred_at timestamptz default null,
    message_id uuid default null) returns pg_lsn
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    envelope bytea;
begin
    if coalesce(destination, '') not like 'KAFKA:_%' or octet_length(destination) > 300 then
        raise exception 'outbox_emit: % cannot be reached through the WAL', coalesce(destination, 'null')
            using errcode = 'invalid_parameter_value',
                  hint = 'use KAFKA:<topic>, or outbox_append for anything else';
    end if;
    if aggregate_type is null or aggregate_id is null or event_type is null
       or octet_length(coalesce(key, aggregate_id)) > 1000 then
        raise exception 'outbox_emit: aggregate type, aggregate id and event type must be given, and the key fit'
            using errcode = 'invalid_parameter_value', hint = 'a key has at most 1000 bytes';
    end if;
    -- Held to the end of the transaction: the relay drops the slot only when nobody holds it. What is asked
    -- is the slot and not the table, because a transaction with an old snapshot would see an old table.
    perform pg_advisory_xact_lock_shared(hashtextextended('dipmo.outbox_emit', 0));
    if not exists (select from dipmo.relay_lane l join pg_replication_slots s on s.slot_name = l.slot
                   where l.lane = 'KAFKA' and s.wal_status is distinct from 'lost') then
        raise exception 'outbox_emit: nobody reads the WAL, the message would be lost'
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'switch the relay with: dipmo relay reader wal; or use outbox_append';
    end if;
    envelope := convert_to(json_build_object(
        'message_id', coalesce(message_id, gen_random_uuid()), 'destination', destination,
        'key', coalesce(key, aggregate_id), 'tenant', coalesce(tenant, ''),
        'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id,
        'aggregate_version', aggregate_version, 'event_type', event_type,
        'event_version', coalesce(event_version, 1), 'correlation_id', correlation_id,
        'causation_id', causation_id, 'traceparent', traceparent, 'headers', headers,
        'occurred_at', to_char(coalesce(occurred_at, now()) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text,
        'UTF8');
    return pg_logical_emit_message(true, 'dipmo.outbox',
        int4send(octet_length(envelope)) || envelope || coalesce(payload, ''::bytea));
end $$;

create function dipmo.outbox_emit(
    destination text, aggregate_type text, aggregate_id text, event_type text, payload text,
    aggregate_version bigint default null, event_version integer default 1, tenant text default '',
    key text default null, correlation_id text default null, causation_id text default null,
    traceparent text default null, headers jsonb default null, occurred_at timestamptz default null,
    message_id uuid default null) returns pg_lsn
    language sql security definer set search_path = pg_catalog, pg_temp as
$$ select dipmo.outbox_emit_bytes(destination, aggregate_type, aggregate_id, event_type,
       convert_to(payload, 'UTF8'), aggregate_version, event_version, tenant, key, correlation_id,
       causation_id, traceparent, headers, occurred_at, message_id) $$;
