"""The connections of one process to namespaces with event hubs, and the threads of their sources.

What it is: the pool of Service Bus's connections, whose protocol this is, and the descriptor by which threads that write checkpoints wake the
process's loop. What it is not: sources or targets.

Invariants:
    I1. An end whose thread has an answer is returned by the next `service`.
    I2. `close` waits for the last checkpoints, for as long as `EndPool` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.port.connection import Remote, dial, remote_of
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.transport import Client

__all__ = ["HubPool"]


class HubPool(ConnectionPool):
    """The common part of `SourcePool` and `TargetPool`.

    Attributes:
        threads: the pool by which threads of ends wake the loop; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()

    def remote(self, options: SourceOptions | SinkOptions) -> Remote:
        """The remote side of an end; options are those of its namespace."""
        return replace(remote_of(options), dial=partial(self.dial, options))

    def dial(self, options: SourceOptions | SinkOptions) -> Client:
        """Opens a client; blocks, in a thread of the dialer.

        Raises:
            IsthmusError: the reference cannot be resolved, or no connection could be made.
        """
        return dial(options)

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

    def unmark(self, key: int) -> None:
        """An end has no events any more."""
        super().unmark(key)
        self.threads.unmark(key)

    def close(self) -> None:
        """Closes everything, once the last checkpoints are written."""
        self.threads.close()
        super().close()
