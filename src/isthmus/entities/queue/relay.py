"""The forwarding of an entity's messages to another one.

What it is: forwarding as the source sees it, a part of a queue that forwards (`forward`). A message that arrives
while none waits is forwarded immediately and is never stored here. Messages that were here before forwarding began, or that arrived while the entity's receive status was disabled, are moved in
groups, each in one commit. What it is not: the hop itself (`onward`).
Spec: docs/explanation/protocol.md, Forwarding; docs/explanation/forwarding.md.

Invariants:
    I1. A message is removed here in the batch that stages it elsewhere.
    I2. A message never overtakes an earlier one.
    I3. A message that the target refuses is dead-lettered with the reason; if the target is deleted, in the transfer dead-letter
        queue. Dead letters that the target refuses stay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from isthmus.entities.error import InvalidMessageError, SessionRequiredError, TooManyHopsError
from isthmus.entities.queue.backlog import sequences_of
from isthmus.entities.queue.dead_letter import set_aside
from isthmus.entities.queue.expiry import ExpiringQueue, next_pairs
from isthmus.entities.queue.onward import Onward
from isthmus.entities.queue.run import RunSet
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import Stored, as_new, as_passed, take_apart
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.key import unpack_message
from isthmus.entities.storage.staging import Callback
from isthmus.errors import MessageTooLargeError, StoreError

__all__ = ["Relay", "forward"]

_log = logging.getLogger(__name__)

# Messages moved in one commit, and the most bytes of them together: the loop serves others in between.
_GROUP = 1000
_GROUP_BYTES = 8 << 20
# Reasons for which a dead letter cannot go to the target in its present state: it must not block those behind it.
_NEVER = (TooManyHopsError, SessionRequiredError, InvalidMessageError, MessageTooLargeError)


class RelaySource(ExpiringQueue, Protocol):
    """The queue that forwards.

    Attributes:
        relay: the forwarding of its messages; None where they stay.
    """

    relay: Relay | None

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted."""
        ...

    @property
    def has_available(self) -> bool:
        """Whether `next_pairs` would find something."""
        ...

    @property
    def gives_messages(self) -> bool:
        """Whether its status lets receivers have messages."""
        ...

    def pass_numbers(self, count: int) -> range:
        """Numbers for messages that are not stored here."""
        ...

    def add_listener(self, listener: Callback) -> None:
        """Call whenever something became available."""
        ...

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`."""
        ...


class Relay:
    """The forwarding of one queue.

    Args:
        queue: the source.
        onward: the target.
    """

    __slots__ = ("_queue", "_resting", "_stuck", "onward")

    def __init__(self, queue: RelaySource, onward: Onward) -> None:
        self.onward = onward
        self._queue = queue
        self._stuck = RunSet()
        self._resting = False

    def reset(self) -> None:
        """A commit has failed: nothing is taken."""
        self._stuck.clear()
        self._resting = True  # the disk must not be read again immediately: `retry` is called later

    def retry_refused(self) -> None:
        """Retry dead letters that could not go to the target in its earlier state."""
        self._queue.backlog.put_back(self._stuck)
        self._stuck.clear()

    # ---- new messages

    @property
    def passes(self) -> bool:
        """Whether a message that arrives now is forwarded immediately."""
        return not self._queue.active_count and self._queue.gives_messages

    def pass_on(
        self, messages: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        """Stage messages that have just arrived at the target; arguments as for `Backlog.store`."""
        queue = self._queue
        numbers = queue.pass_numbers(len(messages))
        sources = numbers if origins is None else origins
        for index, error in self.onward.move(messages, sources, now_ms, hops):
            set_aside(queue, Stored(messages[index], numbers[index], now_ms, sources[index], hops), error)

    def pass_dead(self, messages: Sequence[Stored]) -> Sequence[Stored]:
        """Forward dead letters immediately; returns those that have to stay."""
        if self._queue.active_count:
            return messages
        stay: list[Stored] = []
        now_ms = self._queue.context.clock.wall_ms()
        for hops, group in groupby(messages, key=lambda stored: stored.hops):
            together = list(group)
            parts = [as_passed(stored) for stored in together]
            failed = self.onward.move(parts, [stored.origin for stored in together], now_ms, hops)
            stay += [together[index] for index, _ in failed]
        return stay

    # ---- waiting messages

    def pump(self) -> None:
        """Stage the move of a group of waiting messages; the commit that moves it calls again while there are more."""
        queue = self._queue
        if self._resting or queue.is_deleted or not queue.has_available or not queue.gives_messages:
            return
        if queue.keeps_dead_letters and not self.onward.is_open:
            return
        mean = queue.size_bytes // max(1, queue.active_count) + 1
        staging = queue.context.staging
        drops = staging.drops
        try:
            pairs = next_pairs(queue, max(1, min(_GROUP, _GROUP_BYTES // mean)))
        except StoreError as error:
            if staging.drops != drops:
                raise  # everything staged has failed
            # A failed read of one entity must not stop the others, nor a change of settings.
            self._resting = True
            _log.error(
                "messages that wait to be forwarded cannot be read, retried later: entity=%r reason=%s",
                queue.path,
                error,
            )
            return
        # Some may be staged at the target and not removed here, and messages taken from the backlog are not locked.
        with staging.whole(begun=bool(pairs)):
            blocked = bool(pairs) and self._move_on(pairs)
        if not blocked and queue.has_available:
            queue.backlog.has_news = True
            staging.touch(queue)

    def retry(self) -> None:
        """As `pump`, also after a commit or a read has failed."""
        self._resting = False
        self.pump()

    def _move_on(self, pairs: Sequence[Pair]) -> bool:
        """Move messages; returns whether dead letters have to wait for room at the target."""
        queue = self._queue
        now_ms = queue.context.clock.wall_ms()
        are_dead = queue.keeps_dead_letters
        forwarded: list[Pair] = []
        blocked = False
        entries = [(pair, take_apart(pair[1])) for pair in pairs]
        for hops, group in groupby(entries, key=lambda entry: entry[1].hops):
            together = list(group)
            parts = [as_passed(stored) if are_dead else as_new(stored.parts) for _, stored in together]
            origins = [stored.origin for _, stored in together]
            failed = dict(self.onward.move(parts, origins, now_ms, hops))
            for index, (pair, stored) in enumerate(together):
                error = failed.get(index)
                if error is None or not are_dead:
                    forwarded.append(pair)
                    if error is not None:
                        set_aside(queue, stored, error)
                    continue
                sequence = unpack_message(pair[0])
                if isinstance(error, _NEVER):
                    self._stuck.add(sequence, sequence)
                else:
                    blocked = True
                    queue.backlog.put_back([(sequence, sequence)])
        if forwarded:
            queue.backlog.remove(queue, sequences_of(forwarded), sum(len(record) for _, record in forwarded))
        return blocked


def forward(queue: RelaySource, onward: Onward | None) -> None:
    """Forward messages of a queue from now on, or keep them (None). Waiting ones are moved by `Relay.retry`."""
    relay = queue.relay
    if relay is None:
        if onward is not None:
            queue.relay = Relay(queue, onward)
            queue.add_listener(queue.relay.pump)
        return
    relay.retry_refused()
    if onward is not None:
        relay.onward = onward
    else:
        relay.reset()
        queue.remove_listener(relay.pump)
        queue.relay = None
