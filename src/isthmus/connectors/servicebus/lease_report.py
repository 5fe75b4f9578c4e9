"""A lease's line to the driver.

What it is: the channel over which a lease tells how far it is, asks for how long the claim is held,
and hears the wish to end. What it is not: the driver's end
(`isthmus.replication.route_control`), or the channel to the sink.

Invariants:
    I1. A driver that is gone, or that sends what is no frame, is forgotten; the lease goes on.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, ChannelError, dial
from isthmus.connectors.servicebus.ledger import Ledger

__all__ = ["REPORT_SECONDS", "LeaseReport"]

REPORT_SECONDS = 1.0


class LeaseReport:
    """Tells the driver about one lease.

    Args:
        control_file: where the driver listens; None: nobody watches.
        label: what the driver knows the lease by.
    """

    def __init__(self, control_file: Path | None, label: str) -> None:
        self._file = control_file
        self._label = label
        self._channel: Channel | None = None
        self._told_at = 0.0
        self._told_settled = 0

    def open(self) -> None:
        """Dials, once."""
        self._told_at = time.monotonic()
        if self._file is not None:
            self._channel = dial(self._file)

    @property
    def channel(self) -> Channel | None:
        """What to poll."""
        return self._channel

    @property
    def is_open(self) -> bool:
        """Whether anybody listens."""
        return self._channel is not None and not self._channel.closed

    def is_due(self, now: float) -> bool:
        """Whether the driver has heard nothing for a while."""
        return now - self._told_at >= REPORT_SECONDS

    def receive(self) -> list[tuple[int, bytes]]:
        """Takes in the frames that the driver sent."""
        channel = self._channel
        if channel is None:
            return []
        try:
            received = channel.receive()
        except ChannelError:
            received = []
            channel.closed = True
        if channel.closed:
            channel.close()
            self._channel = None
        else:
            channel.flush()
        return received

    def rate(self, settled: int) -> float:
        """Messages settled per second since this was asked last."""
        now = time.monotonic()
        elapsed = now - self._told_at
        rate = (settled - self._told_settled) / elapsed if elapsed > 0 else 0.0
        self._told_at, self._told_settled = now, settled
        return rate

    def tell(self, ledger: Ledger, more: dict[str, Any]) -> None:
        """Sends a report."""
        if self._channel is None:
            return
        told = {
            "lease": self._label,
            "process": os.getpid(),
            "received": ledger.added,
            "settled": ledger.settled,
            "outstanding": ledger.outstanding,
            **more,
        }
        self._channel.send(frames.STATS, json.dumps(told).encode())
        self._channel.flush()

    def close(self) -> None:
        """Writes what waits, and closes."""
        if self._channel is not None:
            self._channel.flush()
            self._channel.close()
