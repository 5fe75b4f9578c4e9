"""A spool as a target on the port: a delivery of a route is acknowledged once it is on disk.

What it is: the target, and the thread that writes and syncs for it; messages that arrive while the disk is busy are synced together. What it is
not: the files (`writer`), or the decision what to send when (`isthmus.bridge.delivery.delivery`).

Invariants:
    I1. A delivery is answered only after the sync that covers it.
    I2. Ordinals of outcomes are those of the present opening, from 0, in the order of sending.
    I3. If another process, or the thread of an earlier target, still writes the spool, the opening waits, and then fails.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.servicebus.message.sequence import UNREADABLE, annotations_of
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder, SpoolInUseError
from isthmus.connectors.spool.option import TargetOptions
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.message.name import ENQUEUED_TIME, SEQUENCE_NUMBER

__all__ = ["CREDIT", "SpoolTarget", "SpoolThread", "record_of"]

# More than the window of the delivery machine.
CREDIT = 20_000
# The limit of one sync; beyond it the next group begins.
_GROUP_BYTES = 16 << 20
# A killed writer releases the lock at once; one that ends in order takes as long as a sync.
_LOCK_SECONDS = 10.0
_LOCK_STEP_SECONDS = 0.05


def record_of(key: str, message: bytes, *, is_numbered: bool = True) -> Record:
    """A received message as a record of the spool. A message that is unreadable, or that its source has not numbered, has no number, and is
    never taken for another.
    """
    try:
        found = annotations_of(message, SEQUENCE_NUMBER, ENQUEUED_TIME)
    except UNREADABLE:
        return Record(key, -1, 0, message)
    sequence = _number(found.get(SEQUENCE_NUMBER), -1) if is_numbered else -1
    return Record(key, sequence, _number(found.get(ENQUEUED_TIME), 0), message)


def _number(value: object, otherwise: int) -> int:
    """An annotation that a broker writes; a sender may have written any value under its name."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return int(value) if is_number else otherwise  # type: ignore[call-overload]


class SpoolThread(threading.Thread):
    """Writes a spool, from its opening to its end.

    Args:
        options: of the target.
        key: of the source.
        on_news: called when there are results.
        writer: makes the writer.
    """

    def __init__(
        self,
        options: TargetOptions,
        key: str,
        on_news: Callable[[], None],
        writer: Callable[..., SpoolWriter] = SpoolWriter,
    ) -> None:
        super().__init__(name=f"spool-{options.path.name}", daemon=True)
        self._key = key
        self._path = options.path
        self._is_numbered = options.numbered
        self._on_news = on_news
        more = {name: True for name in ("named", "compares", "made") if getattr(options, name)}
        self._writer = writer(options.path, options.segment_bytes, options.segment_seconds, **more)
        self._condition = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._must_end = False
        self._answered = 0
        self.is_open = False
        self.lost: SpoolError | None = None

    def send(self, payloads: Sequence[bytes]) -> None:
        """Queues messages to write."""
        with self._condition:
            self._queue.extend(payloads)
            self._condition.notify()

    def take(self) -> int:
        """How many messages were put on disk since the last call."""
        with self._condition:
            count, self._answered = self._answered, 0
        return count

    def stop(self) -> None:
        """Ends the thread; messages that are not on disk are not waited for."""
        with self._condition:
            self._must_end = True
            self._condition.notify()

    def run(self) -> None:
        try:
            if self._open():
                self.is_open = True
                self._on_news()
                while self._write_group():
                    self._on_news()
        except SpoolError as error:
            self.lost = error
        except Exception as error:  # noqa: BLE001 - a thread that ends silently would leave its route waiting
            self.lost = SpoolError(f"spool: {type(error).__name__}: {error}")
        finally:
            self._writer.close()
            self._on_news()

    def _open(self) -> bool:
        limit = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._writer.open()
                SpoolFolder(self._path).write_origin(self._key.rpartition(" ")[2])
                return True
            except SpoolInUseError:
                if time.monotonic() >= limit:
                    raise
            with self._condition:
                if self._must_end or self._condition.wait_for(lambda: self._must_end, _LOCK_STEP_SECONDS):
                    return False

    def _write_group(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._must_end)
            if self._must_end:
                return False
            group, size = [], 0
            while self._queue and size < _GROUP_BYTES:
                group.append(self._queue.popleft())
                size += len(group[-1])
        records = [record_of(self._key, message, is_numbered=self._is_numbered) for message in group]
        if self._writer.append(records):
            self._writer.sync()
        with self._condition:
            self._answered += len(group)
        return True


class SpoolTarget:
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the spool, and how it is written.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
        thread: makes the writing thread.
    """

    def __init__(
        self,
        pool: EndPool,
        key: int,
        options: TargetOptions,
        origin_identity: str = "",
        thread: Callable[..., SpoolThread] = SpoolThread,
    ) -> None:
        self._pool = pool
        self._key = key
        self._options = options
        # Another namespace with the same alias has other numbers.
        self._source = f"{options.source} {origin_identity}"
        self._make_thread = thread
        self._thread: SpoolThread | None = None
        self._is_open = self._is_closed = False
        self._sizes: deque[int] = deque()  # messages of each delivery without outcome
        self._partly = 0
        self._next = 0

    def open(self) -> None:
        """Begins to open the spool."""
        if self._is_closed:
            return
        self._leave()
        self._thread = self._make_thread(self._options, self._source, lambda: self._pool.mark(self._key))
        self._thread.start()

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        thread = self._thread
        if thread is None:
            return ()
        events: list[TargetEvent] = []
        lost = thread.lost  # read before the answers: those before the failure are reported
        if thread.is_open and not self._is_open:
            self._is_open = True
            events += (Opened(), Granted(CREDIT))
        if self._is_open:
            events += self._outcomes(thread.take())
        if lost is not None:
            refusal = Refusal(RefusalKind.BLOCKED, "", str(lost))
            if self._partly:  # of an envelope that was split over two groups: the first is on disk
                events.append(Outcome(self._next, self._next, refusal, tuple(range(self._partly))))
            self._leave()
            events.append(Lost(refusal))
        return events

    def deadline(self, now: float) -> float:
        """Infinite: the thread reports events."""
        return math.inf

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The messages unchanged: an archive contains them as they were received."""
        return Copies([data[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)])

    def send(self, send: Send) -> None:
        """Queues deliveries; after a failure it does nothing, and `poll` reports the loss."""
        if self._thread is None or not self._is_open:
            return
        self._sizes.extend((len(send.payloads),) if send.is_envelope else (1,) * len(send.payloads))
        self._thread.send(send.payloads)

    def close(self) -> None:
        """Closes it."""
        self._is_closed = True
        self._leave()
        self._pool.unmark(self._key)

    def _outcomes(self, count: int) -> list[TargetEvent]:
        if not count:
            return []
        self._partly += count
        first = self._next
        while self._sizes and self._partly >= self._sizes[0]:
            self._partly -= self._sizes.popleft()
            self._next += 1
        if self._next == first:
            return []
        return [Outcome(first, self._next - 1), Granted(CREDIT - len(self._sizes))]

    def _leave(self) -> None:
        thread, self._thread = self._thread, None
        self._is_open = False
        self._sizes.clear()
        self._partly = self._next = 0
        if thread is not None:
            thread.stop()
            self._pool.add_leaving(thread)
