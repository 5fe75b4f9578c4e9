"""isthmus.transport.dial."""

import socket

import pytest

from isthmus.errors import (
    ConnectionLostError,
    OperationTimeoutError,
)
from isthmus.testing.peer import Peer
from isthmus.transport import (
    Client,
    Endpoint,
)
from isthmus.transport.dial import dial, place_of


def test_no_listener_is_a_lost_connection() -> None:
    with Peer("q") as peer:
        endpoint = peer.endpoint
    with pytest.raises(ConnectionLostError, match=str(endpoint.port)):
        Client(endpoint).open(2.0)


def test_a_host_that_is_no_name_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLostError, match="aaaa:5671"):
        Client(Endpoint("a" * 64, 5671)).open(2.0)


def test_a_socket_that_is_of_no_use_is_closed_i1(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    connect = socket.create_connection

    def noted(address: tuple[str, int], timeout: float) -> socket.socket:
        made.append(connect(address, timeout))
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", noted)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(OperationTimeoutError, match="no connection within"):
            dial(endpoint, 0.2)  # the TLS handshake is not answered
    assert [each.fileno() for each in made] == [-1]


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [(Endpoint("NS.example", 5671), "ns.example"), (Endpoint("ns.example", 5300), "ns.example:5300")],
)
def test_a_namespace_is_named_by_its_host_and_by_its_port_where_that_is_unusual(endpoint: Endpoint, place: str) -> None:
    assert place_of(endpoint) == place
