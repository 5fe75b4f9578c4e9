"""The host of a lease's sink: one thread that sends the rows of all routes.

What it is: the loop around the routes of a sink (`sender.routes`) and the connection to the reader (`reader_link`), and the queue that
Spark's thread fills. Only the loop's thread touches routes, targets and channel; Spark's thread adds to a queue and waits for the end.
What it is not: Spark (`isthmus.bridge.spark`), or the decisions of a route (`isthmus.bridge.delivery.delivery`).

Without a channel (`static`) nothing is settled: the handles are 1, 2, ... in the order of the routes, a route that fails fails the
write, and `finish` waits until every row is acknowledged.

Invariants:
    I1. With a channel `hand_over` and `flush` never wait for a target or for the reader; without one `hand_over` waits while many
        bytes wait to be sent (`sender.room`).
    I2. `finish` returns only when the input has ended, all rows for open handles are finished, and the reader has sent STOPPED. The
        end of the input alone is an error.
    I3. After an error nothing is sent, and the reader gets the error.
    I4. The reader's frames are processed before the rows that came after them: a row of a handle never precedes its OPEN.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from isthmus.bridge import registry
from isthmus.bridge.delivery.read_pace import ReadPace
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.frame import Kind, unpack_json, unpack_numbers
from isthmus.bridge.host.poll_set import PollSet
from isthmus.bridge.host.sender.error import SenderFaultError, SourceGoneError
from isthmus.bridge.host.sender.reader_link import NoReader, ReaderLink
from isthmus.bridge.host.sender.room import SenderRoom
from isthmus.bridge.host.sender.routes import SenderRoutes
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.port import Connector
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["SenderHost"]

HEARTBEAT_SECONDS = 2.0
STATISTICS_SECONDS = 1.0
# The reader sends STOPPED before its rows end; a frame in transit needs only a moment.
STOPPED_SECONDS = 10.0
CLOSE_SECONDS = 15.0


class SenderHost:
    """The sink of one task.

    Args:
        channel: on which the reader of this task listens; None: there is none, and nothing is settled.
        connectors: the connector of a kind.
        static: the routes, where there is no reader that opens them.
        origin_identity: of the namespace that the rows come from, with static routes; empty where it is not known.
        dispose: with static routes, handles a row that is not sent, by its position; called by the loop.
    """

    def __init__(
        self,
        *,
        channel: Path | None,
        connectors: Callable[[str], Connector] = registry.connector,
        static: tuple[RouteSpec, ...] | None = None,
        origin_identity: str = "",
        dispose: Callable[[int | None, Disposition], None] | None = None,
    ) -> None:
        if (channel is None) == (static is None):
            raise InvalidArgumentError("a sink needs a channel to its reader, or static routes, and not both")
        self._static = static or ()
        self._origin_identity = origin_identity
        self._link = None if channel is None else ReaderLink(channel)
        self._no_reader = NoReader(dispose)
        self._room = None if static is None else SenderRoom()
        self._came_bytes = 0
        self._routes = SenderRoutes(connectors, self._link or self._no_reader)
        self._input = _Input()
        self._ends = _Ends()
        self._statistics_at = -math.inf
        self._poller, self._silent_poller = PollSet(), PollSet()
        self._pace = ReadPace()
        self._thread = threading.Thread(target=self._run, name="isthmus-sender", daemon=True)

    # ---- for Spark's thread

    def start(self) -> SenderHost:
        """Starts the loop."""
        self._thread.start()
        return self

    def hand_over(
        self,
        handle: int,
        positions: Sequence[int] | None,
        data: bytes,
        offsets: Sequence[int],
        disposed: Sequence[tuple[int, Disposition]] = (),
        diverted: Sequence[tuple[int, Disposition, bytes]] = (),
        *,
        clock_offset_ms: int | None = None,
        is_last: bool = True,
    ) -> None:
        """Takes rows of one route, in the order of their source.

        Args:
            handle: the opening that they belong to.
            positions: their positions at the source, a range where they follow each other; None where nothing is settled.
            data: encoded messages, concatenated.
            offsets: where each starts, and where the last ends; empty where there is none.
            disposed: rows that are not sent but get another disposition: (position, disposition).
            diverted: rows that are sent to a divert target of the route: (position, target and reason, encoded message).
            clock_offset_ms: the wall time of the source's system minus monotonic time, where no reader sends it.
            is_last: whether no more rows follow at once; the loop is woken only then.

        Raises:
            IsthmusError: the sink has failed.
        """
        if self._room is not None:
            self._room.add(len(data))
        self._ends.check()
        wakes = is_last or self._room is not None
        self._input.add((handle, Part(positions, data, offsets, disposed, clock_offset_ms, diverted)), wake=wakes)

    def flush(self, number: int) -> None:
        """Flush row `number` came.

        Raises:
            IsthmusError: the sink has failed.
        """
        self._ends.check()
        self._input.add((number, None), wake=True)

    def finish(self) -> None:
        """The input has ended: waits until everything is done.

        Raises:
            SourceGoneError: the reader disconnected, or did not send STOPPED.
            IsthmusError: the sink has failed.
        """
        self._ends.input_ended_at = time.monotonic()
        self._input.wake()
        self._thread.join()
        self._ends.check()

    def abort(self, error: BaseException) -> None:
        """Spark's side failed: reports it to the reader, which releases unsettled messages."""
        self._ends.abort(error)
        self._input.wake()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # ---- the loop

    def _run(self) -> None:
        error: IsthmusError | None = SenderFaultError("the sink was stopped")
        try:
            now = time.monotonic()
            for number, spec in enumerate(self._static, 1):
                self._routes.open(number, spec, self._origin_identity, now)
            while not self._iterate():
                pass
            error = None
        except IsthmusError as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 - whatever it is, Spark's thread and the reader must learn of it
            error = SenderFaultError(f"the sink failed: {type(failure).__name__}: {failure}")
        finally:
            self._ends.error = error
            self._end(error)

    def _iterate(self) -> bool:
        """Waits until there is work, and does it; returns whether everything is done."""
        ready = self._wait(time.monotonic())
        now = time.monotonic()
        self._ends.raise_abort()
        is_last = self._ends.input_ended_at is not None
        # Before the frames: later rows may be of handles whose OPEN is not read yet.
        items = self._input.take()
        if items:
            self._pace.rows_came(now)
        if self._link is not None:
            self._take_frames(self._link, now)
        for number, part in items:
            self._take(number, part)
        self._routes.step(ready, now)
        if self._link is not None:
            for claim in self._link.ended_claims(now):
                self._routes.fail_claim(claim)
            self._report(self._link, now)
        elif self._no_reader.error is not None:
            raise self._no_reader.error
        if self._room is not None:
            self._room.took(self._came_bytes - self._routes.waiting_bytes)
        return is_last and self._is_done(now)

    def _wait(self, now: float) -> dict[int, int]:
        """The ready descriptors, once there are any, or something is due."""
        due = self._due(now)
        unread_until = now if self._is_target_awaited() else self._pace.waits_until(now)
        if unread_until > now:
            ready = self._silent_poller.wait(self._descriptors(~select.POLLIN), min(due, unread_until) - now)
            if self._input.fileno() not in ready and time.monotonic() < unread_until:
                return ready
            due = now
        ready = self._poller.wait(self._descriptors(), due - now)
        self._pace.has_read(time.monotonic())
        if self._input.fileno() in ready:
            self._input.woken()
        return ready

    def _is_target_awaited(self) -> bool:
        """Whether the targets' answers have to be read at once."""
        if self._routes.is_target_awaited or self._ends.input_ended_at is not None:
            return True
        return self._link is not None and self._link.account.is_source_waiting

    def _descriptors(self, target_events: int = ~0) -> list[tuple[int, int]]:
        """The descriptors to poll, those of targets with these events only."""
        descriptors = [(self._input.fileno(), select.POLLIN)]
        descriptors += ((descriptor, events & target_events) for descriptor, events in self._routes.pools.descriptors())
        if self._link is not None:
            descriptors += self._link.descriptors()
        return descriptors

    def _due(self, now: float) -> float:
        if self._routes.has_ready:
            return now
        due = self._routes.deadline(now)
        if self._link is not None:
            due = min(due, self._link.deadline())
            if self._link.is_connected:
                due = min(due, self._statistics_due())
        if self._ends.input_ended_at is not None:
            due = min(due, max(self._ends.input_ended_at + STOPPED_SECONDS, now + 1.0))
        return due

    def _take(self, number: int, part: Part | None) -> None:
        if part is None:
            if self._link is not None:
                self._link.account.flush(number)
            return
        if self._link is not None:
            self._link.account.came(number, part.rows)
        self._came_bytes += len(part.data)
        self._routes.add(number, part)

    # ---- the reader

    def _take_frames(self, link: ReaderLink, now: float) -> None:
        link.connect(now)
        for kind, payload in link.receive():
            if kind == Kind.OPEN:
                fields = unpack_json(payload)
                link.account.open(fields["handle"])
                spec = RouteSpec.from_json(fields["spec"])
                self._routes.open(fields["handle"], spec, fields["origin_identity"], now)
            elif kind == Kind.CLOSE:
                (handle,) = unpack_numbers(payload)
                self._routes.close(handle)
                link.account.close(handle)
            elif kind == Kind.WINDOW:
                link.account.set_window(*unpack_numbers(payload))
            elif kind == Kind.CLOCK:
                self._routes.set_clock(*unpack_numbers(payload))
        if link.is_gone:
            raise SourceGoneError(
                "the reader of this task is gone; what was not acknowledged comes again from its source"
            )

    def _statistics_due(self) -> float:
        return self._statistics_at - (HEARTBEAT_SECONDS - STATISTICS_SECONDS if self._routes.has_changed else 0.0)

    def _report(self, link: ReaderLink, now: float) -> None:
        if link.is_connected and now >= self._statistics_due():
            self._send_statistics(link, now)
        link.flush(now)

    def _send_statistics(self, link: ReaderLink, now: float) -> None:
        self._statistics_at = now + HEARTBEAT_SECONDS
        link.statistics({"process": os.getpid(), "dropped": self._routes.dropped, "routes": self._routes.changes()})

    # ---- the end

    def _is_done(self, now: float) -> bool:
        """Whether everything is done; the input has ended.

        Raises:
            SourceGoneError: the reader did not send STOPPED.
        """
        if self._link is not None and not self._link.has_stopped:
            if now >= (self._ends.input_ended_at or now) + STOPPED_SECONDS:
                raise SourceGoneError("the rows ended before the reader said that the lease was over")
            return False
        return not self._routes.is_busy

    def _end(self, error: IsthmusError | None) -> None:
        try:
            if self._link is not None:
                if error is None or self._link.is_connected:
                    self._send_statistics(self._link, time.monotonic())
                self._link.end(error, died=self._ends.has_died)
        except Exception as failure:  # noqa: BLE001 - the reader learns of it by the end of the connection
            self._ends.error = self._ends.error or SenderFaultError(f"the end could not be reported: {failure}")
        finally:
            self._routes.close_all(in_good_order=self._ends.error is None)
            self._input.close()
            if self._room is not None:
                self._room.close()


