"""The messages of one session in their order: the differences from the backlog of a plain queue.

What it is: sequence numbers are the entity's and leave gaps, the head is found from the numbers read, dead messages are deleted by
key, and nothing is read past a message that is being returned. What it is not: the session's lock, and its counts
(`session.messages`).
Spec: docs/explanation/protocol.md, Sessions; docs/explanation/store.md.

Invariants:
    I1. Messages of a session are delivered in sequence order; after an abandoned one, none until it is available again.
    I2. A message removed below the head is covered by the persisted head, one removed above it is deleted by its key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from isthmus.entities.queue.backlog import Backlog, BacklogQueue, sequences_of
from isthmus.entities.queue.window import Pair
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import MESSAGE, message_key, unpack_message

__all__ = ["SessionBacklog"]

# From so many dead messages on they are removed as one range: fewer are deleted by key, since every range tombstone
# makes scans of the store slower and sessions are many.
_RANGE_MESSAGES = 512
# From so many numbers on it is checked whether most of those read behind the head are removed.
_COMPACT_MESSAGES = 4096


class SessionBacklog(Backlog):
    """One session's messages in sequence order; arguments as for `Backlog`.

    Attributes:
        commits: how many have begun with changes of it and have not ended.
    """

    __slots__ = (
        "_ahead",
        "_below",
        "_below_count",
        "_chunks",
        "_coming",
        "_dead",
        "_has_remains",
        "_latest",
        "_removed_sequences",
        "commits",
    )

    def __init__(self, queue: BacklogQueue) -> None:
        super().__init__(queue)
        # The numbers between the head and the cursor: first as single ones, then as they were read; and those of them that are
        # removed. Removal in the order and the pieces in which they were read, the usual case, never checks single numbers.
        self._ahead: deque[int] = deque()
        self._chunks: deque[Sequence[int]] = deque()
        self._removed_sequences: set[int] = set()
        self._latest: tuple[Sequence[Pair], Sequence[int]] = ((), ())
        self._dead: list[Sequence[int]] = []
        self._below: list[Sequence[int]] = []
        self._below_count = 0
        self._coming: deque[list[tuple[int, int]]] = deque()
        self.commits = 0
        self.window.is_sparse = True
        # Dead messages that an earlier run left in the store, with unknown numbers.
        self._has_remains = queue.cleaned < queue.head

    def begin(self, queue: BacklogQueue, last: int) -> None:
        """The session is new: its messages follow the last one of the entity."""
        queue.head = queue.cleaned = last + 1
        self.window.reset(queue.head, caught_up=True)

    # ---- reading

    def has_available(self, queue: BacklogQueue) -> bool:
        # Unread messages may be removed without the cursor having passed them.
        return queue.active_count > 0 and not self.returning and not self._coming and super().has_available(queue)

    def read(self, queue: BacklogQueue, limit: int) -> list[Pair]:
        if self.returning or self._coming:
            return []
        start = self.window.next
        pairs = super().read(queue, limit)
        if pairs and unpack_message(pairs[-1][0]) >= start:
            sequences = self.numbers_of(pairs)
            self._chunks.append(sequences if sequences[0] >= start else [each for each in sequences if each >= start])
        return pairs

    def numbers_of(self, pairs: Sequence[Pair]) -> Sequence[int]:
        if self._latest[0] is not pairs:
            self._latest = pairs, sequences_of(pairs)
        return self._latest[1]

    # ---- removal

    def remove(self, queue: BacklogQueue, sequences: Sequence[int], size_bytes: int) -> None:
        queue.active_count -= len(sequences)
        queue.size_bytes -= size_bytes
        self._dead.append(sequences)
        if self._chunks and not self._ahead and not self._removed_sequences and sequences == self._chunks[0]:
            self._chunks.popleft()
        else:
            self._removed_sequences.update(sequences)
        queue.context.staging.touch(queue)

    # ---- group commit

    def stage(self, queue: BacklogQueue, batch: Batch) -> None:
        self._advance(queue)
        if self._dead:
            self._stage_dead(queue, batch)
        super().stage(queue, batch)

    def _advance(self, queue: BacklogQueue) -> None:
        """Move the head past removed messages; locked ones, and those being returned, are not."""
        removed, ahead = self._removed_sequences, self._ahead
        if removed:
            for chunk in self._chunks:
                ahead.extend(chunk)
            self._chunks.clear()
            while ahead and ahead[0] in removed:
                removed.discard(ahead.popleft())
            if not ahead:
                removed.clear()
            elif len(ahead) > _COMPACT_MESSAGES and len(removed) * 2 > len(ahead):
                # One message keeps the head back while others behind it are removed: they are deleted by key.
                ahead = self._ahead = deque(sequence for sequence in ahead if sequence not in removed)
                removed.clear()
        front = ahead or (self._chunks[0] if self._chunks else None)
        queue.head = max(queue.head, front[0] if front else self.window.next)

    def _stage_dead(self, queue: BacklogQueue, batch: Batch) -> None:
        """Delete by key the messages removed above the head; those below it are kept until there are enough for a range (I2)."""
        head = queue.head
        for sequences in self._dead:
            if sequences[-1] < head:
                below = sequences
            else:
                at = bisect_left(sequences, head)
                for sequence in sequences[at:]:
                    batch.delete(message_key(MESSAGE, queue.number, sequence))
                below = sequences[:at]
            if below:
                self._below.append(below)
                self._below_count += len(below)
        self._dead = []
        if self._below_count >= _RANGE_MESSAGES:
            self.clean(queue, batch)

    def clean(self, queue: BacklogQueue, batch: Batch) -> None:
        super().clean(queue, batch)
        self._below = []
        self._below_count = 0
        self._has_remains = False

    def sweep(self, queue: BacklogQueue) -> None:
        """Stage the deletion of dead messages that are still in the store."""
        staging = queue.context.staging
        batch = staging.batch
        if not self._has_remains:
            for sequences in self._below:
                for sequence in sequences:
                    batch.delete(message_key(MESSAGE, queue.number, sequence))
            queue.cleaned = queue.head
        self.clean(queue, batch)
        staging.touch(queue)

    @property
    def is_swept(self) -> bool:
        """Whether no known dead message is left in the store."""
        return not self._below and not self._dead and not self._has_remains

    def seal(self) -> list[tuple[int, int]]:
        returning = super().seal()
        self.commits += 1
        if returning:
            self._coming.append(returning)
        return returning

    def publish(self, returning: Sequence[tuple[int, int]]) -> bool:
        self.commits -= 1
        if returning and self._coming:
            self._coming.popleft()
        return super().publish(returning)
