"""A message that takes longer to send than a target may be silent arrives, and is sent once."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carried, queue_route
from harness.client.fault_client import connected, make_message
from isthmus.connectors.transit import LOOK_SECONDS
from isthmus.testing.namespace import namespace
from isthmus.testing.proxy import Weather, proxy
from isthmus.transport import Management, Sender

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 102400, lock_duration: 5m}}"
BYTES_PER_SECOND = 256 << 10
BUFFER_BYTES = 64 << 10
TARGET_SECONDS = LOOK_SECONDS + 2.0
UPLOAD_SECONDS = TARGET_SECONDS + LOOK_SECONDS
WAIT_SECONDS = 60.0


def test_a_message_crosses_whose_upload_takes_longer_than_its_target_may_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with namespace(tmp_path / "a", config=CONFIG) as near, namespace(tmp_path / "b", config=CONFIG) as far:
        with connected(near, "big") as client:
            size = int(UPLOAD_SECONDS * BYTES_PER_SECOND)
            Sender(client, "big").wait_ready().send_all([make_message(os.urandom(size))], timeout_seconds=60)
        port = far.ports["amqp"]
        with proxy(port) as slow:
            # What is in the proxy's own buffers has arrived, as far as the sender can see.
            slow._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            slow.set_weather(Weather(bytes_per_second=BYTES_PER_SECOND, buffer_bytes=BUFFER_BYTES), Weather())
            monkeypatch.setenv("NEAR", near.connection_string)
            monkeypatch.setenv("FAR", far.connection_string.replace(f":{port}", f":{slow.port}"))
            ends = [{"connection": f"env:{name}", "entity": "big"} for name in ("NEAR", "FAR")]
            route = queue_route(*ends, target_seconds=TARGET_SECONDS)
            with carried(tmp_path, [route]), connected(far, "big") as client:
                limit = time.monotonic() + WAIT_SECONDS
                while not (found := Management(client, "big").peek(1, 2)):
                    assert time.monotonic() < limit, slow.bytes_there
                    time.sleep(0.5)
            assert len(found) == 1
            assert slow.bytes_there < 1.5 * size, "it was sent more than once"
