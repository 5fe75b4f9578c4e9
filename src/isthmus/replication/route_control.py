"""The driver's end of a route's control channel.

What it is: the socket on which the leases of one route report, ask for how long the claim is held, and are asked to end. It
is serviced whenever it is looked at; where leases ask, a thread answers them at once, since a round of the supervisor may
take longer than the fence of a lease is ahead (`isthmus.bridge.fence`). What it is not: the channel between a lease's reader
and sink.

Invariants:
    I1. Counts are the sums over all leases ever heard of, and never fall.
    I2. Once stopping, every lease that connects later is asked to end as well.
    I3. An answer tells for how long the claim is held from when it is given, not from when it was asked for.
    I4. A worker's death counts once, and not where the lease was asked to end, or had failed before.
    I5. Whoever sends what is no report is cut off; all others are served.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from isthmus.bridge.crash_search import CrashSearch
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, ChannelError, Listening, channel_path, listen
from isthmus.replication.sighting import Sighting
from isthmus.replication.tally import Counts, counts_of

__all__ = ["RouteControl"]

log = logging.getLogger(__name__)


class _Peer:
    """One connection: a lease, or the part of the source that runs beside the driver."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.told: dict[str, Any] = {}
        self.processes: set[int] = set()
        self.settled = 0  # as counted for the search for what kills
        self.died = False

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
        claim_seconds: for how long the claim of the task is still held; None: no lease asks.
        crashes: which of the route's messages kills its workers; outlives this.
    """

    def __init__(
        self, name: Path, claim_seconds: Callable[[], float] | None = None, crashes: CrashSearch | None = None
    ) -> None:
        self._name = name.name
        self._crashes = crashes or CrashSearch()
        self._path = channel_path("control", name.absolute(), os.getpid())
        self._listener: Listening | None = None
        self._peers: dict[int, _Peer] = {}
        self._counts_before = Counts()
        self._met = False
        self._stopping = ""
        self._claim_seconds = claim_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread: threading.Thread | None = None

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
        if self._claim_seconds is not None:
            self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
            self._thread.start()
        return self

    def sighting(self) -> Sighting:
        """What was told so far; never blocks."""
        with self._lock:
            self._service()
            return self._sighting()

    def _sighting(self) -> Sighting:
        leases = [peer for peer in self._peers.values() if peer.is_lease]
        counts = reduce(Counts.plus, (counts_of(peer.told) for peer in leases), self._counts_before)
        processes = sorted({pid for peer in leases for pid in peer.processes})
        held = next((str(peer.told["held"]) for peer in leases if peer.busy and peer.told.get("held")), "")
        return Sighting(ready=self._met, counts=counts, held=held, processes=tuple(processes))

    def busy(self) -> bool:
        """Whether a lease is under way."""
        with self._lock:
            self._service()
            return any(peer.busy for peer in self._peers.values())

    def stop(self, why: str) -> None:
        """Asks every lease to end, and the source to start no other."""
        with self._lock:
            self._hear_out()
            self._stopping = why or "stop"
            for peer in self._peers.values():
                self._ask(peer)

    def close(self) -> None:
        """Closes the socket and every connection."""
        self._closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join(5.0)
        with self._lock:
            self._hear_out()
            for peer in self._peers.values():
                peer.channel.close()
            self._peers.clear()
            if self._listener is not None:
                self._listener.discard()
                self._listener = None
            self._wake_read.close()
            self._wake_write.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    def _serve(self) -> None:
        """Answers questions as they come, until closed."""
        while not self._closed:
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            with self._lock:
                if self._listener is not None:
                    poll.register(self._listener, select.POLLIN)
                for peer in self._peers.values():
                    poll.register(peer.channel, select.POLLIN)
            if any(descriptor == self._wake_read.fileno() for descriptor, _ in poll.poll()):
                self._wake_read.recv(4096)
            with self._lock:
                self._service()

    def _ask(self, peer: _Peer) -> None:
        peer.channel.send(frames.STOP, self._stopping.encode())
        peer.channel.flush()

    def _hear_out(self) -> None:
        """Takes in everything that was told before now: behind the last word of a process that died stands its end."""
        self._service()
        self._service()

    def _service(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            peer = _Peer(Channel(sock))
            self._peers[peer.channel.fileno()] = peer
            if self._thread is not None and threading.current_thread() is not self._thread:
                self._wake()  # it polls those that it knows
            if self._stopping:
                self._ask(peer)
        for descriptor, peer in list(self._peers.items()):
            try:
                received = peer.channel.receive()
                for kind, payload in received:
                    if kind == frames.STATS:
                        self._hear(peer, json.loads(payload))
            except (ChannelError, ValueError, TypeError, AttributeError):
                peer.channel.closed = True
            if peer.channel.closed:
                if peer.busy and peer.told.get("state") != "next" and not peer.told.get("failed"):
                    self._died(peer)
                if peer.is_lease:
                    self._counts_before = self._counts_before.plus(counts_of(peer.told))
                peer.channel.close()
                del self._peers[descriptor]

    def _hear(self, peer: _Peer, told: dict[str, Any]) -> None:
        peer.hear(told)
        self._met = self._met or peer.is_lease or bool(peer.told.get("looking"))
        self._count(peer)
        self._answer(peer)

    def _count(self, peer: _Peer) -> None:
        """What a report tells of messages that moved, killed, or were set aside."""
        for sequence in peer.told.pop("set_aside", ()):
            planned = self._crashes.plan()
            if planned.set_aside == sequence:
                log.warning("route %s: message %d was dead-lettered: it killed %d workers in a row while it alone was under "
                            "way", self._name, sequence, planned.deaths)  # fmt: skip
                self._crashes.set_aside(sequence)
        settled = int(peer.told.get("settled", 0))
        self._crashes.moved(settled - peer.settled)
        peer.settled = settled
        if peer.told.pop("died", False):
            self._died(peer)

    def _died(self, peer: _Peer) -> None:
        """The worker of a lease's reader or sink is gone without a word."""
        if peer.died or self._stopping:
            return
        peer.died = True
        told = peer.told
        window, outstanding, head = (int(told.get(name, 0)) for name in ("window", "outstanding", "head"))
        self._crashes.died(window, outstanding, head)
        planned = self._crashes.plan()
        log.warning("route %s: a worker died while up to %d messages were under way, the first known one %d; no more than %d "
                    "from now on, until %d have moved", self._name, window, head, planned.window, planned.span)  # fmt: skip

    def _answer(self, peer: _Peer) -> None:
        asked = peer.told.pop("asked", 0)
        if asked and self._claim_seconds is not None:
            told = {"asked": asked, "held_seconds": self._claim_seconds(), **self._crashes.plan()._asdict()}
            peer.channel.send(frames.GRANT, json.dumps(told).encode())
            peer.channel.flush()
