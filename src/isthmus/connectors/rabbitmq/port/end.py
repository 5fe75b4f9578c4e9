"""One route's end of a connection: the common part of sources and targets.

What it is: the steps from `open` to a working channel, each with a time limit, and the error, which is kept until the
end is polled. What it is not: the frames on the channel.

Invariants:
    I1. No step lasts longer than `STEP_SECONDS`.
    I2. Events of an earlier opening do not affect a later one.
"""

from __future__ import annotations

import math
import time

from isthmus.connectors.rabbitmq.option import BrokerOptions
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.errors import IsthmusError, OperationTimeoutError

__all__ = ["CHANNEL", "STEP_SECONDS", "End"]

STEP_SECONDS = 30.0
CHANNEL = 1


class End:
    """An end.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the broker.
        entity: its queue or exchange, for errors.

    Attributes:
        connection: its connection.
        is_open: whether the channel works.
        is_closed: whether its owner has closed it.
        fault: why it is lost; the owner is told when it polls.
    """

    def __init__(self, pool: BrokerPool, key: int, options: BrokerOptions, entity: str) -> None:
        self.pool = pool
        self.key = key
        self.entity = entity
        self.connection: Connection | None = None
        self.is_open = self.is_closed = False
        self.fault: IsthmusError | None = None
        self._options = options
        self._request: object = None
        self._step, self._step_by = "", math.inf

    def open(self) -> None:
        """Begins to connect. No error if it is open."""
        if self.is_closed or self._step or self.is_open:
            return
        self.fault = None
        self.step("the connection")
        self._request = self.pool.connect(self, self._options)

    def mark(self) -> None:
        """It has events to report."""
        self.pool.mark(self.key)

    def step(self, what: str) -> None:
        """It waits for an event."""
        self._step, self._step_by = what, time.monotonic() + STEP_SECONDS

    def opened(self) -> None:
        """The channel works."""
        self._step, self._step_by = "", math.inf
        self.is_open = True
        self.mark()

    def check_time(self, now: float) -> None:
        """Fails a step that takes too long."""
        if now >= self._step_by:
            text = f"'{self.entity}': waited {STEP_SECONDS:g} s for {self._step}; check whether the broker answers"
            self.fail(OperationTimeoutError(text))

    def step_deadline(self, now: float) -> float:
        """When `check_time` has to be called."""
        return now if self.fault is not None else self._step_by

    def fail(self, error: IsthmusError) -> None:
        """It is lost."""
        if self.fault is None and (self._step or self.is_open):
            self.fault = error
            self.mark()

    def disconnect(self, now: float, *, politely: bool = False) -> Connection | None:
        """Gives up the connection; `politely`: written bytes are sent first."""
        request, self._request = self._request, None
        if request is not None:
            request.end = None  # type: ignore[attr-defined]
        connection, self.connection = self.connection, None
        self.is_open, self.fault = False, None
        self._step, self._step_by = "", math.inf
        if connection is None:
            return None
        if politely and connection.error is None:
            connection.user = None
            connection.write(wire.close_method(0))
            connection.flush()
            self.pool.leave(connection, now)
        else:
            self.pool.drop(connection)
        return connection

    # ---- calls of pool and connection

    def on_connected(self, connection: Connection) -> None:
        """The connection is open."""
        self._request = None
        self.connection = connection
        connection.user = self
        self.step("the channel")
        connection.write(wire.method(CHANNEL, M.CHANNEL_OPEN, b"\0"))
        self.begin(connection)
        connection.flush()

    def on_closed(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made."""
        self.fail(error)

    def begin(self, connection: Connection) -> None:
        """Writes the first methods of the channel."""
        raise NotImplementedError

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        raise NotImplementedError

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message arrived."""
        raise NotImplementedError