class _Input:
    """The queue from Spark's thread to the loop, and the socket that wakes the loop."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Part | None]] = deque()
        self._is_signalled = False
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reads.fileno()

    def add(self, item: tuple[int, Part | None], *, wake: bool) -> None:
        """For Spark's thread."""
        self._items.append(item)
        if wake and not self._is_signalled:
            self.wake()

    def wake(self) -> None:
        """For Spark's thread."""
        self._is_signalled = True
        try:
            self._writes.send(b"x")
        except OSError:  # enough is written already, or the loop has ended
            return

    def woken(self) -> None:
        """For the loop, before `take`: later additions wake it again."""
        self._reads.recv(64)
        self._is_signalled = False

    def take(self) -> list[tuple[int, Part | None]]:
        """For the loop: the items added."""
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """For the loop, at its end."""
        self._reads.close()
        self._writes.close()


class _Ends:
    """The state of the sink's end; each attribute is written by one thread.

    Attributes:
        input_ended_at: when Spark's thread had no more rows.
        error: why the sink failed.
        has_died: whether Spark's side failed, and not the sink.
    """

    def __init__(self) -> None:
        self.input_ended_at: float | None = None
        self.error: IsthmusError | None = None
        self.has_died = False
        self._abort: IsthmusError | None = None

    def check(self) -> None:
        """For Spark's thread: raises the error."""
        if self.error is not None:
            raise self.error

    def abort(self, error: BaseException) -> None:
        """For Spark's thread: asks the loop to end."""
        self.has_died = not isinstance(error, IsthmusError)
        text = f"the query failed: {type(error).__name__}: {error}"
        self._abort = error if isinstance(error, IsthmusError) else SenderFaultError(text)

    def raise_abort(self) -> None:
        """For the loop."""
        if self._abort is not None:
            raise self._abort
