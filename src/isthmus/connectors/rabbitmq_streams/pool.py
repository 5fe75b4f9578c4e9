"""The connections of one process to brokers whose streams it reads, and the threads of its sources.

What it is: the pool of RabbitMQ's connections, and the descriptor by which threads that write checkpoints wake the process's loop. What
it is not: sources.

Invariants:
    I1. An end whose thread has an answer is returned by the next `service`.
    I2. `close` waits for the last confirms, for as long as `BrokerPool` does, and then for the last checkpoints, for as long as `EndPool` does.
    I3. A source that waits for confirms after its close is finished when its connection is closed, with or without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.protocol.connection import Connection

__all__ = ["Owing", "StreamPool"]


class Owing(Protocol):
    """A closed source that waits for confirms."""

    @property
    def connection(self) -> Connection | None:
        """The connection of the confirms; None: it has finished."""
        ...

    def finish(self) -> None:
        """No more confirms follow."""
        ...


class StreamPool(BrokerPool):
    """A pool of sources.

    Attributes:
        threads: the pool by which threads of ends wake the loop; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()
        self._owing: list[Owing] = []

    def owes(self, end: Owing) -> None:
        """Adds a closed source whose connection is leaving, and which finishes before that."""
        self._owing.append(end)

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """The descriptors to poll."""
        return [*super().descriptors(), *self.threads.descriptors()]

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready."""
        return min(super().deadline(now), self.threads.deadline(now))

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; returns the keys of the ends that have events."""
        for key in self.threads.service(ready, now):
            self.mark(key)
        return super().service(ready, now)

    def _leave(self, now: float) -> None:
        super()._leave(now)
        self._finish()

    def _finish(self) -> None:
        for each in list(self._owing):
            if each.connection is None or self.has_left(each.connection):
                each.finish()
                self._owing.remove(each)

    def unmark(self, key: int) -> None:
        """An end has no events any more."""
        super().unmark(key)
        self.threads.unmark(key)

    def close(self) -> None:
        """Closes everything, once the last confirms have arrived, and the last checkpoints are written."""
        super().close()
        self._finish()
        self.threads.close()
