"""One partition of an event hub: a log that is written at its end, read anywhere, and removed from its front.

What it is: acceptance of events, their numbering and storage in blocks, retention by age and size, and the search for
positions. What it is not: the choice of the partition (`hub`), reading in order (`cursor`), or links.
Spec: docs/explanation/protocol.md, Event Hubs.

Invariants:
    I1. Sequence numbers start at 0 and have no gaps; offsets and enqueued times never decrease.
    I2. No event is read before the commit that contains it is durable.
    I3. A block and the cursors that count it are written in one batch: a kill loses both or neither.
    I4. Retention removes whole blocks from the front, by one range of keys, and only those past the limits.
    I5. Retention continues while the wall clock is behind the newest enqueued time: it then measures age by monotonic time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from isthmus.clock import Clock
from isthmus.entities.hub.age import AgeMarks
from isthmus.entities.hub.block import Block, BlockCache
from isthmus.entities.hub.event import Event, write_events
from isthmus.entities.hub.key import block_key, blocks_before, blocks_from, every_block, state_key
from isthmus.entities.hub.selector import Position, Selector
from isthmus.entities.member.listener import call_all
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.staging import Staging
from isthmus.errors import InvalidArgumentError

__all__ = ["Partition", "PartitionState"]

_STATE = struct.Struct(">7Q")
# The largest block: a receiver at a position in its middle reads all of it.
_BLOCK_BYTES = 256 << 10
# The most blocks that one read of the store returns, where blocks are small.
_READ_BLOCKS = 64
_READ_BYTES = 1 << 20
# Retention exceeds its limit by this part before it acts again, so that a steady stream causes few removals.
_SLACK_DIVISOR = 16
_SLACK_LIMIT_MS = 60_000


class PartitionState(NamedTuple):
    """The cursors of a partition.

    Attributes:
        begin: sequence number of the oldest event; `next` if there is none.
        next: the sequence number that the next event gets.
        begin_offset: offset of the oldest event.
        end_offset: offset that the next event gets.
        last_offset: offset of the newest event ever.
        last_enqueued_ms: its time; 0 is never.
        head_ms: the time of the oldest event.
    """

    begin: int = 0
    next: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    last_offset: int = 0
    last_enqueued_ms: int = 0
    head_ms: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no event."""
        return self.begin == self.next

    @property
    def size_bytes(self) -> int:
        """Size of all events."""
        return self.end_offset - self.begin_offset


