"""The thread that reads a spool for a source on the port.

What it is: the requests of the source's owner, under a lock (credit, settlement, release), and the reading. Settlements are written by
number; segments that are settled as a whole are deleted. A message that is set aside is stored in the spool's folder `refused`. What it is
not: the port (`isthmus.connectors.spool.port.source`), the files (`reader`), the account (`cursor`).

Invariants:
    I1. Nothing is written as settled that the owner has not settled.
    I2. One process reads a spool for a route at a time; the lock ends with the process, however it ends.
    I3. A message that is set aside is on disk in `refused` before it counts as settled.
    I4. Records without a key are notes of the query that wrote them (`noted`), and are not messages.
    I5. All messages of one opening are from one namespace; where messages of another follow, the source is lost and opened again.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.cursor import Cursor
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder, SpoolInUseError
from isthmus.connectors.spool.option import SourceOptions
from isthmus.connectors.spool.reader import Range, SpoolReader
from isthmus.connectors.spool.refused import set_aside

__all__ = ["LOCK_SECONDS", "SpoolSourceThread"]

# How often the file of the spool's synced part is read.
_POLL_SECONDS = 0.02
_CHUNK_BYTES = 1 << 20
# Messages read and not yet taken by the owner; the owner limits those that it has taken.
_QUEUED_BYTES = 16 << 20
_RELEASE_SECONDS = 5.0
LOCK_SECONDS = 10.0
# The writer of the spool may not know the origin for long: while the origin's namespace is unreachable.
_ORIGIN_SECONDS = 60.0


class SpoolSourceThread(threading.Thread):
    """Reads a spool, from its opening to its end.

    Args:
        options: of the source.
        cursor: the account; that of the previous opening, where there was one.
        identity: of the spool of the account; empty before the first opening.
        credit: how many messages may be delivered.
        on_news: called when there are results.
        only_present: report when all messages that existed at the opening are delivered.
    """

    def __init__(
        self,
        options: SourceOptions,
        cursor: Cursor,
        identity: str,
        credit: int,
        on_news: Callable[[], None],
        *,
        only_present: bool,
    ) -> None:
        super().__init__(name=f"spool-source-{options.path.name}", daemon=True)
        self.cursor = cursor
        self.identity = identity
        self._folder = SpoolFolder(options.path)
        self._follows = options.follows
        self._reader = SpoolReader(options.path)
        self._on_news = on_news
        self._only_present = only_present
        self._condition = threading.Condition()
        self._credit = credit
        self._events: list[SourceEvent] = []
        self._positions: list[int] = []
        self._payloads: list[bytes] = []
        self._queued_bytes = 0
        self._to_set_aside: list[tuple[int, int, Disposition]] = []
        self._blocks: deque[tuple[int, Range]] = (
            deque()
        )  # first record and position of blocks that were read and are not settled
        self._lock = self._taken = -1
        self._noted = -1
        self._origin = ""
        self._must_end = self._goes_back = self._has_ended = False

    # ---- for the owner

    def take(self) -> list[SourceEvent]:
        """The events since the last call."""
        with self._condition:
            events, self._events = self._events, []
            if self._positions:
                # Events that precede the messages stay before them.
                events = [
                    *(each for each in events if type(each) is SourceOpened),
                    Arrived(self._positions, self._payloads),
                    *(each for each in events if type(each) is not SourceOpened),
                ]
                self._positions, self._payloads = [], []
                self._queued_bytes = 0
                self._condition.notify()
        return events

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        with self._condition:
            # Queued messages were read with the previous credit, and count against this one.
            self._credit = max(0, credit - len(self._positions))
            self._condition.notify()

    def settle(self, first: int, last: int) -> None:
        """Settles delivered positions."""
        with self._condition:
            self.cursor.settle(first, last)
            self._note_low()

    def set_aside(self, first: int, last: int, disposition: Disposition) -> None:
        """Stores delivered positions in `refused`, and then settles them; where the thread has ended, they are read again."""
        with self._condition:
            if self._has_ended:
                self.cursor.release(first, last)
            else:
                self._to_set_aside.append((first, last, disposition))
                self._condition.notify()

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        with self._condition:
            if self.cursor.release(first, last):
                self._goes_back = True
                self._condition.notify()

    def stop(self) -> None:
        """Ends the reading."""
        with self._condition:
            self._must_end = True
            self._condition.notify()

    def _note_low(self) -> None:
        if self.cursor.low != self._noted and self._taken >= 0:
            SpoolFolder.write_taken(self._taken, self.identity, self.cursor.low)
            self._noted = self.cursor.low

    # ---- the thread

    def run(self) -> None:
        """Reads until it is stopped, or has failed."""
        try:
            if self._open():
                self._serve()
        except (SpoolError, OSError) as error:
            self._lose(str(error), is_fatal=isinstance(error, SpoolError) and not error.retryable)
        except Exception as error:  # noqa: BLE001 - a thread that ends silently would leave its route waiting
            self._lose(f"{type(error).__name__}: {error}", is_fatal=False)
        finally:
            self._close()

    def _lose(self, text: str, *, is_fatal: bool) -> None:
        with self._condition:
            # Queued messages were never delivered: they are read again.
            for position in self._positions:
                self.cursor.release(position, position)
            self._positions, self._payloads = [], []
            self._events.append(SourceLost(f"spool {self._folder.path}: {text}", is_fatal))
        self._on_news()

    def _close(self) -> None:
        with self._condition:
            for position in self._positions:
                self.cursor.release(position, position)
            self._positions, self._payloads = [], []
            for first, last, _ in self._to_set_aside:
                self.cursor.release(first, last)
            self._to_set_aside, self._has_ended = [], True
            for descriptor in (self._taken, self._lock):
                if descriptor >= 0:
                    os.close(descriptor)
            self._taken = self._lock = -1

    def _pause(self, seconds: float) -> bool:
        """Waits; returns whether to continue."""
        with self._condition:
            if not self._must_end:
                self._condition.wait(seconds)
            return not self._must_end

    def _open(self) -> bool:
        # The writer creates the spool, and writes the messages' origin.
        limit = time.monotonic() + _ORIGIN_SECONDS
        while not self._folder.identity() or (self._known_origin() is None and time.monotonic() < limit):
            if not self._pause(_POLL_SECONDS * 5):
                return False
        limit = time.monotonic() + LOCK_SECONDS
        self._lock = os.open(self._folder.path / "reading", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise SpoolInUseError("another process reads it; one route reads a spool, in one run") from None
            if not self._pause(_POLL_SECONDS * 2):
                return False
        identity = self._folder.identity()
        with self._condition:
            if identity != self.identity:
                self.identity = identity
                taken = self._folder.taken()
                self.cursor = Cursor(self._reader.first().number if taken is None else taken)
                self._noted = self.cursor.low
            self._taken = self._folder.open_taken()
            self._note_low()  # settlements since the previous opening ended
        following = next((each for each in self._records() if each is None or each[1].key), None)
        self._origin = self._known_origin() or "" if following is None else _origin_of(following[1])
        with self._condition:
            self._events.append(SourceOpened(self._origin))
        self._on_news()
        return True

    def _known_origin(self) -> str | None:
        """The origin of the messages to come; None where it has not been written yet."""
        found = self._folder.origin()
        return SpoolFolder(Path(self._follows)).origin() if found is None and self._follows else found

    def _serve(self) -> None:
        """Reads and delivers until stopped."""
        last = self._reader.last().number if self._only_present else None
        release_at = time.monotonic() + _RELEASE_SECONDS
        records = _Following(self._records())
        is_waiting = False
        while True:
            self._set_aside_all()
            now = time.monotonic()
            if now >= release_at:
                release_at = now + _RELEASE_SECONDS
                self._release()
            with self._condition:
                if self._must_end:
                    if not self._to_set_aside:
                        return
                    continue  # they are set aside first
                if self._goes_back:
                    self._goes_back, is_waiting = False, False
                    records = _Following(self._records())
                if last is not None and self.cursor.following >= last:
                    self._events.append(Exhausted())
                    last = None
                    self._on_news()
                has_room = self._credit > 0 and self._queued_bytes < _QUEUED_BYTES
                if is_waiting or not has_room:
                    self._condition.wait(_POLL_SECONDS if has_room else _RELEASE_SECONDS)
                    is_waiting = False
                    continue
            is_waiting = not self._give(records)

    def _give(self, records: _Following) -> bool:
        """Queues records as far as there is credit; returns whether there were any."""
        has_delivered = False
        while (found := records.peek()) is not None:
            number, record = found
            with self._condition:
                if self._must_end or self._goes_back:
                    return True
                if not record.key:
                    self.cursor.skip(number)
                    self._note_low()
                elif self._credit <= 0 or self._queued_bytes >= _QUEUED_BYTES:
                    break
                elif _origin_of(record) != self._origin:
                    if self.cursor.outstanding:
                        break
                    raise SpoolError(f"the next messages are from another namespace, {_origin_of(record)}")
                elif self.cursor.deliver(number):
                    self._positions.append(number)
                    self._payloads.append(record.message)
                    self._queued_bytes += len(record.message)
                    self._credit -= 1
                    has_delivered = True
            records.take()
        if has_delivered:
            self._on_news()
        return has_delivered

    def _records(self) -> Iterator[tuple[int, Record] | None]:
        """Records from the next one on; None when there are no more for now."""
        start = self.cursor.following
        position = self._reader.position(start)
        self._blocks.clear()
        while True:
            end = self._reader.end(position, _CHUNK_BYTES)
            if end == position:
                yield None
                continue
            for part in self._reader.ranges(position, end, _CHUNK_BYTES):
                for block, records in self._reader.blocks(part):
                    if block.end <= self.cursor.low:
                        continue
                    self._blocks.append((block.first, Range(part.segment, block.start, block.stop)))
                    while len(self._blocks) > 1 and self._blocks[1][0] <= self.cursor.low:
                        self._blocks.popleft()
                    for number, record in enumerate(records, block.first):
                        if number >= start:
                            yield number, record
            position = end

    def _release(self) -> None:
        """Deletes segments that are wholly settled."""
        with self._condition:
            low = self.cursor.low
        position = self._reader.position(low)
        if self._reader.first().segment < position.segment:
            os.fsync(self._taken)
            self._reader.release(position._replace(number=low))

    def _set_aside_all(self) -> None:
        with self._condition:
            pending = deque(self._to_set_aside)
            self._to_set_aside = []
        try:
            while pending:
                first, last, disposition = pending[0]
                for number in range(first, last + 1):
                    message = self._message(number)
                    if message is not None:
                        set_aside(self._folder.path, number, message, disposition, time.time())
                    self.settle(number, number)
                pending.popleft()
        except BaseException:
            # A message that is not set aside is delivered again after the next opening: the owner does not repeat the request.
            with self._condition:
                for first, last, _ in [*pending, *self._to_set_aside]:
                    self.cursor.release(first, last)
                self._to_set_aside = []
            raise

    def _message(self, number: int) -> bytes | None:
        """A record that was delivered and is not settled."""
        found = [part for first, part in self._blocks if first <= number]
        for block, records in self._reader.blocks(found[-1]) if found else ():
            if block.first <= number < block.end:
                return records[number - block.first].message
        position = self._reader.position(number)  # before reading goes back
        for part in self._reader.ranges(position, self._reader.last(), 1 << 62):
            for block, records in self._reader.blocks(part):
                if block.first <= number < block.end:
                    return records[number - block.first].message
        return None


class _Following:
    """Records with a peek at the next one."""

    def __init__(self, records: Iterator[tuple[int, Record] | None]) -> None:
        self._records = records
        self._next: tuple[int, Record] | None = None

    def peek(self) -> tuple[int, Record] | None:
        """The next record; None where there is none for now."""
        if self._next is None:
            self._next = next(self._records)
        return self._next

    def take(self) -> None:
        """Removes it."""
        self._next = None


def _origin_of(record: Record) -> str:
    """Identity of the namespace from which a record was read."""
    return record.key.rpartition(" ")[2]
