"""A topic: numbers messages and copies them to the subscriptions whose rules select them.

What it is: an `Intake` whose messages go on at once; it holds only scheduled messages itself.
Spec: SERVICE-BUS.md W14, 5.4, 5.8.

Invariants:
    I1. All copies of a message, and the topic's numbering, are staged in one batch with its acceptance.
    I2. A copy carries the topic's sequence number as enqueue-sequence-number; messages keep the topic's order in every
        subscription.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isthmus.entities.amend import Stored
from isthmus.entities.description import EntityStatus
from isthmus.entities.intake import Context, Intake
from isthmus.entities.queue import Queue
from isthmus.entities.record import Parts
from isthmus.entities.selection import Selection
from isthmus.entities.view import MessageView

__all__ = ["Topic"]

_FILTER_FAILED = "FilterEvaluationException"


class _Subscriber(NamedTuple):
    queue: Queue
    selection: Selection
    dead_letters_failures: bool


class Topic(Intake):
    """Where publishers send.

    Attributes:
        path: canonical name.
        max_message_size_bytes: of one message.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self._subscribers: dict[str, _Subscriber] = {}

    def reload(self, state: bytes | None) -> None:
        super().reload(state)
        self._subscribers.clear()

    def configure(
        self,
        *,
        status: EntityStatus,
        default_ttl_ms: int,
        quota_megabytes: int,
        max_message_size_bytes: int | None,
        duplicate_window_ms: int,
    ) -> None:
        """Take the settings of a description."""
        self._configure(
            status=status,
            default_ttl_ms=default_ttl_ms,
            quota_megabytes=quota_megabytes,
            max_message_size_bytes=max_message_size_bytes,
            duplicate_window_ms=duplicate_window_ms,
        )

    def subscribe(self, name: str, queue: Queue, selection: Selection, *, dead_letters_failures: bool) -> None:
        """Add a subscription, or replace its rules; `name` in lower case."""
        self._subscribers[name] = _Subscriber(queue, selection, dead_letters_failures)

    def unsubscribe(self, name: str) -> None:
        """Take a subscription off; no error if unknown."""
        self._subscribers.pop(name, None)

    @property
    def queues(self) -> Iterator[Queue]:
        """The subscriptions' queues."""
        return (subscriber.queue for subscriber in self._subscribers.values())

    def stored_bytes(self) -> int:
        return super().stored_bytes() + sum(queue.stored_bytes() for queue in self.queues)

    def _take(
        self, accepted: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        first = self.last + 1
        self.last += len(accepted)
        self._staging.touch(self)
        numbers = range(first, self.last + 1) if origins is None else origins
        views: list[MessageView] | None = None
        for queue, selection, dead_letters_failures in self._subscribers.values():
            if selection.takes_all:
                queue.store(accepted, now_ms, numbers, fed=True, hops=hops)
                continue
            if selection.takes_none:
                continue
            if views is None:
                views = [MessageView(parts, number, now_ms) for parts, number in zip(accepted, numbers, strict=True)]
            self._select(queue, selection, views, dead_letters_failures, hops)

    def _select(
        self, queue: Queue, selection: Selection, views: list[MessageView], dead_letters_failures: bool, hops: int
    ) -> None:
        chosen: list[Parts] = []
        origins: list[int] = []
        for view in views:
            copies, failed = selection.copies(view)
            for parts in copies:
                chosen.append(parts)
                origins.append(view.sequence)
            if failed is not None and not copies and dead_letters_failures and queue.dead_letters is not None:
                stored = Stored(view.parts, view.sequence, view.enqueued_ms, view.sequence, hops)
                queue.dead_letters.store_dead([stored], queue.path, _FILTER_FAILED, str(failed))
        if chosen:
            queue.store(chosen, views[0].enqueued_ms, origins, fed=True, hops=hops)
