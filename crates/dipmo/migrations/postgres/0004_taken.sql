-- Commands that a worker without a database has taken over HTTP and answers later.
create table dipmo.command_taken (
    command_id  uuid primary key,
    -- Where its answer goes in dipmo.command_ledger.
    key         uuid not null,
    -- The command as it was received last: what an answer answers.
    envelope    json not null,
    reply_to    text not null,
    traceparent text,
    taken_at    timestamptz not null default now(),
    -- What was answered to this sending of it; the ledger alone does not keep failures that may pass.
    answer      text,
    payload     json,
    constraint command_taken_answer_known check (answer in ('CommandCompleted', 'CommandFailed')),
    constraint command_taken_answer_has_payload check ((answer is null) = (payload is null))
);
create index command_taken_age on dipmo.command_taken using brin (taken_at);
