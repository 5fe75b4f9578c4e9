"""Errors that only the entities raise; the shared ones are in `isthmus.errors`."""

from __future__ import annotations

from isthmus.errors import InvalidArgumentError, IsthmusError, MessageTooLargeError, NotAllowedError

__all__ = [
    "BatchTooLongError",
    "InvalidMessageError",
    "SessionRequiredError",
    "TooManyHopsError",
    "TransactionRolledBackError",
    "TransactionTimeoutError",
    "UnknownTransactionError",
]


class InvalidMessageError(InvalidArgumentError):
    """A payload is not an AMQP message, or a property in it has a type or length that the entity refuses."""

    code = "invalid-message"


class BatchTooLongError(MessageTooLargeError):
    """An envelope contains more messages than the limit."""

    code = "batch-too-long"

    def __init__(self, limit: int = 0) -> None:
        super().__init__(message=f"The batch has more than {limit} messages; send them in several.")


class SessionRequiredError(NotAllowedError):
    """The entity requires sessions, and the message or the receiver does not name one."""

    code = "session-required"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return (
            "The SessionId was not set on a message, and it cannot be sent to the entity "
            f"'{self.attributes.get('path', '')}'. Entities that have session support enabled can only receive "
            "messages that have the SessionId set to a valid value."
        )


class TooManyHopsError(IsthmusError):
    """A message has made the maximum number of hops, and the entity forwards to another one."""

    code = "too-many-hops"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return (
            f"Maximum transfer hop count is exceeded: the message passed 4 hops and would be forwarded to "
            f"'{self.attributes.get('path', '')}'; shorten the chain of entities that forward."
        )


class TransactionRolledBackError(IsthmusError):
    """The transaction was rolled back instead of committed."""

    code = "transaction-rolled-back"


class TransactionTimeoutError(IsthmusError):
    """The transaction lasted too long and was rolled back."""

    code = "transaction-timeout"

    def __init__(self, timeout_ms: int = 0) -> None:
        super().__init__("", timeout_ms=timeout_ms)

    def text(self) -> str:
        return f"The transaction was not discharged within {self.attributes.get('timeout_ms', 0) / 1000:g} s of its first operation."


class UnknownTransactionError(IsthmusError):
    """No transaction of this connection has this id."""

    code = "unknown-transaction"

    def __init__(self, txn_id: str = "") -> None:
        super().__init__("", txn_id=txn_id)

    def text(self) -> str:
        return (
            f"The transaction '{self.attributes.get('txn_id', '')[:64]}' is not known: it was not declared on this connection, "
            "or has been discharged."
        )
