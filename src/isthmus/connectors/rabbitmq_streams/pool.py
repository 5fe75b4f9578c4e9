"""The connections of one process to brokers whose streams it reads, and the threads of its sources.

What it is: the pool of RabbitMQ's connections, and the descriptor by which threads that write checkpoints wake the process's loop. What
it is not: sources.

Invariants:
    I1. An end whose thread has an answer is named by the next `service`.
    I2. `close` waits for the last checkpoints, for as long as `EndPool` does.
    I3. An end that is closed hears of it when its connection is given up, so that its thread ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.protocol.connection import Connection

__all__ = ["StreamPool"]


class StreamPool(BrokerPool):
    """A pool of sources.

    Attributes:
        threads: what threads of ends wake the loop by; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()
        self._later: dict[Connection, Callable[[], None]] = {}

    def leave_later(self, connection: Connection, now: float, abandoned: Callable[[], None]) -> None:
        """An end is closed, and confirms are to come: it disconnects after them, or the connection is given up after `CLOSE_SECONDS`.

        Args:
            connection: what the confirms come over.
            now: monotonic time.
            abandoned: called once the connection has left.
        """
        self._later[connection] = abandoned
        self.leave(connection, now)

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

    def unmark(self, key: int) -> None:
        """An end has nothing to tell any more."""
        super().unmark(key)
        self.threads.unmark(key)

    def close(self) -> None:
        """Closes everything, once the last confirms have come, and then the last checkpoints are written."""
        super().close()
        self._tell_left()
        self.threads.close()

    def _leave(self, now: float) -> None:
        super()._leave(now)
        self._tell_left()

    def _tell_left(self) -> None:
        for connection in [each for each in self._later if self.has_left(each)]:
            self._later.pop(connection)()
