"""How many bytes of messages that are not whole yet one client holds.

What it is: its share of what all clients together may hold. What it is not: the parts of a message (`isthmus.amqp`), or the end of a
connection (`isthmus.broker.peer`). Spec: docs/explanation/protocol.md, Connection.

Invariants:
    I1. All clients together hold a bounded number of bytes: the one that makes them too many is told so.
    I2. What a client holds is taken off when its connection ends.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.errors import ServerBusyError

__all__ = ["PartialAccount"]


class _Together(Protocol):
    """What connections share (`isthmus.broker.namespace`); `partial_bytes` of all of them."""

    partial_bytes: int


class PartialAccount:
    """That of one connection.

    Args:
        together: the account of all.
        limit_bytes: how much they may hold.

    Attributes:
        nbytes: that this one holds.
    """

    __slots__ = ("_limit_bytes", "_together", "nbytes")

    def __init__(self, together: _Together, limit_bytes: int) -> None:
        self._together = together
        self._limit_bytes = limit_bytes
        self.nbytes = 0

    def update(self, nbytes: int) -> ServerBusyError | None:
        """It holds so many now; the error to close it with, if that is too much."""
        before, self.nbytes = self.nbytes, nbytes
        self._together.partial_bytes += nbytes - before
        if nbytes > before and self._together.partial_bytes > self._limit_bytes:
            return ServerBusyError("Too many large messages are under way to the namespace; try again later.")
        return None

    def release(self) -> None:
        """Its connection has ended."""
        self.update(0)
