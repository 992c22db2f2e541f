"""The database side: what has come (inbox), what was answered (ledger), and what is held of each account.

One command is one transaction over all three.
"""

import logging
from decimal import Decimal, InvalidOperation

import psycopg

from command import Reply

log = logging.getLogger("accounts")

# The lock lets several handlers start at once.
TABLES = """
select pg_advisory_xact_lock(hashtext('accounts_python'));
create schema if not exists accounts_python;
create table if not exists accounts_python.inbox (
    message_id     text primary key,
    correlation_id text,
    reply_to       text not null,
    deliveries     integer not null default 1,
    received_at    timestamptz not null default now());
create table if not exists accounts_python.ledger (
    idempotency_key text primary key,
    reply           text,
    recorded_at     timestamptz not null default now());
create table if not exists accounts_python.account (
    account text primary key,
    balance numeric not null,
    held    numeric not null default 0)
"""

NOTE = """
insert into accounts_python.inbox (message_id, correlation_id, reply_to) values (%s, %s, %s)
on conflict (message_id) do update set deliveries = inbox.deliveries + 1
"""

# Whoever comes second waits here for the first, and then finds its reply.
CLAIM = "insert into accounts_python.ledger (idempotency_key) values (%s) on conflict do nothing"
RECORDED = "select reply from accounts_python.ledger where idempotency_key = %s"
RECORD = "update accounts_python.ledger set reply = %s where idempotency_key = %s"

HOLD = """
update accounts_python.account set held = held + %s where account = %s
returning balance - held
"""


class Refused(Exception):
    """The business says no: the command fails with this code, for good."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Accounts:
    def __init__(self, url):
        self.url = url

    def create_tables(self):
        with psycopg.connect(self.url) as db:
            db.execute(TABLES)

    def handle(self, command, correlation_id, reply_to):
        """The reply to a command: of the first time it was handled, or of now. It is committed before it returns."""
        try:
            # One connection a command is enough for an example; use a pool where there are many.
            with psycopg.connect(self.url) as db:
                db.execute(NOTE, (command.message_id, correlation_id, reply_to))
                return self._handle_once(db, command)
        except psycopg.Error as failure:
            # Nothing was committed, or it was and the next delivery finds it. Not recorded: the next try counts.
            log.warning("command %s failed: %s", command.command_id, failure)
            return command.failed("DATABASE", f"the database refused or is away: {failure.sqlstate}", True)

    def _handle_once(self, db, command):
        key = command.idempotency_key
        if db.execute(CLAIM, (key,)).rowcount == 0:
            (recorded,) = db.execute(RECORDED, (key,)).fetchone()
            return Reply.recorded(recorded)
        reply = self._decide(db, command)
        db.execute(RECORD, (reply.json, key))
        return reply

    def _decide(self, db, command):
        """A refusal undoes what the command has written, and is recorded like a success."""
        try:
            with db.transaction():
                left = hold(db, command.payload)
        except Refused as refused:
            return command.failed(refused.code, str(refused), False)
        return command.completed({"available": str(left)})


def hold(db, payload):
    """Sets the amount aside, where the account has it."""
    try:
        account, amount = payload["account"], Decimal(str(payload["amount"]))
    except (KeyError, TypeError, ValueError, InvalidOperation):
        raise Refused("BAD_PAYLOAD", "account and amount are needed") from None
    if not isinstance(account, str) or not amount.is_finite() or amount <= 0:
        raise Refused("BAD_PAYLOAD", "account and a positive amount are needed")
    row = db.execute(HOLD, (amount, account)).fetchone()
    if row is None:
        raise Refused("UNKNOWN_ACCOUNT", "there is no such account")
    (left,) = row
    if left < 0:
        raise Refused("INSUFFICIENT_FUNDS", f"short of {-left}")
    return left
