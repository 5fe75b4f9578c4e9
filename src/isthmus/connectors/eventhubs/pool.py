"""The connections of one process to namespaces with event hubs, and the threads of their sources.

What it is: the pool of Service Bus's connections, whose protocol this is, and the descriptor by which threads that write checkpoints wake the
process's loop. What it is not: sources or targets.

Invariants:
    I1. An end whose thread has an answer is named by the next `service`.
    I2. `close` waits for the last checkpoints, for as long as `EndPool` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.port.connection import Peer, dial, peer_of
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.transport import Client

__all__ = ["HubPool"]


class HubPool(ConnectionPool):
    """What `SourcePool` and `TargetPool` have in common.

    Attributes:
        threads: what threads of ends wake the loop by; any thread may mark a key there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads = EndPool()

    def peer(self, options: SourceOptions | SinkOptions) -> Peer:
        """What an end connects to; options are those of the namespace that holds it."""
        return replace(peer_of(options), dial=partial(self.dial, options))

    def dial(self, options: SourceOptions | SinkOptions) -> Client:
        """An open client; blocks, in a thread of the dialer.

        Raises:
            IsthmusError: the reference leads nowhere, or no connection could be made.
        """
        return dial(options)

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
