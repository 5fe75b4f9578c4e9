"""The connections of one process to brokers whose streams it reads, and the threads of its sources.

What it is: the pool of RabbitMQ's connections, and the descriptor by which threads that write checkpoints wake the process's loop. What
it is not: sources.

Invariants:
    I1. An end whose thread has an answer is named by the next `service`.
    I2. `close` waits for the last confirms, for as long as `BrokerPool` does, and then for the last checkpoints, for as long as `EndPool` does.
    I3. A source that waits for confirms after its end is finished when its connection is gone, whatever came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.protocol.connection import Connection

__all__ = ["Owing", "StreamPool"]


class Owing(Protocol):
    """A source that was closed, and waits for confirms."""

    @property
    def connection(self) -> Connection | None:
        """Where they come; None: it has finished."""
        ...

    def finish(self) -> None:
        """None comes any more."""
        ...


class StreamPool(BrokerPool):
    """A pool of sources.

    Attributes:
        threads: what threads of ends wake the loop by; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()
        self._owing: list[Owing] = []

    def owes(self, end: Owing) -> None:
        """A source was closed whose connection is leaving, and which finishes before that."""
        self._owing.append(end)

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """What to poll."""
        return [*super().descriptors(), *self.threads.descriptors()]

    def deadline(self, now: float) -> float:
        """When `service` has something to do though no descriptor is ready."""
        return min(super().deadline(now), self.threads.deadline(now))

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; the keys of the ends that have something to tell."""
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
        """An end has nothing to tell any more."""
        super().unmark(key)
        self.threads.unmark(key)

    def close(self) -> None:
        """Closes everything, once the last confirms have come, and the last checkpoints are written."""
        super().close()
        self._finish()
        self.threads.close()
