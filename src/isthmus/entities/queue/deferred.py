"""Deferred messages of one queue: set aside by a receiver, given by sequence number only.

What it is: their reading, and which of them are locked. What it is not: the locks themselves (`lock`), or the queue's
counts. Spec: docs/explanation/protocol.md, Settlement.

Invariants:
    I1. A deferred message that is locked is given to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.entities.queue.window import Pair
from isthmus.entities.storage.key import DEFERRED, message_key
from isthmus.entities.storage.staging import Staging
from isthmus.errors import InvalidArgumentError, MessageNotFoundError

__all__ = ["DeferredMessages"]

# Messages read in one go, and what those of one request may hold together: they are all in memory at once.
_READ_AT_ONCE = 256
_TOGETHER_BYTES = 128 << 20


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
        """Give messages to nobody else."""
        self._locked.update(sequences)

    def unlock(self, sequences: Sequence[int]) -> None:
        """They may be given again, or are gone."""
        self._locked.difference_update(sequences)

    def unlock_all(self) -> None:
        """All locks are lost."""
        self._locked.clear()
