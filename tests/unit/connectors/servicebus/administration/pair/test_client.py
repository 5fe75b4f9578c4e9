"""isthmus.connectors.servicebus.administration.pair.client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from azure.core.pipeline.transport import HttpRequest, RequestsTransport

from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.servicebus.administration.client import administration_errors
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


def test_i3_a_key_that_was_replaced_is_read_again(clients: PairClients, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member would be out of step, and no fail-over done, until an operator started `isthmus pair run` again."""
    shown: list[str] = []

    def send(self: RequestsTransport, request: HttpRequest, **options: object) -> SimpleNamespace:
        shown.append(parse_qs(request.headers["Authorization"].partition(" ")[2])["skn"][0])
        kind = {"Content-Type": "application/xml"}
        return SimpleNamespace(headers=kind, status_code=401, body=bytes, reason="", text=str, content_type="")

    monkeypatch.setattr(RequestsTransport, "send", send)
    for name in ("k", "new", "new"):
        monkeypatch.setenv("EWR", STRING.replace("=k;", f"={name};"))
        with pytest.raises(AdministrationError), administration_errors("ewr"):
            clients.open().client.get_queue("q")
    assert shown == ["k", "new", "new"]
    assert len(clients._opened) == 1
