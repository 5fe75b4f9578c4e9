"""Messages in transit from one store to another: each arrives once, whichever side is killed or fails.

What it is: the line of messages in the store that they leave, their delivery into the other store, and the handling
of those that are refused there. What it is not: the choice of the target (`crossing`), or forwarding within one
store, which is one batch (`onward`).
Spec: docs/explanation/protocol.md, Forwarding, Entities; docs/explanation/forwarding.md.
Over 400 lines: the writes on one side are only correct together with those on the other.

Invariants:
    I1. A message leaves its source and enters the line in one batch of the source's store.
    I2. Its arrival, and the position in the line up to which all have arrived, are one batch of the other store: messages
        behind that position have not arrived, the others have.
    I3. It leaves the line only after its arrival is durable; a refused message leaves it for a dead-letter queue in one batch.
    I4. A line keeps its order, and no position in it is assigned twice, restarts and restored back-ups or not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.fragment.port import FragmentStore, FragmentStores
from isthmus.entities.member.context import Context
from isthmus.entities.queue import dead_letter
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import reason_of
from isthmus.entities.queue.queue import Queue
from isthmus.entities.record.amend import Stored, take_apart
from isthmus.entities.record.record import OVERHEAD_BYTES, Parts, build
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import LANE, LEAVING, after, arrived_key, lane_key, leaving_key, unpack_leaving
from isthmus.errors import EntityNotFoundError, IsthmusError, StoreError

__all__ = ["Handover", "Leaving", "Outbox"]

# Of a message in the line: the target's number, the source's, whether it was sent via it, and the length of the target's path.
_ROW = struct.Struct(">IIBH")
# Messages delivered in one commit, and how large they may be together, as for moves within a store (`relay`).
_GROUP = 1000
_GROUP_BYTES = 8 << 20
# A group of at least so many leaves the line as a range: each range makes scans of the store slower.
_LONG_RUN = 512
# Positions are counted from the wall time at the start on, in ms, so that a line that lost its last positions in a power cut,
# or was restored from an older back-up, assigns none of them again.
_POSITIONS_PER_MS_BITS = 16


class Leaving(NamedTuple):
    """One message in the line.

    Attributes:
        position: in the line.
        target: number of the queue or topic in the other store.
        path: of the whole entity that the target belongs to.
        source: number of the entity that it left.
        is_via: whether it was sent via the source.
        stored: the message, with the number of hops that it has when it arrives.
        size_bytes: of its record.
    """

    position: int
    target: int
    path: str
    source: int
    is_via: bool
    stored: Stored
    size_bytes: int


def _unpack(key: bytes, row: bytes) -> Leaving:
    target, source, is_via, length = _ROW.unpack_from(row)
    start = _ROW.size + length
    path = row[_ROW.size : start].decode()
    stored = take_apart(row[start:])
    return Leaving(unpack_leaving(key)[1], target, path, source, bool(is_via), stored, len(row) - start)


class Outbox:
    """The messages that leave one store.

    Args:
        index: the store's index among all: 0 for the catalog's, n + 1 for the store n of fragments.
        context: of the entities in the store.
        find: the entity with a number in the store; None if there is none.

    Attributes:
        handover: delivers them; None as long as there is none.
    """

    def __init__(self, index: int, context: Context, find: Callable[[int], Intake | None]) -> None:
        self.index = index
        self.context = context
        self.staging = context.staging
        self.find = find
        self.handover: Handover | None = None
        self._lanes: dict[int, _Lane] = {}
        self._has_loaded = False

    @property
    def lanes(self) -> Iterator[_Lane]:
        """The lines to other stores."""
        return iter(list(self._lanes.values()))

    def load(self) -> None:
        """Read the lines from the store, before the entities are loaded."""
        journal, leaving = self.staging.journal, self.context.leaving
        leaving.clear()
        waiting: dict[int, int] = {}
        for key, row in journal.scan(bytes([LEAVING]), bytes([LEAVING + 1])):
            one = _unpack(key, row)
            to = unpack_leaving(key)[0]
            waiting[to] = waiting.get(to, 0) + 1
            self.count(one.source, 1, one.size_bytes)
        known = {int.from_bytes(key[1:], "big") for key, _ in journal.scan(bytes([LANE]), bytes([LANE + 1]))}
        for to in {*known, *self._lanes}:
            self._lane(to).load(waiting.get(to, 0), again=self._has_loaded)
        self._has_loaded = True

    def _lane(self, to: int) -> _Lane:
        lane = self._lanes.get(to)
        if lane is None:
            lane = self._lanes[to] = _Lane(self, to)
            lane.load(0)
        return lane

    def stage(
        self,
        to: int,
        target: int,
        path: str,
        source: Intake,
        messages: Sequence[Parts],
        origins: Sequence[int],
        now_ms: int,
        hops: int,
        *,
        is_via: bool,
    ) -> None:
        """Stage messages in the line to another store; they are delivered when that is durable.

        Args:
            to: the other store.
            target: number of the queue or topic there.
            path: of the whole entity.
            source: the entity that they leave.
            messages: in order; none has its body outside of the store.
            origins: per message the sequence number where it first entered.
            now_ms: wall time.
            hops: how often they were forwarded, this time included.
            is_via: whether they are sent via the source.
        """
        lane = self._lane(to)
        encoded = path.encode()
        front = _ROW.pack(target, source.number, is_via, len(encoded)) + encoded
        put = self.staging.batch.put
        for parts, origin in zip(messages, origins, strict=True):
            lane.last += 1
            record = build(parts, 0, now_ms, 0, origin, hops)
            put(leaving_key(to, lane.last), front + record)
            self.count(source.number, 1, len(record))
        lane.waiting += len(messages)
        self.staging.touch(lane)

    def count(self, source: int, messages: int, size_bytes: int) -> None:
        """Count messages that entered a line, or left it."""
        leaving = self.context.leaving
        before = leaving.get(source, (0, 0))
        now = before[0] + messages, before[1] + messages * (size_bytes - OVERHEAD_BYTES)
        if now[0]:
            leaving[source] = now
        else:
            leaving.pop(source, None)
        member = self.find(source)
        if member is not None:
            member.leaving_count, member.leaving_bytes = now

    def take_back(self, messages: Sequence[Leaving], error: IsthmusError) -> None:
        """Stage messages that the target refused in their source's dead-letter queues; those of a deleted source are
        dropped.
        """
        source = self.find(messages[0].source)
        if source is None or source.is_deleted:
            return
        for one in messages:
            hops = one.stored.hops - (not one.is_via)
            stored = one.stored._replace(sequence=one.stored.origin, hops=hops)
            if one.is_via:
                dead_letters: Queue = self.context.transfer_dead_letters(source)
                dead_letter.store(dead_letters, [stored], source.path, reason_of(error), str(error))
            else:
                source.take_back(stored, error)


class _Lane:
    """The line from one store to another.

    Attributes:
        to: the other store.
        last: the last position assigned.
        waiting: messages in the line.
        is_busy: whether a delivery is in progress.
    """

    def __init__(self, outbox: Outbox, to: int) -> None:
        self.to = to
        self.last = 0
        self.waiting = 0
        self.is_busy = False
        self._outbox = outbox
        self._durable = 0
        # Up to which position all have arrived, durably; None until the other store has answered.
        self._arrived: int | None = None
        # Whether the line was loaded again during a delivery: messages that had left it before may be in it again.
        self._is_reloaded = False

    def load(self, waiting: int, *, again: bool = False) -> None:
        """Go back to the state of the store; `again` after a failure, when that need not be durable."""
        staging = self._outbox.staging
        now = self._outbox.context.clock.wall_ms() << _POSITIONS_PER_MS_BITS
        stored = int.from_bytes(staging.journal.get(lane_key(self.to)) or b"", "big")
        self.last = max(stored, now, self.last)
        self.waiting = waiting
        if again:
            self._durable = 0
            staging.confirm(partial(self.publish, self.last))
        else:
            self._durable = self.last
        if self.is_busy:
            self._is_reloaded = True
        else:
            self._arrived = None

    def stage_state(self, batch: Batch) -> None:
        """See `staging.Member`."""
        batch.put(lane_key(self.to), self.last.to_bytes(8, "big"))

    def seal(self) -> int:
        """See `staging.Member`."""
        return self.last

    def publish(self, sealed: Any) -> None:
        """See `staging.Member`."""
        self._durable = max(self._durable, sealed)
        self.pump()

    def pump(self) -> None:
        """Continue delivering, if there are messages and both stores are up."""
        handover = self._outbox.handover
        if self.is_busy or not self.waiting or handover is None or not handover.may_deliver(self._outbox.index):
            return
        other = handover.outbox(self.to)
        if other is None:
            return
        self.is_busy = True
        try:
            self._go_on(other, handover)
        except StoreError:
            # The store that refused has called its callbacks, and is retried by its own schedule.
            self._stop()
        except Exception:
            self._stop()
            raise

    def _go_on(self, other: Outbox, handover: Handover) -> None:
        if self._arrived is None:
            self._ask(other)
            return
        rows = self._next_rows(self._arrived)
        if not rows or not self._deliver(rows, other, handover):
            self.is_busy = False

    def _stop(self) -> None:
        self.is_busy = self._is_reloaded = False
        self._arrived = None

    def _failed(self, error: Exception) -> None:
        self._stop()

    # ---- on the side of the other store

    def _ask(self, other: Outbox) -> None:
        """Read the other store's position, and wait until it is durable: the read alone does not show that."""
        key = arrived_key(self._outbox.index)
        position = other.staging.journal.get(key) or bytes(8)
        other.staging.batch.put(key, position)
        other.staging.promise(partial(self._asked, int.from_bytes(position, "big")), self._failed)

    def _asked(self, position: int) -> None:
        self.last = max(self.last, position)
        if self._handover_if_up is None:
            self._stop()  # the other store is read again, once this one is up again
            return
        try:
            self._outbox.staging.write()  # messages whose removal is staged must not be counted again
            rows = self._rows_through(position)
        except StoreError:
            self._stop()
            return
        self._arrive(position, rows)

    @property
    def _handover_if_up(self) -> Handover | None:
        """The handover, as long as the line's own store is up."""
        handover = self._outbox.handover
        return handover if handover is not None and handover.outbox(self._outbox.index) is not None else None

    def _arrive(self, position: int, rows: Sequence[Leaving]) -> None:
        """All up to a position have arrived; `rows` are the last of them."""
        if self._handover_if_up is None:
            self._stop()  # as above
            return
        self._arrived = None if self._is_reloaded else position
        self.is_busy = self._is_reloaded = False
        self._remove(rows)
        self.pump()

    # ---- the line

    def _rows_through(self, position: int) -> list[Leaving]:
        span = leaving_key(self.to, 0), after(leaving_key(self.to, position))
        return [_unpack(*pair) for pair in self._outbox.staging.journal.scan(*span)]

    def _next_rows(self, behind: int) -> list[Leaving]:
        """The next ones that are in the line durably."""
        rows: list[Leaving] = []
        size = 0
        span = leaving_key(self.to, behind + 1), after(leaving_key(self.to, self._durable))
        for pair in self._outbox.staging.journal.scan(*span):
            rows.append(_unpack(*pair))
            size += rows[-1].size_bytes
            if len(rows) == _GROUP or size >= _GROUP_BYTES:
                break
        return rows

    def _remove(self, rows: Sequence[Leaving]) -> None:
        """Stage the removal of messages from the line."""
        if not rows:
            return
        batch = self._outbox.staging.batch
        if len(rows) >= _LONG_RUN:
            batch.delete_range(leaving_key(self.to, rows[0].position), after(leaving_key(self.to, rows[-1].position)))
        else:
            for one in rows:
                batch.delete(leaving_key(self.to, one.position))
        self.waiting -= len(rows)
        for one in rows:
            self._outbox.count(one.source, -1, one.size_bytes)
        if self._outbox.handover is not None:
            self._outbox.handover.on_left()

    # ---- delivery

    def _deliver(self, rows: Sequence[Leaving], other: Outbox, handover: Handover) -> bool:
        """Stage messages at their targets, up to the first refused one; returns whether anything is in progress then."""
        groups = [list(group) for _, group in groupby(rows, key=lambda one: (one.target, one.stored.hops))]
        if not handover.is_ready(self.to, groups[0][0].target, self.pump):
            return False
        taken: list[Leaving] = []
        error: IsthmusError | None = None
        with other.staging.atomic():
            for group in groups:
                if taken and not handover.is_ready(self.to, group[0].target, self.pump):
                    break
                error = self._enter(group, other, handover, taken)
                if error is not None:
                    break
            if taken:
                position = taken[-1].position
                other.staging.batch.put(arrived_key(self._outbox.index), position.to_bytes(8, "big"))
                other.staging.promise(partial(self._arrive, position, taken), self._failed)
        if not taken and error is not None:
            self._take_back(rows, error, other, handover)
        return True

    def _enter(
        self, group: Sequence[Leaving], other: Outbox, handover: Handover, taken: list[Leaving]
    ) -> IsthmusError | None:
        """Stage messages of one target, all or those before the first refused one; returns the reason of the refusal."""
        error = _refusal(group, other, handover, self.to)
        if error is None:
            target = other.find(group[0].target)
            assert target is not None
            parts = [one.stored.parts for one in group]
            origins = [one.stored.origin for one in group]
            target.accept_moved(parts, origins, self._outbox.context.clock.wall_ms(), group[0].stored.hops)
            taken += group
            return None
        if len(group) == 1:
            return error
        return next(filter(None, (self._enter([one], other, handover, taken) for one in group)), None)

    def _take_back(self, rows: Sequence[Leaving], error: IsthmusError, other: Outbox, handover: Handover) -> None:
        """Move refused messages to their dead-letter queues. No message behind them arrives before that is durable: the last
        arrived position covers all before it.
        """
        staging = self._outbox.staging
        refused: list[tuple[Leaving, IsthmusError]] = []
        why: IsthmusError | None = error
        for one in rows:
            if refused:
                why = _refusal([one], other, handover, self.to)
            if why is None:
                break
            refused.append((one, why))
        removed = [one for one, _ in refused]
        with staging.atomic():
            for one, reason in refused:
                self._outbox.take_back([one], reason)
            self._remove(removed)
            staging.promise(partial(self._arrive, removed[-1].position, ()), self._failed)


