"""A member of a pair, with an administration client in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from isthmus.connectors.servicebus.administration.pair_member import _THREADS, PairMember
from isthmus.topology import NamespaceRef
from isthmus.topology.file.reference import SecretReference

STRING = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


class Opened(NamedTuple):
    client: Any
    transport: Any = None
    endpoint: str = "ewr"


class FakeClient:
    """A namespace without an entity."""

    def list_queues(self) -> list[Any]:
        return []

    def list_topics(self) -> list[Any]:
        return []


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def member(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[PairMember]:
    monkeypatch.setenv("EWR", STRING)
    with PairMember(NamespaceRef("ewr", SecretReference.parse("env:EWR"))) as made:
        monkeypatch.setattr(made, "_open", lambda: Opened(client))
        yield made


def test_readings_that_overlap_do_not_wait_for_each_other(member: PairMember, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def version() -> str:
        gate.wait(5)
        return ""

    monkeypatch.setattr(member, "_version", version)
    begun = [member.begin_descriptions() for _ in range(_THREADS)]
    gate.set()
    assert [each.result(timeout=5) for each in begun] == [[]] * _THREADS
    assert member.map(str, [1]) == ["1"]
