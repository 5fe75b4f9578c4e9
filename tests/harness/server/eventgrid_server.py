"""A server with the data plane of Event Grid namespaces, for tests, in a process of its own.

There is no emulator of Event Grid. This is written from the vendor's public contract as of 23 November 2026 (Microsoft Learn,
"Azure Event Grid data plane REST API", 2024-06-01: Publish, Receive, Acknowledge, Release, Reject, Renew Cloud Event Locks). It keeps each
change on disk before it answers, and how often an event was given; locks end with the process. A topic has one subscription, `sub`.

As a program: `eventgrid_server.py PORT FOLDER`.
"""

from __future__ import annotations

import http.client
import itertools
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
from urllib.parse import parse_qs, urlsplit

__all__ = ["KEY", "EventGridServer", "eventgrid_server"]

KEY = "hunter2-of-event-grid"
START_SECONDS = 60.0
LOCK_SECONDS = 4.0
LIMIT_BYTES = 1 << 20


class EventGridServer:
    """The process.

    Args:
        folder: of what it keeps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = random.randrange(10_000, 32_768)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen([sys.executable, __file__, str(self.port), str(self._folder)])
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask("GET", "/none")
                return
            except OSError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < limit, "the server does not answer"
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

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to it; GET of a topic gives `events`, `left` and `dead`, PUT sets what it does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"authorization": f"SharedAccessKey {KEY}"}
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            return json.loads(connection.getresponse().read() or b"null")
        finally:
            connection.close()


@contextmanager
def eventgrid_server(folder: Path) -> Iterator[EventGridServer]:
    """A server that runs."""
    made = EventGridServer(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()


class _Topic:
    def __init__(self) -> None:
        self.status = 200
        self.limit = LIMIT_BYTES
        self.events: list[dict[str, Any]] = []
        self.left: dict[int, int] = {}  # event by its number, and how often it was given
        self.dead: list[dict[str, Any]] = []
        self.locks: dict[str, tuple[int, float]] = {}


class _Grid:
    """What the process has."""

    def __init__(self, folder: Path) -> None:
        self.came = threading.Condition()
        self.topics: dict[str, _Topic] = {}
        self._tokens = itertools.count(time.time_ns())
        file = folder / "journal"
        for line in file.read_text().split("\n")[:-1] if file.exists() else ():
            self._apply(json.loads(line))
        self._file = file.open("a")

    def keep(self, *changes: dict[str, Any]) -> None:
        """Keeps changes."""
        self._file.write("".join(json.dumps(change) + "\n" for change in changes))
        self._file.flush()
        for change in changes:
            self._apply(change)

    def _apply(self, change: dict[str, Any]) -> None:
        topic = self.topics.setdefault(change["topic"], _Topic())
        if "event" in change:
            topic.left[len(topic.events)] = 0
            topic.events.append(change["event"])
        elif "given" in change:
            for number in change["given"]:
                topic.left[number] += 1
        elif "done" in change:
            topic.left.pop(change["done"], None)
            if change["reject"]:
                topic.dead.append(topic.events[change["done"]])
        else:
            topic.status, topic.limit = change.get("status", 200), change.get("limit", LIMIT_BYTES)

    def publish(self, name: str, body: bytes) -> tuple[int, Any]:
        """Takes all events of a batch, or none."""
        with self.came:
            topic = self.topics[name]
            if topic.status != 200:
                return topic.status, {"error": {"code": "ServerBusy", "message": "come back later"}}
            if len(body) > topic.limit:
                return 413, {"error": {"code": "PayloadTooLarge", "message": f"{topic.limit} bytes are taken"}}
            events = json.loads(body)
            if not all(each.get(field) for each in events for field in ("specversion", "id", "source", "type")):
                return 400, {"error": {"code": "BadRequest", "message": "no CloudEvent"}}
            self.keep(*({"topic": name, "event": each} for each in events))
            self.came.notify_all()
        return 200, {}

    def receive(self, name: str, count: int, seconds: float) -> tuple[int, Any]:
        """Locks events, and waits for the first."""
        limit = time.monotonic() + seconds
        with self.came:
            topic = self.topics[name]
            while True:
                now = time.monotonic()
                locked = {number for number, until in topic.locks.values() if until > now}
                free = [number for number in topic.left if number not in locked][:count]
                if free or now >= limit:
                    break
                self.came.wait(min(limit - now, 0.2))
            value = []
            if free:
                self.keep({"topic": name, "given": free})
            for number in free:
                token = f"token-{next(self._tokens)}"
                topic.locks[token] = number, time.monotonic() + LOCK_SECONDS
                broker = {"lockToken": token, "deliveryCount": topic.left[number]}
                value.append({"brokerProperties": broker, "event": topic.events[number]})
        return 200, {"value": value}

    def settle(self, name: str, operation: str, tokens: list[str]) -> tuple[int, Any]:
        """Takes tokens whose lock has not ended."""
        taken, failed = [], []
        with self.came:
            topic = self.topics[name]
            for token in tokens:
                number, until = topic.locks.get(token, (-1, 0.0))
                if until <= time.monotonic() or number not in topic.left:
                    failed.append({"lockToken": token, "error": {"code": "TokenLost", "message": "the lock has ended"}})
                    continue
                taken.append(token)
                if operation == "renewLock":
                    topic.locks[token] = number, time.monotonic() + LOCK_SECONDS
                    continue
                del topic.locks[token]
                if operation != "release":
                    self.keep({"topic": name, "done": number, "reject": operation == "reject"})
            self.came.notify_all()
        return 200, {"succeededLockTokens": taken, "failedLockTokens": failed}


def _serve(port: int, folder: Path) -> None:
    grid = _Grid(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self, status: int, reported: Any) -> None:
            body = json.dumps(reported).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Authorization") != f"SharedAccessKey {KEY}":
                self._answer(401, {"error": {"code": "Unauthorized", "message": "the key is wrong"}})
                return
            parts = urlsplit(self.path)
            topic_path, _, operation = parts.path.rpartition(":")
            names, query = topic_path.split("/"), parse_qs(parts.query)
            if names[2] not in grid.topics or query["api-version"] != ["2024-06-01"]:
                self._answer(404, {"error": {"code": "NotFound", "message": "there is no such topic"}})
            elif operation == "publish":
                self._answer(*grid.publish(names[2], body))
            elif operation == "receive":
                self._answer(*grid.receive(names[2], int(query["maxEvents"][0]), float(query["maxWaitTime"][0])))
            else:
                self._answer(*grid.settle(names[2], operation, json.loads(body)["lockTokens"]))

        def do_PUT(self) -> None:
            reported = json.loads(self._body())
            with grid.came:
                grid.keep({"topic": self.path.strip("/"), **reported})
            self._answer(200, {})

        def do_GET(self) -> None:
            name, _, start = self.path.strip("/").partition("?")
            with grid.came:
                topic = grid.topics.get(name, _Topic())
                reported = {"events": topic.events[int(start or 0) :], "left": len(topic.left), "dead": topic.dead}
            self._answer(200, reported)

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
