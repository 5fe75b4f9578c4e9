"""Requests of the SDKs of a storage account, on sockets of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.pipeline.transport import HttpRequest

from isthmus.connectors.storage_transport import storage_transport

ACCOUNT = "http://account.test"


@pytest.fixture(name="asked")
def _asked() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that answers one request, and what it was asked."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.settimeout(10.0)
                heads.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heads
        thread.join()


@pytest.mark.parametrize(("url", "are_asked"), [("http://127.0.0.1:10001/a", False), (ACCOUNT, True)])
def test_i1_no_proxy_is_asked_for_this_machine(url: str, are_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert bool(storage_transport(url, 1.0, 1).session.proxies) is are_asked


def test_i2_a_connection_is_kept_alive(asked: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    connect = socket.socket.connect

    def noted(sock: socket.socket, address: tuple[str, int]) -> None:
        made.append(sock)
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    with storage_transport(asked[0], 5.0, 1) as transport:
        transport.send(HttpRequest("GET", asked[0]))
        assert [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in made] == [1]


def test_i3_no_password_of_netrc_replaces_the_key(
    asked: tuple[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login anonymous password guest\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with storage_transport(asked[0], 5.0, 1) as transport:
        transport.send(HttpRequest("GET", asked[0], headers={"Authorization": "SharedKey a:sig"}))
    assert b"Authorization: SharedKey a:sig" in asked[1][0]


def test_the_authorities_of_the_environment_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the other clients of Azure: behind a proxy that ends TLS there are no others."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/authorities.pem")
    transport = storage_transport("https://account.test", 1.0, 1)
    seen: list[object] = []

    def request(*_: object, **options: object) -> None:
        seen.append(options["verify"])
        raise EOFError

    monkeypatch.setattr(transport.session, "request", request)
    with pytest.raises(EOFError):
        transport.send(HttpRequest("GET", "https://account.test"))
    assert seen == ["/authorities.pem"]
