"""The events that were lost unread: each loss is reported once, with its range.

What it is: the reported losses, and the query whether missing sequence numbers were removed. What it is not: the opening
(`isthmus.connectors.eventhubs.source`), or the account of read events (`reading`).

Invariants:
    I1. An event is reported once, before any later one is delivered: each method that finds some raises, and treats them as known the next time.
    I2. So is each time that a partition was created again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery
from isthmus.connectors.eventhubs.partition.opening import Opening
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.errors import ConnectionLostError, OperationTimeoutError
from isthmus.transport import Client

__all__ = ["QUERY_SECONDS", "Losses"]

# No checkpoint passes a gap before its query is answered.
QUERY_SECONDS = 30.0


class Losses:
    """The losses of one source.

    Args:
        path: returns the path of the event hub, which may only be known once connected.
        reading: the account whose gaps are queried.
        mark: called when the query has an answer.

    Attributes:
        deadline: when an unanswered query has failed; infinite where there is none.
    """

    def __init__(self, path: Callable[[], str], reading: Reading, mark: Callable[[], None]) -> None:
        self._path = path
        self._reading = reading
        self._mark = mark
        self._reported: dict[int, IndexSet] = {}  # by partition
        self._remade: set[int] = set()  # partitions that were reported as created again
        self._query: HubQuery | None = None
        self.deadline = math.inf
        self._queried: dict[int, list[tuple[int, int]]] = {}  # the gaps when it began

    def knows_of_remake(self, number: int) -> None:
        """A partition's new creation has been reported."""
        self._remade.add(number)
        self._reported.pop(number, None)  # its sequence numbers name other events

    def reads_again(self, numbers: Iterable[int]) -> None:
        """Partitions that were created again are read from their beginning from now on."""
        self._remade.difference_update(numbers)

    def check_openings(self, openings: Mapping[int, Opening]) -> None:
        """Fails an opening once for lost events; the next one continues after them.

        Raises:
            ConnectionLostError: events are lost that were not reported.
        """
        texts = []
        for number, each in openings.items():
            if each.lost is not None:
                texts += self._news(number, *each.lost)
            elif each.begins_again and number not in self._remade:
                self.knows_of_remake(number)
                texts.append(f"partition {number}: the event hub was created again, and is read from its beginning")
        if texts:
            raise ConnectionLostError(f"event hub '{self._path()}': {'; '.join(texts)}")

    def query(self, client: Client, now: float) -> None:
        """Queries whether missing sequence numbers were compacted, or removed by the retention before they were read.

        Raises:
            ConnectionLostError: they were removed, which was not reported.
            IsthmusError: the namespace refuses the query, or gives no answer.
        """
        query = self._query
        if query is None:
            if self._reading.gaps:
                self._queried = {number: list(gaps) for number, gaps in self._reading.gaps.items()}
                self._query = HubQuery(client, self._path(), self._mark, set(self._queried))
                self.deadline = now + QUERY_SECONDS
            return
        query.advance()
        if not query.is_done:
            if now >= self.deadline:
                self.close()
                raise OperationTimeoutError(
                    f"event hub '{self._path()}': waited {QUERY_SECONDS:g} s for an answer about removed events; check whether the server answers"
                )
            return
        self.close()
        lost = []
        for number, view in query.views.items():
            for first, stop in self._taken(number):
                lost += self._news(number, first, min(stop, view.begin) - 1)
        if lost:  # also if the query failed for another partition: it is known now
            raise ConnectionLostError(f"event hub '{self._path()}': {'; '.join(lost)}")
        if query.error is not None:
            raise query.error

    def close(self) -> None:
        """Ends a query in progress."""
        self.deadline = math.inf
        if self._query is not None:
            self._query.close()
            self._query = None

    def _taken(self, number: int) -> list[tuple[int, int]]:
        """The gaps that a query covers. Gaps that appeared since it began are left to the next one: its answer may precede them."""
        seen = self._queried.pop(number, [])
        later = [each for each in self._reading.gaps.pop(number, []) if each not in seen]
        if later:
            self._reading.gaps[number] = later
        return seen

    def _news(self, number: int, first: int, last: int) -> list[str]:
        """The part of a range that was not reported yet (I1); it counts as reported."""
        reported, news = self._reported.setdefault(number, IndexSet()), IndexSet()
        if first <= last:
            news.add(first, last + 1)
        for start, stop in reported:
            news.remove(start, stop)
        for start, stop in news:
            reported.add(start, stop)
        return [
            f"partition {number}: events {start} to {stop - 1} were removed by the retention before they were read, and are lost; reading "
            f"continues at {last + 1}"
            for start, stop in news
        ]
