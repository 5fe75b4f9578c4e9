"""The links of one source, one for each partition that it reads.

What it is: the link of each partition, and its credit. What it is not: one link (`link`), or the account of read events (`reading`).

Invariants:
    I1. All links together have no more credit than the owner's unused grant.
    I2. A partition has one link: a new one closes the previous one.
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
    """The links of one source.

    Args:
        options: of the source.
        reading: the account; its queue has the credit.
        mark: called when a frame arrives.
    """

    def __init__(self, options: SourceOptions, reading: Reading, mark: Callable[[], None]) -> None:
        self._options = options
        self._reading = reading
        self._mark = mark
        self._links: dict[int, PartitionLink] = {}

    @property
    def partitions(self) -> KeysView[int]:
        """The partitions that have a link."""
        return self._links.keys()

    @property
    def are_attached(self) -> bool:
        """Whether there are links, and the service has answered each."""
        return bool(self._links) and all(each.attached for each in self._links.values())

    def open(self, client: Client, path: str, partition: int, begin: Begin) -> None:
        """Reads a partition from there; the path of the event hub may only be known once connected."""
        old = self._links.pop(partition, None)
        if old is not None:
            old.close()
        options = self._options
        self._links[partition] = PartitionLink(
            client, path, options.group, partition, begin, options.owner_level, self._mark, options.member
        )

    def check(self) -> None:
        """Checks that all links are usable.

        Raises:
            IsthmusError: one is not.
        """
        for link in self._links.values():
            if link.error is not None:
                raise link.error

    def take(self) -> Iterator[tuple[int, list[bytes]]]:
        """The events since the last call, by partition."""
        for partition, link in self._links.items():
            if link.count:
                yield partition, link.take()

    def refill(self) -> None:
        """Grants each link its share of the owner's unused grant."""
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
        """Closes all links."""
        for link in self._links.values():
            link.close()
        self._links.clear()
