"""Which namespace a text is about."""

from __future__ import annotations

import pytest

from isthmus.replication.reach import name_places
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
