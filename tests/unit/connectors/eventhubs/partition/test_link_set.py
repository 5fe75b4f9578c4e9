"""isthmus.connectors.eventhubs.partition.link_set."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.connectors.eventhubs.option import read_source
from isthmus.connectors.eventhubs.partition import link_set
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.link_set import PartitionLinks
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.errors import ConnectionLostError


class Link:
    """A link that a test fills."""

    def __init__(self, client: Any, hub: str, group: str, partition: int, begin: Begin, *_: Any) -> None:
        self.begin = begin
        self.attached, self.is_closed = False, False
        self.error: Exception | None = None
        self.credit = 0
        self.payloads: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self.payloads)

    def take(self) -> list[bytes]:
        taken, self.payloads = self.payloads, []
        return taken

    def grant(self, credit: int) -> None:
        self.credit = credit

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def reading() -> Reading:
    return Reading(None, only_present=False, keeps=False, seconds=1.0)  # type: ignore[arg-type]


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch, reading: Reading) -> PartitionLinks:
    monkeypatch.setattr(link_set, "PartitionLink", Link)
    monkeypatch.setenv("HUB", "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v")
    options = read_source({"connection": "env:HUB", "topic": "hub", "checkpoints": "/nowhere"})
    return PartitionLinks(options, reading, lambda: None)


def opened(links: PartitionLinks, *partitions: int) -> list[Any]:
    for each in partitions:
        links.open(None, "hub", each, Begin(each))  # type: ignore[arg-type]
    made: list[Any] = [links._links[each] for each in partitions]
    for link in made:
        link.attached = True
    return made


def test_i1_links_share_what_the_owner_has_granted(links: PartitionLinks, reading: Reading) -> None:
    first, second = opened(links, 0, 1)
    reading.queue.credit = 10
    links.refill()
    assert (first.credit, second.credit) == (5, 5)
    first.payloads, first.credit = [b"x"] * 5, 0
    links.refill()
    assert (first.credit, second.credit) == (0, 5), "what came and was not taken is of the share"
    reading.queue.credit = 0
    links.refill()
    assert (first.credit, second.credit) == (0, 0)


def test_i2_another_link_of_a_partition_closes_the_one_before(links: PartitionLinks) -> None:
    [first] = opened(links, 3)
    [second] = opened(links, 3)
    assert first.is_closed
    assert not second.is_closed
    assert set(links.partitions) == {3}
    links.close()
    assert second.is_closed
    assert not links.partitions


def test_they_are_attached_once_the_service_has_answered_each(links: PartitionLinks) -> None:
    assert not links.are_attached
    opened(links, 0)
    assert links.are_attached
    links.open(None, "hub", 1, Begin(0))  # type: ignore[arg-type]
    assert not links.are_attached


def test_a_link_that_is_of_no_use_is_reported(links: PartitionLinks) -> None:
    _, second = opened(links, 0, 1)
    links.check()
    second.error = ConnectionLostError("gone")
    with pytest.raises(ConnectionLostError, match="gone"):
        links.check()


def test_events_are_taken_by_partition(links: PartitionLinks) -> None:
    _, second = opened(links, 0, 1)
    second.payloads = [b"x"]
    assert list(links.take()) == [(1, [b"x"])]
    assert list(links.take()) == []
