"""Errors as the service's HTTP answers.

What it is: the table from errors to status, SubCode and text. What it is not: code that raises or logs.
Spec: docs/explanation/protocol.md, Administration; service-bus-resource-manager-exceptions.md.

Invariants:
    I1. An error that is not in the table becomes 500 with a text that reveals no internals.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from isthmus.broker.admin.document import DocumentError
from isthmus.broker.security.sas import TokenError
from isthmus.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    NotAllowedError,
    QuotaExceededError,
    ServerBusyError,
    StoreError,
    UnauthorizedError,
)
from isthmus.rules.error import RuleSyntaxError

__all__ = ["ConflictError", "MethodError", "PreconditionError", "TooLargeError", "failure"]


class ConflictError(IsthmusError):
    """Another change of the same entity is in progress."""

    code = "conflict"
    retryable = True


class PreconditionError(IsthmusError):
    """The entity is not in the state that If-Match names."""

    code = "precondition-failed"


class MethodError(IsthmusError):
    """The resource does not take this HTTP verb."""

    code = "bad-method"

    def __init__(self, method: str = "") -> None:
        super().__init__(f"The specified HTTP verb ({method[:16]}) is not valid.", method=method[:16])


class TooLargeError(IsthmusError):
    """The request's body is over the limit."""

    code = "too-large"


# Status and SubCode text; the first line whose class fits is used, so that subclasses come before their bases.
# Answers to bad tokens have no SubCode: the text starts with the reason's name.
_TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (TokenError, 401, ""),
    (UnauthorizedError, 401, ""),
    (EntityNotFoundError, 404, "SubCode=40400. Not Found. "),
    (EntityExistsError, 409, "SubCode=40900. Conflict. "),
    (ConflictError, 409, "SubCode=40901. Another conflicting operation is in progress. "),
    (RuleSyntaxError, 400, "SubCode=40000. Bad Request. The expression does not parse: "),
    (QuotaExceededError, 403, "SubCode=40300. Forbidden. "),
    (NotAllowedError, 400, "SubCode=40000. Bad Request. "),
    (InvalidArgumentError, 400, "SubCode=40000. Bad Request. "),
    (DocumentError, 400, "SubCode=40000. Bad Request. "),
    (PreconditionError, 412, "SubCode=41200. Precondition Failed. "),
    (MethodError, 405, "SubCode=40500. "),
    (TooLargeError, 413, "SubCode=41300. Request Entity Too Large. "),
    (ServerBusyError, 503, "SubCode=50004. Server Busy. "),
)


def failure(error: Exception, *, namespace: str, path: str, now_ms: int) -> tuple[int, str]:
    """The status and the detail text of an error.

    Args:
        error: what was raised.
        namespace: the namespace's name.
        path: what the request was about, shown as SystemTracker.
        now_ms: wall time.
    """
    known = next(((status, prefix + str(error)) for kind, status, prefix in _TABLE if isinstance(error, kind)), None)
    what = "store the change" if isinstance(error, StoreError) else "complete the request"
    status, text = known or (500, f"SubCode=50000. Internal Server Error. The namespace could not {what}.")
    timestamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    tracker = f"TrackingId:{uuid.uuid4()}_G0, SystemTracker:{namespace}:{path[:300]}, Timestamp:{timestamp}"
    return status, f"{text} {tracker}"
