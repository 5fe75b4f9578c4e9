"""RabbitMQ's reasons for closing a channel or a connection, and their meaning for a route.

What it is: reply codes as errors and refusals, with RabbitMQ's own text and a hint. Specification: AMQP 0-9-1, 1.2 (reply codes);
RabbitMQ documentation, "Channels" and "Access Control".

Invariants:
    I1. No text contains a password: RabbitMQ's replies name users, entities and virtual hosts only.
"""

from __future__ import annotations

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.secret import scrub
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError

__all__ = ["INTERNAL_ERROR", "NO_ROUTE", "ClosedByBrokerError", "is_not_ready", "may_pass", "refusal_of"]

ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED, NOT_ALLOWED = 403, 404, 405, 406, 530
NO_ROUTE, INTERNAL_ERROR = 312, 541
_FATAL = frozenset({402, ACCESS_REFUSED, NOT_FOUND, 503, 504, NOT_ALLOWED, 540})
# A queue with an exclusive consumer is reported as a refusal of access, until that consumer ends.
IN_EXCLUSIVE_USE = "in exclusive use"
# An existing queue whose node is starting is reported as not found.
_NOT_READY = ("is down or inaccessible", "process is stopped by supervisor")
# A stream refuses a consumer's priority, which ours therefore sets (`wire.consume`).
IS_STREAM = "rabbit_stream_queue"
_STREAM_HINT = "a stream keeps acknowledged messages; read it with kind rabbitmq-streams"
_HINTS = {
    ACCESS_REFUSED: "check the user's password and permissions (configure, write, read) in the virtual host",
    NOT_FOUND: "create it, or correct the name",
    NOT_ALLOWED: "correct the virtual host, or grant the user access",
    402: "correct the virtual host's path",
}
_EXCLUSIVE_HINT = "another consumer reads the queue; end it, or write consumer=shared, which does not keep the order"


class ClosedByBrokerError(IsthmusError):
    """RabbitMQ closed a channel or a connection.

    Attributes:
        place: the entity or address.
        reply_code: RabbitMQ's, e.g. 404.
        reply_text: RabbitMQ's.
    """

    code = "closed-by-broker"

    place: str
    reply_code: int
    reply_text: str

    def text(self) -> str:
        if is_not_ready(self):
            return f"{self.place}: RabbitMQ reports {self.reply_code} {scrub(self.reply_text)}; check whether its node is starting"
        hint = _STREAM_HINT if IS_STREAM in self.reply_text else ""
        hint = _EXCLUSIVE_HINT if IN_EXCLUSIVE_USE in self.reply_text else hint or _HINTS.get(self.reply_code, "")
        return f"{self.place}: RabbitMQ reports {self.reply_code} {scrub(self.reply_text)}" + (
            f"; {hint}" if hint else ""
        )


def is_not_ready(error: ClosedByBrokerError) -> bool:
    """Whether a queue exists, and its node does not serve it now."""
    return error.reply_code == NOT_FOUND and any(each in error.reply_text for each in _NOT_READY)


def may_pass(error: IsthmusError) -> bool:
    """Whether a retry may succeed."""
    if isinstance(error, ClosedByBrokerError):
        if IS_STREAM in error.reply_text:
            return False
        if is_not_ready(error):
            return True
        return error.reply_code not in _FATAL or IN_EXCLUSIVE_USE in error.reply_text
    return error.retryable or isinstance(error, ConnectionLostError | OperationTimeoutError)


def refusal_of(error: Exception) -> Refusal:
    """The refusal that an error means for sent messages."""
    if isinstance(error, ClosedByBrokerError):
        kind = RefusalKind.UNKNOWN if may_pass(error) else RefusalKind.FATAL
        return Refusal(kind, str(error.reply_code), str(error))
    if isinstance(error, IsthmusError):
        return Refusal(RefusalKind.UNKNOWN if may_pass(error) else RefusalKind.FATAL, "", str(error))
    return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")
