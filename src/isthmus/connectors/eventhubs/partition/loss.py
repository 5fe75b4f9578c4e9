"""What an event hub has lost unread: each loss is told once, with its range.

What it is: what was told, and the look that tells whether sequence numbers that did not come were removed. What it is not: the opening
(`isthmus.connectors.eventhubs.source`), or the account of what was read (`reading`).

Invariants:
    I1. An event is told once, before anything behind it is given: each method that finds some raises, and finds them known the next time.
    I2. So is that a partition was made again, each time that it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.eventhubs.partition.look import HubLook
from isthmus.connectors.eventhubs.partition.opening import Opening
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.errors import ConnectionLostError, OperationTimeoutError
from isthmus.transport import Client

__all__ = ["LOOK_SECONDS", "Losses"]

# No checkpoint passes a gap before its look is answered.
LOOK_SECONDS = 30.0


class Losses:
    """The losses of one source.

    Args:
        path: tells that of the event hub, which a connection may tell of first.
        reading: its gaps are looked at.
        mark: called when the look has an answer.

    Attributes:
        deadline: when a look that has no answer has failed; infinite where there is none.
    """

    def __init__(self, path: Callable[[], str], reading: Reading, mark: Callable[[], None]) -> None:
        self._path = path
        self._reading = reading
        self._mark = mark
        self._told: dict[int, IndexSet] = {}  # by partition
        self._remade: set[int] = set()  # partitions of which it was told
        self._look: HubLook | None = None
        self.deadline = math.inf
        self._looked_at: dict[int, list[tuple[int, int]]] = {}  # gaps that there were when it began

    def knows_of_remake(self, number: int) -> None:
        """That a partition was made again has been told."""
        self._remade.add(number)
        self._told.pop(number, None)  # its sequence numbers name other events

    def reads_again(self, numbers: Iterable[int]) -> None:
        """Partitions that were made again are read from their beginning from now on."""
        self._remade.difference_update(numbers)

    def check_openings(self, openings: Mapping[int, Opening]) -> None:
        """Fails an opening once for what is lost; the next one continues behind it.

        Raises:
            ConnectionLostError: something is lost that was not told.
        """
        texts = []
        for number, each in openings.items():
            if each.lost is not None:
                texts += self._news(number, *each.lost)
            elif each.begins_again and number not in self._remade:
                self.knows_of_remake(number)
                texts.append(f"partition {number}: the event hub was made again, and is read from its beginning")
        if texts:
            raise ConnectionLostError(f"event hub '{self._path()}': {'; '.join(texts)}")

    def look(self, client: Client, now: float) -> None:
        """Sequence numbers that did not come were compacted away, or removed by the retention before they were read.

        Raises:
            ConnectionLostError: they were removed, and it was not told.
            IsthmusError: the namespace refuses the look, or gives no answer.
        """
        look = self._look
        if look is None:
            if self._reading.gaps:
                self._looked_at = {number: list(gaps) for number, gaps in self._reading.gaps.items()}
                self._look = HubLook(client, self._path(), self._mark, set(self._looked_at))
                self.deadline = now + LOOK_SECONDS
            return
        look.advance()
        if not look.is_done:
            if now >= self.deadline:
                self.close()
                raise OperationTimeoutError(
                    f"event hub '{self._path()}': waited {LOOK_SECONDS:g} s for an answer to what was removed; look whether the server answers"
                )
            return
        self.close()
        lost = []
        for number, view in look.views.items():
            for first, stop in self._taken(number):
                lost += self._news(number, first, min(stop, view.begin) - 1)
        if lost:  # also where the look failed for another partition: it is known now
            raise ConnectionLostError(f"event hub '{self._path()}': {'; '.join(lost)}")
        if look.error is not None:
            raise look.error

    def close(self) -> None:
        """Ends a look that is under way."""
        self.deadline = math.inf
        if self._look is not None:
            self._look.close()
            self._look = None

    def _taken(self, number: int) -> list[tuple[int, int]]:
        """The gaps that a look has seen. Those that came since it began stay for the next one: its answer may be from before them."""
        seen = self._looked_at.pop(number, [])
        later = [each for each in self._reading.gaps.pop(number, []) if each not in seen]
        if later:
            self._reading.gaps[number] = later
        return seen

    def _news(self, number: int, first: int, last: int) -> list[str]:
        """What of a range has not been told yet (I1); it is told now."""
        told, news = self._told.setdefault(number, IndexSet()), IndexSet()
        if first <= last:
            news.add(first, last + 1)
        for start, stop in told:
            news.remove(start, stop)
        for start, stop in news:
            told.add(start, stop)
        return [
            f"partition {number}: events {start} to {stop - 1} were removed by the retention before they were read, and are lost; reading "
            f"continues at {last + 1}"
            for start, stop in news
        ]
