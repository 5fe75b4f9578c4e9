"""The target's side of a lease: sends copies, waits for acknowledgements, settles.

What it is: the connection to the target, what is under way on it, and the channel to the reader. The caller's thread hands
over rows and may block for credit, and reads what the target said meanwhile; a second thread serves the sockets too, so
that acknowledgements are settled and heartbeats go on while the caller waits for Spark. What it is not: Spark (`sink` takes
Arrow batches apart), the making of copies (`splice`).

Numbered steps of one row, each after the one before:
    1. the copy is sent, in the order of rows, as far as the target's credit goes;
    2. the target acknowledges it;
    3. every row before it is done with;
    4. its sequence number is completed at the source, over the channel;
    5. a flush row behind it is answered.
Over 400 lines: two threads share one connection and one lock, and either may send. The account of what is under way is
`under_way`.

Invariants:
    I1. A row is settled at the source only after its copy and the copies of all rows before it are acknowledged, or
        after the row was given another disposition.
    I2. When the target's connection is lost, exactly the copies without acknowledgement are sent again, in order, before
        any later one: what may have arrived twice has the same MessageId.
    I3. A refusal that may pass (full, busy, disabled) is tried again without end of order: nothing later is sent
        meanwhile; when the target has taken nothing for `target_timeout_seconds`, however often it was tried, the query
        fails, and the reader gives all locks back.
    I4. A refusal that will not pass (too large, malformed) dead-letters that one row at its source, with the reason.
    I5. Nothing waits for the channel.
    I6. An acknowledgement that nobody waits for is read with the next rows, or `READ_SECONDS` after the last: at some hundred
        messages a second a thread that woke for each took more of the processors than sending did. A source whose window is
        nearly full waits for it; then it is read, and told, at once.
    I7. Nothing is sent after the reader's fence has closed (`isthmus.bridge.fence`): the query fails.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from isthmus.amqp import BATCH_FORMAT
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, dial
from isthmus.connectors.servicebus.connect import open_client
from isthmus.connectors.servicebus.lease_error import ClaimUnconfirmedError
from isthmus.connectors.servicebus.outlet_error import RowRefusedError, SourceGoneError, TargetUnavailableError
from isthmus.connectors.servicebus.splice import Refused
from isthmus.connectors.servicebus.under_way import UnderWay
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    MessageTooLargeError,
    UnauthorizedError,
)
from isthmus.transport import Backoff, Client, Endpoint, Sender
from isthmus.transport.sender import ENVELOPE_OVERHEAD_BYTES, envelope, holds_one, messages_of

__all__ = ["Outlet", "RowRefusedError", "SourceGoneError", "TargetUnavailableError"]

ALIVE_SECONDS = 2.0
DIAL_SECONDS = 0.05
# What is settled is told so far apart, several together: the source then writes it to its disk at once, and what arrives
# there meanwhile waits less.
TELL_SECONDS = 0.032
# Unless there is so much of it that it is written together anyhow.
TELL_MESSAGES = 50
# Rows that come at most so far apart have what the target says read by the thread that brings them; the serving thread does
# it as long after the last.
READ_SECONDS = 0.050
# A reader listens before it connects to its source; where none has come by now, the rows are of another maker.
DIAL_FOR_SECONDS = 30.0
CHUNK = 500
# A batch envelope must stay below the peer's limit for batches, which few peers tell; SDKs take 256 KiB where none is told.
ENVELOPE_BYTES = 250_000
# What is under way when a refusal comes gets its outcomes within a round trip; looked for so often.
SETTLING_SECONDS = 0.02


class _Kind(enum.Enum):
    """How a delivery goes."""

    MESSAGE = enum.auto()
    ENVELOPE = enum.auto()
    TOO_LARGE = enum.auto()


class Outlet:
    """Sends to one entity and settles what was acknowledged.

    Args:
        endpoint: the target's namespace.
        path: the target's queue or topic.
        window: deliveries under way at most.
        batch_messages: messages per envelope; below 2 each goes alone.
        target_timeout_seconds: how long the target may take nothing.
        channel_file: where the reader of this task listens; None: nothing is settled by this sink.
        dispose: settles one row otherwise than completed where there is no channel; None: such rows are an error.

    Attributes:
        sent: messages sent, repetitions not counted.
        resent: messages sent again after a lost connection or a refusal.
        refused: messages given another disposition than completed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        *,
        window: int = 8_000,
        batch_messages: int = 0,
        target_timeout_seconds: float = 30.0,
        channel_file: Path | None = None,
        dispose: Callable[[int, Refused], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.path = path
        self.window = window
        self.batch_messages = batch_messages if batch_messages > 1 else 0
        self.target_timeout_seconds = target_timeout_seconds
        self.sent = self.resent = self.refused = 0
        self._channel_file = channel_file
        self._channel: Channel | None = None
        self._dispose = dispose
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._changed = threading.Condition()
        self._under_way = UnderWay(
            batched=self.batch_messages > 0, settle=self._settle, refuse=self._refuse, flushed=self._flushed
        )
        self._trouble: IsthmusError | None = None
        self._trouble_since = 0.0  # when the target took something last before trouble began; 0 without trouble
        self._backoff = Backoff(0.1, 5.0)
        self._next_try = 0.0
        self._dial_until = float("inf")  # without an end while the target does not stand
        self._greeted = False
        self._error: IsthmusError | None = None
        self._source_ended = False
        self._input_died = False  # a step of the query failed, or its worker was killed
        self._closing = False
        self._said_at = 0.0
        self._tell_at = 0.0
        self._handed = self._settled = self._told = 0  # rows that the source holds locks for: come, done with, told of
        self._fence = math.inf  # when the claim may be another run's, as the reader tells it
        self._source_offset_ms: int | None = None  # the source's wall time minus monotonic time
        self._source_waits = sys.maxsize  # with so many of them not told of, the source may be waiting
        self._waiting = 0  # calls that wait for the target
        self._read_at = 0.0  # when the serving thread reads what the target says; 0: when it says it
        self._listened_at = 0.0  # when rows came last
        self._serve_at = 0.0  # when the serving thread wakes by itself
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=f"outlet-{path}", daemon=True)

    @property
    def acknowledged(self) -> int:
        """Messages that the target has acknowledged."""
        return self._under_way.acknowledged

    # ---- for the sink

    def open(self) -> Outlet:
        """Connects to the target and starts serving.

        Raises:
            IsthmusError: the target cannot be reached in time, or refuses.
        """
        limit = time.monotonic() + self.target_timeout_seconds
        while True:
            try:
                self._connect()
                break
            except IsthmusError as error:
                if not _may_pass(error) or time.monotonic() >= limit:
                    self.close(error)
                    raise
                time.sleep(min(self._backoff.next_seconds(), max(0.0, limit - time.monotonic())))
        self._backoff.reset()
        self._dial_until = time.monotonic() + DIAL_FOR_SECONDS
        self._thread.start()
        return self

    def send(
        self, payloads: list[bytes], sequences: Sequence[int] | None, refused: Sequence[tuple[int, Refused]] = ()
    ) -> None:
        """Hands over copies in the order of their rows; blocks while the target takes no more.

        Args:
            payloads: the copies.
            sequences: their sequence numbers at the source; None where nothing is settled.
            refused: rows that get another disposition: (sequence number, what).

        Raises:
            IsthmusError: target or source failed; nothing more can be handed over.
        """
        units, numbers = self._units(payloads, sequences)
        self.sent += len(payloads)
        self._handed += (len(sequences) if sequences is not None else 0) + len(refused)
        refusals = list(refused)
        for start in range(0, max(1, len(units)), CHUNK):
            part = units[start : start + CHUNK]
            last = start + CHUNK >= len(units)
            self._hand_over(part, numbers[start : start + CHUNK], refusals if last else [])

    def flush(self, number: int) -> None:
        """Answers flush row `number` once everything handed over before it is done with; does not wait."""
        with self._changed:
            self._under_way.add_flush(number)
            self._under_way.advance()
            self._push()

    def finish(self) -> None:
        """Waits until everything is done with, and says goodbye to reader and target.

        Raises:
            IsthmusError: target or source failed before that.
        """
        with self._changed:
            while not self._under_way.is_empty and self._error is None:
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
        with self._changed:
            if self._channel is None or self._source_ended:
                return
            self._changed.wait_for(
                lambda: self._source_ended or (self._channel is not None and self._channel.closed), timeout_seconds
            )
            if not self._source_ended:
                error = SourceGoneError(f"'{self.path}': the reader ended before its lease was over")
                self._error = self._error or error
                raise error

    def source_wall_ms(self) -> int | None:
        """The wall time of the source's broker, as the reader tells it before the first row; None where no reader does."""
        if self._source_offset_ms is None and self._channel is not None:
            with self._changed:
                self._serve_channel(time.monotonic())
        offset_ms = self._source_offset_ms
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
            if error is not None:
                self._say_error(error)
            elif self._channel is not None:
                self._channel.send(frames.END)
                self._channel.flush()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(10.0)
        if self._client is not None:
            self._client.close(0.0)  # everything is acknowledged, or is sent again: there is nothing to wait for
        if self._channel is not None:
            self._channel.close()
        self._wake_read.close()
        self._wake_write.close()

    def statistics(self) -> dict[str, Any]:
        """Counters, for the reader's report."""
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "resent": self.resent,
            "refused": self.refused,
            "process": os.getpid(),
            "under_way": len(self._under_way),
            "trouble": str(self._trouble or ""),
        }

    # ---- handing over (the sink's thread)

    def _units(self, payloads: list[bytes], sequences: Sequence[int] | None) -> tuple[list[bytes], Sequence[Any]]:
        numbers: Sequence[Any] = range(0) if sequences is None else sequences
        if not self.batch_messages:
            return payloads, numbers
        units: list[bytes] = []
        groups: list[Sequence[int]] = []
        start, size = 0, 0
        sender = self._sender
        bytes_limit = min(ENVELOPE_BYTES, (sender.max_message_bytes if sender is not None else 0) or ENVELOPE_BYTES)
        for index, payload in enumerate(payloads):
            unit_bytes = size + len(payload) + ENVELOPE_OVERHEAD_BYTES
            if index > start and (index - start >= self.batch_messages or unit_bytes > bytes_limit):
                units.append(envelope(payloads[start:index]))
                groups.append(numbers[start:index])
                start, size = index, 0
            size += len(payload) + ENVELOPE_OVERHEAD_BYTES
        if start < len(payloads):
            units.append(envelope(payloads[start:]))
            groups.append(numbers[start : len(payloads)])
        return units, groups

    def _hand_over(self, payloads: list[bytes], numbers: Sequence[Any], refused: list[tuple[int, Refused]]) -> None:
        if not payloads and not refused:
            return
        under_way = self._under_way
        with self._changed:
            self._listen()
            while self._error is None and (self._trouble is not None or len(under_way) >= self.window):
                with self._waits():
                    self._changed.wait(1.0)
            if self._error is not None:
                raise self._error
            chunk = under_way.add(payloads, numbers, refused)
            while (left := under_way.unsent) > 0:
                at = len(chunk.payloads) - left
                self._transmit(chunk.payloads, at, under_way.transmitted - at)
                if under_way.unsent:
                    self._push()
                    with self._waits():
                        self._changed.wait_for(self._may_send, 1.0)
                    if self._error is not None:
                        raise self._error
            self._under_way.advance()
            self._push()
            if self._is_source_waiting():
                self._wake()

    def _listen(self) -> None:
        """Reads what the target has said so far; what is wrong is the serving thread's concern."""
        client, sender = self._client, self._sender
        if client is None or sender is None:
            return
        now = time.monotonic()
        if now - self._listened_at > READ_SECONDS:
            self._wake()  # to pause
        self._listened_at = now
        client.service()
        self._take_outcomes(sender)
        if self._trouble is not None or (sender.error or client.error) is not None:
            self._wake()

    @contextlib.contextmanager
    def _waits(self) -> Iterator[None]:
        """While the caller waits for the target, what that says is read at once."""
        self._waiting += 1
        self._wake()
        try:
            yield
        finally:
            self._waiting -= 1

    def _may_send(self) -> bool:
        sender = self._sender
        return self._error is not None or (self._trouble is None and sender is not None and sender.sendable > 0)

    def _transmit(self, payloads: list[bytes], at: int, first: int) -> int:
        sender = self._sender
        if sender is None or self._trouble is not None or sender.error is not None:
            return 0
        if time.monotonic() >= self._fence:
            self._give_up(ClaimUnconfirmedError(self.path))
            return 0
        count = min(len(payloads) - at, sender.sendable)
        if count > 0:
            part = payloads if count == len(payloads) else payloads[at : at + count]
            self._deliver(sender, part, first + at)
        return count

    def _deliver(self, sender: Sender, payloads: list[bytes], first: int) -> None:
        """Sends deliveries `first` and following; an envelope of one message goes as that message, for which other limits
        hold. What is over the link's limit is not sent: it would cost the link.
        """
        limit = sender.max_message_bytes
        if not self.batch_messages and (not limit or max(map(len, payloads)) <= limit):
            self._under_way.sent(sender.send(payloads), first, len(payloads))
            return
        for kind, run in groupby(payloads, self._kind_of(limit)):
            units = list(run)
            if self.batch_messages and kind is not _Kind.ENVELOPE:
                units = [messages_of(payload)[0] for payload in units]
            if kind is _Kind.TOO_LARGE:
                for number, payload in enumerate(units, first):
                    self._under_way.refuse(number, 1, MessageTooLargeError(len(payload), limit))
            else:
                ordinal = sender.send(units, message_format=BATCH_FORMAT if kind is _Kind.ENVELOPE else 0)
                self._under_way.sent(ordinal, first, len(units))
            first += len(units)

    def _kind_of(self, limit: int) -> Callable[[bytes], _Kind]:
        def kind(payload: bytes) -> _Kind:
            if self.batch_messages and not holds_one(payload):
                return _Kind.ENVELOPE
            size = len(payload) - (ENVELOPE_OVERHEAD_BYTES if self.batch_messages else 0)
            return _Kind.TOO_LARGE if 0 < limit < size else _Kind.MESSAGE

        return kind

    def _push(self) -> None:
        """Writes what the sockets take now; the serving thread is woken for the rest."""
        if self._client is not None:
            self._client.flush()
            if self._client.backlog_bytes:
                self._wake()
        channel = self._channel
        if channel is None or not channel.has_queued():
            return
        now = time.monotonic()
        if now >= self._tell_at or self._settled - self._told >= TELL_MESSAGES or self._is_source_waiting():
            channel.flush()
            self._told = self._settled
            self._tell_at = now + TELL_SECONDS
        elif self._serve_at > self._tell_at + READ_SECONDS:
            self._serve_at = self._tell_at
            self._wake()

    def _is_source_waiting(self) -> bool:
        return self._handed - self._told >= self._source_waits

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # ---- serving (the outlet's thread)

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        except Exception as error:  # noqa: BLE001 - the sink's thread must learn of it, whatever it is
            self._give_up(SourceGoneError(f"'{self.path}': {type(error).__name__}: {error}"))

    def _serve_until_closed(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            with self._changed:
                if self._closing:
                    return
                now = time.monotonic()
                dialling = self._channel is None and self._channel_file is not None and now < self._dial_until
                due = now + (DIAL_SECONDS if dialling else ALIVE_SECONDS / 2)
                due = min(due, self._fence) if self._error is None else due
                client = self._client
                if client is not None and client.error is None:
                    interest = client.interest()
                    if self._may_pause(now):
                        due = min(due, self._read_at)
                        interest &= ~select.POLLIN
                    poll.register(client.fileno(), interest)
                    deadline = client.deadline()
                    due = due if deadline is None else min(due, deadline)
                if self._trouble is not None:
                    due = min(due, self._next_try)
                if self._channel is not None and not self._channel.closed:
                    poll.register(self._channel, select.POLLIN)  # what is queued leaves at its time
                    if self._channel.has_queued():
                        due = min(due, self._tell_at)
                self._serve_at = due
            ready = poll.poll(max(0.0, due - time.monotonic()) * 1000)
            if any(fd == self._wake_read.fileno() for fd, _ in ready):
                self._wake_read.recv(4096)
            try:
                self._turn()
            except IsthmusError as error:
                self._give_up(error)

    def _may_pause(self, now: float) -> bool:
        """Whether what the target says need not be read before `_read_at`: rows come so fast that the next will do it."""
        awaited = self._waiting or self._is_source_waiting()
        if awaited or self._trouble is not None or now - self._listened_at > READ_SECONDS:
            self._read_at = 0.0
            return False
        if now >= self._read_at:
            self._read_at = now + READ_SECONDS
        return True

    def _turn(self) -> None:
        with self._changed:
            now = time.monotonic()
            self._dial()
            self._serve_channel(now)
            client, sender = self._client, self._sender
            if client is not None and sender is not None:
                client.service()
                self._take_outcomes(sender)
                lost = sender.error or client.error
                if lost is not None:
                    self._target_lost(lost)
            self._under_way.advance()
            retry = self._trouble is not None and now >= self._next_try and self._error is None
            self._push()
            self._changed.notify_all()
        if retry:
            self._retry()

    def _dial(self) -> None:
        if self._channel is None and self._channel_file is not None and time.monotonic() <= self._dial_until:
            self._channel = dial(self._channel_file)
        if self._channel is not None and self._sender is not None and not self._greeted:
            self._greeted = True
            self._channel.send(frames.HELLO, str(os.getpid()).encode())
            self._channel.flush()

    def _serve_channel(self, now: float) -> None:
        channel = self._channel
        if channel is None:
            return
        for kind, payload in channel.receive():
            if kind == frames.STOPPED:
                self._source_ended = True
            elif kind == frames.WINDOW:
                self._source_waits = max(1, frames.unpacked(payload) * 3 // 4)
            elif kind == frames.FENCE:
                self._fence = frames.unpacked(payload) / 1e9
            elif kind == frames.CLOCK:
                self._source_offset_ms = frames.unpacked(payload)
        if channel.closed and not self._source_ended and self._error is None and not self._closing:
            self._give_up(SourceGoneError(f"'{self.path}': the reader of this task is gone"))
        if now >= self._fence and self._error is None and not self._closing:
            self._give_up(ClaimUnconfirmedError(self.path))
        if now - self._said_at >= ALIVE_SECONDS:
            self._said_at = now
            channel.send(frames.STATS, json.dumps(self.statistics()).encode())

    def _take_outcomes(self, sender: Sender) -> None:
        under_way = self._under_way
        outcomes = sender.outcomes
        while outcomes:
            first, last, error = outcomes.popleft()
            for delivery, count in under_way.deliveries(first, last):
                self._outcome(delivery, count, error)
        under_way.forget_before(sender.oldest_open)

    def _outcome(self, delivery: int, count: int, error: IsthmusError | None) -> None:
        if error is None:
            self._under_way.acknowledge(delivery, count)
            self._answered()
        elif isinstance(error, EntityNotFoundError | UnauthorizedError):
            self._give_up(error)
        elif _may_pass(error):
            self._begin_trouble(error, time.monotonic() + self._backoff.next_seconds())
        elif self._under_way.split_later(delivery, count):
            self._begin_trouble(error, time.monotonic())
        else:
            self._under_way.refuse(delivery, count, error)
            self._answered()

    def _answered(self) -> None:
        """The target did its part for a delivery."""
        if self._trouble is None:
            self._backoff.reset()
            self._trouble_since = 0.0
        else:
            self._trouble_since = time.monotonic()

    def _settle(self, numbers: Sequence[int]) -> None:
        self._settled += len(numbers)
        if self._channel is not None:
            self._channel.settle_all(numbers)

    def _flushed(self, number: int) -> None:
        if self._channel is not None:
            self._channel.send(frames.FLUSHED, number.to_bytes(8, "little", signed=True))

    def _refuse(self, sequence: int | None, refused: Refused) -> None:
        self.refused += 1
        self._settled += sequence is not None
        if sequence is not None and self._channel is not None:
            if refused.disposition == "complete":
                self._channel.settle(sequence, sequence)
            else:
                item = {"first": sequence, "last": sequence, **refused._asdict()}
                self._channel.send(frames.DISPOSE, json.dumps([item]).encode())
        elif sequence is not None and self._dispose is not None:
            self._dispose(sequence, refused)
        elif refused.disposition != "complete":
            self._give_up(RowRefusedError(self.path, refused.disposition, refused.reason, refused.description))

    # ---- trouble with the target

    def _begin_trouble(self, error: IsthmusError, next_try: float) -> None:
        if self._trouble is None:
            self._trouble_since = self._trouble_since or time.monotonic()
            if self._channel is not None:
                self._channel.send(frames.HOLD, json.dumps({"error": str(error)}).encode())
        self._trouble = error
        self._next_try = next_try

    def _target_lost(self, error: IsthmusError) -> None:
        if self._client is not None:
            self._client.abandon()
        self._client = self._sender = None
        self._under_way.forget_order()
        if _may_pass(error):
            self._begin_trouble(error, time.monotonic() + self._backoff.next_seconds())
        else:
            self._give_up(error)

    def _retry(self) -> None:
        """Connects again if need be, then sends again what has no outcome; called without the lock."""
        with self._changed:
            sender, trouble = self._sender, self._trouble
            if trouble is not None and time.monotonic() - self._trouble_since > self.target_timeout_seconds:
                seconds = self.target_timeout_seconds
                self._give_up(TargetUnavailableError(f"'{self.path}': took nothing for {seconds:g} s: {trouble}"))
                return
            if sender is not None and sender.outstanding:
                self._next_try = time.monotonic() + SETTLING_SECONDS
                return
        if sender is None:
            try:
                self._connect()
            except IsthmusError as error:
                with self._changed:
                    if not _may_pass(error):
                        self._give_up(error)
                    self._next_try = time.monotonic() + self._backoff.next_seconds()
                return
        with self._changed:
            self._under_way.split_envelopes()
            self._send_again()

    def _send_again(self) -> None:
        """Sends everything that was sent and has no outcome, in order, before anything new."""
        sender = self._sender
        assert sender is not None
        if time.monotonic() >= self._fence:
            self._give_up(ClaimUnconfirmedError(self.path))
            return
        pending = self._under_way.pending()
        if not pending:
            self._trouble_since = 0.0
        while pending:
            count = min(len(pending), sender.sendable)
            if count <= 0:
                self._next_try = time.monotonic() + SETTLING_SECONDS
                return
            for delivery, payload in pending[:count]:
                self._deliver(sender, [payload], delivery)
            self.resent += count
            del pending[:count]
        self._trouble = None
        if self._channel is not None:
            self._channel.send(frames.RESUME)
        self._push()
        self._changed.notify_all()

    def _connect(self) -> None:
        client = open_client(self.endpoint, self.path, f"isthmus-outlet-{os.getpid()}", 10.0)
        try:
            sender = Sender(client, self.path).wait_ready(10.0)
        except BaseException:
            client.abandon()
            raise
        with self._changed:
            self._client, self._sender = client, sender

    def _give_up(self, error: IsthmusError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
                self._say_error(error)
            self._changed.notify_all()

    def _say_error(self, error: IsthmusError) -> None:
        self._dial()
        channel = self._channel
        if channel is not None and not channel.closed:
            told = {"error": str(error), "retryable": error.retryable, "died": self._input_died}
            channel.send(frames.ERROR, json.dumps(told).encode())
            channel.flush()


def _may_pass(error: IsthmusError) -> bool:
    """Whether the target may take the same message later, though nobody changes it."""
    return error.retryable or isinstance(error, EntityDisabledError)
