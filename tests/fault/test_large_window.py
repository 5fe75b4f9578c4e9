"""Large messages behind small ones: a reader keeps no more than its bound of them in memory, and locks none that it cannot take.

Against a real namespace, with a sink that greets and takes nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fault_client import connected, endpoint_for, make_message
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.lease import Lease, LeaseLimits
from isthmus.testing.namespace import namespace
from isthmus.transport import Sender

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 102400, lock_duration: 5m}}"
MIB = 1 << 20
BOUND = 6 * MIB
LARGE = 4 * MIB


@pytest.mark.parametrize("small", [0, 40])
def test_large_messages_stay_where_they_are_until_there_is_room(tmp_path: Path, small: int) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            sender = Sender(client, "big").wait_ready()
            for size in [100] * small + [LARGE] * 8:
                sender.send_all([make_message(os.urandom(size))], timeout_seconds=60)
        channel_file = tmp_path / "task.lease"
        limits = LeaseLimits(60, 10**6, 1 << 40, 60)
        lease = Lease(endpoint_for(ns), "big", limits, window_bytes=BOUND, channel_file=channel_file)
        lease.start()
        while (sink := frames.dial(channel_file)) is None:
            time.sleep(0.01)
        sink.send(frames.HELLO)
        sink.flush()
        most = 0
        limit = time.monotonic() + 20
        while time.monotonic() < limit and not (lease.ledger.added > small and has_stopped(lease)):
            most = max(most, held_bytes(lease))
            time.sleep(0.005)
        for _ in range(100):
            most = max(most, held_bytes(lease))
            time.sleep(0.01)
        assert lease.ledger.added > small
        # What fills the bound, one read of the socket, and what the message of that read has beside its body.
        assert most <= BOUND + 2 * MIB
        lease.stop("the test is over")
        sink.close()
        lease.join(20)


def has_stopped(lease: Lease) -> bool:
    """Whether the source may send nothing more, or nothing of it is read."""
    return lease._is_full() or lease._receiver is None or not lease._receiver.credit


def held_bytes(lease: Lease) -> int:
    """Received and not settled, in part or whole."""
    client = lease._client
    return lease.ledger.outstanding_bytes + (client.connection.partial_bytes if client is not None else 0)
