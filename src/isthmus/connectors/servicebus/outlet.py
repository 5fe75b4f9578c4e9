"""The target's side of a lease: sends copies, waits for acknowledgements, settles.

What it is: the threads and the lock around the delivery machine, its target and the line to the reader. The caller's thread
hands over rows, may block while the machine has no room, and reads what the target said meanwhile; a second thread serves
the sockets too, so that acknowledgements are settled and heartbeats go on while the caller waits for Spark. What it is not:
the decisions (`isthmus.bridge.delivery`: order, retry, setting aside), Spark (`sink`), the making of copies (`splice`).

Everything that touches machine, target or line runs under `_changed`; only connecting again does not. Over 400 lines: both
threads call into the same lock, and what each does under it has to be read together.

Invariants:
    I1. What the machine asks for is carried out at once, in order, under the lock under which it was asked.
    I2. Nothing waits for the line to the reader.
    I3. An acknowledgement that nobody waits for is read with the next rows, or `READ_SECONDS` after the last: at some hundred
        messages a second a thread that woke for each took more of the processors than sending did. A source whose window is
        nearly full waits for it; then it is read, and told, at once.
    I4. After a fault nothing is sent: the machine counts what it had sent, and an outcome would be taken for another's.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from isthmus.bridge.delivery import Delivery
from isthmus.bridge.delivery_event import (
    Dispose,
    Disposition,
    Effect,
    Event,
    Fail,
    Flush,
    Flushed,
    Granted,
    HandedOver,
    Hold,
    Open,
    Opened,
    Resume,
    Send,
    Settle,
    Tick,
)
from isthmus.bridge.delivery_settings import DeliverySettings
from isthmus.connectors.servicebus.lease_error import ClaimUnconfirmedError
from isthmus.connectors.servicebus.outlet_error import RowRefusedError, SourceGoneError, TargetUnavailableError
from isthmus.connectors.servicebus.reader_line import ReaderLine
from isthmus.connectors.servicebus.splice import Refused
from isthmus.connectors.servicebus.target import Target, may_pass
from isthmus.errors import IsthmusError
from isthmus.message import DUPLICATE_KEYS
from isthmus.transport import Backoff, Endpoint
from isthmus.transport.sender import ENVELOPE_OVERHEAD_BYTES

__all__ = ["Outlet", "RowRefusedError", "SourceGoneError", "TargetUnavailableError"]

ALIVE_SECONDS = 2.0
DIAL_SECONDS = 0.05
# Rows that come at most so far apart have what the target says read by the thread that brings them; the serving thread does
# it as long after the last.
READ_SECONDS = 0.050
# A reader listens before it connects to its source; where none has come by now, the rows are of another maker.
DIAL_FOR_SECONDS = 30.0
# A message that is refused for so long while others are accepted is at fault, not its target.
SET_ASIDE_SECONDS = 10.0
# Messages handed over at once, after which what the target said is read.
CHUNK = 500
# A batch envelope must stay below the peer's limit for batches, which few peers tell; SDKs take 256 KiB where none is told.
ENVELOPE_BYTES = 250_000


def delay_seconds(attempt: int) -> float:
    """How long to wait before an attempt to reach a target, or to send again; see `Backoff`."""
    backoff = Backoff(0.1, 5.0)
    backoff.attempts = attempt
    return backoff.next_seconds()


class Outlet:
    """Sends to one entity and settles what was acknowledged.

    Args:
        endpoint: the target's namespace.
        path: the target's queue or topic.
        window: messages in flight at most.
        batch_messages: messages per envelope; below 2 each goes alone.
        target_timeout_seconds: how long the target may take nothing.
        block_refused: a message that the target refuses for itself blocks; otherwise it is dead-lettered at its source.
        channel_file: where the reader of this task listens; None: nothing is settled by this sink.
        dispose: settles one row otherwise than completed where there is no channel; None: such rows are an error.
        asks_for_keys: whether the copies bear duplicate keys, which the target is asked to keep.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        *,
        window: int = 8_000,
        batch_messages: int = 0,
        target_timeout_seconds: float = 30.0,
        block_refused: bool = False,
        channel_file: Path | None = None,
        dispose: Callable[[int, Refused], None] | None = None,
        asks_for_keys: bool = False,
    ) -> None:
        self.path = path
        self._machine = Delivery(
            DeliverySettings(
                window=window,
                envelope_messages=batch_messages,
                envelope_bytes=ENVELOPE_BYTES,
                overhead_bytes=ENVELOPE_OVERHEAD_BYTES,
                block_refused=block_refused,
                set_aside_seconds=SET_ASIDE_SECONDS,
                timeout_seconds=target_timeout_seconds,
                delay_seconds=delay_seconds,
            )
        )
        self._target = Target(endpoint, path, (DUPLICATE_KEYS,) if asks_for_keys else ())
        self._reader = ReaderLine(channel_file)
        self._dispose = dispose
        self._changed = threading.Condition()
        self._pace = _Pace()
        self._dial_until = float("inf")  # without an end while the target does not stand
        self._must_open = False
        self._error: IsthmusError | None = None
        self._closing = False
        self._input_died = False
        self._said_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=f"outlet-{path}", daemon=True)
        self._carry: dict[type, Callable[[Any], None]] = {
            Send: self._on_send,
            Settle: lambda effect: self._reader.settle(effect.positions),
            Dispose: self._on_dispose,
            Flushed: lambda effect: self._reader.flushed(effect.number, self._machine.counts.as_dict()),
            Hold: lambda effect: self._reader.hold(effect.text),
            Resume: lambda effect: self._reader.resume(),
            Open: self._on_open,
            Fail: self._on_fail,
        }

    @property
    def keeps_keys(self) -> bool:
        """Whether the target keeps duplicate keys; known from `open` on."""
        return DUPLICATE_KEYS in self._target.offered

    @property
    def namespace_id(self) -> str:
        """The target namespace's identity; empty before `open`."""
        return self._target.namespace_id

    # ---- for the sink

    def open(self) -> Outlet:
        """Connects to the target and starts serving; blocks.

        Raises:
            IsthmusError: the target cannot be reached in time, or refuses.
        """
        limit = time.monotonic() + self._machine.settings.timeout_seconds
        attempt = 0
        while True:
            try:
                self._target.adopt(*self._target.connected())
                break
            except IsthmusError as error:
                if not may_pass(error) or time.monotonic() >= limit:
                    self.close(error)
                    raise
                time.sleep(min(delay_seconds(attempt), max(0.0, limit - time.monotonic())))
                attempt += 1
        with self._changed:
            self._opened()
        self._dial_until = time.monotonic() + DIAL_FOR_SECONDS
        self._thread.start()
        return self

    def send(
        self, payloads: list[bytes], sequences: Sequence[int] | None, refused: Sequence[tuple[int, Refused]] = ()
    ) -> None:
        """Hands over copies in the order of their rows; blocks while the machine has no room.

        Args:
            payloads: the copies.
            sequences: their sequence numbers at the source; None where nothing is settled.
            refused: rows that get another disposition: (sequence number, what).

        Raises:
            IsthmusError: target or source failed; nothing more can be handed over.
        """
        disposed = [(at, Disposition(each.disposition, each.reason, each.description)) for at, each in refused]
        start, count = 0, len(payloads)
        while start < count or disposed:
            with self._changed:
                self._listen()
                while self._error is None and self._machine.room <= 0 and start < count:
                    with self._waits():
                        self._changed.wait(1.0)
                if self._error is not None:
                    raise self._error
                stop = min(count, start + min(self._machine.room, CHUNK)) if start < count else start
                part = payloads if start == 0 and stop == count else payloads[start:stop]
                numbers = None if sequences is None else sequences[start:stop]
                last = disposed if stop == count else []
                self._reader.handed += (len(part) if sequences is not None else 0) + len(last)
                self._tell(HandedOver(part, numbers, last))
                self._push()
                if self._reader.is_source_waiting:
                    self._wake()
            start = stop
            if last:
                disposed = []

    def flush(self, number: int) -> None:
        """Answers flush row `number` once everything handed over before it is done with; does not wait."""
        with self._changed:
            self._tell(Flush(number))
            self._push()

    def finish(self) -> None:
        """Waits until everything is done with, and closes the line to the reader and the connection to the target.

        Raises:
            IsthmusError: target or source failed before that.
        """
        with self._changed:
            while self._machine.unfinished and self._error is None:
                self._push()
                with self._waits():
                    self._changed.wait(1.0)
            error = self._error
        self.close(error)
        if error is not None:
            raise error

    def wait_source_end(self, timeout_seconds: float = 10.0) -> None:
        """Waits for the reader's word that the lease ended in good order.

        Raises:
            SourceGoneError: the reader went without it.
        """
        reader = self._reader
        with self._changed:
            if reader.channel is None or reader.source_ended:
                return
            self._changed.wait_for(lambda: reader.source_ended or reader.is_gone, timeout_seconds)
            if not reader.source_ended:
                error = SourceGoneError(f"'{self.path}': the reader ended before its lease was over")
                self._error = self._error or error
                raise error

    def source_wall_ms(self) -> int | None:
        """The wall time of the source's broker, as the reader tells it before the first row; None where no reader does."""
        if self._reader.source_offset_ms is None:
            with self._changed:
                self._reader.receive()
        offset_ms = self._reader.source_offset_ms
        return None if offset_ms is None else time.monotonic_ns() // 1_000_000 + offset_ms

    def abort(self, error: BaseException) -> None:
        """The sink failed, or its input did: tells the reader, which gives back what was not settled."""
        self._input_died = not isinstance(error, IsthmusError)
        self.close(error if isinstance(error, IsthmusError) else SourceGoneError(f"'{self.path}': {error!r}"))

    def close(self, error: IsthmusError | None = None) -> None:
        """Ends both connections; tells the reader `error`, or that all is well."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            if error is None:
                self._reader.end()
            else:
                self._say_error(error)
        self._wake()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._target.close()
        self._reader.close()
        self._wake_read.close()
        self._wake_write.close()

    def statistics(self) -> dict[str, Any]:
        """Counters, for the reader's report; see `DeliveryCounts`."""
        machine = self._machine
        return {
            **machine.counts.as_dict(),
            "blocked_by": machine.blocked_by,
            "last_set_aside": machine.last_set_aside,
            "under_way": machine.unfinished,
            "process": os.getpid(),
        }

    # ---- the machine

    def _tell(self, event: Event) -> None:
        for effect in self._machine.on(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        self._carry[type(effect)](effect)

    def _on_send(self, effect: Send) -> None:
        if self._error is not None:
            return
        if time.monotonic() >= self._reader.fence:
            self._reader.receive()  # while a connection was made nobody heard how far the fence has moved
        if time.monotonic() < self._reader.fence:
            self._target.send(effect)
        else:
            self._give_up(ClaimUnconfirmedError(self.path))

    def _on_dispose(self, effect: Dispose) -> None:
        position, disposition = effect
        if position and self._reader.channel is not None:
            self._reader.dispose(position, disposition)
        elif position and self._dispose is not None:
            self._dispose(position, Refused(0, disposition.kind, disposition.reason, disposition.description))
        elif disposition.kind != "complete":
            self._give_up(RowRefusedError(self.path, disposition.kind, disposition.reason, disposition.description))

    def _on_open(self, effect: Open) -> None:
        self._must_open = True
        self._wake()

    def _on_fail(self, effect: Fail) -> None:
        if self._target.fatal is not None and not effect.timed_out_seconds:
            self._give_up(self._target.fatal)
        else:
            seconds, refusal = effect.timed_out_seconds, effect.refusal
            self._give_up(TargetUnavailableError(f"'{self.path}': took nothing for {seconds:g} s: {refusal}"))

    def _opened(self) -> None:
        self._tell(Opened(self._target.message_bytes))
        self._tell(Granted(self._target.credit))

    def _take_answers(self) -> None:
        """Tells the machine what the target said."""
        target = self._target
        if target.is_open and target.credit != self._machine.credit:
            self._tell(Granted(target.credit))  # first: an outcome may have the machine send
        for answer in target.answers():
            self._tell(answer)

    # ---- handing over (the sink's thread)

    def _listen(self) -> None:
        """Reads what the target has said so far."""
        if not self._target.is_open:
            return
        if self._pace.listen(time.monotonic()):
            self._wake()  # to pause
        self._target.service()
        self._take_answers()
        if self._machine.is_recovering:
            self._wake()

    @contextlib.contextmanager
    def _waits(self) -> Iterator[None]:
        """While the caller waits for the target, what that says is read at once."""
        self._pace.waiting += 1
        self._wake()
        try:
            yield
        finally:
            self._pace.waiting -= 1

    def _push(self) -> None:
        """Writes what the sockets take now; the serving thread is woken for the rest."""
        if self._target.flush():
            self._wake()
        if self._reader.push(time.monotonic()) and self._pace.serve_at > self._reader.tell_at + READ_SECONDS:
            self._pace.serve_at = self._reader.tell_at
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # ---- serving (the outlet's thread)

    def _serve(self) -> None:
        try:
            while self._serve_once():
                pass
        except Exception as error:  # noqa: BLE001 - the sink's thread must learn of it, whatever it is
            self._give_up(SourceGoneError(f"'{self.path}': {type(error).__name__}: {error}"))

    def _serve_once(self) -> bool:
        """Waits until something is to be done, and does it; whether to go on."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        with self._changed:
            if self._closing:
                return False
            due = self._register(poll)
            self._pace.serve_at = due
        ready = poll.poll(max(0.0, due - time.monotonic()) * 1000)
        if any(fd == self._wake_read.fileno() for fd, _ in ready):
            self._wake_read.recv(4096)
        try:
            with self._changed:
                self._turn()
                must_open, self._must_open = self._must_open and self._error is None, False
            if must_open:
                self._connect_again()
        except IsthmusError as error:
            self._give_up(error)
        return True

    def _register(self, poll: select.poll) -> float:
        """What to wait for, and until when."""
        now = time.monotonic()
        dials = self._reader.is_sought and now < self._dial_until
        due = min(now + (DIAL_SECONDS if dials else ALIVE_SECONDS / 2), self._machine.deadline(now))
        client, reader = self._target.client, self._reader
        if self._error is None:
            due = min(due, reader.fence)
        if client is not None:
            interest = client.interest()
            is_awaited = reader.is_source_waiting or self._machine.is_recovering
            if self._pace.may_pause(now, is_awaited):
                due = min(due, self._pace.read_at)
                interest &= ~select.POLLIN
            poll.register(client.fileno(), interest)
            deadline = client.deadline()
            due = due if deadline is None else min(due, deadline)
        if reader.channel is not None and not reader.channel.closed:
            poll.register(reader.channel, select.POLLIN)  # what is queued leaves at its time
            if reader.channel.has_queued():
                due = min(due, reader.tell_at)
        return due

    def _turn(self) -> None:
        now = time.monotonic()
        if now <= self._dial_until:
            self._reader.dial(self._target.is_open)
        self._reader.receive()
        if self._reader.is_gone and self._error is None and not self._closing:
            self._give_up(SourceGoneError(f"'{self.path}': the reader of this task is gone"))
        if now >= self._reader.fence and self._error is None and not self._closing:
            self._give_up(ClaimUnconfirmedError(self.path))
        if now - self._said_at >= ALIVE_SECONDS:
            self._said_at = now
            self._reader.tell(self.statistics())
        self._target.service()
        self._take_answers()
        if self._machine.is_recovering and self._error is None:
            self._tell(Tick())
        self._push()
        self._changed.notify_all()

    def _connect_again(self) -> None:
        """Connects, without the lock."""
        try:
            client, sender = self._target.connected()
        except IsthmusError as error:
            with self._changed:
                self._tell(self._target.lost(error))
            return
        with self._changed:
            self._target.adopt(client, sender)
            self._opened()
            self._push()
            self._changed.notify_all()

    # ---- the end

    def _give_up(self, error: IsthmusError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
                self._say_error(error)
            self._changed.notify_all()

    def _say_error(self, error: IsthmusError) -> None:
        if time.monotonic() <= self._dial_until:
            self._reader.dial(self._target.is_open)
        self._reader.tell(self.statistics())
        self._reader.fail(error, died=self._input_died)


class _Pace:
    """When the serving thread reads what the target says; see I3 of this module.

    Attributes:
        waiting: calls that wait for the target.
        read_at: when the serving thread reads; 0: when the target says something.
        serve_at: when the serving thread wakes by itself.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.read_at = 0.0
        self.serve_at = 0.0
        self._listened_at = 0.0  # when rows came last

    def listen(self, now: float) -> bool:
        """Rows came; whether they come again after a while without."""
        was_quiet = now - self._listened_at > READ_SECONDS
        self._listened_at = now
        return was_quiet

    def may_pause(self, now: float, is_awaited: bool) -> bool:
        """Whether what the target says need not be read before `read_at`: rows come so fast that the next will do it."""
        if self.waiting or is_awaited or now - self._listened_at > READ_SECONDS:
            self.read_at = 0.0
            return False
        if now >= self.read_at:
            self.read_at = now + READ_SECONDS
        return True
