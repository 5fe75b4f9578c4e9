"""Large messages: their bodies are beside the store, in files that records refer to.

What it is: the payload of a large message (the bytes before its body, and a reference to the rest), the rows that record
which stored message refers to which body, and the choice of bodies without a reference. What it is not:
the files (`isthmus.store.blob`), nor their reading and writing, which never happen on the engine's thread.
See docs/explanation/store.md.

Invariants:
    I1. A body is complete and durable before a record refers to it; reference and record are one batch.
    I2. A body is removed only after the end of the last message that refers to it is durable, and when it has no pin: a
        kill at any instant leaves no reference without a body, and a body without a reference is removed at the next start.
    I3. Whether a reference is live follows from the stored messages alone: every kind of removal is covered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from isthmus.entities.storage.blob_file import BlobFiles
from isthmus.entities.storage.key import (
    DEFERRED,
    MESSAGE,
    REFERENCE,
    SCHEDULED,
    message_key,
    message_span,
    state_key,
    unpack_message,
)
from isthmus.entities.storage.staging import Staging

__all__ = ["Blob", "Blobs", "Large", "Payload"]

# Body, its size, and the entity whose quota counts it.
_ROW = struct.Struct(">QQI")
_HEAD = struct.Struct(">QQ")
_LAST = (1 << 64) - 2
# References checked in one call, and time between two calls: reading keys must not block the loop.
_SWEEP_AT_ONCE = 64
_SWEEP_MS = 250


class Blob:
    """A body outside of its record.

    Attributes:
        number: of the body.
        size_bytes: of everything from the body on: body sections and footer, as sent.
    """

    __slots__ = ("_pin", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int, pin: _Pin | None = None) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self._pin = pin

    def let_go(self) -> None:
        """Release the body; also where an error's traceback keeps the object alive until the next collection."""
        self._pin = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and (other.number, other.size_bytes) == (self.number, self.size_bytes)

    def __hash__(self) -> int:
        return hash((self.number, self.size_bytes))


class Large:
    """The payload of a large message.

    Attributes:
        front: its sections before the body, encoded.
        blob: the rest.
        is_copy: as for `isthmus.entities.record.copy.Copy`.
    """

    __slots__ = ("blob", "front", "is_copy")

    def __init__(self, front: bytes, blob: Blob) -> None:
        self.front = front
        self.blob = blob
        self.is_copy = False

    def __len__(self) -> int:
        return len(self.front) + self.blob.size_bytes


# An encoded message.
Payload = bytes | Large


def _call(run: Callable[[], None]) -> None:
    run()


class _Pin:
    """Keeps a body as long as the object lives."""

    __slots__ = ("_blobs", "_number")

    def __init__(self, blobs: Blobs, number: int) -> None:
        self._blobs = blobs
        self._number = number
        blobs.pinned[number] = blobs.pinned.get(number, 0) + 1

    def __del__(self) -> None:
        # In a reference cycle, the garbage collector ends it: in any thread, and in the middle of any call.
        self._blobs.schedule(partial(self._blobs.unpin, self._number))


