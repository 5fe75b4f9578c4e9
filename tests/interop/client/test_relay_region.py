"""A service behind two relays while one of their regions is killed, cut off or hangs. Also the examples of the page about it."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.client import RelayListener, RelayRequest, RelayRequester, RelayResponse
from isthmus.testing.region import Region, regions

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "reach-a-service-through-a-relay.md"
CONFIG = "hybrid_connections: {stock: {}, stock-west: {}}"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Region, ...]]:
    with regions(CONFIG) as running:
        yield running


def test_every_request_is_answered_while_one_region_is_in_trouble(pair: tuple[Region, ...]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    texts = [region.connection_string for region in pair]
    handled: dict[str, int] = {}

    def answer(request: RelayRequest) -> RelayResponse:
        handled[request.target] = handled.get(request.target, 0) + 1
        return RelayResponse(200, request.target.encode())

    with (
        RelayListener(*texts, "stock", on_request=answer, heartbeat=1.0) as listener,
        RelayRequester(*texts, "stock", timeout=1.5, connect_timeout=1.5) as requester,
    ):
        number = 0
        for trouble in ("outage", "crash", "frozen"):
            listener.wait_listening(2, timeout=60)
            with getattr(chance.choice(pair), trouble)():
                until = time.monotonic() + 2.0
                while time.monotonic() < until:
                    number += 1
                    assert requester.request("GET", f"/{number}").body == f"/stock/{number}".encode()
        listener.wait_listening(2, timeout=60)
        assert requester.statistics().unknown == 0
    # A request without a listener was sent again, once, to the other relay.
    assert set(handled.values()) <= {1, 2}
    assert len(handled) == number


def test_a_kill_ends_what_was_relayed_and_nothing_else(pair: tuple[Region, ...]) -> None:
    texts = [region.connection_string for region in pair]
    with (
        RelayListener(
            *texts, "stock", on_connect=lambda connection: [connection.send(each) for each in connection]
        ) as listener,
        RelayRequester(*texts, "stock", source=random.Random(1)) as requester,
    ):
        listener.wait_listening(2, timeout=60)
        connections = {}
        while len(connections) < 2:
            connection = requester.connect()
            connections[connection.side] = connection
            requester._inner._pair.doubted(connection.side)  # the next one through the other
        with pair[0].crash():
            assert connections["primary"].receive() is None
            connections["secondary"].send("still here")
            assert connections["secondary"].receive() == "still here"


def test_the_examples_of_the_page(pair: tuple[Region, ...], tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    service, caller = examples[0], examples[1]
    environment = {"RELAY_EAST": pair[0].connection_string, "RELAY_WEST": pair[1].connection_string}
    (tmp_path / "service.py").write_text(service)
    (tmp_path / "caller.py").write_text(caller)
    running = subprocess.Popen([sys.executable, tmp_path / "service.py"], env=environment, cwd=tmp_path)
    ending = threading.Timer(60, running.kill)
    ending.start()
    try:
        deadline = time.monotonic() + 30
        while True:
            said = subprocess.run(
                [sys.executable, tmp_path / "caller.py"], env=environment, cwd=tmp_path, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if said.returncode == 0 or time.monotonic() > deadline:
                break
        assert (said.returncode, said.stdout) == (0, "200 {'item': 'apple', 'left': 7}\n"), said.stderr
    finally:
        ending.cancel()
        running.terminate()
        running.wait(20)
