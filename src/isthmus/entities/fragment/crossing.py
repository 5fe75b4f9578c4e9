"""The route from one entity to a queue or topic that is, in whole or in part, in another store.

What it is: a target as one source sees it: the choice of the fragment for each message, the messages that go there in the same batch since it is
in the source's own store, and those that enter the line to another one. What it is not: the line (`handover`).
Spec: docs/explanation/protocol.md, Forwarding, Entities; docs/explanation/forwarding.md.

Invariants:
    I1. Messages of one key keep their order; those without a key go, together, to a fragment in the source's store if
        one there is up, since that needs no second store.
    I2. A message that the target would refuse is refused here, so that its source gets the reason; the target is asked again when
        messages arrive from a line. A message whose body cannot be read is refused by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.member.context import StoreOutbox
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import End, Target
from isthmus.entities.record.record import Parts, size_of
from isthmus.errors import InvalidArgumentError, IsthmusError, MessageTooLargeError, StoreError

__all__ = ["Crossing", "route_finder"]

_log = logging.getLogger(__name__)


class Crossing:
    """A target as one source sees it.

    Args:
        source: the entity that messages leave.
        outbox: of its store.
        target: the queue or topic.
        is_via: whether messages are sent via the source.
    """

    def __init__(self, source: Intake, outbox: StoreOutbox, target: Intake | Partitioned[Any], *, is_via: bool) -> None:
        self.target = target
        self._source = source
        self._outbox = outbox
        self._is_via = is_via
        # The last messages asked for, whole, and their ends: `refusal_of` and `accept_moved` must choose alike.
        self._asked: Sequence[Parts] = ()
        self._wholes: list[Parts] = []
        self._ends: dict[End, list[int]] = {}

    @property
    def takes_sends(self) -> bool:
        """Whether the target exists and its status accepts messages."""
        return self.target.takes_sends

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """As `Intake.refusal_of`; for fragments whose store could not be opened, as far as known without it."""
        target = self.target
        refusal = target.refusal()
        if refusal is not None:
            return refusal
        largest = max(map(size_of, messages))
        if largest > target.max_message_size_bytes:
            return MessageTooLargeError(largest, target.max_message_size_bytes)
        try:
            ends = self._choose(messages)
            self._wholes = [self._whole(parts) for parts in messages]
        except (InvalidArgumentError, StoreError) as error:
            self._asked, self._wholes, self._ends = (), [], {}
            return error
        for end, indices in ends.items():
            if end.member is None:
                continue
            # A body that is in a file is read into the message.
            refusal = end.member.refusal_of([messages[index]._replace(blob=None) for index in indices])
            if refusal is not None:
                return refusal
        return None

    def accept_moved(self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, hops: int) -> None:
        """As `Intake.accept_moved`, in the batch of the source's store."""
        ends = self._choose(messages)
        whole = self._wholes or [self._whole(parts) for parts in messages]
        self._asked, self._wholes, self._ends = (), [], {}
        for end, indices in ends.items():
            parts = [whole[index] for index in indices]
            own = [origins[index] for index in indices]
            if end.is_here and end.member is not None:
                end.member.accept_moved(parts, own, now_ms, hops)
                continue
            self._outbox.stage(
                end.to, end.number, self.target.path, self._source, parts, own, now_ms, hops, is_via=self._is_via
            )

    def _choose(self, messages: Sequence[Parts]) -> dict[End, list[int]]:
        """Per end the positions of its messages, in order.

        Raises:
            InvalidMessageError: one has keys that contradict each other.
        """
        if messages is self._asked:
            return self._ends
        ends = self.target.ends(messages, self._outbox.index)
        self._asked, self._wholes, self._ends = messages, [], ends
        return ends

    def _whole(self, parts: Parts) -> Parts:
        """The message with its body, since another store cannot refer to that.

        Raises:
            StoreError: the body cannot be read.
        """
        if parts.blob is None:
            return parts
        files = self._outbox.context.blobs.files
        assert files is not None
        try:
            reader = files.open(parts.blob.number)
            try:
                return parts._replace(rest=parts.rest + reader.read(0, parts.blob.size_bytes), blob=None)
            finally:
                reader.close()
        except StoreError as error:
            _log.error("message not forwarded, its body cannot be read: to=%r reason=%s", self.target.path, error)
            raise StoreError("The message's body cannot be read.") from None


def route_finder(
    source: Intake, find: Callable[[str], Intake | Partitioned[Any] | None], *, is_via: bool = False
) -> Callable[[str], Target | None]:
    """A function that finds the queue or topic of a path for the messages of a source.

    Args:
        source: the entity that they leave.
        find: the entity that has a path now; None if there is none.
        is_via: whether they are sent via the source.
    """
    outbox = source.context.outbox
    assert outbox is not None
    known: Crossing | None = None

    def find_target(path: str) -> Target | None:
        nonlocal known
        target = find(path)
        if target is None or (not target.is_partitioned and not outbox.index):
            return target
        if known is None or known.target is not target:
            known = Crossing(source, outbox, target, is_via=is_via)
        return known

    return find_target
