"""The settlement of a hub's delivered events.

What it is: completion, release, and the copies of events that are set aside, on the account of read events; dispositions that a log does not
support are refused, and the source is lost once all events in flight are settled. What it is not: the link to the hub of dead letters
(`dead_letter`), or a checkpoint's
writing (`isthmus.connectors.checkpoint.checkpointer`).

A log has no locks and no dead-letter queue: a released event is read again from its sequence number; one that is set aside is sent
to the hub `dead_letter_topic`. Without one the source is lost permanently, with an error: the route blocks, and loses nothing.

Invariants:
    I1. An event that is set aside is settled once the hub of dead letters has accepted its copy.
    I2. A source is not lost for unsupported dispositions while other events are in flight, for `SETTLE_SECONDS` at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.eventhubs.dead_letter import DeadLetterHub
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.refused import Refused
from isthmus.connectors.servicebus.port.end import MarkedSender

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["Settlement"]


class Settlement:
    """The settlement of one source.

    Args:
        reading: the account.
        dead: the hub of dead letters; None: there is none.
        mark: called when the source has work.

    Attributes:
        refused: the unsupported dispositions.
    """

    def __init__(self, reading: Reading, dead: DeadLetterHub | None, mark: Callable[[], None]) -> None:
        self._reading = reading
        self._dead = dead
        self._mark = mark
        self.refused = Refused()

    @property
    def awaits_copies(self) -> bool:
        """Whether events in flight may have to be set aside: closing the source then loses their copies."""
        return self._dead is not None and self._reading.outstanding > 0

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        if disposition is None or disposition.kind == "complete":
            self._reading.settle(first, last, time.monotonic())
            if self.refused.text or self._reading.present is not None:
                self._mark()
        elif disposition.kind == "abandon":
            self.release(first, last)
        elif disposition.kind == "dead-letter" and self._dead is not None and self._reading.kept is not None:
            kept = self._reading.kept
            for position in sorted(each for each in kept if first <= each <= last):
                self._dead.add(position, kept.pop(position), disposition)
        elif disposition.kind == "dead-letter":
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            hint = "name a dead_letter_topic at the source, or let refusals block"
            self._refuse(first, last, f"be set aside ({reason})", hint)
        else:
            self._refuse(first, last, f"get the disposition '{disposition.kind}', which a log does not support", "")

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        self._reading.release(first, last)
        self._mark()

    @property
    def is_full(self) -> bool:
        """Whether so many copies wait to be stored that the source must deliver nothing more."""
        return self._dead is not None and self._dead.is_full

    @property
    def senders(self) -> tuple[MarkedSender, ...]:
        """The link to the hub of dead letters, where there is one."""
        return () if self._dead is None else self._dead.senders

    def serve(self, client: Client) -> None:
        """Sends copies, and settles their originals.

        Raises:
            IsthmusError: the hub of dead letters does not accept them.
        """
        dead = self._dead
        if dead is None:
            return
        for position in dead.serve(client):
            self._reading.settle(position, position, time.monotonic())
        if dead.error is not None:
            raise dead.error

    def take_refused(self, now: float) -> str:
        """Why the source is lost now; empty: it is not lost yet."""
        return self.refused.take(now, self._reading.outstanding)

    def disown(self, partition: int) -> None:
        """A partition was created again: pending copies of the previous one are abandoned, because positions name other events."""
        for position in self._dead.disown(partition) if self._dead is not None else ():
            self._reading.settle(position, position, time.monotonic())

    def link_lost(self) -> None:
        """The connection is lost: unanswered copies are sent again over the next."""
        if self._dead is not None:
            self._dead.link_lost()

    def forget(self) -> None:
        """The partitions belong to another reader."""
        if self._dead is not None:
            self._dead.forget()

    def _refuse(self, first: int, last: int, what: str, hint: str) -> None:
        """The source will be lost: events in flight are settled before, or they would be redelivered each time."""
        origin = f"partition {first >> PARTITION_SHIFT}, sequence number {first & (1 << PARTITION_SHIFT) - 1}"
        text = f"the event at {origin} would have to {what}"
        self.refused.add(text + (f"; {hint}" if hint else ""), last - first + 1)
        self._reading.queue.credit = 0
        self._mark()
