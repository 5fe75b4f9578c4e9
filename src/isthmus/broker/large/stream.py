"""One large outgoing delivery: from a file to frames, as fast as the client takes them.

What it is: a delivery in parts on one link. Each part is read in a thread and sent when the socket and the session have
room for it. What it is not: the choice of the message (`isthmus.broker.link.sender_link`).

Invariants:
    I1. No more than one part of a body is in memory here, however slow the client is.
    I2. An iteration of the loop sends at most one part.
    I3. A message that was deleted for the client is not given up at the first refused read: a process may have too many files open.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from isthmus.amqp import Link
from isthmus.broker.large.desk import LargeDesk
from isthmus.broker.large.rope import Rope, Segment
from isthmus.entities import Blob, BlobReader, Large
from isthmus.errors import IsthmusError, StoreError

__all__ = ["RETRIES", "RETRY_SECONDS", "Stream", "Way"]

PART_BYTES = 256 << 10
# A pause between a part and the reading of the next one leaves processor and memory to others; a stream still reaches
# about 200 MB/s.
_REST_SECONDS = 0.001
# Retries of a failed read, if the message was deleted for this client, and the delay before each: five seconds in all.
RETRIES = 10
RETRY_SECONDS = 0.5


class Way(Protocol):
    """The connection below a link."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes more bytes now."""
        ...

    def flush(self) -> None:
        """Sends queued bytes now."""
        ...


class Stream:
    """A delivery that is sent in parts; its first part is sent at once.

    Args:
        link: whose sender we are, with credit.
        payload: a whole message.
        tag: of the delivery.
        way: the connection.
        desk: of the namespace.
        on_end: called with None once the last part was sent, or with the error that prevents it. Not after `close`.
        settled: whether the delivery needs no disposition.

    Attributes:
        delivery_id: of the delivery.
    """

    def __init__(
        self,
        link: Link,
        payload: bytes | Large | Rope,
        tag: bytes,
        way: Way,
        desk: LargeDesk,
        on_end: Callable[[IsthmusError | None], None],
        *,
        settled: bool = False,
    ) -> None:
        self._link = link
        self._way = way
        self._desk = desk
        self._on_end = on_end
        self._segments: list[Segment] = list(_segments(payload))
        self._left = len(payload)
        self._at = 0
        self._reader: BlobReader | None = None
        self._is_reading = self._is_over = self._is_due = False
        self._part = b""
        self._retries_left = RETRIES if settled else 0
        self.delivery_id = link.begin_parts(tag, settled=settled)
        self._take_bytes()
        self._send()
        self._go_on()

    def pump(self) -> None:
        """Sends what can be sent: the socket or the session has room again."""
        if self._is_over or self._is_reading:
            return
        if self._link.detached or self._link.amqp_session.ended:
            self.close()
        elif not self._part:
            self._fetch()
        elif self._way.is_writable and self._link.part_room_bytes > 0:
            self._send()
            self._go_on()

    def close(self) -> None:
        """Sends nothing more, and releases the payload."""
        self._is_over = True
        self._part = b""
        if not self._is_reading:
            self._close_reader()
            self._segments.clear()

    @property
    def left_bytes(self) -> int:
        """The bytes still to be sent."""
        return self._left

    # ---- the steps

    def _send(self) -> None:
        room = self._link.part_room_bytes
        part, self._part = self._part[:room], self._part[room:]
        self._left -= len(part)
        self._link.send_part(part, more=self._left > 0)
        self._way.flush()

    def _go_on(self) -> None:
        """Reads the next part, after a pause, while this one is being sent."""
        if not self._left:
            self._end(None)
        elif not self._part or (self._way.is_writable and self._link.part_room_bytes > 0):
            self._later(_REST_SECONDS)

    def _later(self, seconds: float) -> None:
        if not self._is_due:
            self._is_due = True
            self._desk.call_later(seconds, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self.pump()

    def _fetch(self) -> None:
        segment = self._segments[0]
        if isinstance(segment, bytes):
            self._take_bytes()
            self._later(0.0)
            return
        number, offset = segment.number, self._at
        size = min(PART_BYTES, segment.size_bytes - offset)
        self._is_reading = True
        self._desk.read(lambda: self._read(number, offset, size), self._got)

    def _take_bytes(self) -> None:
        segment = self._segments[0]
        assert isinstance(segment, bytes)
        self._part = segment[self._at : self._at + PART_BYTES]
        self._pass(len(self._part), len(segment))

    def _pass(self, count: int, size: int) -> None:
        self._at += count
        if self._at == size:
            self._at = 0
            del self._segments[0]
            self._close_reader()

    def _read(self, number: int, offset: int, size: int) -> bytes:
        """In a thread."""
        reader = self._reader
        if reader is None:
            assert self._desk.files is not None
            reader = self._reader = self._desk.files.open(number)
        return reader.read(offset, size)

    def _got(self, job: Future[bytes]) -> None:
        error = job.exception()
        if error is not None and self._retries_left and not self._is_over:
            self._retries_left -= 1
            self._desk.call_later(RETRY_SECONDS, self._retry)
            return
        self._is_reading = False
        if self._is_over:
            self.close()
            return
        if error is not None:
            self._end(error if isinstance(error, IsthmusError) else StoreError(type(error).__name__))
            return
        self._part = job.result()
        segment = self._segments[0]
        assert isinstance(segment, Blob)
        self._pass(len(self._part), segment.size_bytes)
        self.pump()

    def _retry(self) -> None:
        self._is_reading = False
        if self._is_over:
            self.close()
        else:
            self.pump()

    def _end(self, error: IsthmusError | None) -> None:
        self.close()
        self._on_end(error)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _segments(payload: bytes | Large | Rope) -> tuple[Segment, ...]:
    if isinstance(payload, Rope):
        return payload.segments
    if isinstance(payload, Large):
        return (payload.front, payload.blob)
    return (payload,)
