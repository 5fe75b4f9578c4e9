"""A listener as a source: what it answers, and that what it answered 200 is lost by no kill."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Exhausted, SourceOpened
from isthmus.connectors.http.connector import HttpSources
from isthmus.connectors.http.mapping import to_request
from isthmus.connectors.http.signature import signed
from isthmus.connectors.listen.source import ListenSource
from isthmus.testing.bridge.message import key_of, message

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WAIT_SECONDS = 120.0


class Reader:
    """A source and what it has given."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.pool = HttpSources()
        only_present = options.pop("only_present", "") == "yes"
        options = {"listen": "127.0.0.1:0", "spool": str(folder), "entity": "hook"} | options
        made = self.pool.source(1, options, only_present=only_present)
        assert isinstance(made, ListenSource)
        self.source = made
        self.events: list[object] = []
        self.found: list[tuple[int, bytes]] = []
        made.open()
        self.wait(lambda: any(isinstance(each, SourceOpened) for each in self.events))
        made.grant(10_000)

    def wait(self, condition: object) -> None:
        assert callable(condition)
        limit = time.monotonic() + WAIT_SECONDS
        while True:
            for each in self.source.poll(time.monotonic()):
                self.events.append(each)
                if isinstance(each, Arrived):
                    self.found += zip(each.positions, each.payloads, strict=True)
            if condition():
                return
            assert time.monotonic() < limit, self.events
            time.sleep(0.005)

    def close(self) -> None:
        self.source.close()
        self.pool.close()
        assert self.source.has_left


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    made: list[Reader] = []
    yield made
    for each in made:
        each.close()


def post(port: int, headers: dict[str, str], body: bytes, path: str = "/hook", method: str = "POST") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["structured", "binary", "body"])
def test_what_was_posted_comes_as_it_was_sent(tmp_path: Path, readers: list[Reader], mode: str) -> None:
    readers.append(reader := Reader(tmp_path))
    for number in range(5):
        request = to_request(message(f"a/{number}", b"body \xff"), mode, "ewr/flights")
        assert post(reader.source.port, request.headers, request.body)[0] == 200
    reader.wait(lambda: len(reader.found) == 5)
    assert [key_of(payload) for _, payload in reader.found] == [f"a/{number}" for number in range(5)]
    assert all(payload.endswith(b"body \xff") for _, payload in reader.found)
    reader.source.settle(reader.found[0][0], reader.found[-1][0])


def test_what_is_not_settled_comes_again_and_the_rest_does_not(tmp_path: Path, readers: list[Reader]) -> None:
    readers.append(first := Reader(tmp_path))
    for number in range(6):
        assert post(first.source.port, {"webhook-id": f"a/{number}"}, b"x")[0] == 200
    first.wait(lambda: len(first.found) == 6)
    positions = [position for position, _ in first.found]
    first.source.settle(positions[0], positions[1])
    first.source.settle(positions[3], positions[3], Disposition("dead-letter", "Bad", "no"))
    first.source.release(positions[2], positions[2])
    first.wait(lambda: len(first.found) == 7)
    assert first.found[6][0] == positions[2]
    readers.pop().close()
    assert any((tmp_path / "hook" / "set-aside" / "segments").iterdir())
    readers.append(again := Reader(tmp_path, only_present="yes"))
    again.wait(lambda: len(again.found) == 3)
    again.source.settle(positions[0], positions[-1])
    again.wait(lambda: any(isinstance(each, Exhausted) for each in again.events))
    assert [position for position, _ in again.found] == [positions[2], *positions[4:]]
    assert [key_of(payload) for _, payload in again.found] == ["a/2", "a/4", "a/5"]


def test_refusals(tmp_path: Path, readers: list[Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    readers.append(reader := Reader(tmp_path, auth="hmac", secret="env:HOOK_SECRET", max_body_bytes="100"))
    port = reader.source.port
    now = int(time.time())
    right = signed("standard", SECRET, "1", b"{}", now)
    assert post(port, right, b"{}")[0] == 200
    assert post(port, right, b"[]")[0] == 401
    assert post(port, signed("standard", SECRET, "1", b"{}", now - 600), b"{}")[0] == 401
    assert post(port, signed("standard", "another", "1", b"{}", now), b"{}")[0] == 401
    assert post(port, {}, b"{}") == (401, "webhook-timestamp is missing or malformed")
    assert post(port, {}, b"x" * 200)[0] == 413
    assert post(port, right, b"{}", "/other")[0] == 404
    assert post(port, {}, b"", method="GET")[0] == 405
    event = signed("standard", SECRET, "1", b"nothing", now) | {"content-type": "application/cloudevents+json"}
    assert post(port, event, b"nothing")[0] == 400
    reader.wait(lambda: len(reader.found) == 1)


def test_a_full_spool_is_reported_with_retry_after(tmp_path: Path, readers: list[Reader]) -> None:
    readers.append(reader := Reader(tmp_path, spool_bytes="4096"))
    answers = [post(reader.source.port, {}, b"x" * 3000)[0] for _ in range(3)]
    assert answers == [200, 200, 503]


LISTENER = """
import json, sys, time
from isthmus.bridge.port import Arrived, SourceOpened
from isthmus.connectors.http.connector import HttpSources
pool = HttpSources()
source = pool.source(1, json.loads(sys.argv[1]))
source.open()
taken = open(sys.argv[2], "a")
while True:
    for event in source.poll(time.monotonic()):
        if isinstance(event, SourceOpened):
            source.grant(1000)
            print(source.port, flush=True)
        elif isinstance(event, Arrived):
            source.grant(1000)
            for position, payload in zip(event.positions, event.payloads):
                taken.write(payload.hex() + chr(10))
            taken.flush()
            source.settle(event.positions[0], event.positions[-1])
    time.sleep(0.002)
"""


def test_a_killed_listener_loses_nothing_that_it_answered(tmp_path: Path) -> None:
    """Senders send until they are answered 200, while the process is killed again and again."""
    options = json.dumps({"listen": "127.0.0.1:0", "spool": str(tmp_path / "spool"), "entity": "hook"})
    taken = tmp_path / "taken"
    process, port = _listen(options, taken)
    where = [port]
    accepted: list[str] = []
    stops = threading.Event()

    def send(name: str) -> None:
        number = 0
        while not stops.is_set():
            key = f"{name}/{number}"
            try:
                status, _ = post(where[0], {"webhook-id": key}, b"x" * 200)
            except (OSError, http.client.HTTPException):
                continue
            if status == 200:
                accepted.append(key)
                number += 1

    senders = [threading.Thread(target=send, args=(name,)) for name in ("a", "b", "c")]
    for each in senders:
        each.start()
    try:
        for round_number in range(1, 4):
            limit = time.monotonic() + WAIT_SECONDS
            while len(accepted) < 40 * round_number:
                assert time.monotonic() < limit
                time.sleep(0.01)
            _kill(process)
            process, where[0] = _listen(options, taken)
        stops.set()
        for each in senders:
            each.join()
        limit = time.monotonic() + WAIT_SECONDS
        while set(accepted) - _taken(taken):
            assert time.monotonic() < limit, sorted(set(accepted) - _taken(taken))[:5]
            time.sleep(0.05)
    finally:
        stops.set()
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _listen(options: str, taken: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", LISTENER, options, str(taken)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def _taken(path: Path) -> set[str]:
    return {key_of(bytes.fromhex(line)) for line in path.read_text().split("\n")[:-1]}
