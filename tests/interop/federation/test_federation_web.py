"""One federation file over a listener, Queue Storage, Event Grid and an HTTP receiver: what is posted passes all of them unchanged."""

from __future__ import annotations

import http.client
import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from azure.storage.queue import QueueClient

from harness.bridge.hosted_run import HostedRun
from harness.server.azurite_server import azurite
from harness.server.eventgrid_server import KEY, eventgrid_server
from harness.server.http_server import http_receiver
from isthmus.connectors.administration import Administrations
from isthmus.connectors.http.mapping import to_messages, to_request
from isthmus.testing.bridge.message import key_of, message
from isthmus.topology import plan, read

COUNT = 60
WAIT_SECONDS = 300.0
FILE = """isthmus: 1
namespaces:
  hook: {{kind: http, listen: "127.0.0.1:{listen}", spool: {spool}, auth: bearer, secret: env:WEB_TOKEN}}
  store: {{kind: queuestorage, connection: env:WEB_STORAGE, visibility_seconds: 10, poll_seconds: 0.1}}
  grid: {{kind: eventgrid, endpoint: "{grid}", key: env:WEB_GRID, lock_seconds: 4}}
  api: {{kind: http, url: "{api}", timeout_seconds: 20}}
tasks:
  in: {{pattern: move, queue: orders, source: hook, target: store}}
  up: {{pattern: move, queue: orders, source: store, target: grid}}
  out: {{pattern: move, queue: parcels, source: store, target: api}}
"""


def test_what_is_posted_crosses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("azurite", "grid", "api")]
        for each in folders:
            each.mkdir()
        storage = stack.enter_context(azurite(folders[0]))
        grid = stack.enter_context(eventgrid_server(folders[1]))
        receiver = stack.enter_context(http_receiver(folders[2]))
        monkeypatch.setenv("WEB_STORAGE", storage.connection_string)
        monkeypatch.setenv("WEB_GRID", KEY)
        monkeypatch.setenv("WEB_TOKEN", "hunter2-of-the-web")
        grid.ask("PUT", "/orders", {})
        listen = random.randrange(10_000, 32_768)
        text = FILE.format(
            listen=listen, spool=tmp_path / "spool", grid=f"http://127.0.0.1:{grid.port}", api=receiver.url
        )
        file = tmp_path / "isthmus.yaml"
        file.write_text(text)
        federation = read(text)
        with Administrations(federation) as administrations:
            first = plan(federation, administrations.observe())
            assert {change.topic for change in first.changes} == {"orders", "parcels"}
            administrations.apply(first)
            assert not plan(federation, administrations.observe()).changes
        with QueueClient.from_connection_string(storage.connection_string, "parcels") as parcels:
            parcels.send_message("bGlrZSBvdGhlcnMgd3JpdGUgaXQ=")
        run = HostedRun(file, tmp_path / "run")
        stack.callback(run.end)
        for number in range(COUNT):
            _post(listen, number)
        limit = time.monotonic() + WAIT_SECONDS
        while len(grid.ask("GET", "/orders")["events"]) < COUNT or not receiver.requests("/parcels"):
            assert time.monotonic() < limit, grid.ask("GET", "/orders")
            assert run.is_alive()
            time.sleep(0.1)
        events = grid.ask("GET", "/orders")["events"]
        found = [
            to_messages({"content-type": "application/cloudevents+json"}, json.dumps(each).encode()) for each in events
        ]
        assert {key_of(each) for (each,) in found} == {f"a/{number}" for number in range(COUNT)}
        note = json.loads(events[0]["isthmusnote"])
        assert dict(map(tuple, note["headers"]))["repl-origin"] == "hook/orders;store/orders"
        assert json.loads(receiver.requests("/parcels")[0]["body"])["data"] == "like others write it"
        assert "hunter2" not in (tmp_path / "run" / "log.txt").read_text()


def _post(port: int, number: int) -> None:
    request = to_request(message(f"a/{number}", b'{"flight": 1}'), "structured", "tests")
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(
                "POST", "/orders", request.body, {**request.headers, "authorization": "Bearer hunter2-of-the-web"}
            )
            if connection.getresponse().status == 200:
                return
        except OSError:  # no listener yet
            pass
        finally:
            connection.close()
        assert time.monotonic() < limit
        time.sleep(0.05)
