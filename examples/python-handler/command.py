"""Commands and replies as their envelopes tell them. Fields that are not needed here may be there."""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone

NEEDED = ("messageId", "name", "commandId", "correlationId", "key")
KEPT = ("tenantId", "schemaVersion", "idempotencyKey", "traceId", "spanId")


class Unreadable(Exception):
    """Not a command; repeating it would not make it one."""


@dataclass(frozen=True)
class Reply:
    """As it is recorded and sent, however often."""

    message_id: str
    type: str
    json: str

    @classmethod
    def recorded(cls, text):
        envelope = json.loads(text)
        return cls(envelope["messageId"], envelope["type"], text)


@dataclass(frozen=True)
class Command:
    message_id: str
    name: str
    command_id: str
    correlation_id: str
    key: str
    idempotency_key: str
    headers: dict
    payload: object

    @classmethod
    def read(cls, text):
        try:
            envelope = json.loads(text)
        except ValueError as error:
            raise Unreadable(f"the body is not JSON: {error}") from None
        if not isinstance(envelope, dict):
            raise Unreadable("the body is not an envelope")
        for field in NEEDED:
            if not isinstance(envelope.get(field), str):
                raise Unreadable(f"the envelope has no text {field}")
        headers = envelope.get("headers") or {}
        if not isinstance(headers, dict) or not isinstance(headers.get("idempotencyKey"), str):
            raise Unreadable("the envelope has no header idempotencyKey")
        fields = [envelope[field] for field in NEEDED]
        return cls(*fields, headers["idempotencyKey"], headers, envelope.get("payload"))

    def completed(self, result):
        return self._reply("CommandCompleted", result)

    def failed(self, code, message, retryable):
        """Sending a retryable command again may help; the saga decides when and how often."""
        return self._reply("CommandFailed", {"code": code, "message": message, "retryable": retryable})

    def _reply(self, type, payload):
        """Same command, saga and key, caused by this message."""
        message_id = str(uuid.uuid4())
        envelope = {
            "messageId": message_id,
            "type": type,
            "name": self.name,
            "commandId": self.command_id,
            "correlationId": self.correlation_id,
            "causationId": self.message_id,
            "occurredAt": datetime.now(timezone.utc).isoformat(),
            "key": self.key,
            "headers": {name: self.headers[name] for name in KEPT if name in self.headers},
            "payload": payload,
        }
        return Reply(message_id, type, json.dumps(envelope))
