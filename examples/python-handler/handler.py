"""The queue side: takes a command, has it handled in one database transaction, answers, and only then accepts it.

Whenever it dies on the way, the broker delivers the command again, and the ledger in the database makes the
repetition harmless. There is no broker transaction: it could bind the answer to the acceptance, but neither of
them to the commit in the database, and not every broker has them (IBM MQ has none for AMQP).
"""

import logging
import os
import signal
import sys

from proton import Message, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from accounts import Accounts
from command import Command, Unreadable

QUEUE = "APP.CMD.ACCOUNTS.CheckBalance.Q"

log = logging.getLogger("accounts")


class IsQueue(LinkOption):
    """Some brokers (IBM MQ) take an address for a topic unless told otherwise."""

    def apply(self, link):
        terminus = link.source if link.is_receiver else link.target
        terminus.capabilities.put_object(symbol("queue"))


class Handler:
    def __init__(self, connection, accounts):
        self.connection = connection
        self.accounts = accounts
        self.senders = {}

    def run(self, queue):
        receiver = self.connection.create_receiver(queue, credit=10, options=IsQueue())
        log.info("ready: %s", queue)
        while True:
            self.handle(receiver, receiver.receive(timeout=None))

    def handle(self, receiver, message):
        try:
            command = Command.read(text_of(message.body))
            reply_to = message.reply_to or command.headers.get("replyTo")
            check_addresses(message, command, reply_to)
        except Unreadable as unreadable:
            log.warning("refused %s: %s", message.id, unreadable)
            # Nobody can be answered; the broker keeps it among its dead letters.
            receiver.reject()
            return
        reply = self.accounts.handle(command, message.correlation_id, reply_to)
        hold("committed")
        self.send(reply_to, answer(message, command, reply))
        hold("answered")
        receiver.accept()

    def send(self, queue, message):
        """Returns when the broker has the message, and raises where it refuses it."""
        if queue not in self.senders:
            self.senders[queue] = self.connection.create_sender(queue, options=IsQueue())
        self.senders[queue].send(message)


def text_of(body):
    """A Data section arrives as bytes or memoryview, a text of another client as str."""
    if isinstance(body, str):
        return body
    try:
        return bytes(body).decode()
    except (TypeError, ValueError):
        raise Unreadable("the body is neither text nor bytes") from None


def check_addresses(message, command, reply_to):
    # Absent where the broker has no room for it.
    if message.correlation_id is not None and message.correlation_id != command.command_id:
        raise Unreadable("the correlation id is not the commandId of the envelope")
    if not reply_to:
        raise Unreadable("neither reply-to nor headers.replyTo says whom to answer")


def answer(message, command, reply):
    # The envelope says it all; the properties save dipmo's operators from opening it.
    properties = {
        "messageId": reply.message_id,
        "eventType": reply.type,
        "commandId": command.command_id,
        "correlationId": command.correlation_id,
        "causationId": command.message_id,
        "key": command.key,
        "tenantId": command.headers.get("tenantId", ""),
    }
    return Message(
        id=reply.message_id,
        correlation_id=message.correlation_id,
        content_type="application/json",
        durable=True,
        # Bytes as a Data section, not as a binary value.
        inferred=True,
        properties=properties,
        body=reply.json.encode(),
    )


def hold(point):
    """For tests that kill it: the first time it gets to this point it says so with a file and stays there."""
    if os.environ.get("HOLD_AT") != point:
        return
    try:
        open(os.environ["HOLD_FILE"], "x").close()
    except FileExistsError:
        return
    signal.pause()


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        settings = {name: os.environ[name] for name in ("DATABASE_URL", "AMQP_URL", "AMQP_USER", "AMQP_PASSWORD")}
    except KeyError as missing:
        sys.exit(f"set {missing.args[0]}, as the README says")
    accounts = Accounts(settings["DATABASE_URL"])
    accounts.create_tables()
    connection = BlockingConnection(
        settings["AMQP_URL"],
        # A broker that is silent for this many seconds is gone.
        heartbeat=60,
        user=settings["AMQP_USER"],
        password=settings["AMQP_PASSWORD"],
        allowed_mechs="PLAIN",
        # A password in clear text is for a broker on the same machine; elsewhere use an amqps:// address.
        allow_insecure_mechs=True,
    )
    Handler(connection, accounts).run(os.environ.get("QUEUE", QUEUE))


if __name__ == "__main__":
    main()
