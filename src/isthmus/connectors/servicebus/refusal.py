"""Service Bus's errors as refusals.

What it is: the meaning of a target's answer for the delivery machine. What it is not: the reaction
(`isthmus.bridge.delivery.delivery`).

Invariants:
    I1. Only a refusal that depends on the message alone, not on the time, is MESSAGE; an ambiguous one is UNCLEAR.
"""

from __future__ import annotations

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ProtocolError,
    UnauthorizedError,
)
from isthmus.transport.error import TransportError

__all__ = ["may_pass", "refusal_of"]

_OF_THE_MESSAGE = (MessageTooLargeError, InvalidArgumentError, ProtocolError)


def may_pass(error: IsthmusError) -> bool:
    """Whether the target may accept the unchanged message later."""
    return error.retryable or isinstance(error, EntityDisabledError)


def refusal_of(error: IsthmusError) -> Refusal:
    """The refusal that a target's answer to a message means."""
    condition = str(error.attributes.get("condition") or "")
    if isinstance(error, TransportError):
        return Refusal(RefusalKind.UNCLEAR, condition, str(error.attributes.get("description") or "refused"))
    reason = "MessageTooLarge" if isinstance(error, MessageTooLargeError) else "RefusedByTarget"
    if isinstance(error, EntityNotFoundError | UnauthorizedError):
        kind = RefusalKind.FATAL
    elif isinstance(error, OutcomeUnknownError):
        kind = RefusalKind.UNKNOWN
    elif may_pass(error):
        kind = RefusalKind.BLOCKED
    elif isinstance(error, _OF_THE_MESSAGE):
        kind = RefusalKind.MESSAGE
    else:
        kind = RefusalKind.UNCLEAR
    return Refusal(kind, condition, str(error), reason)
