"""Calls of RabbitMQ's management plugin, at a server that plays it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from isthmus.connectors.rabbitmq.administration import RabbitAdministration
from isthmus.connectors.rabbitmq.option import read_broker


class Plugin(BaseHTTPRequestHandler):
    """Knows a queue."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"messages": 7}')

    def log_message(self, *_: object) -> None:
        pass


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be sent the password."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("PASSWORD", "guest")
    with ThreadingHTTPServer(("127.0.0.1", 0), Plugin) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        options = {"host": "127.0.0.1", "username": "guest", "password": "env:PASSWORD"}
        management = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            asked = RabbitAdministration(read_broker({**options, "management": management}))
            assert asked.messages("orders") == 7
        finally:
            server.shutdown()
            thread.join()
