"""The number of bytes of one client's messages that are not whole yet.

What it is: its share of the limit for all clients together. What it is not: the parts of a message (`isthmus.amqp`), or the end of a
connection (`isthmus.broker.peer`). Spec: docs/explanation/protocol.md, Connection.

Invariants:
    I1. All clients together use a bounded number of bytes: the one that exceeds the limit gets the error.
    I2. A client's bytes are subtracted when its connection ends.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.errors import ServerBusyError

__all__ = ["PartialAccount"]


class _Together(Protocol):
    """The sum for all connections (`isthmus.broker.namespace`), `partial_bytes`."""

    partial_bytes: int


class PartialAccount:
    """The account of one connection.

    Args:
        together: the sum for all connections.
        limit_bytes: of that sum.

    Attributes:
        nbytes: of this connection.
    """

    __slots__ = ("_limit_bytes", "_together", "nbytes")

    def __init__(self, together: _Together, limit_bytes: int) -> None:
        self._together = together
        self._limit_bytes = limit_bytes
        self.nbytes = 0

    def update(self, nbytes: int) -> ServerBusyError | None:
        """Sets the connection's bytes; returns the error to close it with, if the sum exceeds the limit."""
        before, self.nbytes = self.nbytes, nbytes
        self._together.partial_bytes += nbytes - before
        if nbytes > before and self._together.partial_bytes > self._limit_bytes:
            return ServerBusyError("Too many large messages are under way to the namespace; try again later.")
        return None

    def release(self) -> None:
        """Its connection has ended."""
        self.update(0)
