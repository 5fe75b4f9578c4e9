"""isthmus.connectors.servicebus.administration.pair.client."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from isthmus.connectors.servicebus.administration.pair.client import THREADS, PairClients
from isthmus.topology import NamespaceRef
from isthmus.topology.file.reference import SecretReference

STRING = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[PairClients]:
    monkeypatch.setenv("EWR", STRING)
    made = PairClients(NamespaceRef("ewr", SecretReference.parse("env:EWR")))
    yield made
    made.close()


def test_i1_each_thread_has_its_own_client(clients: PairClients) -> None:
    here = clients.open()
    assert clients.open() is here
    assert clients.submit(clients.open).result(timeout=5) is not here


def test_i2_readings_that_overlap_do_not_wait_for_each_others_work(clients: PairClients) -> None:
    gate = threading.Event()

    def reading() -> str:
        gate.wait(5)
        return clients.submit(lambda: "work").result(timeout=5)

    begun = [clients.read(reading) for _ in range(THREADS)]
    gate.set()
    assert [each.result(timeout=5) for each in begun] == ["work"] * THREADS
    assert clients.map(str, [1]) == ["1"]
