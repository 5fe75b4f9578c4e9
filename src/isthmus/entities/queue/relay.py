"""A backlog whose messages may go on to another entity.

What it is: forwarding as the source sees it. A message that arrives while nothing waits goes on at once and is never
stored here. What stands here when forwarding begins, or came while the entity was closed to receivers, is moved in
groups, each in one commit. What it is not: the hop itself (`onward`).
Spec: docs/explanation/protocol.md, Forwarding; docs/explanation/forwarding.md.

Invariants:
    I1. A message is removed here in the batch that stages it elsewhere.
    I2. A message overtakes none that came before it.
    I3. What the target does not take is dead-lettered with the reason; if the target is gone, in the transfer dead-letter
        queue. Dead letters that the target does not take stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.error import InvalidMessageError, SessionRequiredError, TooManyHopsError
from isthmus.entities.queue.backlog import Backlog, sequences_of
from isthmus.entities.queue.intake import Context
from isthmus.entities.queue.onward import Onward, reason_of
from isthmus.entities.queue.run import RunSet
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import Stored, as_new, as_passed, take_apart
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.key import unpack_message
from isthmus.errors import EntityNotFoundError, IsthmusError, MessageTooLargeError

if TYPE_CHECKING:
    from isthmus.entities.queue.queue import Queue

__all__ = ["Relay"]

# Messages moved in one commit, and how large they may be together: the loop serves others in between.
_GROUP = 1000
_GROUP_BYTES = 8 << 20
# Why a dead letter does not go on to this target as it is: it must not keep those behind it from being looked at.
_NEVER = (TooManyHopsError, SessionRequiredError, InvalidMessageError, MessageTooLargeError)


class Relay(Backlog):
    """Messages that stay, or go on.

    Attributes:
        onward: where they go; None: they stay.
        dead_letters: where those go that cannot; None for a dead-letter queue, which keeps them.
        transfer_dead_letters: where those went whose target was gone; None while there were none.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.onward: Onward | None = None
        self.dead_letters: Queue | None = None
        self.transfer_dead_letters: Queue | None = None
        self._stuck = RunSet()
        self._resting = False

    def reload(self, state: bytes | None) -> None:
        super().reload(state)
        self._stuck.clear()
        self._resting = True  # a disk that refuses must not be asked again at once: `retry` comes in its time

    def wipe(self) -> None:
        self._stuck.clear()
        self.forward_to(None)
        super().wipe()

    def forward_to(self, onward: Onward | None) -> None:
        """Let messages go on from now, or keep them. What waits is moved by `pump`."""
        if self.onward is None and onward is not None:
            self.add_listener(self.pump)
        elif self.onward is not None and onward is None:
            self.remove_listener(self.pump)
        self.look_again()
        self.onward = onward

    def look_again(self) -> None:
        """Let dead letters try again that could not go on to a target as it was."""
        for run in self._stuck:
            self._returned.add(*run)
        self._stuck.clear()

    @property
    def has_listeners(self) -> bool:
        """Whether anybody waits for messages; that they go on is no one's wait."""
        return len(self._listeners) > (self.onward is not None)

    @property
    def transfer_count(self) -> int:
        """Active messages that wait to go on; dead letters that wait so are dead letters still."""
        waiting = self.active_count if self.onward is not None and self.dead_letters is not None else 0
        return waiting + self.leaving_count

    @property
    def _may_move(self) -> bool:
        return self._status not in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)

    # ---- at once

    def store(
        self,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None = None,
        *,
        fed: bool = False,
        hops: int = 0,
    ) -> None:
        if self.onward is None or self.active_count or not self._may_move:
            super().store(messages, now_ms, origins, fed=fed, hops=hops)
            return
        if fed:
            messages = self._capped(messages)
        numbers = self.pass_numbers(len(messages))
        sources = numbers if origins is None else origins
        failed = self.onward.move(messages, sources, now_ms, hops)
        for place, error in failed:
            self.set_aside(Stored(messages[place], numbers[place], now_ms, sources[place], hops), error)

    def pass_numbers(self, count: int) -> range:
        numbers = range(self.last + 1, self.last + 1 + count)
        if self._window.next == numbers.start:
            self._window.skip(numbers[-1])
            self._removed.append((numbers.start, numbers[-1]))
        # Otherwise the cursor finds a gap in their place, in its own time.
        return super().pass_numbers(count)

    def _pass_dead(self, messages: Sequence[Stored]) -> Sequence[Stored]:
        """Let dead letters go on at once; those that have to stay."""
        if self.onward is None or self.active_count:
            return messages
        stay: list[Stored] = []
        now_ms = self._context.clock.wall_ms()
        for hops, group in groupby(messages, key=lambda stored: stored.hops):
            together = list(group)
            parts = [as_passed(stored) for stored in together]
            failed = self.onward.move(parts, [stored.origin for stored in together], now_ms, hops)
            stay += [together[place] for place, _ in failed]
        return stay

    # ---- what waits

    def pump(self) -> None:
        """Stage the move of a group of what waits; the commit that moves it calls again while there is more."""
        onward = self.onward
        if onward is None or self._resting or self.is_deleted or not self.has_available or not self._may_move:
            return
        if self.dead_letters is None and not onward.is_open:
            return
        mean = self.size_bytes // max(1, self.active_count) + 1
        pairs = self._next_pairs(max(1, min(_GROUP, _GROUP_BYTES // mean)))
        # Some may be staged at the target and not be removed here, and what was taken is in nobody's hands.
        with self._staging.whole(begun=bool(pairs)):
            blocked = bool(pairs) and self._move_on(onward, pairs)
        if not blocked and self.has_available:
            self._tell_again = True
            self._staging.touch(self)

    def retry(self) -> None:
        """As `pump`, also after a commit has failed."""
        self._resting = False
        self.pump()

    def _next_pairs(self, limit: int) -> list[Pair]:
        """Up to `limit` messages that may be delivered now, taken."""
        raise NotImplementedError

    def _move_on(self, onward: Onward, pairs: Sequence[Pair]) -> bool:
        """Move messages; whether dead letters have to wait for room at the target."""
        now_ms = self._context.clock.wall_ms()
        gone: list[Pair] = []
        blocked = False
        entries = [(pair, take_apart(pair[1])) for pair in pairs]
        for hops, group in groupby(entries, key=lambda entry: entry[1].hops):
            together = list(group)
            parts = [as_passed(stored) if self.dead_letters is None else as_new(stored.parts) for _, stored in together]
            origins = [stored.origin for _, stored in together]
            failed = dict(onward.move(parts, origins, now_ms, hops))
            for place, (pair, stored) in enumerate(together):
                error = failed.get(place)
                if error is None or self.dead_letters is not None:
                    gone.append(pair)
                    if error is not None:
                        self.set_aside(stored, error)
                    continue
                sequence = unpack_message(pair[0])
                if isinstance(error, _NEVER):
                    self._stuck.add(sequence, sequence)
                else:
                    blocked = True
                    self._returned.add(sequence, sequence)
        if gone:
            self._remove(sequences_of(gone), sum(len(record) for _, record in gone))
        return blocked

    def set_aside(self, stored: Stored, error: IsthmusError) -> None:
        """Stage a message that could not go on where somebody will look for it; not for dead-letter queues."""
        if isinstance(error, EntityNotFoundError):
            queue = self._context.transfer_dead_letters(self)
        else:
            assert self.dead_letters is not None
            queue = self.dead_letters
        queue.store_dead([stored], self.path, reason_of(error), str(error))
