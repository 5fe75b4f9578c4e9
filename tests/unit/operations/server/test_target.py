"""Requests to a namespace, against a server that does not answer like a namespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from isthmus.operations.server.target import NamespaceAnswerError, Target
from isthmus.transport import Endpoint, SharedKeyCredential


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects each client, and notes which ones come."""

    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    Elsewhere.seen = []
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def test_i1_a_token_goes_nowhere_else(server: HTTPServer) -> None:
    endpoint = Endpoint("127.0.0.1", server.server_port, tls=False, credential=SharedKeyCredential("root", "a2V5"))
    with pytest.raises(NamespaceAnswerError, match="answered 302"):
        Target(endpoint, f"http://127.0.0.1:{server.server_port}").ask("GET", "/$isthmus/statistics")
    [(path, token)] = Elsewhere.seen
    assert path == "/$isthmus/statistics"
    assert token.startswith("SharedAccessSignature ")
