"""Large messages behind small ones: a reader hands on no more than its bound of them, and asks for none that it cannot take.

Against a real namespace, with a sink that is ready and takes nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import queue_route
from harness.bridge.reader_peer import FakeSink
from harness.client.fault_client import connected, make_message
from isthmus.bridge.host.reader.item import LeaseName, Rows
from isthmus.bridge.host.reader.reader import ReaderHost
from isthmus.testing.namespace import namespace
from isthmus.transport import Sender

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 102400, lock_duration: 5m}}"
MIB = 1 << 20
BOUND = 6 * MIB
LARGE = 4 * MIB
# What comes while credit is being taken back is kept up to twice the bound (`isthmus.bridge.flow.source_flow`).
MOST = 2 * BOUND
QUIET_SECONDS = 2.0


@pytest.mark.parametrize("small", [0, 40])
def test_large_messages_stay_where_they_are_until_there_is_room(
    tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        monkeypatch.setenv("PLACE", ns.connection_string)
        with connected(ns, "big") as client:
            sender = Sender(client, "big").wait_ready()
            for size in [100] * small + [LARGE] * 8:
                sender.send_all([make_message(os.urandom(size))], timeout_seconds=60)
        end = {"connection": "env:PLACE", "entity": "big"}
        route = queue_route(end, end, window_bytes=BOUND)
        channel = tmp_path / "task"
        reader = ReaderHost(
            channel=channel, lease=LeaseName("q", 1, 0), control=None, routes=(route,), lease_seconds=60.0
        )
        reader.start()
        sink = FakeSink(channel)
        sink.ready(sink.opens()[0]["handle"])
        payloads: list[bytes] = []
        while (item := reader.take(time.monotonic() + (QUIET_SECONDS if len(payloads) > small else 20.0))) is not None:
            assert isinstance(item, Rows), item
            payloads += item.payloads
        assert len(payloads) > small
        assert sum(map(len, payloads)) <= MOST
        sink.close()  # what was not taken goes back
        reader.join(20.0)
