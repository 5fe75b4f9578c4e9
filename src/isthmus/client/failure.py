"""The meaning of an azure-servicebus error for an application that has a second region.

What it is: a pure classification of the SDK's errors by their classes, AMQP conditions and HTTP statuses. The text of an error is used
once: only the text shows that an error comes from a chain of credentials. What it is not: a policy; senders and receivers decide what to do.
Specification: Microsoft Learn, "Service Bus messaging exceptions"; OASIS AMQP 1.0, 2.8.14 to 2.8.18 (error conditions).

Invariants:
    I1. An error that may follow an unacknowledged transfer is never classified as not sent: a time-out is
        UNKNOWN, and a lost connection is GONE, for which `is_definite` depends on whether the link was open.
    I2. An unclassified error is UNKNOWN: a duplicate can be suppressed, a loss cannot be repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from isthmus.errors import IsthmusError
from isthmus.transport.http_status import may_succeed_later

__all__ = ["Failure", "classify"]


class Failure(Enum):
    """The meaning of an error.

    The region may be unavailable:
        GONE: no connection, a lost connection, a name that does not resolve, an internal error of the service.
        UNKNOWN: no answer in time, or an error without a known meaning: the operation may have been done.
    The entity does not accept the operation now, but the region answers:
        BUSY: throttled, or the session is locked by another receiver.
        FULL: the entity's quota is used up.
        DISABLED: the entity's status forbids it.
    The entity does not accept the operation until its configuration changes:
        MISSING: there is no such entity.
        FORBIDDEN: the key or identity does not permit it. A namespace may answer so for an entity that is missing.
    The message or the call is at fault:
        REFUSED: the message itself is refused: too large, without the session that the entity requires, malformed.
        LOCK_LOST: the lock on a message or session is lost; the message is delivered again.
        MISUSE: a mistake of the program: wrong types, a closed client.
    """

    GONE = "gone"
    UNKNOWN = "unknown"
    BUSY = "busy"
    FULL = "full"
    DISABLED = "disabled"
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    LOCK_LOST = "lock-lost"
    MISUSE = "misuse"

    @property
    def region_may_be_gone(self) -> bool:
        """Whether another region has to be tried."""
        return self in (Failure.GONE, Failure.UNKNOWN)

    @property
    def is_for_the_message(self) -> bool:
        """Whether the same message would fail again wherever it is sent."""
        return self in (Failure.REFUSED, Failure.MISUSE)

    def is_definite(self, link_was_open: bool) -> bool:
        """Whether the operation was certainly not done.

        Args:
            link_was_open: whether the error came after the link was open, so that the message may have been sent.
        """
        if self is Failure.UNKNOWN:
            return False
        return not (self is Failure.GONE and link_was_open)


_BY_CLASS: tuple[tuple[type[BaseException], Failure], ...] = (
    (MessageSizeExceededError, Failure.REFUSED),
    (MessageAlreadySettled, Failure.LOCK_LOST),
    (MessageLockLostError, Failure.LOCK_LOST),
    (SessionLockLostError, Failure.LOCK_LOST),
    (MessageNotFoundError, Failure.LOCK_LOST),
    (SessionCannotBeLockedError, Failure.BUSY),
    (ServiceBusServerBusyError, Failure.BUSY),
    (ServiceBusQuotaExceededError, Failure.FULL),
    (MessagingEntityDisabledError, Failure.DISABLED),
    (MessagingEntityNotFoundError, Failure.MISSING),
    (ServiceBusAuthenticationError, Failure.FORBIDDEN),
    (ServiceBusAuthorizationError, Failure.FORBIDDEN),
    (OperationTimeoutError, Failure.UNKNOWN),
    (ServiceBusConnectionError, Failure.GONE),
    (ServiceBusCommunicationError, Failure.GONE),
    (ServiceRequestError, Failure.GONE),  # the token service cannot be reached
    (ServiceResponseError, Failure.GONE),
    (HttpResponseError, Failure.GONE),  # the token service answered with an error of its own
    (TimeoutError, Failure.UNKNOWN),
    (asyncio.CancelledError, Failure.UNKNOWN),
    (OSError, Failure.GONE),  # sockets and name resolution
    (TypeError, Failure.MISUSE),
    (ValueError, Failure.MISUSE),
    (AttributeError, Failure.MISUSE),
)

_BY_CONDITION = {
    b"amqp:not-found": Failure.MISSING,
    b"amqp:unauthorized-access": Failure.FORBIDDEN,
    b"com.microsoft:auth-failed": Failure.FORBIDDEN,
    b"amqp:not-allowed": Failure.REFUSED,
    b"amqp:not-implemented": Failure.REFUSED,
    b"amqp:decode-error": Failure.REFUSED,
    b"amqp:invalid-field": Failure.REFUSED,
    b"amqp:precondition-failed": Failure.REFUSED,
    b"amqp:link:message-size-exceeded": Failure.REFUSED,
    b"com.microsoft:argument-error": Failure.REFUSED,
    b"com.microsoft:argument-out-of-range": Failure.REFUSED,
    b"amqp:resource-limit-exceeded": Failure.FULL,
    b"com.microsoft:server-busy": Failure.BUSY,
    b"com.microsoft:entity-disabled": Failure.DISABLED,
    b"com.microsoft:timeout": Failure.UNKNOWN,
    b"com.microsoft:operation-cancelled": Failure.UNKNOWN,
    b"com.microsoft:message-lock-lost": Failure.LOCK_LOST,
    b"com.microsoft:session-lock-lost": Failure.LOCK_LOST,
    b"com.microsoft:message-not-found": Failure.LOCK_LOST,
    b"com.microsoft:session-cannot-be-locked": Failure.BUSY,
    b"amqp:internal-error": Failure.GONE,
    b"amqp:illegal-state": Failure.GONE,
    b"amqp:resource-deleted": Failure.MISSING,
    b"amqp:connection:forced": Failure.GONE,
    b"amqp:connection:framing-error": Failure.GONE,
    b"amqp:connection:redirect": Failure.GONE,
    b"amqp:link:detach-forced": Failure.GONE,
    b"amqp:link:stolen": Failure.GONE,
    b"amqp:socket-error": Failure.GONE,
    b"com.microsoft:container-close": Failure.GONE,
}

_CHAIN_LIMIT = 8
# `azure.identity.ChainedTokenCredential`, and so `DefaultAzureCredential`: it does not report whether the sources it tried were unavailable.
_OF_CHAIN = " failed to retrieve a token from the included credentials"


def classify(error: BaseException) -> Failure:
    """The meaning of an error of azure-servicebus, of a credential or of a socket.

    Args:
        error: the exception that an SDK call raised. The SDK's base error, and the RuntimeError with which it reports a lost
            settlement, are judged by the AMQP condition or the error that they wrap.
    """
    for each in _chain(error):
        if isinstance(each, ClientAuthenticationError):
            return _of_token(each)
        for kind, failure in _BY_CLASS:
            if isinstance(each, kind):
                return failure
        failure_of_condition = _of_condition(each)
        if failure_of_condition is not None:
            return failure_of_condition
        if isinstance(each, IsthmusError):
            return Failure.UNKNOWN if each.retryable else Failure.MISUSE
    return Failure.UNKNOWN


def _of_token(error: ClientAuthenticationError) -> Failure:
    """There is no token: the identity is refused, or the token issuer is unavailable."""
    if error.status_code is not None:
        return Failure.GONE if may_succeed_later(error.status_code) else Failure.FORBIDDEN
    cause = error.__cause__
    if isinstance(cause, ClientAuthenticationError):
        return _of_token(cause)
    if isinstance(cause, HttpResponseError) and cause.status_code is not None:
        return Failure.GONE if may_succeed_later(cause.status_code) else Failure.FORBIDDEN
    is_away = isinstance(cause, AzureError | OSError) or _OF_CHAIN in str(error)
    return Failure.GONE if is_away else Failure.FORBIDDEN


def _of_condition(error: BaseException) -> Failure | None:
    condition = getattr(error, "condition", None)
    if condition is None and isinstance(error, ServiceBusError):
        condition = getattr(error, "_condition", None)
    if isinstance(condition, Enum):
        condition = condition.value
    if isinstance(condition, str):
        condition = condition.encode()
    return _BY_CONDITION.get(condition) if isinstance(condition, bytes) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and the errors that it wraps, outermost first."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting and len(seen) < _CHAIN_LIMIT:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = getattr(each, "inner_exception", None) if isinstance(each, AzureError) else None
        waiting += [one for one in (inner, each.__cause__) if isinstance(one, BaseException)]
