"""The driver's end of a route's control channel.

What it is: the socket on which the leases of one route report, and by which they are asked to end. It has no thread: it
is serviced whenever it is looked at. What it is not: the channel between a lease's reader and sink.

Invariants:
    I1. Counts are the sums over all leases ever heard of, and never fall.
    I2. Once stopping, every lease that connects later is asked to end as well.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import reduce
from pathlib import Path
from typing import Any

from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, ChannelError, Listening, channel_path, listen
from isthmus.replication.sighting import Sighting
from isthmus.replication.tally import Counts, counts_of

__all__ = ["RouteControl"]


class _Peer:
    """One connection: a lease, or the part of the source that runs beside the driver."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.told: dict[str, Any] = {}
        self.processes: set[int] = set()

    def hear(self, told: dict[str, Any]) -> None:
        """Take over a report; reports of the sink come wrapped in one of the reader."""
        for values in (told, told.get("sink")):
            if isinstance(values, dict) and isinstance(values.get("process"), int):
                self.processes.add(values["process"])
        self.told |= told

    @property
    def is_lease(self) -> bool:
        return "lease" in self.told

    @property
    def busy(self) -> bool:
        return self.is_lease and self.told.get("state") != "ended"


class RouteControl:
    """The control socket of one route.

    Args:
        name: what tells it from those of other routes on this machine, e.g. the checkpoint folder.
    """

    def __init__(self, name: Path) -> None:
        self._path = channel_path("control", name.absolute(), os.getpid())
        self._listener: Listening | None = None
        self._peers: dict[int, _Peer] = {}
        self._counts_before = Counts()
        self._met = False
        self._stopping = ""

    @property
    def path(self) -> str:
        """Where leases connect."""
        return str(self._path)

    def open(self) -> RouteControl:
        """Listens.

        Raises:
            ChannelError: the folder for sockets is not this user's alone.
        """
        self._listener = listen(self._path)
        return self

    def sighting(self) -> Sighting:
        """What was told so far; never blocks."""
        self._service()
        leases = [peer for peer in self._peers.values() if peer.is_lease]
        counts = reduce(Counts.plus, (counts_of(peer.told) for peer in leases), self._counts_before)
        processes = sorted({pid for peer in leases for pid in peer.processes})
        held = next((str(peer.told["held"]) for peer in leases if peer.busy and peer.told.get("held")), "")
        return Sighting(ready=self._met, counts=counts, held=held, processes=tuple(processes))

    def busy(self) -> bool:
        """Whether a lease is under way."""
        self._service()
        return any(peer.busy for peer in self._peers.values())

    def stop(self, why: str) -> None:
        """Asks every lease to end, and the source to start no other."""
        self._service()
        self._stopping = why or "stop"
        for peer in self._peers.values():
            self._ask(peer)

    def close(self) -> None:
        """Closes the socket and every connection."""
        self._service()
        for peer in self._peers.values():
            peer.channel.close()
        self._peers.clear()
        if self._listener is not None:
            self._listener.discard()
            self._listener = None

    def _ask(self, peer: _Peer) -> None:
        peer.channel.send(frames.STOP, self._stopping.encode())
        peer.channel.flush()

    def _service(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            peer = _Peer(Channel(sock))
            self._peers[peer.channel.fileno()] = peer
            if self._stopping:
                self._ask(peer)
        for descriptor, peer in list(self._peers.items()):
            received: list[tuple[int, bytes]] = []
            with contextlib.suppress(ChannelError):
                received = peer.channel.receive()
            for kind, payload in received:
                if kind == frames.STATS:
                    peer.hear(json.loads(payload))
                    self._met = self._met or peer.is_lease or bool(peer.told.get("looking"))
            if peer.channel.closed:
                if peer.is_lease:
                    self._counts_before = self._counts_before.plus(counts_of(peer.told))
                peer.channel.close()
                del self._peers[descriptor]
