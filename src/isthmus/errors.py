"""The errors that isthmus raises.

What it is: one root, `IsthmusError`, and the errors that more than one layer raises. A package whose errors only it
raises declares them itself, below the same root.

Invariants:
    I1. Every error survives pickling: errors cross process borders on Spark workers.
    I2. The text is built from the attributes, so that a log line and a JSON answer agree.
    I3. No error text contains a key, a token or a connection string.
"""

from __future__ import annotations

import copyreg
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

__all__ = [
    "ArgumentOutOfRangeError",
    "ConfigError",
    "ConnectionLostError",
    "EntityDisabledError",
    "EntityExistsError",
    "EntityNotFoundError",
    "Fault",
    "IdleLinkError",
    "InvalidArgumentError",
    "IsthmusError",
    "LinkStolenError",
    "LockLostError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "NotAllowedError",
    "OperationTimeoutError",
    "OutcomeUnknownError",
    "ProtocolError",
    "QuotaExceededError",
    "ServerBusyError",
    "SessionLockLostError",
    "SessionLockedError",
    "StoreError",
    "UnauthorizedError",
    "UnsupportedError",
]


class IsthmusError(Exception):
    """Root of all errors of isthmus.

    Attributes:
        code: short stable name for programs, e.g. ``entity-not-found``.
        retryable: whether the same call may succeed later without a change by the caller.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", **attributes: Any) -> None:
        self.message = message
        self.attributes = attributes
        for name, value in attributes.items():
            setattr(self, name, value)
        super().__init__(message)

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The fault, the thing that it concerns, and what to do; a subclass builds it from its attributes."""
        return self.message or self.code

    def to_dict(self) -> dict[str, Any]:
        """The error as plain values for ``--json`` output."""
        return {"code": self.code, "message": self.text(), "retryable": self.retryable}

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self),), {"message": self.message, **self.__dict__}  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        self.__dict__.update(state or {})
        self.args = (self.message,)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file that an operator wrote.

    Attributes:
        message: what is wrong.
        hint: what to write instead; empty where there is no suggestion.
        file: the file's name as the operator gave it.
        line: 1-based; 0 where the fault has no position.
        column: 1-based; 0 where the fault has no position.
    """

    message: str
    hint: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{position}{self.message}" + (f"; {self.hint}" if self.hint else "")


class ConfigError(IsthmusError):
    """Input that an operator wrote is wrong; contains every fault found, not just the first."""

    code = "bad-config"

    def __init__(self, faults: list[Fault] | tuple[Fault, ...] = ()) -> None:
        super().__init__("", faults=tuple(faults))
        self.faults = tuple(faults)

    def text(self) -> str:
        return "\n".join(str(fault) for fault in self.faults) or "no fault given"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "faults": [asdict(fault) for fault in self.faults]}


class InvalidArgumentError(IsthmusError):
    """A value is outside the range that the operation accepts."""

    code = "invalid-argument"


class ArgumentOutOfRangeError(InvalidArgumentError):
    """A number or an index is out of range, e.g. the id of a partition."""

    code = "argument-out-of-range"


class NotAllowedError(IsthmusError):
    """The operation does not fit the entity, e.g. a plain receiver on an entity that requires sessions."""

    code = "not-allowed"


class UnsupportedError(IsthmusError):
    """A feature of the protocol that the namespace does not support, e.g. a selector on a queue."""

    code = "unsupported"


class ProtocolError(IsthmusError):
    """The remote end, or the local caller, broke the protocol."""

    code = "protocol"


class EntityNotFoundError(IsthmusError):
    """No entity has this path."""

    code = "entity-not-found"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return f"The messaging entity '{self.attributes.get('path', '')}' could not be found."


class EntityExistsError(IsthmusError):
    """An entity with this path already exists."""

    code = "entity-exists"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return f"The messaging entity '{self.attributes.get('path', '')}' exists already."


class EntityDisabledError(IsthmusError):
    """The entity's status forbids the operation."""

    code = "entity-disabled"

    def __init__(self, path: str = "", status: str = "") -> None:
        super().__init__("", path=path, status=status)

    def text(self) -> str:
        a = self.attributes
        return (
            f"Messaging entity '{a.get('path', '')}' is currently disabled: its status is {a.get('status', '')}; set it "
            "to Active to go on."
        )


