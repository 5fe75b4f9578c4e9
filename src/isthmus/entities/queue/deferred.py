"""Deferred messages of one queue: given by sequence number only.

What it is: their reading, putting and removal, with the queue's counts, and which of them are locked. What it is not: the
locks themselves (`lock`). Spec: docs/explanation/protocol.md, Settlement.

Invariants:
    I1. A deferred message that is locked is not given to another receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.queue.window import Pair
from isthmus.entities.storage.key import DEFERRED, message_key
from isthmus.entities.storage.staging import Member, Staging
from isthmus.errors import InvalidArgumentError, MessageNotFoundError

__all__ = ["DeferredMessages", "DeferringQueue"]

# Messages read in one call, and the most bytes for one request: they are all in memory together.
_READ_AT_ONCE = 256
_TOGETHER_BYTES = 128 << 20


class DeferringQueue(Member, Protocol):
    """The queue that has the messages.

    Attributes:
        number: under which they are in the store.
        deferred_count: how many there are.
        size_bytes: of everything that the queue stores.
    """

    number: int
    deferred_count: int
    size_bytes: int

    @property
    def context(self) -> Context:
        """The objects that entities share."""
        ...


class DeferredMessages:
    """The deferred messages of one queue.

    Args:
        path: of the queue.
        number: under which its messages are in the store.
        staging: of its store.
    """

    __slots__ = ("_locked", "_number", "_path", "_staging")

    def __init__(self, path: str, number: int, staging: Staging) -> None:
        self._path = path
        self._number = number
        self._staging = staging
        self._locked: set[int] = set()

    def read(self, sequences: Iterable[int]) -> list[Pair]:
        """Messages by sequence number, in order; none is taken.

        Raises:
            MessageNotFoundError: one of them is not deferred, or locked by someone.
            InvalidArgumentError: together they are too large for one answer.
        """
        self._staging.write()
        wanted = sorted(set(sequences))
        pairs: list[Pair] = []
        size = 0
        for start in range(0, len(wanted), _READ_AT_ONCE):
            part = wanted[start : start + _READ_AT_ONCE]
            keys = [message_key(DEFERRED, self._number, max(0, sequence)) for sequence in part]
            for sequence, key, record in zip(part, keys, self._staging.journal.get_many(keys), strict=True):
                if record is None or sequence in self._locked:
                    raise MessageNotFoundError(
                        f"'{self._path}' has no deferred message with sequence number {sequence}"
                    )
                size += len(record)
                if size > _TOGETHER_BYTES and pairs:
                    raise InvalidArgumentError(
                        f"The messages have over {_TOGETHER_BYTES} bytes together; ask for fewer."
                    )
                pairs.append((key, record))
        return pairs

    def lock(self, sequences: Sequence[int]) -> None:
        """Give messages to no other receiver."""
        self._locked.update(sequences)

    def unlock(self, sequences: Sequence[int]) -> None:
        """They may be given again, or are removed."""
        self._locked.difference_update(sequences)

    def unlock_all(self) -> None:
        """All locks are lost."""
        self._locked.clear()

    # ---- changes

    def put(self, queue: DeferringQueue, sequence: int, record: bytes) -> None:
        """Stage a message as deferred."""
        self._staging.batch.put(message_key(DEFERRED, self._number, sequence), record)
        queue.size_bytes += len(record)
        queue.deferred_count += 1
        self._staging.touch(queue)

    def replaced(self, queue: DeferringQueue, sequences: Sequence[int], size_bytes: int) -> None:
        """Messages that were deferred already were put again, with so many bytes: each counts once, and may be given again."""
        queue.deferred_count -= len(sequences)
        queue.size_bytes -= size_bytes
        self.unlock(sequences)
        self._staging.touch(queue)

    def remove(self, queue: DeferringQueue, sequences: Sequence[int], size_bytes: int) -> None:
        """Stage the removal of messages."""
        batch = self._staging.batch
        for sequence in sequences:
            batch.delete(message_key(DEFERRED, self._number, sequence))
        self.unlock(sequences)
        queue.deferred_count -= len(sequences)
        queue.size_bytes -= size_bytes
        self._staging.touch(queue)
