"""A reader's connection to the driver.

What it is: the control connection of one lease: the reader's messages as frames, and the driver's answers. What it is not: the choice
of messages (`reader`), or the connection's handshake (`control.client`).

Invariants:
    I1. After the handshake nothing blocks.
    I2. After a lost connection, or bytes that are not frames, `is_gone` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from isthmus.bridge.frame import Kind, pack_json
from isthmus.bridge.host.channel import Channel, ChannelError
from isthmus.bridge.host.control.client import dial_control, hang_up
from isthmus.bridge.host.reader.item import LeaseName
from isthmus.bridge.report import RouteReport

__all__ = ["DIAL_SECONDS", "DriverLine"]

DIAL_SECONDS = 10.0
HANG_UP_SECONDS = 2.0


class DriverLine:
    """The connection of one lease.

    Args:
        name: of the lease.
        address: of the driver's control port.
        token: the key of the run.

    Raises:
        ControlError: the address cannot be reached.
    """

    def __init__(self, name: LeaseName, address: str, token: str) -> None:
        self._channel: Channel = dial_control(address, token, DIAL_SECONDS)
        self._channel.send(Kind.LEASE, pack_json(name._asdict() | {"process": os.getpid()}))
        self._channel.flush()

    @property
    def is_gone(self) -> bool:
        """Whether the driver's connection is lost."""
        return self._channel.closed

    def descriptors(self) -> list[tuple[int, int]]:
        """What to poll."""
        return [] if self._channel.closed else [(self._channel.fileno(), self._channel.interest())]

    def receive(self, ready: Mapping[int, int]) -> list[tuple[int, bytes]]:
        """The received frames."""
        channel = self._channel
        if channel.closed or channel.fileno() not in ready:
            return []
        try:
            return channel.receive()
        except ChannelError:
            channel.close()
            return []

    def report(self, routes: Mapping[str, RouteReport], asked: int, processes: Iterable[int]) -> None:
        """Sends the reports of routes, and asks for how long claims are held."""
        reports = {name: report.to_json() for name, report in routes.items()}
        self._send(Kind.REPORT, {"routes": reports, "asked": asked, "processes": list(processes)})

    def died(self, names: Iterable[str]) -> None:
        """Reports that the sink ended without notice while it had messages of these routes."""
        self._send(Kind.DIED, {"routes": list(names)})

    def ended(self, error: str) -> None:
        """Reports that the lease has ended."""
        self._send(Kind.ENDED, {"error": error})

    def _send(self, kind: Kind, fields: Mapping[str, object]) -> None:
        if not self._channel.closed:
            self._channel.send(kind, pack_json(fields))

    def flush(self) -> None:
        """Writes as much as the socket takes."""
        if not self._channel.closed:
            self._channel.flush()

    @property
    def has_queued(self) -> bool:
        """Whether anything waits to be written."""
        return not self._channel.closed and self._channel.has_queued()

    def close(self) -> None:
        """Ends the connection in such a way that the written frames are read."""
        if self._channel.closed:
            self._channel.close()
        else:
            hang_up(self._channel, HANG_UP_SECONDS)
