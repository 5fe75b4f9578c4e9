"""Reader and sink of the shared engine in one process, without Spark.

What it is: the part of Spark for a query of one slot: a thread takes rows from the reader and hands them to the sink, with flush rows
between them; when a lease ends, or one of its sides was killed, another begins with the next number. What it is not: Spark;
rows are not serialised.

Invariants:
    I1. Rows reach the sink in the order in which the reader produced them.
    I2. After `kill_reader` or `kill_sink` that side says nothing more to anybody: its ways are cut first.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.host import channel as channels
from isthmus.bridge.host.reader.reader import LeaseEnd, LeaseName, ReaderHost, Rows
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.port import Connector
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError

__all__ = ["Join", "Keep", "Side"]

_NUMBERS = itertools.count(1)
_TAKE_SECONDS = 0.01
_END_SECONDS = 60.0  # a limit, not a pause: a target that takes one message per request ends late on a loaded machine
_MEET_SECONDS, _MEET_STEP_SECONDS = 5.0, 0.002


class Keep(NamedTuple):
    """What a step makes of a row: kept, removed (`is_kept` false), or marked with a disposition."""

    is_kept: bool = True
    disposition: Disposition | None = None


Step = Callable[[bytes], Keep]


class Side(NamedTuple):
    """What the connectors of one side of a lease are asked for, and how that side is killed: it does nothing any
    more, then its ways are cut, then its thread ends.
    """

    connector: Callable[[str], Connector]
    mute: Callable[[], None]
    kill: Callable[[], None]


class Join:
    """One query.

    Args:
        routes: what its leases carry, where there is no control.
        sides: makes what a side of a new lease connects by.
        control: address and token of the driver's control server; None: there is none.
        step: a custom step.
        lease_seconds: how long a lease lasts.
        flush_seconds: how often a flush row is made.
        restarts: whether another lease begins when one has ended.
        name: of the query, for the control server.
        slot: which of the query's slots it is.
        slots: how many the query has.

    Attributes:
        restarts: see above.
        ends: how leases ended: the reader's result, and the sink's error.
    """

    def __init__(
        self,
        routes: Sequence[RouteSpec],
        sides: Callable[[], Side],
        *,
        control: tuple[str, str] | None = None,
        step: Step | None = None,
        lease_seconds: float = 3600.0,
        flush_seconds: float = 0.02,
        restarts: bool = True,
        name: str = "",
        slot: int = 0,
        slots: int = 1,
    ) -> None:
        self.ends: list[tuple[str, IsthmusError | None]] = []
        self._routes, self._sides, self._control = tuple(routes), sides, control
        self._step = step
        self._lease_seconds, self._flush_seconds, self.restarts = lease_seconds, flush_seconds, restarts
        self._query = name or f"join-{next(_NUMBERS)}"
        self._slot, self._slots = slot, slots
        self._is_stopping = threading.Event()
        self._lease: _Lease | None = None
        self._thread = threading.Thread(target=self._run, name="join", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.stop()
        else:  # the test has failed: end by any means
            self._is_stopping.set()
            self.kill()
            self._thread.join(5)

    # ---- for the test

    def stop(self, why: str = "the test is over") -> None:
        """Ends the lease in order, and begins no other.

        Raises:
            AssertionError: it did not end in time.
        """
        self._is_stopping.set()
        lease = self._lease
        if lease is not None:
            lease.stop(why)
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive(), "the lease did not end"

    def wait_ended(self, seconds: float = _END_SECONDS) -> None:
        """Waits until the last lease has ended; for joins that do not restart."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the lease did not end"

    def kill_reader(self) -> None:
        """Kills the reader's process."""
        if self._lease is not None:
            self._lease.kill_reader()

    def kill_sink(self) -> None:
        """Kills the sink's process."""
        if self._lease is not None:
            self._lease.kill_sink()

    def kill(self) -> None:
        """Kills both, of the same lease: another lease may begin as soon as the first process is gone."""
        lease = self._lease
        if lease is not None:
            lease.kill_sink()
            lease.kill_reader()

    @property
    def leases(self) -> int:
        """The number of leases that have ended."""
        return len(self.ends)

    # ---- Spark's part

    def _run(self) -> None:
        for number in itertools.count(1):
            lease = _Lease(self, number)
            self._lease = lease  # before it starts: a scripted kill may come with the first messages
            lease.start()
            if self._is_stopping.is_set():
                lease.stop("the test is over")
            self.ends.append(lease.run())
            if self._is_stopping.is_set() or not self.restarts:
                return

    def make_reader(self, number: int, channel: Path, connector: Callable[[str], Connector]) -> ReaderHost:
        """The reader of a lease."""
        return ReaderHost(
            channel=channel,
            lease=LeaseName(self._query, number, self._slot, self._slots),
            control=self._control,
            routes=() if self._control else self._routes,
            lease_seconds=self._lease_seconds,
            connectors=connector,
        )

    def channel(self, number: int) -> Path:
        """The channel on which reader and sink of a lease connect."""
        return channels.channel_path("join", os.getpid(), id(self), number)

    def side(self) -> Side:
        """The connectors of one side."""
        return self._sides()

    def applied(self, payload: bytes) -> Keep:
        """The result of the custom step for a row."""
        return Keep() if self._step is None else self._step(payload)

    @property
    def flush_seconds(self) -> float:
        """How often a flush row is made."""
        return self._flush_seconds


