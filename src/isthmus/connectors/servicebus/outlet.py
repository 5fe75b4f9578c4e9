"""The target's side of a lease: sends copies, waits for acknowledgements, settles.

What it is: the connection to the target, what is under way on it, and the channel to the reader. The caller's thread hands
over rows and may block for credit; a second thread serves the sockets, so that acknowledgements are settled and
heartbeats go on while the caller waits for Spark. What it is not: Spark (`sink` takes Arrow batches apart), the making
of copies (`splice`).

Numbered steps of one row, each after the one before:
    1. the copy is sent, in the order of rows, as far as the target's credit goes;
    2. the target acknowledges it;
    3. every row before it is done with;
    4. its sequence number is completed at the source, over the channel;
    5. a flush row behind it is answered.
Over 400 lines: two threads share one account of what is under way, and every step of a row changes it.

Invariants:
    I1. A row is settled at the source only after its copy and the copies of all rows before it are acknowledged, or
        after the row was given another disposition.
    I2. When the target's connection is lost, exactly the copies without acknowledgement are sent again, in order, before
        any later one: what may have arrived twice has the same MessageId.
    I3. A refusal that may pass (full, busy, disabled) is tried again without end of order: nothing later is sent
        meanwhile; after `target_timeout_seconds` the query fails, and the reader gives all locks back.
    I4. A refusal that will not pass (too large, malformed) dead-letters that one row at its source, with the reason.
    I5. Nothing waits for the channel.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isthmus.amqp import BATCH_FORMAT
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, dial
from isthmus.connectors.servicebus.connect import open_client
from isthmus.connectors.servicebus.splice import Refused
from isthmus.errors import (
    EntityNotFoundError,
    IsthmusError,
    MessageTooLargeError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from isthmus.transport import Backoff, Client, Endpoint, Sender
from isthmus.transport.sender import envelope, messages_of

__all__ = ["Outlet", "RowRefusedError", "SourceGoneError", "TargetUnavailableError"]

ALIVE_SECONDS = 2.0
DIAL_SECONDS = 0.05
# A reader listens before it connects to its source; where none has come by now, the rows are of another maker.
DIAL_FOR_SECONDS = 30.0
CHUNK = 500
# A batch envelope must stay below the peer's limit for batches, which few peers tell; SDKs take 256 KiB where none is told.
ENVELOPE_BYTES = 250_000
# What is under way when a refusal comes gets its outcomes within a round trip; looked for so often.
SETTLING_SECONDS = 0.02


class TargetUnavailableError(OutcomeUnknownError):
    """The target took nothing for longer than the route waits; what it did not acknowledge goes back to the source."""

    code = "target-unavailable"


class SourceGoneError(IsthmusError):
    """The reader of this task ended without saying that the lease was over."""

    code = "source-gone"
    retryable = True


class RowRefusedError(IsthmusError):
    """A row cannot be copied, and this sink has no source to give it to."""

    code = "row-refused"

    def __init__(self, path: str = "", disposition: str = "", reason: str = "", description: str = "") -> None:
        super().__init__("", path=path, disposition=disposition, reason=reason, description=description)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': a row has the disposition {a.get('disposition')} ({a.get('reason')}: {a.get('description')}), "
            "and there is no source to give it to; options source_connection and source_entity name one"
        )


class _Chunk:
    """Deliveries handed over together; `sequences[i]` are the source's numbers of delivery i."""

    __slots__ = ("done", "flush", "payloads", "refused", "sequences")

    def __init__(
        self, payloads: list[bytes], sequences: Sequence[Any], refused: list[tuple[int, Refused]], flush: int | None
    ) -> None:
        self.payloads = payloads
        self.sequences = sequences
        self.refused = refused
        self.flush = flush
        self.done = 0


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
        acknowledged: messages that the target has acknowledged.
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
        self.sent = self.acknowledged = self.resent = self.refused = 0
        self._format = BATCH_FORMAT if self.batch_messages else 0
        self._channel_file = channel_file
        self._channel: Channel | None = None
        self._dispose = dispose
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._changed = threading.Condition()
        self._chunks: deque[_Chunk] = deque()
        self._base = 0  # deliveries that are done with: those before the first chunk
        self._next = 0  # deliveries handed over
        self._early: dict[int, IsthmusError | None] = {}
        self._transmitted = 0  # deliveries sent at least once
        self._order: deque[list[int]] = (
            deque()
        )  # how ordinals of the sender map to deliveries: [ordinal, delivery, count]
        self._split: set[int] = set()  # refused envelopes, whose messages are sent again each alone
        self._trouble: IsthmusError | None = None
        self._trouble_since = 0.0
        self._backoff = Backoff(0.1, 5.0)
        self._next_try = 0.0
        self._dial_until = time.monotonic() + DIAL_FOR_SECONDS
        self._error: IsthmusError | None = None
        self._source_ended = False
        self._closing = False
        self._said_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=f"outlet-{path}", daemon=True)

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
                if not error.retryable or time.monotonic() >= limit:
                    self.close(error)
                    raise
                time.sleep(min(self._backoff.next_seconds(), max(0.0, limit - time.monotonic())))
        self._backoff.reset()
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
        refusals = list(refused)
        for start in range(0, max(1, len(units)), CHUNK):
            part = units[start : start + CHUNK]
            last = start + CHUNK >= len(units)
            self._hand_over(_Chunk(part, numbers[start : start + CHUNK], refusals if last else [], None))

    def flush(self, number: int) -> None:
        """Answers flush row `number` once everything handed over before it is done with; does not wait."""
        with self._changed:
            self._chunks.append(_Chunk([], [], [], number))
            self._advance()
            self._push()

    def finish(self) -> None:
        """Waits until everything is done with, and says goodbye to reader and target.

        Raises:
            IsthmusError: target or source failed before that.
        """
        with self._changed:
            while self._chunks and self._error is None:
                self._push()
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

    def abort(self, error: BaseException) -> None:
        """The sink failed, or its input did: tells the reader, which gives back what was not settled."""
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
            "under_way": self._next - self._base,
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
        for index, payload in enumerate(payloads):
            if index > start and (index - start >= self.batch_messages or size + len(payload) > ENVELOPE_BYTES):
                units.append(envelope(payloads[start:index]))
                groups.append(numbers[start:index])
                start, size = index, 0
            size += len(payload) + 8
        if start < len(payloads):
            units.append(envelope(payloads[start:]))
            groups.append(numbers[start : len(payloads)])
        return units, groups

    def _hand_over(self, chunk: _Chunk) -> None:
        count = len(chunk.payloads)
        if not count and not chunk.refused:
            return
        with self._changed:
            while self._error is None and (self._trouble is not None or self._next - self._base >= self.window):
                self._changed.wait(1.0)
            if self._error is not None:
                raise self._error
            self._chunks.append(chunk)
            self._next += count
            while (left := self._next - self._transmitted) > 0:
                at = len(chunk.payloads) - left
                self._transmit(chunk.payloads, at, self._transmitted - at)
                if self._next > self._transmitted:
                    self._push()
                    self._changed.wait_for(self._may_send, 1.0)
                    if self._error is not None:
                        raise self._error
            self._advance()
            self._push()

    def _may_send(self) -> bool:
        sender = self._sender
        return self._error is not None or (self._trouble is None and sender is not None and sender.sendable > 0)

    def _transmit(self, payloads: list[bytes], at: int, first: int) -> int:
        sender = self._sender
        if sender is None or self._trouble is not None or sender.error is not None:
            return 0
        count = min(len(payloads) - at, sender.sendable)
        if count > 0:
            part = payloads if count == len(payloads) else payloads[at : at + count]
            ordinal = sender.send(part, message_format=self._format)
            self._map(ordinal, first + at, count)
            self._transmitted = max(self._transmitted, first + at + count)
        return count

    def _map(self, ordinal: int, delivery: int, count: int) -> None:
        order = self._order
        if order and order[-1][0] + order[-1][2] == ordinal and order[-1][1] + order[-1][2] == delivery:
            order[-1][2] += count
        else:
            order.append([ordinal, delivery, count])

    def _push(self) -> None:
        """Writes what the sockets take now; the serving thread is woken for the rest."""
        if self._client is not None:
            self._client.flush()
            if self._client.backlog_bytes:
                self._wake()
        if self._channel is not None:
            self._channel.flush()

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
                client = self._client
                if client is not None and client.error is None:
                    poll.register(client.fileno(), client.interest())
                    deadline = client.deadline()
                    due = due if deadline is None else min(due, deadline)
                if self._trouble is not None:
                    due = min(due, self._next_try)
                if self._channel is not None and not self._channel.closed:
                    poll.register(self._channel, self._channel.interest())
            ready = poll.poll(max(0.0, due - time.monotonic()) * 1000)
            if any(fd == self._wake_read.fileno() for fd, _ in ready):
                self._wake_read.recv(4096)
            try:
                self._turn()
            except IsthmusError as error:
                self._give_up(error)

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
            self._advance()
            retry = self._trouble is not None and now >= self._next_try and self._error is None
            self._push()
            self._changed.notify_all()
        if retry:
            self._retry()

    def _dial(self) -> None:
        if self._channel is not None or self._channel_file is None or time.monotonic() > self._dial_until:
            return
        self._channel = dial(self._channel_file)
        if self._channel is not None and self._sender is not None:
            self._channel.send(frames.HELLO, str(os.getpid()).encode())
            self._channel.flush()

    def _serve_channel(self, now: float) -> None:
        channel = self._channel
        if channel is None:
            return
        for kind, _ in channel.receive():
            if kind == frames.STOPPED:
                self._source_ended = True
        if channel.closed and not self._source_ended and self._error is None and not self._closing:
            self._give_up(SourceGoneError(f"'{self.path}': the reader of this task is gone"))
        if now - self._said_at >= ALIVE_SECONDS:
            self._said_at = now
            channel.send(frames.STATS, json.dumps(self.statistics()).encode())

    def _take_outcomes(self, sender: Sender) -> None:
        outcomes = sender.outcomes
        while outcomes:
            first, last, error = outcomes.popleft()
            while first <= last:
                ordinal, delivery, length = next(run for run in self._order if run[0] <= first < run[0] + run[2])
                count = min(last + 1, ordinal + length) - first
                self._outcome(delivery + first - ordinal, count, error)
                first += count
        while len(self._order) > 1 and self._order[0][0] + self._order[0][2] <= sender.oldest_open:
            self._order.popleft()

    def _outcome(self, delivery: int, count: int, error: IsthmusError | None) -> None:
        if error is None:
            if delivery == self._base + self._head_done() and not self._early:
                self._complete(count)
            else:
                for i in range(delivery, delivery + count):
                    self._early[i] = None
            if self._trouble is None:
                self._backoff.reset()
            return
        if isinstance(error, EntityNotFoundError | UnauthorizedError):
            self._give_up(error)
            return
        if error.retryable:
            self._begin_trouble(error, time.monotonic() + self._backoff.next_seconds())
            return
        if self.batch_messages and any(self._messages_in(i) > 1 for i in range(delivery, delivery + count)):
            self._split.update(range(delivery, delivery + count))
            self._begin_trouble(error, time.monotonic())
            return
        for i in range(delivery, delivery + count):
            self._early[i] = error

    def _head_done(self) -> int:
        return self._chunks[0].done if self._chunks else 0

    def _complete(self, count: int) -> None:
        """Deliveries at the front are acknowledged: settle them, chunk by chunk."""
        channel = self._channel
        while count > 0:
            chunk = self._chunks[0]
            if chunk.flush is not None or not chunk.payloads:
                self._pop_chunk(chunk)
                continue
            part = min(count, len(chunk.payloads) - chunk.done)
            numbers = chunk.sequences[chunk.done : chunk.done + part]
            self.acknowledged += sum(map(len, numbers)) if self.batch_messages and len(numbers) else part
            if channel is not None and len(numbers):
                if self.batch_messages:
                    for group in numbers:
                        channel.settle_all(group)
                else:
                    channel.settle_all(numbers)
            chunk.done += part
            count -= part
            if chunk.done == len(chunk.payloads):
                self._pop_chunk(chunk)

    def _pop_chunk(self, chunk: _Chunk) -> None:
        self._chunks.popleft()
        self._base += len(chunk.payloads)
        for sequence, refused in chunk.refused:
            self._refuse(sequence, refused)
        if chunk.flush is not None and self._channel is not None:
            self._channel.send(frames.FLUSHED, chunk.flush.to_bytes(8, "little", signed=True))

    def _advance(self) -> None:
        """Takes what is done with off the front."""
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.done == len(chunk.payloads):
                self._pop_chunk(chunk)
                continue
            delivery = self._base + chunk.done
            if delivery not in self._early:
                return
            error = self._early.pop(delivery)
            if error is None:
                self._complete(1)
                continue
            sequence = chunk.sequences[chunk.done] if len(chunk.sequences) else None
            chunk.done += 1
            number = sequence[0] if self.batch_messages and sequence else sequence
            self._refuse(number or None, Refused(0, "dead-letter", _reason(error), str(error)))

    def _refuse(self, sequence: int | None, refused: Refused) -> None:
        self.refused += 1
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
            self._trouble_since = time.monotonic()
            if self._channel is not None:
                self._channel.send(frames.HOLD, json.dumps({"error": str(error)}).encode())
        self._trouble = error
        self._next_try = next_try

    def _target_lost(self, error: IsthmusError) -> None:
        if self._client is not None:
            self._client.abandon()
        self._client = self._sender = None
        self._order.clear()
        if error.retryable:
            self._begin_trouble(error, time.monotonic() + self._backoff.next_seconds())
        else:
            self._give_up(error)

    def _retry(self) -> None:
        """Connects again if need be, then sends again what has no outcome; called without the lock."""
        with self._changed:
            sender, trouble = self._sender, self._trouble
            if sender is not None and sender.outstanding:
                self._next_try = time.monotonic() + SETTLING_SECONDS
                return
        if trouble is not None and time.monotonic() - self._trouble_since > self.target_timeout_seconds:
            self._give_up(
                TargetUnavailableError(f"'{self.path}': took nothing for {self.target_timeout_seconds:g} s: {trouble}")
            )
            return
        if sender is None:
            try:
                self._connect()
            except IsthmusError as error:
                with self._changed:
                    if not error.retryable:
                        self._give_up(error)
                    self._next_try = time.monotonic() + self._backoff.next_seconds()
                return
        with self._changed:
            self._split_envelopes()
            self._send_again()

    def _send_again(self) -> None:
        """Sends everything that was sent and has no outcome, in order, before anything new."""
        sender = self._sender
        assert sender is not None
        pending = [
            (self._base + i, chunk.payloads[i - offset])
            for chunk, offset in self._offsets()
            for i in range(offset + chunk.done, offset + len(chunk.payloads))
            if self._base + i not in self._early and self._base + i < self._transmitted
        ]
        while pending:
            count = min(len(pending), sender.sendable)
            if count <= 0:
                self._next_try = time.monotonic() + SETTLING_SECONDS
                return
            for delivery, payload in pending[:count]:
                self._map(sender.send([payload], message_format=self._format), delivery, 1)
            self.resent += count
            del pending[:count]
        self._trouble = None
        if self._channel is not None:
            self._channel.send(frames.RESUME)
        self._push()
        self._changed.notify_all()

    def _messages_in(self, delivery: int) -> int:
        for chunk, offset in self._offsets():
            index = delivery - self._base - offset
            if 0 <= index < len(chunk.payloads):
                return len(messages_of(chunk.payloads[index]))
        return 0

    def _split_envelopes(self) -> None:
        """Replaces refused envelopes by one envelope per message; nothing is under way, so numbers may move."""
        for delivery in sorted(self._split, reverse=True):
            for chunk, offset in self._offsets():
                index = delivery - self._base - offset
                if not 0 <= index < len(chunk.payloads):
                    continue
                messages = messages_of(chunk.payloads[index])
                more = len(messages) - 1
                chunk.payloads[index : index + 1] = [envelope([message]) for message in messages]
                if len(chunk.sequences):
                    numbers = list(chunk.sequences)
                    numbers[index : index + 1] = [[number] for number in numbers[index]]
                    chunk.sequences = numbers
                self._early = {at + more if at > delivery else at: found for at, found in self._early.items()}
                self._next += more
                self._transmitted += more
                break
        self._split.clear()

    def _offsets(self) -> list[tuple[_Chunk, int]]:
        found, offset = [], 0
        for chunk in self._chunks:
            found.append((chunk, offset))
            offset += len(chunk.payloads)
        return found

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
            channel.send(frames.ERROR, json.dumps({"error": str(error), "retryable": error.retryable}).encode())
            channel.flush()


def _reason(error: IsthmusError) -> str:
    """The dead-letter reason of a refusal."""
    return "MessageTooLarge" if isinstance(error, MessageTooLargeError) else f"RefusedByTarget:{error.code}"
