"""Which namespace a text is about, and what namespaces call themselves."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.system import RabbitSystem
from isthmus.replication.reach import Reach, name_places
from isthmus.supervisor.examination.doctor import examine
from isthmus.topology import read

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {host: contoso-jfk.servicebus.windows.net, identity: default}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ("127.0.0.1:5672: Connection refused", "ewr (127.0.0.1:5672): Connection refused"),
        ("contoso-jfk.servicebus.windows.net:5671: gone", "jfk (contoso-jfk.servicebus.windows.net):5671: gone"),
        ("127.0.0.1:5673: Connection refused", "127.0.0.1:5673: Connection refused"),
    ],
)
def test_a_host_is_told_with_the_alias_of_its_namespace(told: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "EWR_CONNECTION",
        "Endpoint=sb://127.0.0.1:5672/;SharedAccessKeyName=k;SharedAccessKey=planted;UseDevelopmentEmulator=true",
    )
    assert name_places(told, read(TEXT), ("ewr", "jfk")) == named


def test_a_namespace_whose_connection_string_is_away_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EWR_CONNECTION", raising=False)
    assert name_places("contoso-jfk.servicebus.windows.net: gone", read(TEXT), ("ewr", "jfk")).startswith("jfk (")


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
    with Reach(read(RABBITS)) as reach:
        assert reach.identities(("lga", "bos")) == {"lga": "lga", "bos": "bos"}


@pytest.mark.usefixtures("nameless")
def test_doctor_names_a_system_without_an_identity_by_its_address() -> None:
    told = {each.alias: each.text for each in examine(read(RABBITS)) if each.subject == "connect"}
    assert told["lga"].startswith("rabbit-1:5672 answered in ")
    assert told["bos"].startswith("rabbit-2:5672 answered in ")
