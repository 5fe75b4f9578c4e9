"""A member of a pair, with an administration client in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.core.paging import ItemPaged

from harness.fixture.paged_list import paged
from isthmus.connectors.servicebus.administration.pair.client import THREADS
from isthmus.connectors.servicebus.administration.pair.member import PairMember
from isthmus.topology import NamespaceRef
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.pair.description import Description

STRING = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


class Opened(NamedTuple):
    client: Any
    transport: Any = None
    endpoint: str = "ewr"


class FakeClient:
    """A namespace with one queue, which no list contains; a fault is raised where one is set."""

    def __init__(self) -> None:
        self.status: Any = "Active"
        self.count_fault: Exception | None = None
        self.delete_fault: Exception | None = None

    def get_queue(self, name: str) -> Any:
        if name == "gone":
            raise ResourceNotFoundError("no")
        if name == "topic":
            raise AttributeError("'NoneType' object has no attribute 'lock_duration'")
        return SimpleNamespace(name=name, status=self.status)

    def update_queue(self, queue: Any) -> None:
        self.status = queue.status

    def list_queues(self) -> ItemPaged[Any]:
        return paged([])

    def list_topics(self) -> ItemPaged[Any]:
        return paged([])


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def member(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[PairMember]:
    monkeypatch.setenv("EWR", STRING)
    with PairMember(NamespaceRef("ewr", SecretReference.parse("env:EWR"))) as made:
        monkeypatch.setattr(made._clients, "open", lambda: Opened(client))
        yield made


def test_readings_that_overlap_do_not_wait_for_each_other(member: PairMember, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def version() -> str:
        gate.wait(5)
        return ""

    monkeypatch.setattr(member, "_version", version)
    begun = [member.begin_descriptions() for _ in range(THREADS)]
    gate.set()
    assert [each.result(timeout=5) for each in begun] == [[]] * THREADS
    assert member.map(str, [1]) == ["1"]


@pytest.mark.parametrize(("name", "is_held"), [("orders", True), ("gone", False), ("topic", True)])
def test_what_is_under_a_name_is_asked_for_by_the_name(member: PairMember, name: str, is_held: bool) -> None:
    assert member.holds(Description(kind="queue", names=(name,))) is is_held
