"""The messages of one session: a queue of their own, under a number of their own, that one receiver at a time has.

What it is: what is different from a plain queue: sequence numbers are the entity's and leave gaps, locks end with the
session's, and nothing is delivered past a message that is on its way back. What it is not: the choice of a session, or
its lock (`session.queue`).
Spec: docs/explanation/protocol.md, Sessions; docs/explanation/store.md.

Invariants:
    I1. Messages of a session are delivered in sequence order; after an abandoned one nothing until it is back.
    I2. What is removed below the head is covered by the persisted head, what is removed above it is deleted by its key.
    I3. The entity's counts are the sums of its sessions', in every batch that is written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.member.look import Seen
from isthmus.entities.queue.backlog import sequences_of
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.window import Pair
from isthmus.entities.session.row import SessionRow, pack_row
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import MESSAGE, message_key, session_key, unpack_message
from isthmus.errors import SessionLockLostError

__all__ = ["SessionMessages"]

# From so many dead messages on they go as one range: fewer are deleted by their keys, since every range tombstone
# makes scans of the store dearer and sessions are many.
_RANGE_MESSAGES = 512
# From so many on it is looked whether most of what was read behind the head is gone.
_COMPACT_MESSAGES = 4096


def _shared(name: str) -> Any:
    """A count that is the entity's as well: what is added here is added there."""
    own = f"_own_{name}"

    def get(messages: SessionMessages) -> Any:
        return messages.__dict__.get(own, 0)

    def put(messages: SessionMessages, value: int) -> None:
        entity = messages._entity
        if entity is not None:
            setattr(entity, name, getattr(entity, name) + value - messages.__dict__[own])
            entity.are_totals_staged = False
        messages.__dict__[own] = value

    return property(get, put)


