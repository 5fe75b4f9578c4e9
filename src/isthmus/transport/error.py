"""AMQP error conditions and status codes as errors of isthmus (docs/explanation/protocol.md, Management, Conditions).

What it is: the table that maps a peer's refusals to errors. What it is not: the broker's table, which maps errors to
conditions.

Invariants:
    I1. A condition that is not in the table becomes a TransportError that keeps condition and text.
    I2. `retryable` says whether the same call may succeed later; for a removed entity or a refused token it may not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isthmus.errors import (
    ConnectionLostError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    LockLostError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotAllowedError,
    OperationTimeoutError,
    ProtocolError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)

__all__ = ["LinkRedirectError", "TransportError", "error_from"]


class TransportError(IsthmusError):
    """The peer refused with a condition that has no error of its own."""

    code = "refused"
    retryable = True

    def __init__(self, condition: str = "", description: str = "", path: str = "") -> None:
        super().__init__("", condition=condition, description=description, path=path)

    def text(self) -> str:
        a = self.attributes
        where = f"'{a.get('path')}': " if a.get("path") else ""
        return f"{where}{a.get('description') or 'refused'} ({a.get('condition') or 'no condition'})"


class LinkRedirectError(IsthmusError):
    """The link has to be attached elsewhere (OASIS AMQP 1.0, 2.8.16): at `hostname` and `port`, with `address`."""

    code = "link-redirect"

    hostname: str
    port: int
    address: str

    def __init__(self, hostname: str = "", port: int = 0, address: str = "") -> None:
        super().__init__("", hostname=hostname, port=port, address=address)
        self.hostname, self.port, self.address = hostname, port, address

    def text(self) -> str:
        return f"the peer asks to attach at {self.hostname}{f':{self.port}' if self.port else ''} ({self.address})"


_CONDITIONS: dict[str, type[IsthmusError]] = {
    "amqp:unauthorized-access": UnauthorizedError,
    "com.microsoft:auth-failed": UnauthorizedError,
    "amqp:link:message-size-exceeded": MessageTooLargeError,
    "amqp:resource-limit-exceeded": QuotaExceededError,
    "amqp:not-allowed": NotAllowedError,
    "amqp:link:stolen": NotAllowedError,
    "com.microsoft:argument-error": InvalidArgumentError,
    "com.microsoft:argument-out-of-range": InvalidArgumentError,
    "com.microsoft:message-lock-lost": LockLostError,
    "com.microsoft:session-lock-lost": LockLostError,
    "com.microsoft:session-cannot-be-locked": LockLostError,
    "com.microsoft:message-not-found": MessageNotFoundError,
    "com.microsoft:server-busy": ServerBusyError,
    "com.microsoft:timeout": OperationTimeoutError,
    "amqp:link:detach-forced": ConnectionLostError,
    "amqp:connection:forced": ConnectionLostError,
    "amqp:decode-error": ProtocolError,
    "amqp:connection:framing-error": ProtocolError,
}
_STATUSES: dict[int, str] = {
    400: "com.microsoft:argument-error",
    401: "amqp:unauthorized-access",
    403: "amqp:not-allowed",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    409: "com.microsoft:entity-already-exists",
    410: "com.microsoft:message-lock-lost",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
}
# No number of bytes has more digits, and Python refuses to read one of thousands.
_BYTES = re.compile(r"\b(\d{1,18}) bytes")


def error_from(
    condition: str | None,
    description: str | None,
    *,
    path: str = "",
    status: int = 0,
    info: Mapping[Any, Any] | None = None,
) -> IsthmusError:
    """The error for a peer's refusal.

    Args:
        condition: the AMQP error condition; None or empty where only a status came.
        description: the peer's text.
        path: the entity.
        status: status code of a `$management` or `$cbs` reply.
        info: the error's info map.
    """
    name = str(condition or "") or _STATUSES.get(status, "")
    text = str(description or "")
    where = f"'{path}': " if path else ""
    if name == "amqp:link:redirect":
        fields = {str(key): value for key, value in (info or {}).items()}
        hostname, port = (fields.get(each) for each in ("network-host", "port"))
        return LinkRedirectError(
            str(hostname or fields.get("hostname") or ""),
            int(port) if isinstance(port, int) else 0,
            str(fields.get("address") or ""),
        )
    if name == "amqp:not-found":
        return EntityNotFoundError(path)
    if name == "com.microsoft:entity-disabled":
        return EntityDisabledError(path, "disabled")
    if name == "com.microsoft:entity-already-exists":
        return EntityExistsError(path)
    if name == "amqp:link:message-size-exceeded":
        sizes = [int(found) for found in _BYTES.findall(text)]
        return MessageTooLargeError(max(sizes), min(sizes)) if sizes else MessageTooLargeError(message=f"{where}{text}")
    kind = _CONDITIONS.get(name)
    if kind is None:
        return TransportError(name, text, path)
    return kind(f"{where}{text or name}", condition=name)