class Partition:
    """One partition.

    Args:
        number: under which it is in the store.
        path: for log lines and errors.
        staging: the namespace's.
        clock: wall and monotonic time.
        cache: keeps blocks just written.

    Attributes:
        is_deleted: whether its hub was deleted.
        committed: the state that receivers may see.
        expired_total: events that retention has removed since the start of the process.
    """

    def __init__(self, number: int, path: str, staging: Staging, clock: Clock, cache: BlockCache) -> None:
        self.number = number
        self.path = path
        self.is_deleted = False
        self.expired_total = 0
        self._staging = staging
        self._clock = clock
        self._cache = cache
        self._pending: list[Event] = []
        self._listeners: list[Callable[[], None]] = []
        self._retention_ms = 0
        self._retention_bytes = 0
        self._marks = AgeMarks()
        self._state = self.committed = self._stored()

    # ---- start, failure, end

    def reload(self) -> None:
        """Go back to the state of the store. Events beyond the last durable state are read once a commit has made them durable
        (I2): otherwise a consumer would skip the events that get the same numbers after a power cut.
        """
        known, self._state = self.committed, self._stored()
        if known.next < self._state.next:
            self._staging.confirm(partial(self.publish, self._state))
        else:
            self.committed = self._state

    def _stored(self) -> PartitionState:
        row = self._staging.journal.get(state_key(self.number))
        self._pending = []
        return PartitionState(*_STATE.unpack(row)) if row else PartitionState()

    def configure(self, retention_ms: int, retention_bytes: int) -> None:
        """Set the limits of retention; 0 is without limit."""
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes

    def wipe(self) -> None:
        """Stage the removal of everything, and end the partition."""
        self._staging.batch.delete_range(*every_block(self.number))
        self._staging.batch.delete(state_key(self.number))
        self._pending = []
        self.is_deleted = True

    # ---- writing

    def accept(self, events: Sequence[Event]) -> None:
        """Take events, in order; they get their numbers and their time when their group is written."""
        self._pending += events
        self._staging.touch(self)

    def stage_state(self, batch: Batch) -> None:
        """See `staging.Member`."""
        if self.is_deleted:
            return
        if self._pending:
            self._write(batch)
        batch.put(state_key(self.number), _STATE.pack(*self._state))

    def seal(self) -> PartitionState:
        """See `staging.Member`."""
        return self._state

    def publish(self, sealed: PartitionState) -> None:
        """See `staging.Member`."""
        self.committed = sealed
        call_all(tuple(self._listeners))

    def _write(self, batch: Batch) -> None:
        state = self._state
        now_ms = max(self._clock.wall_ms(), state.last_enqueued_ms)
        pending, self._pending = self._pending, []
        base, offset, last_offset = state.next, state.end_offset, state.last_offset
        for events in _cut(pending):
            block = Block(base, offset, now_ms, write_events(events, base, offset, now_ms))
            batch.put(block_key(self.number, block.last), block.pack())
            base, offset, last_offset = block.last + 1, offset + block.size_bytes, block.last_offset
            if self._listeners:
                self._cache.put(self.number, block)
        self._state = state._replace(
            next=base,
            end_offset=offset,
            last_offset=last_offset,
            last_enqueued_ms=now_ms,
            head_ms=now_ms if state.is_empty else state.head_ms,
        )

    # ---- reading

    @property
    def begin(self) -> int:
        """Sequence number of the oldest event that retention has not removed."""
        return self._state.begin

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call back whenever events became readable."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo `add_listener`."""
        self._listeners.remove(listener)

    def blocks(self, sequence: int) -> list[Block]:
        """Some blocks from the one that contains `sequence` on, in order; empty if nothing is readable.

        A sequence number that retention has passed means the oldest event.
        """
        sequence = max(sequence, self._state.begin)
        if self.is_deleted or sequence >= self.committed.next:
            return []
        kept = self._cache.get(self.number, sequence)
        return [kept] if kept is not None else self._read_stored(sequence)

    def _read_stored(self, sequence: int) -> list[Block]:
        found: list[Block] = []
        size_bytes = 0
        for block in islice(self._scan(sequence), _READ_BLOCKS):
            if block.base >= self.committed.next:
                break
            found.append(block)
            size_bytes += block.size_bytes
            if size_bytes >= _READ_BYTES:
                break
        return found

    def _scan(self, sequence: int) -> Iterator[Block]:
        rows = self._staging.journal.scan(*blocks_from(self.number, sequence))
        return (Block.unpack(row) for _, row in rows)

    # ---- positions

    def locate(self, selector: Selector) -> int:
        """The sequence number at which a receiver with this selector begins.

        Raises:
            InvalidArgumentError: the position is behind the end of the partition.
        """
        end, begin = self.committed, self._state.begin
        value = selector.value
        match selector.position:
            case Position.START:
                return begin
            case Position.LATEST:
                return end.next
            case Position.SEQUENCE:
                if value > end.next:
                    raise InvalidArgumentError(
                        f"The supplied sequence number '{value}' is invalid. The last sequence number in the system is "
                        f"'{end.next - 1}'."
                    )
                return max(begin, min(value if selector.inclusive else value + 1, end.next))
            case Position.OFFSET:
                if value > end.end_offset:
                    raise InvalidArgumentError(
                        f"The supplied offset '{value}' is invalid. The last offset in the system is "
                        f"'{end.last_offset}'."
                    )
                wanted = value if selector.inclusive else value + 1
                block = self._first(lambda block: block.last_offset >= wanted)
                if block is None:
                    return end.next
                return block.base + next(at for at, each in enumerate(block.offsets()) if each >= wanted)
            case Position.ENQUEUED_TIME:
                since_ms = value if selector.inclusive else value + 1
                block = self._first(lambda block: block.enqueued_ms >= since_ms)
                return end.next if block is None else block.base

    def _first(self, matches: Callable[[Block], bool]) -> Block | None:
        """The first readable block for which `matches` is true; it must be true for all later ones as well."""
        low, high = self._state.begin, self.committed.next
        found: Block | None = None
        while low < high:
            block = next(self._scan((low + high) // 2))
            if matches(block):
                found, high = block, block.base
            else:
                low = block.last + 1
        return found

    # ---- retention

    def is_over(self, now_ms: int) -> bool:
        """Whether enough events are past the limits for a call of `retain`."""
        state = self.committed
        if state.is_empty:
            return False
        if self._retention_ms:
            slack_ms = min(self._retention_ms // _SLACK_DIVISOR, _SLACK_LIMIT_MS)
            if state.head_ms + self._retention_ms + slack_ms <= now_ms:
                return True
            now, retention_seconds = self._clock.monotonic(), self._retention_ms / 1000
            if state.last_enqueued_ms > now_ms:
                self._marks.note(now, state.next, retention_seconds)
            if self._marks.passed(now, retention_seconds) > state.begin:
                return True
        limit = self._retention_bytes
        return bool(limit) and state.size_bytes > limit + limit // _SLACK_DIVISOR

    def retain(self, now_ms: int) -> None:
        """Stage the removal of events past the limits."""
        state = self._state
        oldest_ms = now_ms - self._retention_ms if self._retention_ms else -1
        least_offset = state.end_offset - self._retention_bytes if self._retention_bytes else 0
        passed = self._marks.passed(self._clock.monotonic(), self._retention_ms / 1000) if self._retention_ms else 0
        kept = self._first(
            lambda block: block.enqueued_ms > oldest_ms and block.offset >= least_offset and block.last >= passed
        )
        # Events that are written and not yet durable stay, whatever their age.
        begin = self.committed.next if kept is None else kept.base
        if begin <= state.begin:
            return
        if kept is not None:
            offset, head_ms = kept.offset, kept.enqueued_ms
        elif begin < state.next:
            first = next(self._scan(begin))
            offset, head_ms = first.offset, first.enqueued_ms
        else:
            offset, head_ms = state.end_offset, 0
        self._staging.batch.delete_range(*blocks_before(self.number, begin))
        self.expired_total += begin - state.begin
        self._state = state._replace(begin=begin, begin_offset=offset, head_ms=head_ms)
        self._staging.touch(self)

    def statistics(self) -> dict[str, int]:
        """Events, their size and their numbers, for metrics."""
        state = self.committed
        return {
            "event_count": state.next - state.begin,
            "size_bytes": state.size_bytes,
            "begin_sequence_number": state.begin,
            "last_sequence_number": state.next - 1,
            "listeners": len(self._listeners),
        }


def _cut(events: list[Event]) -> Iterator[list[Event]]:
    """Events in groups of about the size of a block."""
    start = size_bytes = 0
    for at, (head, rest) in enumerate(events):
        size_bytes += len(rest) + len(head.front) + len(head.annotations)
        if size_bytes >= _BLOCK_BYTES:
            yield events[start : at + 1]
            start, size_bytes = at + 1, 0
    if start < len(events):
        yield events[start:] if start else events