class SessionEntity(Protocol):
    """The entity that a session belongs to.

    Attributes:
        are_totals_staged: whether its row in the batch tells the counts as they are.
        last: highest sequence number given out.
    """

    are_totals_staged: bool
    last: int

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def number(self) -> int:
        """Under which its row is in the store."""
        ...

    @property
    def is_fragment(self) -> bool:
        """Whether it is a part of a partitioned entity."""
        ...

    @property
    def dead_letters(self) -> Queue | None:
        """Its dead-letter queue."""
        ...

    def bury(
        self,
        records: Sequence[bytes],
        reason: str | None,
        description: str | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Stage copies of a session's messages in the dead-letter queue."""
        ...

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """Messages of every state, scheduled ones included."""
        ...

    def published(self, session_id: str) -> None:
        """A session's messages have become visible, have come back, or are gone permanently."""
        ...

    def stage_state(self, batch: Batch) -> None:
        """Stage its row."""
        ...


class SessionMessages(Queue):
    """One session's messages.

    Attributes:
        session: whose they are.
        is_retired: whether the session was lost to a failed commit; every call then raises SessionLockLostError.
    """

    # Before the entity is known, while counts are loaded that it has counted already.
    _entity: SessionEntity | None = None

    def __init__(self, entity: SessionEntity, session: SessionRow, context: Context, state: bytes | None) -> None:
        super().__init__(entity.path, session.number, context, state)
        self.session = session
        self.is_retired = False
        self.requires_session = True
        self.is_fragment = entity.is_fragment
        self.dead_letters = entity.dead_letters
        self._entity = entity
        # What the cursor has passed and the head has not: first one by one, then as it was read; and which of it is
        # gone. What goes in the order and the pieces in which it was read, as is usual, is never looked at one by one.
        self._ahead: deque[int] = deque()
        self._chunks: deque[Sequence[int]] = deque()
        self._gone_sequences: set[int] = set()
        self._latest: tuple[Sequence[Pair], Sequence[int]] = ((), ())
        self._dead: list[Sequence[int]] = []
        self._below: list[Sequence[int]] = []
        self._below_count = 0
        self._coming: deque[list[tuple[int, int]]] = deque()
        self._in_flight = 0
        self._window.is_sparse = True
        # Dead messages that an earlier run left in the store, nobody knows which.
        self._has_remains = self._cleaned < self.head
        if state is None:
            self.head = self._cleaned = entity.last + 1
            self._window.reset(self.head, caught_up=True)

    def inherit(self, settings: dict[str, Any]) -> None:
        """Take the entity's settings, by the names of attributes."""
        self.__dict__.update(settings)

    # ---- what is counted, see I3

    active_count: int = _shared("active_count")
    deferred_count: int = _shared("deferred_count")
    size_bytes: int = _shared("size_bytes")
    delivered_total: int = _shared("delivered_total")
    settled_total: int = _shared("settled_total")
    expired_total: int = _shared("expired_total")

    # ---- locks

    def lock_until(self, until_ms: int) -> None:
        """What is delivered from now on says that it is locked so long: wall ms."""
        self._session_until_ms = until_ms

    def give_back(self, *, failed: bool) -> None:
        """End all locks, since the session's has ended.

        Args:
            failed: whether that counts as a failed delivery of each message.
        """
        spans = self._locks.take_all()
        if failed:
            self._give_back(spans)
        else:
            self._return(spans)

    def _check_open(self) -> None:
        super()._check_open()
        if self.is_retired:
            raise SessionLockLostError(self.path, self.session.session_id)

    # ---- receiving

    @property
    def has_available(self) -> bool:
        """Whether a message may be delivered now (I1)."""
        # Unread messages may be gone without the cursor having passed them.
        return self.active_count > 0 and not self._returning and not self._coming and super().has_available

    def next_pairs(self, limit: int) -> list[Pair]:
        return [] if self._returning or self._coming else super().next_pairs(limit)

    def _read(self, limit: int) -> list[Pair]:
        start = self._window.next
        pairs = super()._read(limit)
        if pairs and unpack_message(pairs[-1][0]) >= start:
            sequences = self._numbers_of(pairs)
            self._chunks.append(sequences if sequences[0] >= start else [each for each in sequences if each >= start])
        return pairs

    def _numbers_of(self, pairs: Sequence[Pair]) -> Sequence[int]:
        if self._latest[0] is not pairs:
            self._latest = pairs, sequences_of(pairs)
        return self._latest[1]

    # ---- what becomes of messages

    def remove(self, sequences: Sequence[int], size_bytes: int) -> None:
        self.active_count -= len(sequences)
        self.size_bytes -= size_bytes
        self._dead.append(sequences)
        if self._chunks and not self._ahead and not self._gone_sequences and sequences == self._chunks[0]:
            self._chunks.popleft()
        else:
            self._gone_sequences.update(sequences)
        self._staging.touch(self)

    def _bury(self, records: Sequence[bytes], reason: Any, description: Any, properties: Any) -> None:
        assert self._entity is not None
        self._entity.bury(records, reason, description, properties)

    # ---- group commit

    def stage_state(self, batch: Batch) -> None:
        entity, session = self._entity, self.session
        if self.is_deleted or self.is_retired or entity is None:
            return
        self._advance()
        if self._dead:
            self._stage_dead(batch)
        super().stage_state(batch)
        if not session.is_stored:
            session.is_stored = True
            batch.put(session_key(entity.number, session.session_id), pack_row(session.number, 0, None))
        if not entity.are_totals_staged:
            entity.stage_state(batch)

    def _advance(self) -> None:
        """Move the head over what is gone; what is in anybody's hands, or on its way back, is not."""
        gone, ahead = self._gone_sequences, self._ahead
        if gone:
            for chunk in self._chunks:
                ahead.extend(chunk)
            self._chunks.clear()
            while ahead and ahead[0] in gone:
                gone.discard(ahead.popleft())
            if not ahead:
                gone.clear()
            elif len(ahead) > _COMPACT_MESSAGES and len(gone) * 2 > len(ahead):
                # One message holds up the head, others go behind it: they are deleted by their keys.
                ahead = self._ahead = deque(sequence for sequence in ahead if sequence not in gone)
                gone.clear()
        front = ahead or (self._chunks[0] if self._chunks else None)
        self.head = max(self.head, front[0] if front else self._window.next)

    def _stage_dead(self, batch: Batch) -> None:
        """Delete by key what went above the head; what went below it waits until there is enough for a range (I2)."""
        head = self.head
        for sequences in self._dead:
            if sequences[-1] < head:
                below = sequences
            else:
                at = bisect_left(sequences, head)
                for sequence in sequences[at:]:
                    batch.delete(message_key(MESSAGE, self.number, sequence))
                below = sequences[:at]
            if below:
                self._below.append(below)
                self._below_count += len(below)
        self._dead = []
        if self._below_count >= _RANGE_MESSAGES:
            self._clean(batch)

    def _clean(self, batch: Batch) -> None:
        super()._clean(batch)
        self._below = []
        self._below_count = 0
        self._has_remains = False

    def sweep(self) -> None:
        """Stage the deletion of dead messages that are still in the store."""
        batch = self._staging.batch
        if not self._has_remains:
            for sequences in self._below:
                for sequence in sequences:
                    batch.delete(message_key(MESSAGE, self.number, sequence))
            self._cleaned = self.head
        self._clean(batch)
        self._staging.touch(self)

    @property
    def is_swept(self) -> bool:
        """Whether no dead message that is known of is left in the store."""
        return not self._below and not self._dead and not self._has_remains

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is staged or on its way to the disk, so that the store has all there is to know."""
        return not self._in_flight and not self._staging.holds(self)

    def seal(self) -> tuple[int, list[tuple[int, int]]]:
        sealed = super().seal()
        self._in_flight += 1
        if sealed[1]:
            self._coming.append(sealed[1])
        return sealed

    def publish(self, sealed: Any) -> None:
        self._in_flight -= 1
        if sealed[1] and self._coming:
            self._coming.popleft()
        super().publish(sealed)
        if self._entity is not None and not self.is_retired and not self.is_deleted:
            self._entity.published(self.session.session_id)

    def unload(self) -> None:
        """Write the counts into the session and let go of the store; the object is of no use any more."""
        session = self.session
        session.active_count, session.deferred_count = self.active_count, self.deferred_count
        session.head, session.last = self.head, self.last
        self._entity = None
        self._window.reset(self.head, caught_up=False)

    # ---- looking

    @property
    def quota_number(self) -> int:
        assert self._entity is not None
        return self._entity.number

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        assert self._entity is not None
        return self._entity.peek(from_sequence, count, self.session.session_id)

    def look(self, from_sequence: int, count: int) -> list[Seen]:
        """Messages of every state, in order, as the store has them; the staged ones must have been written."""
        return self._look(from_sequence, count)