class Blobs:
    """The bodies of one namespace and the references to them.

    Args:
        staging: takes references.
        files: the bodies; None takes no large messages.

    Attributes:
        files: the same.
        on_discard: called with the number of a body that is to be removed; by default it is removed immediately.
        schedule: calls a function on the engine's thread, later; from any thread, and without a lock. By default it calls it immediately.
        is_used: whether any message's body is outside of its record.
        pinned: how many pins each body has; kept by the pins themselves.
        disk_bytes: of all bodies that messages refer to.
    """

    def __init__(self, staging: Staging, files: BlobFiles | None) -> None:
        self.files = files
        self.on_discard: Callable[[int], None] = self._remove
        self.schedule: Callable[[Callable[[], None]], None] = _call
        self.pinned: dict[int, int] = {}
        self._staging = staging
        self._next = 1
        self._references: dict[int, int] = {}
        self._reference_counts: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._next_sweep_ms = 0
        self._next_sequences: dict[int, int] = {}
        # Bodies whose last reference has ended, but not durably: how many such ends each has.
        self._ending: dict[int, int] = {}
        # The ended references: they may still be in the store.
        self._ended: set[tuple[int, int]] = set()
        self.is_used = False
        self.disk_bytes = 0
        self.load()
        self._drop_orphans()

    # ---- start, and after a failure

    def load(self) -> None:
        """Read the references from the store.

        Raises:
            StoreError: it could not be read; the state is unchanged, so that the next load finds everything ended since.
        """
        rows = list(self._staging.journal.scan(bytes([REFERENCE]), bytes([REFERENCE + 1])))
        before = [*self._references, *self._ending]
        self._references.clear()
        self._reference_counts.clear()
        self._bytes.clear()
        self._next_sequences.clear()
        self._ending.clear()
        self._ended.clear()
        self.disk_bytes = 0
        for key, row in rows:
            blob, size_bytes, owner = _ROW.unpack(row)
            self._count(int.from_bytes(key[1:5], "big"), blob, size_bytes, owner, 1)
        self.is_used = bool(self._references)
        for number in {*before} - self._references.keys():
            # The ends found in the store need not be durable: a store without room is read as it is.
            self._ending[number] = 1
            self._staging.confirm(partial(self._end, number, (0, 0)))

    def _drop_orphans(self) -> None:
        """Remove bodies that an earlier run had not finished, or not removed."""
        if self.files is None:
            return
        numbers = self.files.numbers()
        self._next = max((*numbers, *self._references), default=0) + 1
        for number in numbers:
            if number not in self._references:
                self.files.remove(number)

    def _remove(self, number: int) -> None:
        if self.files is not None:
            self.files.remove(number)

    # ---- bodies

    def reserve(self) -> int:
        """The number for a new body."""
        number, self._next = self._next, self._next + 1
        return number

    def whole(self, number: int, size_bytes: int) -> Blob:
        """A body that is durable now; it is kept as long as the object, or a reference, exists."""
        return Blob(number, size_bytes, _Pin(self, number))

    def kept(self, payloads: list[Payload]) -> list[Payload]:
        """Payloads that are about to be sent: their bodies are kept as long as they exist, whatever happens to their messages."""
        if self.is_used:
            for payload in payloads:
                if isinstance(payload, Large):
                    payload.blob = self.whole(payload.blob.number, payload.blob.size_bytes)
        return payloads

    def unpin(self, number: int) -> None:
        """Count one pin less."""
        left = self.pinned.pop(number) - 1
        if left:
            self.pinned[number] = left
        else:
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        if number not in self._references and number not in self.pinned and number not in self._ending:
            self.on_discard(number)

    def _end(self, number: int, reference: tuple[int, int]) -> None:
        """The end of a reference is durable."""
        self._ended.discard(reference)
        left = self._ending.get(number, 1) - 1
        if left:
            self._ending[number] = left
        else:
            self._ending.pop(number, None)
            self._let_go(number)

    # ---- references

    def refer(self, number: int, sequence: int, blob: Blob, owner: int) -> None:
        """Stage that a message has a body.

        Args:
            number: under which the message is in the store.
            sequence: its sequence number.
            blob: the body.
            owner: number of the entity whose quota counts it.
        """
        row = _ROW.pack(blob.number, blob.size_bytes, owner)
        self._staging.batch.put(message_key(REFERENCE, number, sequence), row)
        self._count(number, blob.number, blob.size_bytes, owner, 1)
        self.is_used = True

    def has_bodies(self, number: int) -> bool:
        """Whether messages under that number have bodies outside of their records."""
        return number in self._reference_counts

    def stored_bytes(self, owner: int) -> int:
        """Of all bodies that an entity's quota counts; a body shared by several counts for each."""
        return self._bytes.get(owner, 0)

    def _count(self, number: int, blob: int, size_bytes: int, owner: int, by: int) -> None:
        if by > 0 and blob not in self._references:
            self.disk_bytes += size_bytes
        for counts, key, change in (
            (self._references, blob, by),
            (self._reference_counts, number, by),
            (self._bytes, owner, by * size_bytes),
        ):
            left = counts.get(key, 0) + change
            if left:
                counts[key] = left
            else:
                counts.pop(key, None)
        if by < 0 and blob not in self._references:
            self.disk_bytes -= size_bytes

    # ---- the end of references

    def tick(self, now_ms: int) -> None:
        """Stage the end of references whose messages are removed; bounded work."""
        # A check that is due in more than its interval was set before the clock was set back.
        if not self.is_used or self._next_sweep_ms - _SWEEP_MS <= now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + _SWEEP_MS
        left = _SWEEP_AT_ONCE
        for number in list(self._reference_counts):
            # An entity that was checked goes behind the others.
            if number in self._reference_counts:
                self._reference_counts[number] = self._reference_counts.pop(number)
            left -= self.sweep(number, left)
            if left <= 0:
                break

    def release_dead(self, *, written: bool = True) -> bool:
        """Check now for references that may have ended, before a sender is refused; returns whether there was any to check.

        Args:
            written: whether staged changes are written first, so that the ends in them are seen. Not in the middle of an operation,
                whose first half would be written without the other.
        """
        if not self.is_used:
            return False
        if written:
            self._staging.write()
        for number in list(self._reference_counts):
            self._sweep(number, _SWEEP_AT_ONCE)
        return True

    def sweep(self, number: int, limit: int = _SWEEP_AT_ONCE) -> int:
        """Stage the end of dead references under a number; returns how many were checked, at most `limit`.

        Checks the lowest ones, which are mostly removed first, and some of the others, in rotation.
        """
        self._staging.write()
        return self._sweep(number, limit)

    def _sweep(self, number: int, limit: int) -> int:
        """As `sweep`, on written rows: staged changes may have ended more references, but have begun none of these."""
        state = self._staging.journal.get(state_key(number))
        head = _HEAD.unpack_from(state)[1] if state else 0
        share = max(1, limit // 2)
        front = self._rows(number, 0, share)
        self._end_dead(number, front, head)
        if len(front) < share:
            return len(front)
        others = self._rows(number, max(self._next_sequences.get(number, 0), front[-1][0] + 1), share)
        self._end_dead(number, others, head)
        self._next_sequences[number] = others[-1][0] + 1 if len(others) == share else 0
        return len(front) + len(others)

    def _rows(self, number: int, first: int, limit: int) -> list[tuple[int, bytes]]:
        found = self._staging.journal.scan(*message_span(REFERENCE, number, first, _LAST))
        return [(unpack_message(key), row) for key, row in islice(found, limit)]

    def _end_dead(self, number: int, rows: Sequence[tuple[int, bytes]], head: int) -> None:
        journal = self._staging.journal
        keys = [message_key(table, number, each) for each, _ in rows for table in (MESSAGE, DEFERRED, SCHEDULED)]
        found = journal.get_many(keys)
        for index, (sequence, row) in enumerate(rows):
            message, deferred, scheduled = found[3 * index : 3 * index + 3]
            reference = (number, sequence)
            # Messages below the head are dead, though they may still be in the store.
            if (
                reference in self._ended
                or (message is not None and sequence >= head)
                or deferred is not None
                or scheduled is not None
            ):
                continue
            blob, size_bytes, owner = _ROW.unpack(row)
            self._staging.batch.delete(message_key(REFERENCE, number, sequence))
            self._count(number, blob, size_bytes, owner, -1)
            self._ending[blob] = self._ending.get(blob, 0) + 1
            self._ended.add(reference)
            self._staging.promise(lambda blob=blob, ended=reference: self._end(blob, ended), None)  # type: ignore[misc]
        self.is_used = bool(self._references)