def _cut(channel: channels.Channel | None) -> None:
    """Ends a connection as the operating system does when a process dies; bytes written before can still be read."""
    if channel is not None:
        with contextlib.suppress(OSError):
            channel._sock.shutdown(socket.SHUT_RDWR)


class _Lease:
    """One lease: both hosts, and what passes rows between them."""

    def __init__(self, join: Join, number: int) -> None:
        self._join = join
        self._reading, self._writing = join.side(), join.side()
        path = join.channel(number)
        self.reader = join.make_reader(number, path, self._reading.connector)
        self.sender = SenderHost(channel=path, connectors=self._writing.connector)
        self._rows: dict[int, int] = {}
        self._flushes = 0
        self._reader_result: str | None = None
        self.killed = ""

    def start(self) -> None:
        """Starts both hosts."""
        self.reader.start()
        self.sender.start()

    def stop(self, why: str) -> None:
        """Asks the reader to end, once the sink has connected: before that, stopping would abandon the lease, and the sink would not receive STOPPED."""
        limit = time.monotonic() + _MEET_SECONDS
        while not self._has_met and time.monotonic() < limit:
            time.sleep(_MEET_STEP_SECONDS)
        self.reader.stop(why)

    @property
    def _has_met(self) -> bool:
        """Whether reader and sink have connected, or never will."""
        loop = self.reader._loop
        has_ended = self.reader._over.is_set() or bool(self.killed) or self._reader_result is not None
        return has_ended or (loop is not None and loop._sink.has_come)

    def kill_reader(self) -> None:
        """Kills the reader."""
        self.killed = self.killed or "reader"
        self._reading.mute()
        loop = self.reader._loop
        if loop is not None:
            _cut(loop._sink._channel)
            if loop._driver is not None:
                _cut(loop._driver._channel)
        self._reading.kill()

    def kill_sink(self) -> None:
        """Kills the sink."""
        self.killed = self.killed or "sink"
        self._writing.mute()
        link = self.sender._link
        if link is not None:
            _cut(link._channel)
        self._writing.kill()

    def run(self) -> tuple[str, IsthmusError | None]:
        """Passes rows until the lease ends: (the reader's word, the sink's error)."""
        error: IsthmusError | None = None
        try:
            self._pass_rows()
            if self._reader_result:  # Spark fails the task: the sink's input is broken off
                self.sender.abort(RuntimeError(self._reader_result))
            else:
                self.sender.finish()
        except IsthmusError as failure:
            error = failure
            if self.killed != "sink":
                self.sender.abort(failure)
        while self._reader_result is None:
            self._take(time.monotonic() + _TAKE_SECONDS)
        self.reader.join(_END_SECONDS)
        return ("killed" if self.killed == "reader" else self._reader_result), error

    def _pass_rows(self) -> None:
        flush_at = math.inf
        while self._reader_result is None:
            now = time.monotonic()
            if now >= flush_at:
                flush_at = math.inf
                self._flush()
            rows = self._take(min(flush_at, now + _TAKE_SECONDS))
            if rows is not None:
                self._pass_on(rows)
                flush_at = min(flush_at, time.monotonic() + self._join.flush_seconds)
        self._flush()

    def _take(self, until: float) -> Rows | None:
        """The next rows; the reader's result is kept when it ends."""
        item = self.reader.take(until)
        if isinstance(item, LeaseEnd):
            self._reader_result = str(item.error or "")
            return None
        return item

    def _flush(self) -> None:
        self._flushes += 1
        self.reader.note_flush(self._flushes, dict(self._rows))
        self.sender.flush(self._flushes)

    def _pass_on(self, rows: Rows) -> None:
        self._rows[rows.handle] = self._rows.get(rows.handle, 0) + len(rows.positions)
        positions: list[int] = []
        data: list[bytes] = []
        offsets = [0]
        disposed: list[tuple[int, Disposition]] = []
        for position, payload in zip(rows.positions, rows.payloads, strict=True):
            kept = self._join.applied(payload)
            if kept.disposition is not None:
                disposed.append((position, kept.disposition))
            elif kept.is_kept:
                positions.append(position)
                data.append(payload)
                offsets.append(offsets[-1] + len(payload))
        if positions or disposed:
            self.sender.hand_over(rows.handle, positions, b"".join(data), offsets, disposed)
