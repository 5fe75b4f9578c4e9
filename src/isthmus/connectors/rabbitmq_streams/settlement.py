"""The settlement of a stream's delivered messages.

What it is: completion, release, and the copies of messages that are set aside, on the account of read messages; dispositions that a log
does not support are refused, and the source is lost once all messages in flight are settled. What it is not: the consumer (`source`), or a
checkpoint's writing.

Invariants:
    I1. A message that is set aside is settled once its copy is confirmed; if the connection is lost before, it is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.rabbitmq.dead_letter import DeadLetters
from isthmus.connectors.rabbitmq_streams.option import StreamOptions
from isthmus.connectors.refused import Refused

__all__ = ["PARTITION", "Settlement"]

PARTITION = 0


class _Aside(NamedTuple):
    position: int
    tag: int


class Settlement:
    """The settlement of one source.

    Args:
        options: of the source.
        reading: the account.
        dead: publishes the copies of messages that are set aside.

    Attributes:
        dead: see above.
        refused: the unsupported dispositions.
    """

    def __init__(self, options: StreamOptions, reading: Reading, dead: DeadLetters) -> None:
        self._options = options
        self._reading = reading
        self._aside: set[int] = set()  # positions whose copies are unconfirmed
        self.dead = dead
        self.refused = Refused()

    def settle(self, first: int, last: int, disposition: Disposition | None, *, is_open: bool, now: float) -> None:
        """Settles delivered positions.

        Args:
            first: the first.
            last: the last.
            disposition: None completes them.
            is_open: whether the source is open.
            now: monotonic time.
        """
        if disposition is None or disposition.kind == "complete":
            self.dead.forget(first, last)
            self._reading.settle(first, last, now)
        elif disposition.kind == "abandon":
            self.release(first, last)
        elif disposition.kind == "dead-letter" and self._options.dead_letters:
            account = self._reading.account.partitions.get(PARTITION)
            found = [each for each in range(first, last + 1) if account is not None and each in account.unsettled]
            entries = [_Aside(each, each + 1) for each in found if each not in self._aside]
            self._aside.update(found)
            if is_open:
                self.dead.set_aside(entries, disposition)
            else:
                self.release(first, last)  # it is read again, and then set aside
        elif disposition.kind == "dead-letter":
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            hint = "; name a dead_letter_topic at the source, or let refusals block"
            self._refuse(first, last, f"be set aside ({reason}){hint}")
        else:
            self._refuse(first, last, f"get the disposition '{disposition.kind}', which a log does not support")

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        self.dead.forget(first, last)
        self._aside.difference_update([each for each in self._aside if first <= each <= last])
        self._reading.release(first, last)

    def confirmed(self, tags: Sequence[int], now: float) -> None:
        """The copies are stored."""
        for tag in tags:
            self._aside.discard(tag - 1)
            self._reading.settle(tag - 1, tag - 1, now)

    def lost(self) -> None:
        """The connection is lost: messages with unconfirmed copies are read again."""
        self.dead.lost()
        for position in sorted(self._aside):
            self._reading.release(position, position)
        self._aside.clear()

    def take_refused(self, now: float) -> str:
        """Why the source is lost now; empty: it is not lost yet."""
        return self.refused.take(now, self._reading.outstanding)

    def _refuse(self, first: int, last: int, what: str) -> None:
        """The source will be lost: messages in flight are settled before, or they would be redelivered each time."""
        text = f"stream '{self._options.topic}': the message at offset {first} would have to {what}"
        self.refused.add(text, last - first + 1)
        self._reading.queue.credit = 0
