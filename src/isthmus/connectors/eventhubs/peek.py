"""An event hub, browsed.

What it is: the events of a hub as encoded messages in the order of their positions, read concurrently with other readers. Verification and browsing
read a Service Bus entity with the same call. What it is not: the reading of a route (`source`).

Invariants:
    I1. No checkpoint is written, and no reader is fenced.
    I2. An empty page means that no event follows: a namespace without answer is an error.
    I3. Positions and MessageIds are those of the source of a federation's route: partition × 2^48 + sequence number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.eventhubs.blocking import QUERY_SECONDS, BlockingHubs
from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.errors import IsthmusError

__all__ = ["HubPeek", "HubPeekFrom"]

_GROUP = "$Default"
_PAGE = 1000


class HubPeek:
    """Browses one event hub.

    Args:
        options: the options that reach the namespace.
        hub: the event hub.
        names_partition: whether events without key get one that names their partition.
        hubs: the connection; None: made from the options. It is closed with this.
        reader: parses events; None: as the source of a federation's route.

    Raises:
        IsthmusError: no answer, the event hub does not exist, or access is denied.
    """

    def __init__(
        self,
        options: HubOptions,
        hub: str,
        *,
        names_partition: bool = False,
        hubs: BlockingHubs | None = None,
        reader: EventReader | None = None,
    ) -> None:
        self._hub = hub
        self._hubs = hubs or BlockingHubs(options)
        self._reader = reader or EventReader(hub, gives_ids=True, names_partition=names_partition)
        self._link: PartitionLink | None = None
        self._at: tuple[int, int] | None = None
        self._read: deque[bytes] = deque()
        try:
            self._partitions = sorted(self._hubs.views(hub))
            self.namespace_id = self._hubs.identity()
        except BaseException:
            self._hubs.close()
            raise

    def __call__(self, from_position: int, count: int, starts: Mapping[int, int] | None = None) -> Sequence[bytes]:
        """Messages from a position on, `count` at most, all of one partition; empty where there are none.

        Args:
            from_position: the first position to return.
            count: how many at most.
            starts: by partition, the first sequence number to return.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        partition, sequence = max(0, from_position) >> PARTITION_SHIFT, max(0, from_position) % (1 << PARTITION_SHIFT)
        for number in self._partitions:
            if number >= partition:
                least = (starts or {}).get(number, 0)
                page = self._page(number, max(least, sequence if number == partition else 0), count)
                if page:
                    return page
        return ()

    def last_sequence(self, below: int) -> int:
        """The last position below a limit at which an event may exist, as reported by the namespace; 0 if there is none.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        for number, view in sorted(self._hubs.views(self._hub).items(), reverse=True):
            base = number << PARTITION_SHIFT
            last = min(base + view.last + 1, below) - 1
            if base < below and not view.is_empty and view.begin <= view.last and last >= base + view.begin:
                return last
        return 0

    def begins(self) -> dict[int, int]:
        """By partition, the sequence number of the first existing event, or of the next one.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        views = self._hubs.views(self._hub)
        return {number: each.last + 1 if each.is_empty else each.begin for number, each in views.items()}

    def _page(self, partition: int, start: int, count: int) -> list[bytes]:
        view = self._hubs.views(self._hub)[partition]
        start = max(start, view.begin)
        found: list[bytes] = []
        if view.is_empty or start > view.last:
            return found
        link = self._link_at(partition, start)
        self._at = None
        while len(found) < count and start <= view.last:
            if not self._read:
                self._wait(link)
            event = self._reader.read(partition, self._read.popleft())
            if event.sequence > view.last:
                break  # later events are left to the next query
            start = event.sequence + 1
            found.append(event.message)
        self._at = (partition, start)
        return found

    def _link_at(self, partition: int, start: int) -> PartitionLink:
        """The existing link, or a new one."""
        link = self._link
        if link is not None and self._at == (partition, start) and link.error is None and link.client.error is None:
            return link
        self._drop()
        link = self._link = self._hubs.reader(self._hub, _GROUP, partition, Begin(start))
        return link

    def _wait(self, link: PartitionLink) -> None:
        if link.credit < _PAGE // 2:
            link.grant(_PAGE)
        self._hubs.client.wait_until(
            lambda: link.count > 0 or link.error is not None, QUERY_SECONDS, f"'{link.path}': no event arrived"
        )
        if link.error is not None:
            raise link.error
        self._read.extend(link.take())

    def _drop(self) -> None:
        link, self._link, self._at = self._link, None, None
        self._read.clear()
        if link is not None:
            link.close()

    def close(self) -> None:
        """Closes it."""
        with suppress(IsthmusError):
            self._drop()
            self._hubs.close()


class HubPeekFrom:
    """Browses an event hub from a sequence number of each partition on.

    Args:
        peek: browses the hub.
        starts: by partition, the first sequence number to return.
        removed: the removed events before them (`isthmus.connectors.system.KnowsRemoved`).
    """

    def __init__(
        self, peek: HubPeek, starts: Mapping[int, int], removed: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        self._peek = peek
        self._starts = starts
        self.removed: Mapping[int, tuple[int, int]] = removed or {}

    def __call__(self, from_position: int, count: int) -> Sequence[bytes]:
        """As `HubPeek`."""
        return self._peek(from_position, count, self._starts)

    def last_sequence(self, below: int) -> int:
        """As `HubPeek.last_sequence`; it may be below the first requested event."""
        return self._peek.last_sequence(below)
