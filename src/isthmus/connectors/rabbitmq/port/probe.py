"""A connection to a broker for queries.

What it is: a blocking client of one channel that queries queues and exchanges, and takes or changes nothing. What it is not: a
consumer or a publisher.
"""

from __future__ import annotations

import select
import struct
import time
from types import TracebackType
from typing import Self

from isthmus.connectors.rabbitmq.option import BrokerOptions
from isthmus.connectors.rabbitmq.port.handshake import dial
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import NOT_FOUND, ClosedByBrokerError, is_not_ready
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.errors import ConnectionLostError, EntityNotFoundError, IsthmusError, OperationTimeoutError

__all__ = ["Probe"]

ANSWER_SECONDS = 10.0
_CHANNEL = 1


class Probe:
    """A connection.

    Args:
        options: the options that reach the broker.

    Raises:
        IsthmusError: it cannot be reached, or refuses.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._answers: list[tuple[tuple[int, int], bytes]] = []
        self._connection: Connection = dial(options)
        self._connection.user = self
        self._connection.write(wire.method(_CHANNEL, M.CHANNEL_OPEN, b"\0"))
        self._wait(M.CHANNEL_OPEN_OK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.abandon()

    @property
    def place(self) -> str:
        """The address that was reached."""
        return self._connection.place

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self._connection.cluster_name

    def queue(self, name: str) -> int:
        """The number of ready messages of a queue.

        Raises:
            EntityNotFoundError: it does not exist.
            IsthmusError: no answer, or a refusal.
        """
        answer = self._ask(name, wire.declare_passive(_CHANNEL, name), M.QUEUE_DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    def exchange(self, name: str) -> None:
        """Checks that an exchange exists.

        Raises:
            EntityNotFoundError: it does not exist.
            IsthmusError: no answer, or a refusal.
        """
        self._ask(name, wire.declare_exchange_passive(_CHANNEL, name), M.EXCHANGE_DECLARE_OK)

    def _ask(self, name: str, data: bytes, answer: tuple[int, int]) -> bytes:
        self._connection.write(data)
        try:
            return self._wait(answer)
        except ClosedByBrokerError as error:
            if is_not_ready(error):
                raise ConnectionLostError(str(error)) from None
            if error.reply_code == NOT_FOUND:
                raise EntityNotFoundError(name) from None
            raise

    def _wait(self, which: tuple[int, int]) -> bytes:
        connection = self._connection
        limit = time.monotonic() + ANSWER_SECONDS
        while True:
            for found, arguments in self._answers:
                if found == which:
                    self._answers.clear()
                    return arguments
            if not self._serve(limit):
                raise OperationTimeoutError(f"{connection.place}: no answer within {ANSWER_SECONDS:g} s")

    def _serve(self, limit: float) -> bool:
        """Writes queued bytes and reads received ones, once; False at `limit`, monotonic seconds."""
        connection = self._connection
        connection.flush()
        if connection.error is not None:
            raise connection.error
        now = time.monotonic()
        if now >= limit:
            return False
        poll = select.poll()
        poll.register(connection.fileno(), connection.interest())
        is_ready = bool(poll.poll((limit - now) * 1000))
        connection.service(time.monotonic(), is_ready=is_ready)
        return True

    # ---- calls of the connection

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        self._answers.append((which, arguments))

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """Ignored: no request has a content as its answer."""

    def on_closed(self, error: IsthmusError) -> None:
        """Ignored: `_wait` checks the connection."""