def _refusal(group: Sequence[Leaving], other: Outbox, handover: Handover, to: int) -> IsthmusError | None:
    """Why a target would refuse messages together; None if it would take them."""
    target = other.find(group[0].target)
    if target is None or target.is_deleted or not handover.exists(to, group[0].target):
        return EntityNotFoundError(group[0].path)
    return target.refusal_of([one.stored.parts for one in group])


class Handover:
    """The deliveries between all stores of a namespace.

    Args:
        main: the outbox of the catalog's store.
        stores: of fragments.
        whole: returns the partitioned entity that a number in a store of fragments belongs to; None if there is none.

    Attributes:
        on_left: called when messages have left a line.
    """

    def __init__(self, main: Outbox, stores: FragmentStores, whole: Callable[[int], Partitioned[Any] | None]) -> None:
        self._main = main
        self._stores = stores
        self._whole = whole
        self._pauses = 0
        self.on_left: Callable[[], None] = lambda: None
        main.handover = self
        stores.on_engine = self._add

    def _add(self, store: FragmentStore) -> None:
        assert store.engine is not None
        store.engine.outbox.handover = self

    def outbox(self, index: int) -> Outbox | None:
        """The outbox of a store; None if it is down."""
        if not index:
            return self._main
        store = self._stores.get(index - 1)
        return store.engine.outbox if store.engine is not None and store.is_up else None

    def may_deliver(self, index: int) -> bool:
        """Whether a store's messages may leave it now."""
        return not self._pauses and self.outbox(index) is not None

    def exists(self, to: int, number: int) -> bool:
        """Whether the entity that has a number in a store is in the catalog."""
        if not to:
            return True
        whole = self._whole(number)
        return whole is not None and not whole.is_deleted

    def is_ready(self, to: int, number: int, call: Callable[[], None]) -> bool:
        """Whether the row of that entity is durable; if not, `call` is called once it is."""
        whole = self._whole(number) if to else None
        if whole is None or whole.is_durable:
            return True
        whole.when_durable(call)
        return False

    @property
    def _lanes(self) -> Iterator[_Lane]:
        yield from self._main.lanes
        for store in self._stores:
            if store.engine is not None:
                yield from store.engine.outbox.lanes

    def pump(self) -> None:
        """Retry all lines."""
        for lane in self._lanes:
            lane.pump()

    def pause(self) -> None:
        """Begin no more deliveries until `resume`: a copy of all stores is consistent when none is in progress."""
        self._pauses += 1

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        self.pump()

    @property
    def is_quiet(self) -> bool:
        """Whether no delivery is in progress."""
        return not any(lane.is_busy for lane in self._lanes)

    def statistics(self) -> dict[str, int]:
        """Messages in the lines between stores."""
        return {"crossing_messages": sum(lane.waiting for lane in self._lanes)}
