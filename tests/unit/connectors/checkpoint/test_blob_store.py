"""Checkpoints in a container, at a server with configurable failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from azure.core.pipeline.transport import HttpTransport

from isthmus.connectors.checkpoint.blob_store import BlobStore
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey
from isthmus.connectors.checkpoint.thread import CLOSE_SECONDS

GROUP = GroupKey("identity", "127.0.0.1", "hub", "group")


class Account(ThreadingHTTPServer):
    """Answers PUT by status, the last one permanently; 0: the connection is closed without an answer."""

    statuses = (201,)
    puts = 0

    def handle_error(self, *_: object) -> None:
        """A connection was closed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Account

    def do_PUT(self) -> None:
        server = self.server
        status = server.statuses[min(server.puts, len(server.statuses) - 1)]
        server.puts += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("ETag", f'"{server.puts}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(name="account")
def _account() -> Iterator[Account]:
    with Account(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def write(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{account.server_address[1]}"
    monkeypatch.setenv("ACCOUNT", f"AccountName=a;AccountKey=a2V5;BlobEndpoint={url}/a;")
    store = BlobStore(url, "a/container", "env:ACCOUNT")
    store.write(GROUP, {0: Checkpoint(7, "70")})
    store.close()


@pytest.mark.parametrize("first", [503, 0])
def test_a_failure_that_passes_delays_no_end(account: Account, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is written within the time that an end has; the SDK waits 15 s by itself."""
    slept: list[float] = []
    monkeypatch.setattr(HttpTransport, "sleep", lambda _, seconds: slept.append(seconds))
    account.statuses = (first, 201)
    write(account, monkeypatch)
    assert account.puts == 2
    assert sum(slept) < CLOSE_SECONDS / 2


def test_no_proxy_is_asked_for_this_machine(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    write(account, monkeypatch)
    assert account.puts == 1
