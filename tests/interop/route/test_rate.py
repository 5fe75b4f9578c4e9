"""A route with a rate takes no more from a served namespace than the rate allows, and loses nothing by it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carry, queue_route
from harness.client.fault_client import connected, look, make_message
from isthmus.testing.namespace import namespace
from isthmus.transport import Sender

COUNT = 160
PER_SECOND = 40


def test_a_rate_bounds_what_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with namespace(config="queues: {from: {}, to: {}}") as ns:
        monkeypatch.setenv("ISTHMUS_TEST_RATE", ns.connection_string)
        with connected(ns, "from") as client:
            Sender(client, "from").wait_ready().send_all([make_message(b"%d" % number) for number in range(COUNT)])
        options = {"connection": "env:ISTHMUS_TEST_RATE", "ca_file": str(ns.ca_file)}
        route = queue_route(
            options | {"entity": "from"}, options | {"entity": "to"}, only_present=True, rate=f"{PER_SECOND}/s"
        )
        began = time.monotonic()
        carry(tmp_path, route)
        elapsed = time.monotonic() - began
        with connected(ns, "to") as client:
            assert [int(each.body) for each in look(client, "to")] == list(range(COUNT))
    # What one second allows comes at once; the slower the machine, the longer it takes.
    assert elapsed >= (COUNT - PER_SECOND) / PER_SECOND * 0.95
