"""What becomes of events of a hub that were handed on.

What it is: completion, return, and the copies of what is set aside, on the account of what was read; what a log cannot do is refused, and the
source is lost for it once what is under way is settled. What it is not: the link to the hub of dead letters (`dead_letter`), or a checkpoint's
writing (`isthmus.connectors.checkpoint.checkpointer`).

A log has no locks and no dead-letter queue: an event that is given back is read again from its sequence number; one that is set aside goes
to the hub that `dead_letter_topic` names. Without one the source is lost permanently, and says so: the route blocks, and loses nothing.

Invariants:
    I1. An event that is set aside is settled once the hub of dead letters has accepted its copy.
    I2. A source is not lost for what it cannot do while other events are under way, for `SETTLE_SECONDS` at most.
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

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["Settlement"]


class Settlement:
    """That of one source.

    Args:
        reading: the account.
        dead: where what is set aside goes; None: nowhere.
        mark: called when the source has something to do.

    Attributes:
        refused: what cannot be done.
    """

    def __init__(self, reading: Reading, dead: DeadLetterHub | None, mark: Callable[[], None]) -> None:
        self._reading = reading
        self._dead = dead
        self._mark = mark
        self.refused = Refused()

    @property
    def awaits_copies(self) -> bool:
        """Whether events that are under way may have to be set aside: whoever closes the source then loses their copies."""
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
            self._refuse(first, last, f"get the disposition '{disposition.kind}', which a log has not", "")

    def release(self, first: int, last: int) -> None:
        """Gives delivered positions back; they are read again."""
        self._reading.give_back(first, last)
        self._mark()

    def serve(self, client: Client) -> None:
        """Sends copies, and settles what they were made of.

        Raises:
            IsthmusError: the hub of dead letters does not take them.
        """
        dead = self._dead
        if dead is None:
            return
        for position in dead.serve(client):
            self._reading.settle(position, position, time.monotonic())
        if dead.error is not None:
            raise dead.error

    def take_refused(self, now: float) -> str:
        """Why the source is lost now; empty: it is not, or not yet."""
        return self.refused.take(now, self._reading.outstanding)

    def disown(self, partition: int) -> None:
        """A partition was made again: what is being set aside of the one before is done with, as positions name other events."""
        for position in self._dead.disown(partition) if self._dead is not None else ():
            self._reading.settle(position, position, time.monotonic())

    def link_lost(self) -> None:
        """The connection is gone: copies without an answer are sent again over the next."""
        if self._dead is not None:
            self._dead.link_lost()

    def forget(self) -> None:
        """The partitions are another reader's."""
        if self._dead is not None:
            self._dead.forget()

    def _refuse(self, first: int, last: int, what: str, hint: str) -> None:
        """The source is going to be lost: what is under way is settled before, or it would come again each time."""
        place = f"partition {first >> PARTITION_SHIFT}, sequence number {first & (1 << PARTITION_SHIFT) - 1}"
        text = f"the event at {place} would have to {what}"
        self.refused.add(text + (f"; {hint}" if hint else ""), last - first + 1)
        self._reading.queue.credit = 0
        self._mark()
