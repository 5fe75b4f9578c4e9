"""The start of the next lease.

What it is: the part of a streaming read that lives at the driver as long as the query: the offset of the next lease, if
the control server allows it. What it is not: Spark (`source`), or the lease.

Invariants:
    I1. A call blocks only if the control server is slow or unreachable, and then for a few seconds at most.
    I2. While the run is stopping no lease starts.
    I3. A control server that cannot be reached for `GIVE_UP_SECONDS` fails the query; a wrong key does at once.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from isthmus.bridge.frame import Kind, pack_json, unpack_json
from isthmus.bridge.host.channel import Channel
from isthmus.bridge.host.control.client import dial_control
from isthmus.bridge.spark.option import ReadOptions
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["LeaseOffset"]

ANSWER_SECONDS = 2.0
# Spark asks again at once: it waits 10 ms only.
PAUSE_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0


class LeaseOffset:
    """Offsets of a query's leases.

    Args:
        options: of the read.
        dial: connects to the control server.
        clock: monotonic seconds.
        sleep: waits.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        dial: Callable[[str, str, float], Channel] = dial_control,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._dial = dial
        self._clock = clock
        self._sleep = sleep
        self._channel: Channel | None = None
        self._away_since: float | None = None
        self._one_lease = False
        self._last: int | None = None

    def only_one(self) -> None:
        """The query ends after one lease (a trigger of what is available now)."""
        self._one_lease = True

    def after(self, lease: int) -> int:
        """The lease to carry next; the same one while none may start.

        Raises:
            IsthmusError: the control server cannot be reached, or refuses.
        """
        if self._one_lease and self._last is not None:
            return self._last
        if not self._may_start():
            self._sleep(PAUSE_SECONDS)
            return lease
        self._last = lease + 1
        return lease + 1

    def close(self) -> None:
        """The query has ended."""
        self._hang_up()

    def _may_start(self) -> bool:
        if self._options.address is None:
            return True
        try:
            stopping = self._ask(*self._options.address)
        except IsthmusError as error:
            self._hang_up()
            now = self._clock()
            self._away_since = now if self._away_since is None else self._away_since
            if not error.retryable or now - self._away_since >= GIVE_UP_SECONDS:
                raise
            return False
        self._away_since = None
        return not stopping

    def _ask(self, address: str, token: str) -> bool:
        if self._channel is None:
            self._channel = self._dial(address, token, ANSWER_SECONDS)
        channel = self._channel
        channel.send(Kind.LOOK, pack_json({"query": self._options.query}))
        channel.flush()
        limit = self._clock() + ANSWER_SECONDS
        while not channel.closed:
            for kind, payload in channel.receive():
                if kind == Kind.LOOKED:
                    return bool(unpack_json(payload)["stopping"])
            left = limit - self._clock()
            if left <= 0 or channel.closed:
                break
            poll = select.poll()
            poll.register(channel.fileno(), select.POLLIN)
            poll.poll(left * 1000)
        raise ConnectionLostError(
            f"the control server at {address} does not answer; it belongs to the run of this query"
        )

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
