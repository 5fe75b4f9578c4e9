"""The messages of a listener's spool for its route: read in order, settled in any order.

What it is: the reading of unsettled records, released records, and the deletion of segments; called by one thread. What it is not:
a thread (`threads`).

Invariants:
    I1. A record is delivered once until it is released; each keeps its position, also across restarts.
    I2. A segment is deleted only when all of its records are settled, and the file of settled records says so.
    I3. Records that cannot be read because their bytes are damaged are reported with their numbers once and count as settled; readable
        records of the same segment are delivered.
    I4. After a failed read every record that was not delivered is read again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator

from isthmus.amqp import section
from isthmus.connectors.listen.settled_records import SettledRecords
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.reader import SpoolPosition, SpoolReader
from isthmus.connectors.wrap.arrival import annotated

__all__ = ["Outgoing"]

log = logging.getLogger(__name__)

# About how many bytes are read at a time.
_READ_BYTES = 1 << 20


class Outgoing:
    """The reading side of one spool.

    Args:
        folder: the spool's folder.

    Attributes:
        settled_records: the settled records.
    """

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._reader = SpoolReader(folder.path)
        self.settled_records = SettledRecords(folder.path / "taken")
        self._position = SpoolPosition(0, 0, 0)
        self._following = 0  # the number of the next record that is read
        self._identity = ""
        self._read: Iterator[tuple[int, Record]] = iter(())
        self._again: list[int] = []
        self._delivered: dict[int, bytes] = {}

    def open(self, end: int = -1) -> str:
        """Begins where the last reader ended, or continues, where it is open already; returns the spool's identity.

        Args:
            end: the number of the next record; -1: unknown.
        """
        identity = self._reader.identity
        if identity != self._identity:
            self._identity = identity
            self._delivered.clear()
            self._again.clear()
            self.settled_records = SettledRecords(self._folder.path / "taken")
            self.settled_records.load(identity)
            # Segments are deleted from the first on: records before those that exist were settled, whatever the file says.
            self.settled_records.add_range(0, self._reader.first().number)
        if end >= 0:
            self.settled_records.end_at(end)
        self._read = iter(())
        self._position = self._reader.position(self.settled_records.front)
        self._following = self._position.number
        return identity

    def next(self) -> tuple[int, bytes] | None:
        """The next message and its position; None where there is none now."""
        while self._again:
            position = heapq.heappop(self._again)
            message = self._delivered.get(position)
            if message is not None:
                return position, message
        while True:
            for number, record in self._read:
                self._miss(number)
                self._following = number + 1
                if number not in self.settled_records and number + 1 not in self._delivered:
                    position = number + 1
                    self._delivered[position] = self._message(number, record)
                    return position, self._delivered[position]
            self._miss(self._position.number)
            if not self._advance():
                return None

    def _miss(self, number: int) -> None:
        """`number` is the next record: those before it cannot be read."""
        if number <= self._following:
            return
        missing = [each for each in range(self._following, number) if each not in self.settled_records]
        if missing:
            log.error(
                "spool %s: messages %d to %d, %d in all, that were answered 200 cannot be read, and are lost: their bytes are damaged",
                self._folder.path,
                missing[0],
                missing[-1],
                len(missing),
            )
        self.settled_records.add_range(self._following, number)
        self._following = number

    def _advance(self) -> bool:
        end = self._reader.end(self._position, _READ_BYTES)
        if end.number <= self._position.number:
            return False
        parts = self._reader.ranges(self._position, end, _READ_BYTES)
        self._position = end

        def records() -> Iterator[tuple[int, Record]]:
            for part in parts:
                for block, found in self._reader.blocks(part):
                    yield from enumerate(found, block.first)

        self._read = records()
        return True

    def _message(self, number: int, record: Record) -> bytes:
        try:
            return self._annotated(number, record.message, record.enqueued_ms)
        except Exception as error:  # noqa: BLE001 - one invalid message must not end the listener each time
            log.error("spool %s: message %d is delivered as its bytes: %s", self._folder.path, number, error)
            return self._annotated(number, section.encode_message(record.message), record.enqueued_ms)

    def _annotated(self, number: int, message: bytes, enqueued_ms: int) -> bytes:
        name = f"{self._identity}/{number}"
        ttl_ms = section.decode_header(message, section.locate(message).header).ttl_ms or 0
        return annotated(message, name=name, enqueued_ms=enqueued_ms, message_id=name, ttl_ms=ttl_ms)

    def payload(self, position: int) -> bytes | None:
        """A message that was delivered and is not settled."""
        return self._delivered.get(position)

    def positions(self, first: int, last: int) -> list[int]:
        """Positions that were delivered and are not settled."""
        if last - first < len(self._delivered):
            return [each for each in range(first, last + 1) if each in self._delivered]
        return sorted(each for each in self._delivered if first <= each <= last)

    def settle(self, position: int) -> None:
        """Settles a message."""
        if self._delivered.pop(position, None) is not None:
            self.settled_records.add(position - 1)

    def release(self, position: int) -> None:
        """Releases a message; it is delivered again."""
        if position in self._delivered:
            heapq.heappush(self._again, position)

    def save(self) -> None:
        """Writes the settled records, and deletes settled segments."""
        if not self.settled_records.is_dirty:
            return
        self.settled_records.save()
        front = self.settled_records.front
        numbers = self._folder.numbers()
        before = max((each for each in numbers if each <= front), default=None)
        if before is not None and before > numbers[0]:
            self._reader.release(SpoolPosition(before, 0, front))
