"""The containers under which ordered sources connect.

What it is: the container ids of one pool's connections. A broker keeps what it delivered over a lost connection until it has noticed the loss;
to a connection that is made meanwhile it delivers later messages first. Neither side can tell which messages those are: some never arrived, and
have no identity here. So a connection is made with the container id of the one that it replaces, and asks to be the container's only one: the
broker refuses it as long as it has the other. What it is not: duplicate detection (`redelivery`).
Specification: OASIS AMQP 1.0, 2.4.1 (container-id); AMQP Enforcing Connection Uniqueness 1.0 (sole-connection-for-container). A broker that
does not know this capability ignores it.

Invariants:
    I1. Connections that are open at the same time have different ids, also in different pools and processes.
    I2. A connection that follows a lost one of the same key has its id, for as long as the broker may not have noticed the loss; not longer,
        so that a broker that never notices it does not block the route.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Hashable

from isthmus.transport import Client
from isthmus.transport.client import UNHEARD_SECONDS

__all__ = ["SLACK_SECONDS", "Containers"]

# A broker checks from time to time which connections it has to give up: ActiveMQ Artemis every 2 s.
SLACK_SECONDS = 10.0


class _Container:
    """An id, and the last client that had it; `until`: how long it is used again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dialing = False
        self.client: Client | None = None
        self.until = math.inf

    @property
    def is_used(self) -> bool:
        return self.is_dialing or (self.client is not None and self.client.error is None)

    def ended(self, now: float) -> None:
        """Its connection is lost, or was not made; the first time counts."""
        seconds = 2.0 * UNHEARD_SECONDS if self.client is None else self.client.noticed_seconds
        self.until = min(self.until, now + seconds + SLACK_SECONDS)


class Containers:
    """The ids of one pool; used by the threads that connect.

    Args:
        monotonic: seconds of a clock.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: dict[Hashable, list[_Container]] = {}

    def open(self, connection_key: Hashable, prefix: str, dial: Callable[[str], Client]) -> Client:
        """A new connection; blocks.

        Args:
            connection_key: of the broker.
            prefix: of a new id.
            dial: connects with an id.

        Raises:
            IsthmusError: of `dial`.
        """
        container = self._take(connection_key, prefix)
        try:
            client = dial(container.name)
        except BaseException:
            with self._lock:
                container.is_dialing = False
                container.ended(self._monotonic())
            raise
        with self._lock:
            container.client, container.is_dialing, container.until = client, False, math.inf
        return client

    def _take(self, connection_key: Hashable, prefix: str) -> _Container:
        now = self._monotonic()
        with self._lock:
            known = self._known.setdefault(connection_key, [])
            for each in [each for each in known if not each.is_used]:
                each.ended(now)
                if now < each.until:
                    each.is_dialing = True
                    return each
                known.remove(each)
            made = _Container(f"{prefix}-{uuid.uuid4().hex[:12]}")
            made.is_dialing = True
            known.append(made)
            return made
