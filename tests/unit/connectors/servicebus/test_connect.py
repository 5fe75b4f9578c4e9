from __future__ import annotations

import pytest

from isthmus.connectors.servicebus.connect import endpoint_of
from isthmus.connectors.servicebus.option import SourceOptions

HOST = "contoso.servicebus.windows.net"
CLOUD = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=cGxhbnRlZA=="
LOCAL = (
    "Endpoint=sb://127.0.0.1:5673/;SharedAccessKeyName=Root;SharedAccessKey=cGxhbnRlZA==;UseDevelopmentEmulator=true"
)


@pytest.mark.parametrize(
    ("connection", "transport_type", "expected"),
    [
        (CLOUD, "amqp", (HOST, 5671, True, False)),
        (CLOUD, "websockets", (HOST, 443, True, True)),
        (f"{CLOUD};TransportType=AmqpWebSockets", "amqp", (HOST, 443, True, True)),
        (LOCAL, "amqp", ("127.0.0.1", 5673, False, False)),
        (LOCAL, "websockets", ("127.0.0.1", 5673, False, True)),
    ],
)
def test_where_options_point_to(
    monkeypatch: pytest.MonkeyPatch, connection: str, transport_type: str, expected: tuple[str, int, bool, bool]
) -> None:
    monkeypatch.setenv("PLACE", connection)
    given = {"connection": "env:PLACE", "entity": "orders", "transport_type": transport_type}
    found = endpoint_of(SourceOptions.read(given))
    assert (found.host, found.port, found.tls, found.websocket) == expected


def test_an_identitys_host_is_reached_over_websocket_on_443() -> None:
    given = {"host": HOST, "entity": "orders", "transport_type": "websockets"}
    found = endpoint_of(SourceOptions.read(given))
    assert (found.host, found.port, found.websocket) == (HOST, 443, True)


@pytest.mark.parametrize(
    ("host", "transport_type", "expected"),
    [
        (f"{HOST}:5671", "amqp", (HOST, 5671, f"sb://{HOST}:5671/q")),
        (f"{HOST}:15671", "amqp", (HOST, 15671, f"sb://{HOST}:15671/q")),
        (f"{HOST}:8443", "websockets", (HOST, 8443, f"sb://{HOST}:8443/q")),
        (HOST, "amqp", (HOST, 5671, f"sb://{HOST}/q")),
    ],
)
def test_a_host_may_have_a_port(host: str, transport_type: str, expected: tuple[str, int, str]) -> None:
    found = endpoint_of(SourceOptions.read({"host": host, "entity": "q", "transport_type": transport_type}))
    assert (found.host, found.port, found.audience("q")) == expected
