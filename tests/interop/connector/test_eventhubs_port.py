"""An event hub as a source on the port: what is lost is reported, and one reader fences another."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from harness.conformance.eventhubs_end import administer, hub_description
from isthmus.bridge.port import PARTITION_SHIFT, Arrived, SourceLost, SourceOpened
from isthmus.connectors.eventhubs.connector import CONNECTOR
from isthmus.connectors.eventhubs.partition import growth
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = """
event_hubs:
  short: {partition_count: 1, partition_retention_in_megabytes: 1}
  owned: {partition_count: 2}
  grown: {partition_count: 1}
  remade: {partition_count: 1}
"""
SECONDS = 60.0


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("hubs"), config=CONFIG) as running:
        yield running


class Reader:
    """A source in a loop of its own, as a host runs it."""

    def __init__(
        self, served: NamespaceProcess, hub: str, folder: Path, patch: pytest.MonkeyPatch, **more: str
    ) -> None:
        patch.setenv("HUB", served.connection_string)
        self.pool = CONNECTOR.sources()
        options = {"connection": "env:HUB", "topic": hub, "checkpoints": str(folder), "checkpoint_seconds": "0.05"}
        options |= more
        self.source = self.pool.source(1, options)
        self.events: list[Any] = []
        self.source.open()

    def run_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.events[-3:]
            now = time.monotonic()
            due = min(self.pool.deadline(now), self.source.deadline(now), now + 0.1)
            poller = select.poll()
            for descriptor, mask in self.pool.descriptors():
                poller.register(descriptor, mask)
            ready = dict(poller.poll(max(0.0, due - now) * 1000))
            marked = self.pool.service(ready, time.monotonic())
            if marked or self.source.deadline(now) <= time.monotonic():
                self.events += self.source.poll(time.monotonic())
            self.pool.flush()

    def reported(self, kind: type) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]

    @property
    def positions(self) -> list[int]:
        return [position for each in self.reported(Arrived) for position in each.positions]

    def close(self) -> None:
        self.source.close()
        self.pool.close()


def publish(served: NamespaceProcess, hub: str, count: int, size: int = 10, partition: int = 0) -> None:
    with EventHubProducerClient.from_connection_string(served.connection_string, eventhub_name=hub) as producer:
        for _ in range(count):
            producer.send_batch([EventData(b"x" * size)], partition_id=str(partition))


def test_a_checkpoint_that_has_expired_is_reported_with_the_range(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """isthmus.connectors.eventhubs.source, I4."""
    publish(served, "short", 5)
    first = Reader(served, "short", tmp_path, monkeypatch)
    first.run_until(lambda: first.reported(SourceOpened))
    first.source.grant(100)
    first.run_until(lambda: len(first.positions) == 5)
    first.source.settle(0, 2)
    first.close()
    assert first.source.has_left
    publish(served, "short", 30, 200_000)
    with EventHubProducerClient.from_connection_string(served.connection_string, eventhub_name="short") as producer:
        deadline = time.monotonic() + SECONDS
        while (begin := producer.get_partition_properties("0")["beginning_sequence_number"]) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    second = Reader(served, "short", tmp_path, monkeypatch)
    second.run_until(lambda: second.reported(SourceLost))
    (lost,) = second.reported(SourceLost)
    assert not lost.is_fatal
    assert f"partition 0: events 3 to {begin - 1} were removed by the retention" in lost.text
    second.source.open()
    second.run_until(lambda: second.reported(SourceOpened))
    second.source.grant(100)
    second.run_until(lambda: second.positions)
    assert second.positions[0] >= begin
    assert len(second.reported(SourceLost)) == 1
    second.close()


def test_a_reader_shuts_another_out_and_continues_from_its_checkpoint(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """isthmus.connectors.eventhubs.source, I3."""
    publish(served, "owned", 10)
    first = Reader(served, "owned", tmp_path, monkeypatch)
    first.run_until(lambda: first.reported(SourceOpened))
    first.source.grant(100)
    first.run_until(lambda: len(first.positions) == 10)
    first.source.settle(0, 5)
    first.run_until(lambda: list(tmp_path.rglob("0.json")))
    second = Reader(served, "owned", tmp_path, monkeypatch)
    second.run_until(lambda: second.reported(SourceOpened))
    second.source.grant(100)
    first.run_until(lambda: first.reported(SourceLost))
    (lost,) = first.reported(SourceLost)
    assert lost.is_fatal
    assert "another reader has fenced this one" in lost.text
    second.run_until(lambda: len(second.positions) == 4)
    assert second.positions == [6, 7, 8, 9]
    second.source.settle(6, 9)
    # What the first one settles now is no longer its own; opened again it has nothing left to read.
    first.source.settle(6, 7)
    second.close()
    first.events.clear()
    first.source.open()
    first.run_until(lambda: first.reported(SourceOpened))
    first.source.grant(100)
    publish(served, "owned", 1)
    first.run_until(lambda: first.positions)
    assert first.positions == [0 << PARTITION_SHIFT | 10]
    first.close()


@pytest.mark.parametrize("is_reading", [True, False])
def test_an_event_hub_that_was_made_again_is_read_from_its_first_event(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reading: bool
) -> None:
    """It has more events by then than were read of the one before: as many were passed over."""
    publish(served, "remade", 5)
    reader = Reader(served, "remade", tmp_path, monkeypatch)
    reader.run_until(lambda: reader.reported(SourceOpened))
    reader.source.grant(100)
    reader.run_until(lambda: len(reader.positions) == 5)
    reader.source.settle(0, 4)
    if not is_reading:
        reader.close()
    administer(served, "DELETE", "remade", "", "EventHubDescription")
    administer(served, "PUT", "remade", hub_description(1), "EventHubDescription")
    publish(served, "remade", 20)
    if not is_reading:
        reader = Reader(served, "remade", tmp_path, monkeypatch)
    texts: list[str] = []
    while len(reader.positions) < 20:
        reader.run_until(
            lambda: reader.reported(SourceLost) or reader.reported(SourceOpened) or len(reader.positions) >= 20
        )
        lost = reader.reported(SourceLost)
        if lost or reader.reported(SourceOpened):
            texts += [each.text for each in lost]
            reader.events.clear()
            reader.source.grant(100)
        if lost:
            reader.source.open()
    assert reader.positions == list(range(20))
    assert any("was created again" in each for each in texts)
    reader.close()
    administer(served, "DELETE", "remade", "", "EventHubDescription")
    administer(served, "PUT", "remade", hub_description(1), "EventHubDescription")


def test_partitions_that_are_added_are_read_from_their_first_event(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one is added without a reader: isthmus.connectors.eventhubs.partition.growth, and opening, I5."""
    monkeypatch.setattr(growth, "QUERY_SECONDS", 0.2)

    def add(partitions: int) -> None:
        assert (
            administer(served, "PUT", "grown", hub_description(partitions), "EventHubDescription", If_Match="*") == 200
        )
        publish(served, "grown", 2, partition=partitions - 1)

    publish(served, "grown", 3)
    first = Reader(served, "grown", tmp_path, monkeypatch, start="latest")
    first.run_until(lambda: first.reported(SourceOpened))
    add(2)
    first.run_until(lambda: first.reported(SourceLost))
    (lost,) = first.reported(SourceLost)
    assert not lost.is_fatal
    assert "partition 1 was added" in lost.text
    first.source.open()
    first.run_until(lambda: len(first.reported(SourceOpened)) == 2)
    first.source.grant(100)
    first.run_until(lambda: len(first.positions) == 2)
    assert first.positions == [1 << PARTITION_SHIFT, 1 << PARTITION_SHIFT | 1]
    first.source.settle(1 << PARTITION_SHIFT, 1 << PARTITION_SHIFT | 1)
    first.close()
    add(3)
    second = Reader(served, "grown", tmp_path, monkeypatch, start="latest")
    second.run_until(lambda: second.reported(SourceOpened))
    second.source.grant(100)
    second.run_until(lambda: len(second.positions) == 2)
    assert second.positions == [2 << PARTITION_SHIFT, 2 << PARTITION_SHIFT | 1]
    second.close()
