"""Which namespace a text refers to, and how namespaces identify themselves."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.system import RabbitSystem
from isthmus.errors import UnauthorizedError
from isthmus.replication.namespace_clients import NamespaceClients, name_places
from isthmus.supervisor.examination.doctor import examine
from isthmus.topology import read
from isthmus.topology.model import Endpoint

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {host: contoso-jfk.servicebus.windows.net, identity: default}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""


@pytest.mark.parametrize(
    ("reported", "named"),
    [
        ("127.0.0.1:5672: Connection refused", "ewr (127.0.0.1:5672): Connection refused"),
        ("contoso-jfk.servicebus.windows.net:5671: gone", "jfk (contoso-jfk.servicebus.windows.net):5671: gone"),
        ("127.0.0.1:5673: Connection refused", "127.0.0.1:5673: Connection refused"),
    ],
)
def test_a_host_is_reported_with_the_alias_of_its_namespace(
    reported: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "EWR_CONNECTION",
        "Endpoint=sb://127.0.0.1:5672/;SharedAccessKeyName=k;SharedAccessKey=planted;UseDevelopmentEmulator=true",
    )
    assert name_places(reported, read(TEXT), ("ewr", "jfk")) == named


def test_a_namespace_whose_connection_string_is_unavailable_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EWR_CONNECTION", raising=False)
    assert name_places("contoso-jfk.servicebus.windows.net: gone", read(TEXT), ("ewr", "jfk")).startswith("jfk (")


def test_i2_a_key_that_was_replaced_is_read_again_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch looks over one connection for as long as a run lasts; the backlog of its routes would be unknown."""

    class Refusing:
        error = None

        def authorize(self, path: str) -> None:
            raise UnauthorizedError(f"'{path}': invalid signature")

        def abandon(self) -> None:
            closed.append(self)

        def close(self, timeout_seconds: float) -> None:
            closed.append(self)

    opened: list[Refusing] = []
    closed: list[Refusing] = []
    with NamespaceClients(read(TEXT)) as clients:

        def connect(endpoint: Endpoint) -> Refusing:
            opened.append(Refusing())
            return opened[-1]

        monkeypatch.setattr(clients, "open", connect)
        for _ in range(2):
            with pytest.raises(UnauthorizedError):
                clients.peek(Endpoint("ewr", "flights"))
    assert len(opened) == 2
    assert closed == opened


RABBITS = """
isthmus: 1
namespaces:
  lga: {kind: rabbitmq, host: "rabbit-1:5672", username: isthmus, password: env:RABBIT}
  bos: {kind: rabbitmq, host: "rabbit-2:5672", username: isthmus, password: env:RABBIT}
tasks:
  orders: {pattern: move, queue: orders, source: lga, target: bos}
"""


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RabbitSystem, "identity", lambda *_: "")
    monkeypatch.setattr(RabbitSystem, "check", lambda *_, **__: None)


@pytest.mark.usefixtures("nameless")
def test_systems_without_an_identity_are_not_taken_for_each_other() -> None:
    with NamespaceClients(read(RABBITS)) as clients:
        assert clients.identities(("lga", "bos")) == {"lga": "lga", "bos": "bos"}


@pytest.mark.usefixtures("nameless")
def test_doctor_names_a_system_without_an_identity_by_its_address() -> None:
    reported = {each.alias: each.text for each in examine(read(RABBITS)) if each.subject == "connect"}
    assert reported["lga"].startswith("rabbit-1:5672 answered in ")
    assert reported["bos"].startswith("rabbit-2:5672 answered in ")
