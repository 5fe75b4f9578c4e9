"""A receiver of HTTP requests for tests, in a process of its own, that keeps each request on disk before it answers.

As a program: `http_server.py PORT FOLDER`. What a path does is set by PUT of a JSON object: `status` for all requests, `limit` for bodies,
`once` to keep one request of each webhook-id, `retry_after`. GET gives the requests of a path.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["HttpReceiver", "http_receiver"]

START_SECONDS = 60.0


class HttpReceiver:
    """The process.

    Args:
        folder: of what it keeps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = random.randrange(10_000, 32_768)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen([sys.executable, __file__, str(self.port), str(self._folder)])
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                self._ask("GET", "/none")
                return
            except OSError:
                assert self._process.poll() is None, "the receiver ended"
                assert time.monotonic() < limit, "the receiver does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """Kills it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kills it, and starts it again."""
        self.kill()
        self.start()

    def set(self, path: str, **behaviour: Any) -> None:
        """What a path does."""
        self._ask("PUT", path, json.dumps(behaviour).encode())

    def requests(self, path: str, start: int = 0) -> list[dict[str, Any]]:
        """The requests of a path that it keeps: `headers` (names in lower case), `body`."""
        found = json.loads(self._ask("GET", f"{path}?{start}"))
        return [{"headers": each["headers"], "body": base64.b64decode(each["body"])} for each in found]

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def http_receiver(folder: Path) -> Iterator[HttpReceiver]:
    """A receiver that runs."""
    made = HttpReceiver(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()


class _Kept:
    """What the process has."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.requests: dict[str, list[dict[str, Any]]] = {}
        self.behaviour: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, set[str]] = {}
        file = folder / "journal"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        for line in lines:
            self._apply(json.loads(line))
        self._file = file.open("a")

    def _apply(self, change: dict[str, Any]) -> None:
        path = change["path"]
        if "behaviour" in change:
            self.behaviour[path] = change["behaviour"]
        else:
            self.requests.setdefault(path, []).append(change)
            self.ids.setdefault(path, set()).add(change["headers"].get("webhook-id", ""))

    def change(self, change: dict[str, Any]) -> None:
        """Keeps a change."""
        self._file.write(json.dumps(change) + "\n")
        self._file.flush()
        self._apply(change)

    def post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer."""
        with self.lock:
            does = self.behaviour.get(path, {})
            retry = {"Retry-After": str(does["retry_after"])} if "retry_after" in does else {}
            if does.get("status", 200) >= 300:
                return does["status"], retry
            if does.get("limit") and len(body) > does["limit"]:
                return 413, {}
            if not (does.get("once") and headers.get("webhook-id", "") in self.ids.get(path, ())):
                self.change({"path": path, "headers": headers, "body": base64.b64encode(body).decode()})
        return 200, {}


def _serve(port: int, folder: Path) -> None:
    kept = _Kept(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self._body()
            if len(body) < int(self.headers.get("Content-Length", 0)):
                self.close_connection = True  # the client has disconnected during its request
                return
            self._answer(*kept.post(self.path, headers, body))

        def do_PUT(self) -> None:
            behaviour = json.loads(self._body())
            with kept.lock:
                kept.change({"path": self.path, "behaviour": behaviour})
            self._answer(200, {})

        def do_GET(self) -> None:
            path, _, start = self.path.partition("?")
            with kept.lock:
                found = kept.requests.get(path, [])[int(start or 0) :]
            self._answer(200, {}, json.dumps(found).encode())

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *args: Any) -> None:
            """A connection was cut."""

    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
