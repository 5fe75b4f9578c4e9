"""Errors of isthmus as AMQP conditions and status codes.

What it is: the table that maps an `IsthmusError` to the condition that Service Bus clients understand, as an AMQP
`Error` and as the status of a `$management` or `$cbs` reply. What it is not: it raises nothing and logs nothing.
Spec: AMQP 1.0 part 2, section 2.8.14; the conditions are those that the official SDKs map to their exceptions.

Invariants:
    I1. An error that is not in the table becomes `amqp:internal-error` with a text that reveals no internals: no traceback,
        no path of this machine, no secret.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.amqp.performative import Error
from isthmus.amqp.types import Symbol
from isthmus.entities.error import TransactionRolledBackError, TransactionTimeoutError, UnknownTransactionError
from isthmus.errors import (
    ArgumentOutOfRangeError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    IdleLinkError,
    InvalidArgumentError,
    IsthmusError,
    LinkStolenError,
    LockLostError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotAllowedError,
    OperationTimeoutError,
    ProtocolError,
    QuotaExceededError,
    ServerBusyError,
    SessionLockedError,
    SessionLockLostError,
    StoreError,
    UnauthorizedError,
    UnsupportedError,
)

__all__ = ["INTERNAL_TEXT", "Refusal", "amqp_error", "refusal"]

INTERNAL_TEXT = "The namespace could not complete the request."


class Refusal(NamedTuple):
    """An error as it is sent: status code (of a reply), condition and text."""

    status: int
    condition: str
    text: str


# The first line whose class fits is used, so that subclasses come before their bases.
_TABLE: tuple[tuple[type[IsthmusError], int, str], ...] = (
    (EntityNotFoundError, 404, "amqp:not-found"),
    (EntityExistsError, 409, "com.microsoft:entity-already-exists"),
    (EntityDisabledError, 403, "com.microsoft:entity-disabled"),
    (UnauthorizedError, 401, "amqp:unauthorized-access"),
    (IdleLinkError, 408, "amqp:link:detach-forced"),
    (SessionLockLostError, 410, "com.microsoft:session-lock-lost"),
    (SessionLockedError, 409, "com.microsoft:session-cannot-be-locked"),
    (LinkStolenError, 409, "amqp:link:stolen"),
    (LockLostError, 410, "com.microsoft:message-lock-lost"),
    (MessageNotFoundError, 404, "com.microsoft:message-not-found"),
    (MessageTooLargeError, 400, "amqp:link:message-size-exceeded"),
    (QuotaExceededError, 403, "amqp:resource-limit-exceeded"),
    (NotAllowedError, 400, "amqp:not-allowed"),
    (UnsupportedError, 400, "amqp:not-implemented"),
    (ArgumentOutOfRangeError, 400, "com.microsoft:argument-out-of-range"),
    (InvalidArgumentError, 400, "com.microsoft:argument-error"),
    (OperationTimeoutError, 408, "com.microsoft:timeout"),
    (ServerBusyError, 503, "com.microsoft:server-busy"),
    (UnknownTransactionError, 404, "amqp:transaction:unknown-id"),
    (TransactionRolledBackError, 409, "amqp:transaction:rollback"),
    (TransactionTimeoutError, 408, "amqp:transaction:timeout"),
    (StoreError, 500, "amqp:internal-error"),
    (ProtocolError, 400, "amqp:decode-error"),
)


def refusal(error: Exception) -> Refusal:
    """`error` as it is sent to a client."""
    for kind, status, condition in _TABLE:
        if isinstance(error, kind):
            text = "The namespace could not store the change." if kind is StoreError else str(error)
            return Refusal(status, condition, text)
    return Refusal(500, "amqp:internal-error", INTERNAL_TEXT)


def amqp_error(error: Exception) -> Error:
    """`error` as an AMQP error."""
    _, condition, text = refusal(error)
    return Error(Symbol(condition), text)
