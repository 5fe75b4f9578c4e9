"""The connections of one process to brokers whose streams it reads, and the threads of its sources.

What it is: the pool of RabbitMQ's connections, and the descriptor by which threads that write checkpoints wake the process's loop. What
it is not: sources.

Invariants:
    I1. An end whose thread has an answer is named by the next `service`.
    I2. `close` waits for the last checkpoints, for as long as `EndPool` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.rabbitmq.port.pool import BrokerPool

__all__ = ["StreamPool"]


class StreamPool(BrokerPool):
    """A pool of sources.

    Attributes:
        threads: what threads of ends wake the loop by; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()

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
        """Closes everything, once the last checkpoints are written."""
        self.threads.close()
        super().close()
