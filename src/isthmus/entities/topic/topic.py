"""A topic: numbers messages and copies them to the subscriptions whose rules select them.

What it is: an `Intake` that copies its messages immediately, as far as the budget of a commit allows (`fan_out`). Further messages wait
in the topic, stored once and in the batch of their acceptance, and are copied in slices, each of them one commit. What it is
not: the choice of the copies (`selection`). See docs/explanation/store.md.

Invariants:
    I1. Messages are accepted whole: with their acceptance each is copied, or stored here to be copied. A slice's copies and
        the removal of the copied messages, down to the subscription reached, are one batch: no kill loses or doubles a copy.
    I2. A copy carries the topic's sequence number as enqueue-sequence-number; messages keep the topic's order in every
        subscription.
    I3. Senders get their outcome when all copies are durable: their credit limits how far they are ahead of the
        copying.
    I4. A slice ends when its budget is spent, also between two subscriptions of one message.
    I5. A waiting message that cannot be parsed is set aside under a key of its own and named in the log; those behind
        it are copied. A message that cannot be read stays where it is, with all that are behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from isthmus.entities.member.context import Context
from isthmus.entities.queue import dead_letter
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import Stored, take_apart
from isthmus.entities.record.record import Parts, build_many
from isthmus.entities.record.view import MessageView
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import MESSAGE, UNREADABLE, message_key, message_span, unpack_message
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.entities.topic.answer import Answers
from isthmus.entities.topic.fan_out import CopyBudget
from isthmus.entities.topic.selection import Selection
from isthmus.errors import StoreError

__all__ = ["Topic"]

_log = logging.getLogger(__name__)

_FILTER_FAILED = "FilterEvaluationException"
# Waiting messages read in one call, and copied between two checks of the time where there are rules.
_READ_AT_ONCE = 1000
_RULE_UNITS = 512
# Copied messages are removed in ranges of so many: every range tombstone makes scans of the store slower.
_CLEAN_MESSAGES = 8192


class _Subscriber(NamedTuple):
    queue: Queue
    selection: Selection
    dead_letters_failures: bool


class Topic(Intake):
    """The entity to which publishers send.

    Attributes:
        path: canonical name.
        max_message_size_bytes: of one message.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self._prefix = message_key(MESSAGE, number, 0)[:-8]
        self._subscribers: dict[str, _Subscriber] = {}
        # The cost of one message for all subscriptions together, and whether they have rules.
        self._cost = 0
        self._has_rules = False
        self._answers = Answers()
        self._enlist()

    def reload(self, state: bytes | None) -> None:
        super().reload(state)
        # The subscriptions of a fragment stay: the catalog sets them, has not failed with this store, and removes deleted ones.
        # A transaction that was begun before may end before the catalog updates the fragment.
        if not self.is_fragment:
            self._subscribers.clear()
            self._reckon()
        self._enlist()
        self.notify_senders()

    def wipe(self) -> None:
        self.context.fan_out.discard(self)
        super().wipe()
        self.notify_senders()

    def _enlist(self) -> None:
        if self.has_waiting:
            self.context.fan_out.add(self)
        else:
            self.context.fan_out.discard(self)

    def subscribe(self, name: str, queue: Queue, selection: Selection, *, dead_letters_failures: bool) -> None:
        """Add a subscription, or replace its rules; `name` in lower case."""
        self._subscribers[name] = _Subscriber(queue, selection, dead_letters_failures)
        self._reckon()

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; no error if unknown."""
        self._subscribers.pop(name, None)
        self._reckon()

    def _reckon(self) -> None:
        subscribers = self._subscribers.values()
        self._cost = sum(one.selection.cost for one in subscribers)
        self._has_rules = any(not one.selection.takes_all for one in subscribers)
        # The quota counts the copies that are certain to be made.
        self.quota.copies = sum(one.selection.takes_all and one.queue.relay is None for one in subscribers)

    @property
    def queues(self) -> Iterator[Queue]:
        """The subscriptions' queues."""
        return (subscriber.queue for subscriber in self._subscribers.values())

    def stored_bytes(self) -> int:
        return super().stored_bytes() + sum(queue.stored_bytes() for queue in self.queues)

    # ---- taking messages

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        messages = self.examine(payloads)
        with self._staging.whole():
            self.enter(messages, self.context.clock.wall_ms())
        if self.active_count and on_durable is not None:
            last, on_copied = self.last, on_durable
            self._staging.promise(lambda: self._call_when_copied(last, on_copied), on_failed)
        else:
            self._staging.promise(on_durable, on_failed)

    def _take(
        self, accepted: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        first = self.last + 1
        self.last += len(accepted)
        self._staging.touch(self)
        done = after = 0
        if not self.active_count and not self._is_copying:
            numbers = range(first, self.last + 1) if origins is None else origins
            done, after = self._copy(accepted, numbers, now_ms, hops, 0, self.context.fan_out.sent)
        if done < len(accepted):
            rest = None if origins is None else origins[done:]
            self._keep(accepted[done:], first + done, now_ms, rest, hops, after)

    def _copy(
        self, messages: Sequence[Parts], numbers: Sequence[int], now_ms: int, hops: int, after: int, budget: CopyBudget
    ) -> tuple[int, int]:
        """Stage copies as far as the budget allows.

        Args:
            messages: in order.
            numbers: per message the sequence number where it first entered.
            now_ms: enqueued time.
            hops: how often they were forwarded.
            after: number of the last subscription that has the first message already; 0: none has.
            budget: the limit.

        Returns:
            How many messages were copied to all, and the number of the last subscription that has the next one; 0: none has.
        """
        if not self._cost:
            return len(messages), 0
        self._is_copying = True
        try:
            return self._copy_within(messages, numbers, now_ms, hops, after, budget)
        finally:
            self._is_copying = False

    # A message that arrives meanwhile was forwarded by a subscription to this topic; it waits behind those being copied.
    _is_copying = False

    def _copy_within(
        self, messages: Sequence[Parts], numbers: Sequence[int], now_ms: int, hops: int, after: int, budget: CopyBudget
    ) -> tuple[int, int]:
        total, at = len(messages), 0
        budget.begin()
        while at < total and not budget.is_over:
            count = size_bytes = 0
            if not after:
                units = max(_RULE_UNITS, self._cost) if self._has_rules else budget.units
                count, size_bytes = budget.fitting(messages, at, len(self._subscribers), self._cost, units)
            if count:
                part, origins = messages[at : at + count], numbers[at : at + count]
                views: list[MessageView] = []
                for subscriber in self._subscribers.values():
                    self._feed(subscriber, part, origins, views, now_ms, hops)
                budget.spend(count * self._cost, size_bytes)
                at += count
                continue
            after = self._copy_divided(messages[at], numbers[at], now_ms, hops, after, budget)
            if after:
                break
            at += 1
        return at, after

    def _copy_divided(self, parts: Parts, number: int, now_ms: int, hops: int, after: int, budget: CopyBudget) -> int:
        """Stage one message's copies, subscription by subscription; returns the last one that got its copy, 0 if all did."""
        views: list[MessageView] = []
        in_order = sorted(self._subscribers.values(), key=lambda subscriber: subscriber.queue.number)
        for subscriber in in_order:
            if subscriber.queue.number <= after:
                continue
            if budget.is_over:
                return after
            self._feed(subscriber, [parts], [number], views, now_ms, hops)
            budget.spend(subscriber.selection.cost, len(parts.rest))
            after = subscriber.queue.number
        return 0

    def _feed(
        self,
        subscriber: _Subscriber,
        messages: Sequence[Parts],
        numbers: Sequence[int],
        views: list[MessageView],
        now_ms: int,
        hops: int,
    ) -> None:
        """Stage the copies for one subscription; `views` is filled when rules first need them."""
        queue, selection, dead_letters_failures = subscriber
        if selection.takes_all:
            queue.store(messages, now_ms, numbers, fed=True, hops=hops)
        elif not selection.takes_none:
            if not views:
                views += [MessageView(parts, number, now_ms) for parts, number in zip(messages, numbers, strict=True)]
            self._select(queue, selection, views, dead_letters_failures, hops)

    # ---- messages that wait to be copied

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait to be copied."""
        return self.active_count > 0 and not self.is_deleted

    def _keep(
        self,
        messages: Sequence[Parts],
        first: int,
        now_ms: int,
        origins: Sequence[int] | None,
        hops: int,
        after: int,
    ) -> None:
        """Store messages that are to be copied later."""
        if not self.active_count or first < self.head:
            # Messages copied in this commit may still be between the two.
            self.cleaned = first if self.cleaned == self.head else min(first, self.cleaned)
            self.head = first
            self.mark = after
        pairs, size, blobs = build_many(messages, first, now_ms, self._prefix, origins, hops)
        put = self._staging.batch.put
        for key, record in pairs:
            put(key, record)
        for sequence, blob in blobs:
            self.context.blobs.refer(self.number, sequence, blob, self.quota_number)
        self.active_count += len(pairs)
        self.size_bytes += size
        self._enlist()

    def go_on(self, pairs: Sequence[Pair], budget: CopyBudget) -> None:
        """Copy waiting messages, as far as the budget allows.

        Args:
            pairs: the result of `read_waiting`, not empty.
            budget: the limit.

        Raises:
            StoreError: the store refused.
        """
        waiting = _readable(pairs)
        if not waiting:
            self._set_aside(*pairs[0])
            return
        done = 0
        for (enqueued_ms, hops), group in groupby(waiting, key=lambda stored: (stored.enqueued_ms, stored.hops)):
            together = list(group)
            # A default of more than 49 days is in no header, and so in no stored message.
            messages = self._examination.capped([stored.parts for stored in together])
            numbers = [stored.origin for stored in together]
            count, self.mark = self._copy(messages, numbers, enqueued_ms, hops, self.mark, budget)
            done += count
            if count < len(together):
                break
        if done:
            self._pass(pairs[:done])
        self._staging.touch(self)

    def _pass(self, pairs: Sequence[Pair]) -> None:
        """Record that the first waiting messages are copied."""
        self.active_count -= len(pairs)
        self.size_bytes -= sum(len(record) for _, record in pairs)
        self.head = unpack_message(pairs[-1][0]) + 1

    def _set_aside(self, key: bytes, record: bytes) -> None:
        """Move the first waiting message to a key of its own, and continue behind it."""
        sequence = unpack_message(key)
        _log.error(
            "message not copied, the stored row is not a message: topic=%r sequence=%d bytes=%d; "
            "it is set aside; restore a back-up to get it",
            self.path, sequence, len(record),
        )  # fmt: skip
        self._staging.batch.put(message_key(UNREADABLE, self.number, sequence), record)
        self.mark = 0
        self._pass([(key, record)])
        self._staging.touch(self)

    def read_waiting(self, budget: CopyBudget) -> list[Pair]:
        """The first waiting messages, as many as a slice may copy; only those whose acceptance is durable.

        Raises:
            StoreError: the first one cannot be read.
        """
        pairs: list[Pair] = []
        limit = min(_READ_AT_ONCE, budget.units // max(1, self._cost) + 1)
        size_bytes = budget.size_bytes // max(1, len(self._subscribers))
        try:
            for pair in self._staging.journal.scan(*message_span(MESSAGE, self.number, self.head, self.committed)):
                pairs.append(pair)
                size_bytes -= len(pair[1])
                if len(pairs) == limit or size_bytes <= 0:
                    break
        except StoreError:
            if not pairs:
                raise
        return pairs

    def stage_state(self, batch: Batch) -> None:
        if (
            self.head > self.cleaned
            and not self.is_deleted
            and (not self.active_count or self.head - self.cleaned >= _CLEAN_MESSAGES)
        ):
            batch.delete_range(*message_span(MESSAGE, self.number, self.cleaned, self.head - 1))
            self.cleaned = self.head
        super().stage_state(batch)

    # ---- group commit

    def seal(self) -> Any:
        return self.last, self.head if self.active_count else self.last + 1

    def publish(self, sealed: Any) -> None:
        last, copied = sealed
        super().publish(last)
        self._answers.copied(copied)

    def _call_when_copied(self, last: int, on_copied: Callback) -> None:
        """A sender's messages up to a number are durable: call back when their copies are, too (I3)."""
        if self.active_count:
            self._answers.wait(last, on_copied)
        else:
            on_copied()

    def notify_senders(self) -> None:
        self._answers.call_all()

    # ---- the choice of copies

    def _select(
        self, queue: Queue, selection: Selection, views: list[MessageView], dead_letters_failures: bool, hops: int
    ) -> None:
        chosen: list[Parts] = []
        origins: list[int] = []
        for view in views:
            try:
                copies, failed = selection.copies(view)
            except Exception as fault:  # noqa: BLE001 - one rule's fault must not stop the copies of all others
                copies, failed = [], fault
            for parts in copies:
                chosen.append(parts)
                origins.append(view.sequence)
            if failed is not None and not copies and dead_letters_failures and queue.dead_letters is not None:
                stored = Stored(view.parts, view.sequence, view.enqueued_ms, view.sequence, hops)
                dead_letter.store(queue.dead_letters, [stored], queue.path, _FILTER_FAILED, str(failed))
        if chosen:
            queue.store(chosen, views[0].enqueued_ms, origins, fed=True, hops=hops)


def _readable(pairs: Sequence[Pair]) -> list[Stored]:
    """The messages of rows, up to the first row that cannot be parsed."""
    found: list[Stored] = []
    for key, record in pairs:
        try:
            stored = take_apart(record)
        except Exception:  # noqa: BLE001 - bytes of any kind, read by offset
            break
        if stored.sequence != unpack_message(key):
            break
        found.append(stored)
    return found
