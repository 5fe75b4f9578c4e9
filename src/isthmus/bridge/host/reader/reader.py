"""The reader's process of a lease: one loop that carries many routes.

What it is: a thread with one loop over the sources of all routes, the sink of the same task, and the driver; and a queue from which
Spark's thread takes rows. What it is not: Spark (`isthmus.bridge.spark`), or the decisions about one route (`isthmus.bridge.lease.lease`).

The orderly end of a lease:
    1. every route ends: no credit is granted, and outstanding messages are settled or released;
    2. the driver gets the last reports of the routes, and ENDED;
    3. the sink gets STOPPED: without it, the end of its input would be a failure;
    4. Spark's thread finds LeaseEnd after all rows; its input to the sink ends;
    5. this thread waits for the sink's END, and closes.
A lease fails when its sink disconnects or fails as a whole. Then everything is released, the driver gets the error, and Spark's
thread finds LeaseEnd with the error.

Invariants:
    I1. However a lease ends, unsettled messages have been released before LeaseEnd.
    I2. Urgent reports, windows, clocks and fences are written before the rows, and the credit, that they concern.
    I3. A lease does not end in order before its sink has connected. Without this, a late sink never receives STOPPED.
    I4. Spark's thread never waits for a source, a target or the driver.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isthmus.bridge import registry
from isthmus.bridge.frame import Kind, pack_json, unpack_json
from isthmus.bridge.host.poll_set import PollSet
from isthmus.bridge.host.reader.claim_book import ClaimBook
from isthmus.bridge.host.reader.control import DriverLine
from isthmus.bridge.host.reader.item import LeaseEnd, LeaseFailedError, LeaseName, Rows
from isthmus.bridge.host.reader.life import ReaderLife, Verdict
from isthmus.bridge.host.reader.routes import ReaderRoutes
from isthmus.bridge.host.reader.sink_line import SinkLine
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.port import Connector
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError

__all__ = ["LeaseEnd", "LeaseName", "ReaderHost", "Rows"]

_LOG = logging.getLogger(__name__)
REPORT_SECONDS = 1.0
# How long the last settlements and releases, and STOPPED, may take to be written.
WRITE_SECONDS = 5.0
# How long the thread waits for the sink's END; no one waits for the thread.
LINGER_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 1.0


class ReaderHost:
    """Runs one lease.

    Args:
        channel: to which the sink of the task connects (`isthmus.bridge.host.channel.channel_path`).
        lease: the driver's key of the lease.
        control: address and key of the driver; None: there is none, and `routes` are carried.
        routes: to carry without a driver.
        lease_seconds: how long the lease lasts; the driver may override it.
        connectors: returns the connector of a kind.
    """

    def __init__(
        self,
        *,
        channel: Path,
        lease: LeaseName,
        control: tuple[str, str] | None,
        routes: Sequence[RouteSpec] = (),
        lease_seconds: float,
        connectors: Callable[[str], Connector] = registry.connector,
    ) -> None:
        self.name = lease
        self._channel = channel
        self._control = control
        self._specs = tuple(routes)
        self._connectors = connectors
        self._items: queue.SimpleQueue[Rows | LeaseEnd] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader-{lease.slot}", daemon=True)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._life = ReaderLife(lease_seconds, needs_assignment=control is not None)
        self._loop: _Loop | None = None

    # ---- for Spark's thread

    def start(self) -> None:
        """Starts the thread; errors are in LeaseEnd."""
        self._life.owner = threading.current_thread()
        self._thread.start()

    def take(self, until: float) -> Rows | LeaseEnd | None:
        """The next rows or the end; None if there is nothing by that time (monotonic seconds)."""
        try:
            if until == math.inf:
                return self._items.get()
            return self._items.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def note_flush(self, number: int, rows: Any) -> None:
        """Flush row `number` was sent after so many rows of each handle, counted since its opening."""
        if self._loop is not None:
            self._loop.routes.note_flush(number, rows)

    def stop(self, why: str) -> None:
        """Requests an orderly end of the lease; may be called from any thread."""
        self._life.stop_wish = self._life.stop_wish or why
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    def join(self, seconds: float) -> None:
        """Waits until the lease has ended, and the systems have processed the settlements: afterwards this process may be killed."""
        self._over.wait(seconds)

    # ---- the thread

    def _run(self) -> None:
        error: IsthmusError | None = None
        loop: _Loop | None = None
        try:
            driver = DriverLine(self.name, *self._control) if self._control is not None else None
            loop = self._loop = _Loop(self, SinkLine(self._channel), driver)
            loop.run(self._specs)
            loop.end()
        except IsthmusError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - whatever it is, everything has to be given back, and Spark told
            error = LeaseFailedError(str(self.name), f"{type(raised).__name__}: {raised}")
        try:
            if loop is not None and error is not None:
                loop.abort(error)
        except BaseException as raised:  # noqa: BLE001 - the error that came first is told
            _LOG.warning("%s: giving back: %s: %s", self.name, type(raised).__name__, raised)
        self._items.put(LeaseEnd(error))
        if loop is not None:
            loop.routes.close()
        self._over.set()
        if loop is not None:
            loop.close(lingers=error is None)
        self._wake_read.close()
        self._wake_write.close()


class _Loop:
    """The loop of a reader's thread."""

    def __init__(self, host: ReaderHost, sink: SinkLine, driver: DriverLine | None) -> None:
        self._host = host
        self._life = host._life
        self._sink = sink
        self._driver = driver
        self._claims = ClaimBook()
        self.routes = ReaderRoutes(host._connectors, sink, self._claims)
        self._polled = PollSet()
        self._reported_at = -math.inf

    def run(self, specs: Sequence[RouteSpec]) -> None:
        """Runs until all routes have ended.

        Raises:
            IsthmusError: the lease failed.
        """
        now = time.monotonic()
        self._life.begin(now)
        for spec in specs:
            self.routes.add(spec, Plan(), now)
        self._write_queued(now)
        while True:
            self._iterate()
            verdict = self._life.verdict(time.monotonic(), self.routes, self._sink, self._driver)
            if verdict is Verdict.END:
                self.routes.end_all(time.monotonic())
                self._write_queued(time.monotonic())
            elif verdict is Verdict.OVER:
                return
            elif isinstance(verdict, str):
                raise LeaseFailedError(str(self._host.name), verdict)

    def _iterate(self) -> None:
        now = time.monotonic()
        ready = self._wait(now, self._due(now))
        now = time.monotonic()
        self.routes.service(ready, now)
        for kind, payload in self._sink.receive(ready, now):
            self._on_sink_frame(kind, payload, now)
        if self._driver is not None:
            for kind, payload in self._driver.receive(ready):
                self._on_driver_frame(kind, payload, now)
        self._write_queued(now)

    def _due(self, now: float) -> float:
        due = min(self.routes.deadline(now), self._claims.ask_at, self._life.deadline(now), now + LONGEST_WAIT_SECONDS)
        if self._driver is not None and self.routes.has_changed:
            due = min(due, self._reported_at + REPORT_SECONDS)
        return due

    def _wait(self, now: float, until: float) -> dict[int, int]:
        wanted = [(self._host._wake_read.fileno(), select.POLLIN)]
        wanted += self.routes.descriptors()
        wanted += self._sink.descriptors()
        if self._driver is not None:
            wanted += self._driver.descriptors()
        ready = self._polled.wait(wanted, until - now)
        if self._host._wake_read.fileno() in ready:
            self._host._wake_read.recv(64)
        return ready

    def _write_queued(self, now: float) -> None:
        """Writes everything that is queued; rows last, and credit after them (I2)."""
        routes, driver = self.routes, self._driver
        if driver is not None:
            asked = self._claims.ask(now)
            is_due = routes.has_changed and now - self._reported_at >= REPORT_SECONDS
            if asked or is_due or routes.is_urgent:
                self._reported_at = now
                driver.report(routes.take_reports(now), asked, self._processes())
            driver.flush()
        self._sink.flush()
        for rows in routes.take_rows():
            self._host._items.put(rows)
        routes.flush()

    def _processes(self) -> list[int]:
        return [os.getpid(), *([self._sink.process] if self._sink.process else [])]

    # ---- frames

    def _on_sink_frame(self, kind: int, payload: bytes, now: float) -> None:
        if kind == Kind.ERROR:
            fields = unpack_json(payload)
            self._life.sink_error = str(fields.get("error") or "no reason was given")
            self._life.has_sink_died = bool(fields.get("died"))
        else:
            self.routes.on_frame(kind, payload, now)

    def _on_driver_frame(self, kind: int, payload: bytes, now: float) -> None:
        if kind == Kind.STOP:
            self._life.stop_wish = self._life.stop_wish or payload.decode() or "the driver wishes it"
            self._life.is_driver_wish = True
        elif kind == Kind.GRANT:
            fields = unpack_json(payload)
            moved = self._claims.answer(int(fields.get("asked", 0)), fields.get("claims") or {}, now)
            until_ns = self._claims.until_ns()
            for claim in moved:
                self._sink.send(Kind.FENCE, pack_json({"claim": claim, "until_ns": until_ns[claim]}))
            self.routes.claims_opened({claim for claim, was_closed in moved.items() if was_closed}, now)
        elif self._life.is_ending:
            return
        elif kind == Kind.ASSIGN:
            fields = unpack_json(payload)
            plans = fields.get("plans") or {}
            self._life.assigned(fields.get("lease_seconds"), now)
            for each in fields["routes"]:
                spec = RouteSpec.from_json(each)
                self.routes.add(spec, _plan(plans.get(spec.name)), now)
        elif kind == Kind.ADD:
            fields = unpack_json(payload)
            plan = _plan(fields.pop("plan", None))
            self.routes.add(RouteSpec.from_json(fields), plan, now)
        elif kind == Kind.REMOVE:
            self.routes.remove(unpack_json(payload)["name"], now)
        elif kind == Kind.PLAN:
            fields = unpack_json(payload)
            self.routes.plan(fields["name"], _plan(fields), now)

    # ---- the end

    def end(self) -> None:
        """Reports the orderly end of the lease to driver and sink.

        Raises:
            LeaseFailedError: the sink could not be notified.
        """
        self._write_out(self._wants_to_write_sources)
        self._end_driver("")
        self._sink.send(Kind.STOPPED)
        self._sink.flush()
        self._write_out(lambda: self._sink.has_queued)
        if self._sink.has_come and self._sink.has_queued:
            raise LeaseFailedError(str(self._host.name), "the sink does not read its control channel, so it cannot end")

    def abort(self, error: IsthmusError) -> None:
        """Releases everything, and reports to the driver."""
        now = time.monotonic()
        if self._driver is not None and self._life.has_sink_died:
            names = self.routes.outstanding()
            self._driver.report(self.routes.take_reports(now), 0, self._processes())
            self._driver.died(names)
        self.routes.abort_all(str(error), now)
        self._write_queued(now)
        self._write_out(self._wants_to_write_sources)
        self._end_driver(str(error))

    def _wants_to_write_sources(self) -> bool:
        return any(mask & select.POLLOUT for _, mask in self.routes.descriptors())

    def _end_driver(self, error: str) -> None:
        if self._driver is not None:
            self._driver.report(self.routes.take_reports(time.monotonic()), 0, self._processes())
            self._driver.ended(error)
            self._driver.close()

    def _write_out(self, is_left: Callable[[], bool]) -> None:
        """Writes until nothing is left, for a limited time; frames that arrive are processed."""
        until = time.monotonic() + WRITE_SECONDS
        while is_left() and (now := time.monotonic()) < until:
            ready = self._wait(now, min(until, now + 0.1))
            self.routes.service(ready, time.monotonic())
            self._sink.receive(ready, now)
            self.routes.flush()
            self._sink.flush()

    def close(self, *, lingers: bool) -> None:
        """Waits for the sink's END where it is expected, and closes everything."""
        until = time.monotonic() + LINGER_SECONDS
        with contextlib.suppress(IsthmusError, OSError):
            while lingers and self._sink.has_come and not (self._sink.has_ended or self._sink.is_gone):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._sink.receive(self._polled.wait(self._sink.descriptors(), left), time.monotonic())
        self._sink.close()
        if self._driver is not None:
            self._driver.close()


def _plan(value: Any) -> Plan:
    """A plan of the driver; a JSON object or a list of its fields."""
    if not value:
        return Plan()
    if isinstance(value, list):
        return Plan(*map(int, value))
    return Plan(*(int(value.get(name) or 0) for name in Plan._fields))
