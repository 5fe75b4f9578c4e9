"""isthmus.connectors.servicebus.administration.pair.marker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError

from isthmus.connectors.servicebus.administration.pair.marker import PairMarker
from isthmus.topology.pair.description import CLOSED


class Client:
    """A namespace that holds queues."""

    def __init__(self) -> None:
        self.queues: dict[str, Any] = {}
        self.updates = 0

    def get_queue(self, name: str) -> Any:
        if name not in self.queues:
            raise ResourceNotFoundError("no")
        return self.queues[name]

    def create_queue(self, name: str, *, user_metadata: str) -> None:
        self.queues[name] = SimpleNamespace(user_metadata=user_metadata, status="Active")

    def update_queue(self, queue: Any) -> None:
        self.updates += 1

    def delete_queue(self, name: str) -> None:
        self.get_queue(name)
        del self.queues[name]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def marker(client: Client) -> PairMarker:
    return PairMarker(SimpleNamespace(endpoint="ewr", open=lambda: SimpleNamespace(client=client)))  # type: ignore[arg-type]


def test_i1_the_queue_of_a_marker_is_closed(marker: PairMarker, client: Client) -> None:
    assert marker.read("pair") == {}
    assert marker.write("pair", {"active": "ewr"})
    [queue] = client.queues.values()
    assert queue.status == CLOSED["queue"]
    assert marker.read("pair") == {"active": "ewr"}
    assert marker.write("pair", {"active": "ewr"})
    assert client.updates == 1, "what it says already is not written again"


def test_i2_what_was_written_meanwhile_is_kept(marker: PairMarker) -> None:
    marker.write("pair", {"epoch": 2})
    assert not marker.write("pair", {"epoch": 1}, unless=lambda existing: existing.get("epoch", 0) > 1)
    assert marker.read("pair") == {"epoch": 2}


def test_i2_where_it_was_deleted_meanwhile_nothing_is_said_again(marker: PairMarker, client: Client) -> None:
    """Another process has broken the pair."""
    assert not marker.write("contoso", {"epoch": 1}, unless=lambda found: not found)
    assert marker.read("contoso") == {}
    assert marker.write("contoso", {"epoch": 1}, unless=bool)
    assert marker.read("contoso") == {"epoch": 1}


def test_a_marker_that_was_deleted_says_nothing(marker: PairMarker) -> None:
    marker.write("pair", {"active": "ewr"})
    marker.delete("pair")
    marker.delete("pair")
    assert marker.read("pair") == {}


@pytest.mark.parametrize("text", [None, "no JSON", "[1]"])
def test_metadata_of_somebody_else_says_nothing(marker: PairMarker, client: Client, text: str | None) -> None:
    marker.write("pair", {"active": "ewr"})
    [queue] = client.queues.values()
    queue.user_metadata = text
    assert marker.read("pair") == {}
