"""The links of one source, one for each partition that it reads.

What it is: which partition has which link, and the credit that each is granted. What it is not: one link (`link`), or what was read (`reading`).

Invariants:
    I1. All links together have no more credit than the owner has granted and not been given.
    I2. A partition has one link: another one for it closes the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView
from typing import TYPE_CHECKING

from isthmus.connectors.eventhubs.option import SourceOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.connectors.eventhubs.partition.reading import Reading

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["PartitionLinks"]


class PartitionLinks:
    """Those of one source.

    Args:
        options: of the source.
        reading: its queue has the credit.
        mark: called when something comes.
    """

    def __init__(self, options: SourceOptions, reading: Reading, mark: Callable[[], None]) -> None:
        self._options = options
        self._reading = reading
        self._mark = mark
        self._links: dict[int, PartitionLink] = {}

    @property
    def partitions(self) -> KeysView[int]:
        """Those that have a link."""
        return self._links.keys()

    @property
    def are_attached(self) -> bool:
        """Whether there are links, and the service has answered each."""
        return bool(self._links) and all(each.attached for each in self._links.values())

    def open(self, client: Client, path: str, partition: int, begin: Begin) -> None:
        """A partition of the event hub at a path, which a connection may tell of first, is read from there."""
        old = self._links.pop(partition, None)
        if old is not None:
            old.close()
        options = self._options
        self._links[partition] = PartitionLink(
            client, path, options.group, partition, begin, options.owner_level, self._mark, options.member
        )

    def check(self) -> None:
        """Looks whether all are of use.

        Raises:
            IsthmusError: one is not.
        """
        for link in self._links.values():
            if link.error is not None:
                raise link.error

    def take(self) -> Iterator[tuple[int, list[bytes]]]:
        """The events that came since the last call, by partition."""
        for partition, link in self._links.items():
            if link.count:
                yield partition, link.take()

    def refill(self) -> None:
        """Grants each link its share of what the owner has granted and not been given."""
        if not self._links:
            return
        share = self._reading.share(len(self._links))
        queued = self._reading.queue.count // len(self._links)
        for link in self._links.values():
            wanted = max(0, share - queued - link.count)
            if (
                link.attached
                and (wanted >= 2 * link.credit or link.credit == 0 or not wanted)
                and wanted != link.credit
            ):
                link.grant(wanted)

    def close(self) -> None:
        """Ends all."""
        for link in self._links.values():
            link.close()
        self._links.clear()