class IdleLinkError(IsthmusError):
    """There was no transfer on a link for longer than its namespace allows."""

    code = "idle-link"
    retryable = True

    def __init__(self, link: str = "", kind: str = "", entity: str = "", timeout_seconds: float = 0.0) -> None:
        super().__init__("", link=link, kind=kind, entity=entity, timeout_seconds=timeout_seconds)

    def text(self) -> str:
        a = self.attributes
        minutes, seconds = divmod(a.get("timeout_seconds", 0.0), 60)
        return (
            f"The link '{a.get('link')}' is force detached. Code: {a.get('kind')}. Details: "
            f"Amqp{a.get('entity')}{a.get('kind', '').capitalize()}.IdleTimerExpired: Idle timeout: "
            f"{int(minutes // 60):02}:{int(minutes % 60):02}:{seconds:02g}."
        )


class UnauthorizedError(IsthmusError):
    """The caller's token or key does not permit the operation."""

    code = "unauthorized"


class LinkStolenError(IsthmusError):
    """A receiver with a higher owner level in the same consumer group has replaced this one, or does so now."""

    code = "link-stolen"


class LockLostError(IsthmusError):
    """The lock on a message or session has expired or never existed."""

    code = "lock-lost"


class SessionLockLostError(LockLostError):
    """The lock on a session has expired, was released, or was never the caller's."""

    code = "session-lock-lost"

    def __init__(self, path: str = "", session_id: str = "") -> None:
        super().__init__("", path=path, session_id=session_id)

    def text(self) -> str:
        a = self.attributes
        return (
            f"The session lock was lost: '{a.get('session_id', '')}' of '{a.get('path', '')}'. "
            "Request a new session receiver."
        )


class SessionLockedError(IsthmusError):
    """Another receiver has the lock on the session."""

    code = "session-locked"
    retryable = True

    def __init__(self, path: str = "", session_id: str = "") -> None:
        super().__init__("", path=path, session_id=session_id)

    def text(self) -> str:
        a = self.attributes
        return (
            f"The requested session '{a.get('session_id', '')}' of '{a.get('path', '')}' cannot be accepted. "
            "It may be locked by another receiver."
        )


class MessageNotFoundError(IsthmusError):
    """No message with this sequence number has the requested state."""

    code = "message-not-found"


class QuotaExceededError(IsthmusError):
    """The entity is full; receiving messages frees space."""

    code = "quota-exceeded"
    retryable = True


class MessageTooLargeError(IsthmusError):
    """A message exceeds the entity's or the link's limit."""

    code = "message-too-large"

    def __init__(self, size_bytes: int = 0, limit_bytes: int = 0, message: str = "") -> None:
        super().__init__(message, size_bytes=size_bytes, limit_bytes=limit_bytes)

    def text(self) -> str:
        if self.message:
            return self.message
        a = self.attributes
        return f"The message has {a.get('size_bytes')} bytes; the limit is {a.get('limit_bytes')} bytes."


class ServerBusyError(IsthmusError):
    """The other side asks to retry later."""

    code = "server-busy"
    retryable = True


class OperationTimeoutError(IsthmusError):
    """No answer arrived in the given time."""

    code = "timeout"
    retryable = True


class ConnectionLostError(IsthmusError):
    """The connection was lost or could not be opened."""

    code = "connection-lost"
    retryable = True


class OutcomeUnknownError(IsthmusError):
    """A send was not confirmed: the message may or may not be at the target."""

    code = "outcome-unknown"
    retryable = True


class StoreError(IsthmusError):
    """The disk of the namespace refused or failed."""

    code = "store"
