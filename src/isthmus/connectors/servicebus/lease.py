"""One lease: messages stream from a source entity while the sink of the same task settles them.

What it is: what owns the source's connection during one micro-batch. It receives, hands blocks of messages to the
reader, takes settlements from the control channel, renews locks, keeps the accounts, and ends the lease in good order. It
has a thread of its own, so that heartbeats, renewal and settlement go on while the reader's `yield` waits for Spark; while
the reader waits for the lease, it runs the lease's turns itself (`lease_drive`). What it is not: Spark (`source` turns
blocks into Arrow batches), a transform, a retry. The accounts have modules of their own: what is outstanding (`ledger`),
which rows came through (`flush_account`), how old the locks are (`renewal`).

A lease ends by time, rows, bytes, idleness, the last sequence number asked for, a wish to stop, or a fault of sink or
source. Its end, in order:
    1. credit is drained; what still comes is handed on;
    2. the reader pushes a last flush row through Spark;
    3. the sink answers that everything before it is settled;
    4. what was never settled is given back (its delivery count does not rise), and counted;
    5. the sink is told that the lease has ended: for it, end of input without that word is a failure.
A lease that the driver wishes to end does not wait long for a target that takes nothing: it fails, and gives all back.
Over 400 lines: a turn owns the link, the channel and the accounts, and each of its decisions reads all three.

Invariants:
    I1. A message is completed only after the sink said that the target acknowledged it.
    I2. However a lease ends, messages that were not settled are released, or settled by their lock token over a new
        connection when the first was lost.
    I3. In an ordered lease nothing is handed on while an earlier message is locked by someone else.
    I4. No credit is held before the lease has its turn, while the target is away, while the sink is silent, or after a
        lease began to end.
    I5. Where the task is claimed, no credit is held and nothing is handed on before the driver has confirmed the claim, or
        after the fence has closed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isthmus.amqp.performative import Released
from isthmus.bridge.crash_search import SET_ASIDE_REASON
from isthmus.bridge.credit_window import CreditWindow
from isthmus.bridge.fence import Fence
from isthmus.bridge.source_clock import SourceClock
from isthmus.clock import SystemClock
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, Listening, listen
from isthmus.connectors.servicebus.connect import open_client
from isthmus.connectors.servicebus.disposition import outcome_of, settle_by_token
from isthmus.connectors.servicebus.flush_account import FlushAccount
from isthmus.connectors.servicebus.head import Standing, first_hole
from isthmus.connectors.servicebus.lease_drive import Drive
from isthmus.connectors.servicebus.lease_error import (
    ClaimUnconfirmedError,
    HeldElsewhereError,
    LeaseError,
    RowsDroppedError,
)
from isthmus.connectors.servicebus.lease_item import Block, Finish, LeaseEnd, LeaseLimits
from isthmus.connectors.servicebus.lease_report import REPORT_SECONDS, LeaseReport
from isthmus.connectors.servicebus.ledger import Ledger, Span
from isthmus.connectors.servicebus.renewal import Renewal
from isthmus.connectors.servicebus.sequence import annotations_of, broker_times_of, enqueued_ms_of, sequences_of
from isthmus.connectors.servicebus.turn import Turn
from isthmus.errors import EntityDisabledError, IsthmusError
from isthmus.transport import Client, Endpoint, Management, Receiver

__all__ = [
    "Block",
    "Finish",
    "HeldElsewhereError",
    "Lease",
    "LeaseEnd",
    "LeaseError",
    "LeaseLimits",
    "RowsDroppedError",
]

# The sink says something every 2 s; five times that is silence.
SILENCE_SECONDS = 10.0
# Until its target stands, or stands again, a sink has nothing to say, for 30 s unless told otherwise; then it fails by itself.
SINK_SECONDS = 60.0
DRAIN_SECONDS = 5.0
# How long the accounts may take to close once the last flush row is on its way and settlements have stopped coming.
CLOSING_SECONDS = 20.0
HEAD_RETRY_SECONDS = 1.0
GUARD_SECONDS = 5.0
# A lease that stands next asks for the turn so often, does all else that a lease does so often, and gives up if its turn is
# so far away.
TURN_POLL_SECONDS = 0.002
STAND_SECONDS = 0.1
LONGEST_STAND_SECONDS = 30.0
TURN_RETRY_SECONDS = 0.01
# How much longer than asked a lease goes on if the other is not ready to take over.
OVERTIME_SECONDS = 10.0
# How many messages a lease asks for to see whether the one that it waits for is free.
PROBE = 8
# For so long the socket is left unread while what is under way fills the bound; then what comes is given back, since locks
# cannot be renewed, nor heartbeats heard, over a socket that nobody reads.
UNREAD_SECONDS = 5.0
# With a window so small the driver is told of each message before it is handed on: it may be the one that kills.
TOLD_WINDOW = 8
# Blocks of at most so many messages come so seldom that the reader's thread may run the lease while it waits.
SPARSE_MESSAGES = 16
_LOCK_SECONDS_UNKNOWN = 30.0
_LOCKED_UNTIL = "x-opt-locked-until"
# The broker's clock is read from a delivery so often at most, and told to the sink when it has moved so far.
CLOCK_SECONDS = 0.1
CLOCK_STEP_MS = 2
# A message that comes to a link that has had credit for so long, and got nothing for a while, was enqueued just now.
AWAITED_CREDIT_SECONDS = 1.0
AWAITED_GAP_SECONDS = 0.05


class Lease:
    """Runs one lease.

    Args:
        endpoint: the source's namespace.
        path: the source's entity.
        limits: when the lease ends.
        window: messages under way at most.
        window_bytes: bytes under way at most; one message alone may be larger.
        ordered: wait for earlier messages that someone else holds.
        channel_file: where the sink dials; None: nobody settles here (the caller takes `tokens`).
        control_file: where the driver listens for reports (`RouteControl`); None: nobody watches.
        label: what the driver's control knows the lease by.
        lock_seconds: LockDuration of the source; 0: what the first message's lock and this machine's clock tell.
        steps: names of custom steps, for the error when rows were dropped.
        turn: of the route's two queries; None: there is but one.
        claimed: whether the driver has to confirm, over `control_file`, that the task's claim is held (`bridge.fence`).

    Attributes:
        blocks: what the reader takes: Block, then Finish, then LeaseEnd.
        ended_by: why the lease ended.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        path: str,
        limits: LeaseLimits,
        *,
        window: int = 16_000,
        window_bytes: int = 64 << 20,
        ordered: bool = True,
        channel_file: Path | None = None,
        control_file: Path | None = None,
        label: str = "",
        lock_seconds: float = 0.0,
        steps: str = "",
        turn: Turn | None = None,
        claimed: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.path = path
        self.limits = limits
        self.window = window
        self.window_bytes = window_bytes
        self.ordered = ordered
        self.label = label
        self.steps = steps
        self.blocks: queue.SimpleQueue[Block | Finish | LeaseEnd] = queue.SimpleQueue()
        self.ended_by = ""
        self.ledger = Ledger()
        self.received_bytes = 0
        self._channel_file = channel_file
        self._clock = SystemClock()
        self._thread = threading.Thread(target=self._run, name=f"lease-{path}", daemon=True)
        self._drive = Drive(self._turn_once, self._poke)
        self._ready: dict[int, int] = {}
        self._serve_by = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        # A lease that has an end in sight need not wait long for what will not come.
        self._idle_seconds = min(1.0, limits.idle_seconds) if limits.through else limits.idle_seconds
        self._stop_wish = ""
        self._wished = ""
        self._turn = turn
        self._has_turn = turn is None
        self._listener: Listening | None = None
        self._sinks: dict[int, Channel] = {}
        self._greeted: set[int] = set()
        self._report = LeaseReport(control_file, label)
        self._heard = 0.0
        self._met_sink = False
        self._held = ""
        self._flushes = FlushAccount(self.ledger)
        self._disposed: Counter[str] = Counter()  # by disposition, what the target did not take
        self._sink_ended = False
        self._sink_told: dict[str, Any] = {}  # its counters
        self._error: IsthmusError | None = None
        self._client: Client | None = None
        self._receiver: Receiver | None = None
        self._management: Management | None = None
        self._lost: list[tuple[Span, Any]] = []
        self._handed_on = 0  # highest sequence number
        self._guarded_until = 0.0
        self._hole_until = 0.0
        self._blocked_by: Standing | None = None
        self._blocked_since = 0.0
        self._renewal = Renewal(self.ledger)
        self._told_lock_seconds = lock_seconds
        self._lock_seconds = lock_seconds or _LOCK_SECONDS_UNKNOWN
        self._fence = Fence(claimed, time.monotonic())
        self._credit = CreditWindow(window, window_bytes, grows=channel_file is not None)
        self._full_since = math.inf
        self._set_aside: dict[int, int] = {}  # what kills its worker, and how many
        self._dead_lettered: list[int] = []
        self._source_clock = SourceClock(lock_seconds)
        self._clock_at = -math.inf
        self._clock_told_ms: int | None = None
        self._credit_since = math.inf
        self._came_at = 0.0
        self._base_id: int | None = None
        self._last_arrival = 0.0
        self._last_payload = b""
        self._progress = 0.0
        self._drain_by = 0.0
        self._stopping = False
        self._finish_sent = False

    # ---- for the reader

    def start(self) -> None:
        """Starts the thread; if nothing can be opened, the first thing in `blocks` is LeaseEnd with the error."""
        self._thread.start()

    def stop(self, why: str) -> None:
        """Wishes the lease to end; may be called from any thread."""
        self._stop_wish = self._stop_wish or why
        self._poke()

    def take(self, until: float) -> Block | Finish | LeaseEnd | None:
        """The next of `blocks`, or None if there is none by then (monotonic seconds); runs the lease while it waits."""
        self._drive.help(lambda: not self.blocks.empty(), until)
        try:
            item = self.blocks.get(timeout=max(0.0, until - time.monotonic()) if until < math.inf else None)
        except queue.Empty:
            return None
        if isinstance(item, Block):
            self._drive.lend(len(item.tokens) <= SPARSE_MESSAGES and self.blocks.empty())
        return item

    def note_flush(self, number: int, rows: int) -> None:
        """The reader pushed flush row `number` after having yielded `rows` messages in all."""
        self._flushes.push(number, rows)

    def note_finish(self, number: int) -> None:
        """Flush row `number` is the last."""
        self._flushes.finish = number
        self.stop("finish")

    def join(self, timeout_seconds: float) -> None:
        """Waits for the thread."""
        self._thread.join(timeout_seconds)

    # ---- turns

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    def _run(self) -> None:
        try:
            self._open()
            self._drive.run()
        except IsthmusError as error:
            self._error = self._error or error
        except Exception as error:  # noqa: BLE001 - whatever it is, locks must be given back and the reader told
            self._error = self._error or LeaseError(f"'{self.path}': {type(error).__name__}: {error}")
        finally:
            self._close()

    def _open(self) -> None:
        if self._channel_file is not None:
            self._listener = listen(self._channel_file)
        self._report.open()
        self._fence = Fence(self._fence.required, time.monotonic())
        if self._fence.required:
            self._tell({})
        self._client = open_client(self.endpoint, self.path, f"isthmus-lease-{os.getpid()}")
        self._receiver = Receiver(self._client, self.path).wait_attached()
        self._management = Management(self._client, self.path)
        now = time.monotonic()
        self._started = self._heard = self._last_arrival = now
        self._refill()

    def _turn_once(self, until: float) -> bool:
        if self._done():
            return False
        self._wait(until)
        now = time.monotonic()
        self._client_turn(now)
        self._channel_turn(now)
        self._control_turn()
        self._take_turn(now)
        self._decide(now)
        self._renew(now)
        self._refill()
        if self._receiver is None or not self._receiver.credit:
            self._credit_since = math.inf
        elif self._credit_since == math.inf:
            self._credit_since = now
        if self._client is not None:
            self._client.flush()
        return True

    def _wait(self, until: float) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        client = self._client
        now = time.monotonic()
        due = min(self._fence.deadline(now), now + (STAND_SECONDS if self._stands_next() else 0.5))
        self._serve_by = math.inf
        if client is not None and client.error is None:
            interest = client.interest()
            poll.register(client.fileno(), interest & ~select.POLLIN if self._is_unread() else interest)
            self._serve_by = client.deadline() or math.inf
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        control = self._report.channel
        for channel in (*self._sinks.values(), *(() if control is None else (control,))):
            poll.register(channel, channel.interest())
        self._ready = self._ready_by(poll, min(due, until, self._serve_by))
        if self._wake_read.fileno() in self._ready:
            self._wake_read.recv(64)

    def _ready_by(self, poll: select.poll, until: float) -> dict[int, int]:
        """What is ready by then; a lease that stands next returns as soon as it has the turn, too."""
        while self._stands_next():
            left = until - time.monotonic()
            ready = poll.poll(max(0.0, min(left, TURN_POLL_SECONDS)) * 1000)
            if ready or left <= TURN_POLL_SECONDS or self._ask_turn(time.monotonic()):
                return dict(ready)
        return dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))

    # ---- the source's side

    def _client_turn(self, now: float) -> None:
        client, receiver = self._client, self._receiver
        if client is None or receiver is None:
            return
        if client.error is None and (client.fileno() in self._ready or now >= self._serve_by):
            gone = self._ready.get(client.fileno(), 0) & (select.POLLERR | select.POLLHUP)
            client.service(read=bool(gone) or not self._is_unread())
        self._check_room(now)
        if self._fence.has_failed(time.monotonic()):
            self._fence_closed()  # what has come is given back
        for run in receiver.take():
            self._arrived(run.first_id, list(run.tags), list(run.payloads), now)
        if 0 < self._hole_until <= now and (receiver.drained or receiver.error is not None):
            self._hole_until = 0.0
        if receiver.error is not None or client.error is not None:
            self._source_lost(receiver.error or client.error)

    def _arrived(self, first_id: int, tokens: list[bytes], payloads: list[bytes], now: float) -> None:
        self._read_clock(payloads, now)
        if self._base_id is None:
            self._base_id = first_id
            self._learn(payloads[0])
        if not self._hole_until:
            self._last_arrival, self._last_payload = now, payloads[-1]
        sequences = sequences_of(payloads)
        through = self.limits.through
        highest = max(sequences[-1], sequences[0]) if isinstance(sequences, range) else max(sequences)
        if not through or highest <= through:
            self._take(sequences, first_id, tokens, payloads, now)
        else:
            for i, sequence in enumerate(sequences):
                if sequence > through:
                    self._release([Span(sequence, first_id + i, tokens[i : i + 1])])
                else:
                    self._take([sequence], first_id + i, tokens[i : i + 1], payloads[i : i + 1], now)
        if through and self._blocked_by is None and highest >= through:
            self._begin_end("through")

    def _take(
        self, sequences: Sequence[int], first_id: int, tokens: list[bytes], payloads: list[bytes], now: float
    ) -> None:
        hole = None
        if not self._hole_until and self.ordered and now < self._guarded_until and self._management is not None:
            try:
                hole = first_hole(self._management.peek, self._source_ms(now), self._handed_on, sequences)
            except IsthmusError as error:
                self._look_failed(error)
        if self._hole_until or self._error is not None or self._receiver is None:
            self._release([Span(0, first_id, tokens)])
            return
        if hole is not None:
            self._wait_for(hole, now)
            keep = next((i for i, sequence in enumerate(sequences) if sequence > hole.sequence), len(sequences))
            self._release([Span(0, first_id + keep, tokens[keep:])])
            sequences, tokens, payloads = sequences[:keep], tokens[:keep], payloads[:keep]
            if not keep:
                return
        else:
            self._blocked_by = None
        if self._set_aside:
            for at, sequence in enumerate(sequences):
                if sequence in self._set_aside:
                    self._put_aside(sequence, first_id + at)
                    self._hand_on(sequences[:at], first_id, tokens[:at], payloads[:at], now)
                    behind = at + 1
                    sequences, tokens, payloads = sequences[behind:], tokens[behind:], payloads[behind:]
                    first_id += behind
                    break
        self._hand_on(sequences, first_id, tokens, payloads, now)

    def _hand_on(
        self, sequences: Sequence[int], first_id: int, tokens: list[bytes], payloads: list[bytes], now: float
    ) -> None:
        if not tokens:
            return
        self._handed_on = max(self._handed_on, sequences[-1])
        self._flushes.handed_on(len(tokens), first_id + len(tokens))
        sizes = list(map(len, payloads))
        nbytes = sum(sizes)
        self.received_bytes += nbytes
        self._credit.came(len(sizes), nbytes, max(sizes))
        self.ledger.add(sequences, first_id, tokens, nbytes)
        self._renewal.arrived(now, first_id + len(tokens))
        if self._credit.limit <= TOLD_WINDOW:
            self._tell({"state": self._state()})
        self.blocks.put(Block(sequences, tokens, payloads))

    def _put_aside(self, sequence: int, delivery_id: int) -> None:
        """Dead-letters a message over which workers died, unread."""
        deaths = self._set_aside.pop(sequence)
        text = f"{deaths} workers in a row died while this message alone was under way"
        if self._receiver is not None:
            self._receiver.dispose(delivery_id, delivery_id, outcome_of("dead-letter", SET_ASIDE_REASON, text))
        self._handed_on = max(self._handed_on, sequence)
        self._dead_lettered.append(sequence)
        self._tell({"state": self._state()})

    # ---- room

    def _is_full(self) -> bool:
        client = self._client
        partial_bytes = client.connection.partial_bytes if client is not None else 0
        return self._credit.is_full(self.ledger.outstanding, self.ledger.outstanding_bytes, partial_bytes)

    def _is_unread(self) -> bool:
        """Whether the socket is left unread: what is under way fills the bound, and more would come."""
        if self._stopping or self._hole_until or self._receiver is None or not self._receiver.credit:
            return False
        return self._is_full()

    def _check_room(self, now: float) -> None:
        """Where there is no room for long, or the lease ends, what still comes goes back, and with it all that follows."""
        if not self._is_full() or self._receiver is None or not self._receiver.credit:
            self._full_since = math.inf
            return
        self._full_since = min(self._full_since, now)
        if self._hole_until or self._channel_file is None:
            return
        if self._stopping or now - self._full_since >= UNREAD_SECONDS:
            self._hole_until = now
            self._receiver.drain()

    def _look_failed(self, error: IsthmusError) -> None:
        client = self._client
        if client is not None and client.error is not None:
            self._source_lost(client.error)
        else:
            self._fail(error)

    def _wait_for(self, hole: Standing, now: float) -> None:
        """What comes behind the hole goes back until its message is free."""
        if self._blocked_by is None or self._blocked_by.sequence != hole.sequence:
            self._blocked_since = now
        self._blocked_by = hole
        # What the lease before has settled last may still be on its way.
        just_begun = self._turn is not None and now - self._started < HEAD_RETRY_SECONDS
        self._hole_until = now + (TURN_RETRY_SECONDS if just_begun else HEAD_RETRY_SECONDS)
        if self._receiver is not None:
            self._receiver.drain()

    def _read_clock(self, payloads: list[bytes], now: float) -> None:
        """Reads the broker's clock from a delivery, and tells the sink, before the delivery is handed on."""
        awaited = now - self._credit_since >= AWAITED_CREDIT_SECONDS and now - self._came_at >= AWAITED_GAP_SECONDS
        self._came_at = now
        if now - self._clock_at < CLOCK_SECONDS and not awaited:
            return
        self._clock_at = now
        enqueued_ms, locked_until_ms = broker_times_of(payloads[0] if awaited else payloads[-1])
        self._source_clock.seen(now, self._clock.wall_ms(), enqueued_ms, locked_until_ms, awaited=awaited)
        offset_ms, told_ms = self._source_clock.offset_ms, self._clock_told_ms
        if offset_ms is not None and (told_ms is None or abs(offset_ms - told_ms) >= CLOCK_STEP_MS):
            self._clock_told_ms = offset_ms
            for sink in self._sinks.values():
                sink.send(frames.CLOCK, frames.packed(offset_ms))
                sink.flush()

    def _source_ms(self, now: float) -> int:
        """The wall time of the source's broker; this machine's, while nothing has come."""
        wall_ms = self._source_clock.wall_ms(now)
        return self._clock.wall_ms() if wall_ms is None else wall_ms

    def _learn(self, message: bytes) -> None:
        locked_until = annotations_of(message, _LOCKED_UNTIL).get(_LOCKED_UNTIL)
        longest = self._lock_seconds
        if isinstance(locked_until, int):
            seen = min(300.0, max(1.0, (locked_until - self._clock.wall_ms()) / 1000))
            # Clocks may be apart: locks are renewed by the shorter length, and others' waited for by the longer.
            self._lock_seconds = min(seen, self._told_lock_seconds or seen)
            longest = max(seen, self._told_lock_seconds)
        # By then every lock that a reader before this one left behind has expired.
        self._guarded_until = self._started + longest + GUARD_SECONDS

    def _release(self, spans: list[Span]) -> None:
        if self._receiver is not None and self._receiver.error is None:
            for span in spans:
                self._receiver.dispose(span.delivery_id, span.last_id, Released())

    def _source_lost(self, error: IsthmusError | None) -> None:
        """The connection is gone; what is under way is settled by lock token later."""
        if self._client is not None:
            self._client.abandon()
        self._client = self._receiver = self._management = None
        self._begin_end(f"source lost: {error}")
        if error is not None and not error.retryable and not isinstance(error, EntityDisabledError):
            self._error = error  # nothing can be settled there any more

    def _refill(self) -> None:
        receiver = self._receiver
        if receiver is None or self._stopping or self._held or self._hole_until or not self._has_turn:
            return
        if not self._fence.is_open(time.monotonic()):
            return
        if self._channel_file is not None and not self._met_sink:
            return  # the sink speaks when its target stands; before that nothing need be locked
        ledger = self.ledger
        wanted = min(
            self._credit.credit(ledger.outstanding, ledger.outstanding_bytes),
            self.limits.rows - ledger.added,
            1 + max(0, self.limits.nbytes - self.received_bytes) // max(1, self._credit.message_bytes),
        )
        if self._blocked_by is not None:
            wanted = min(wanted, PROBE)
        if self._credit.is_worth_granting(wanted, receiver.credit):
            receiver.grant(wanted)

    def _window_changed(self) -> None:
        """Tells sink and driver, before more than was told can be under way."""
        for sink in self._sinks.values():
            sink.send(frames.WINDOW, frames.packed(self._credit.limit))
            sink.flush()
        self._tell({"state": self._state()})

    # ---- the sink's side

    def _channel_turn(self, now: float) -> None:
        if self._listener is not None and self._listener.fileno() in self._ready:
            with contextlib.suppress(BlockingIOError):
                sock, _ = self._listener.accept()
                sink = Channel(sock)
                self._sinks[sink.fileno()] = sink
                self._heard = now
        for fd, sink in [(fd, sink) for fd, sink in self._sinks.items() if fd in self._ready]:
            for kind, payload in sink.receive():
                self._heard = now
                self._greeted.add(fd)
                self._on_frame(kind, payload)
                if kind == frames.HELLO:
                    sink.send(frames.WINDOW, frames.packed(self._credit.limit))
                    if self._fence.required and self._fence.is_open(now):
                        sink.send(frames.FENCE, frames.packed(int(self._fence.until * 1e9)))
                    if self._clock_told_ms is not None:
                        sink.send(frames.CLOCK, frames.packed(self._clock_told_ms))
                    sink.flush()
            if sink.closed and fd not in self._greeted:  # somebody only looked whether anybody listens
                del self._sinks[fd]
                sink.close()
            elif sink.closed:
                self._greeted.discard(fd)
                del self._sinks[fd]
                sink.close()
                if not self._sink_ended and self._error is None:
                    self._tell({"died": True})
                    self._fail(LeaseError(f"'{self.path}': the sink went away without a word"))

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.HELLO:
            self._met_sink = True
            self._last_arrival = time.monotonic()
        elif kind == frames.SETTLE:
            self._progress = time.monotonic()
            self._settle((pair, None) for pair in frames.unpack_pairs(payload))
        elif kind == frames.FLUSHED:
            number, counts = frames.unpack_flushed(payload)
            self._sink_told |= counts
            self._flushes.answer(number)
        elif kind == frames.DISPOSE:
            self._progress = time.monotonic()
            for item in json.loads(payload):
                state = outcome_of(item["disposition"], item.get("reason"), item.get("description"))
                self._settle([((item["first"], item["last"]), state)], item["disposition"])
        elif kind == frames.HOLD:
            self._held = str(json.loads(payload).get("error") or "the target is away")
            if self._receiver is not None:
                self._receiver.drain()
        elif kind == frames.RESUME:
            self._held = ""
            self._progress = time.monotonic()
        elif kind == frames.STATS:
            self._sink_told = json.loads(payload)
            self._tell({"sink": self._sink_told})
            # Blocked, and yet no hold: the sink needs another message to find out whose fault it is.
            if self._sink_told.get("blocked_by") and not self._held and self._credit.admit_another():
                self._window_changed()
        elif kind == frames.ERROR:
            told = json.loads(payload)
            self._sink_ended = True
            if told.get("died") and self._error is None:
                self._tell({"died": True})
            self._fail(LeaseError(f"'{self.path}': the sink failed: {told.get('error')}"))
        elif kind == frames.END:
            self._sink_ended = True
            if not self._stopping:
                self._fail(LeaseError(f"'{self.path}': the sink's input ended before the lease did"))

    def _settle(self, wanted: Iterable[tuple[tuple[int, int], Any]], disposition: str = "") -> None:
        before = self.ledger.settled
        for (first, last), state in wanted:
            self._dispose(self.ledger.settle(first, last), state)
        if disposition:
            self._disposed[disposition] += self.ledger.settled - before
        if self._credit.settled(self.ledger.settled - before):
            self._window_changed()
        elif self._credit.limit <= TOLD_WINDOW:
            self._tell({"state": self._state()})

    def _dispose(self, spans: list[Span], state: Any) -> None:
        receiver = self._receiver
        if receiver is None:
            self._lost.extend((span, state) for span in spans)
            return
        for span in spans:
            receiver.dispose(span.delivery_id, span.last_id, state)

    # ---- deciding

    def _decide(self, now: float) -> None:
        limits = self.limits
        if self._fence.has_failed(now):
            self._fence_closed()
        if self._stop_wish and self._stop_wish != "finish":
            self._begin_end(self._stop_wish)
        if not self._stopping:
            if self._has_turn and now - self._started >= limits.seconds and self._may_end(now):
                self._begin_end("time")
            elif self.ledger.added >= limits.rows:
                self._begin_end("rows")
            elif self.received_bytes >= limits.nbytes or (self._channel_file is None and self._is_full()):
                self._begin_end("bytes")
            elif self._idle(now):
                self._begin_end("idle")
            elif self._channel_file is not None and now - self._heard > self._patience_seconds():
                self._silent()
            elif self.ledger.outstanding > self.window // 2 and self._flushes.dropped_rows() > self.window // 2:
                self._begin_end("dropped rows")
            elif limits.through and self._blocked_by is not None:
                self._name_the_holder(now)
        if self._wished and self._held and now > self._drain_by:
            self._fail(LeaseError(f"'{self.path}': {self._wished} while the target takes nothing: {self._held}"))
        if self._stopping and not self._finish_sent and (self._drained() or now > self._drain_by):
            self._finish_sent = True
            self._progress = now
            self.blocks.put(Finish())
        if self._report.is_due(now) or self._fence.deadline(now) <= now:
            self._tell({})

    def _renew(self, now: float) -> None:
        if self._management is not None and self._base_id is not None:
            try:
                self._renewal.turn(now, self._lock_seconds, self._management)
            except IsthmusError as error:
                self._fail(error)

    def _may_end(self, now: float) -> bool:
        if not self._met_sink and self._channel_file is not None:
            return False  # a sink that comes later would wait for a word from nobody
        overdue = now - self._started >= self.limits.seconds + OVERTIME_SECONDS
        return self._turn is None or overdue or self._turn.is_awaited()

    def _take_turn(self, now: float) -> None:
        turn = self._turn
        if turn is None or not self._stands_next():
            return
        if self._ask_turn(now):
            self._has_turn = True
            self._started = self._last_arrival = now
            self._tell({"state": self._state()})  # who dies from now on may have been killed by a message
            return
        turn.stand_next()
        if turn.remaining_seconds() > LONGEST_STAND_SECONDS:
            self._begin_end("turn")

    def _stands_next(self) -> bool:
        return self._met_sink and not self._has_turn and not self._stopping

    def _ask_turn(self, now: float) -> bool:
        return self._turn is not None and self._turn.take(now + self.limits.seconds)

    def _idle(self, now: float) -> bool:
        met = self._has_turn and self._fence.is_open(now) and (self._met_sink or self._channel_file is None)
        quiet = met and self._blocked_by is None and now - self._last_arrival >= self._idle_seconds
        return quiet and self.ledger.outstanding <= self._flushes.dropped_rows()

    def _patience_seconds(self) -> float:
        # A sink whose target is away may have nothing to say while it connects, as before the target stood at first.
        return SILENCE_SECONDS if self._met_sink and not self._held else SINK_SECONDS

    def _name_the_holder(self, now: float) -> None:
        """A run that ends with what waits now does not wait longer than a lock can last for a message that others hold."""
        hole = self._blocked_by
        if hole is not None and now - self._blocked_since > self._lock_seconds + GUARD_SECONDS:
            self._fail(HeldElsewhereError(self.path, hole.sequence, self._lock_seconds))

    def _silent(self) -> None:
        if self._met_sink:
            self._fail(LeaseError(f"'{self.path}': the sink has been silent for {self._patience_seconds():g} s"))
        else:
            self._fail(
                LeaseError(
                    f"'{self.path}': no servicebus sink in this task settles; write to format servicebus without a shuffle "
                    "between, or read with option settle=commit"
                )
            )

    def _begin_end(self, why: str) -> None:
        if self._stopping:
            return
        self._stopping = True
        self.ended_by = why
        self._drain_by = time.monotonic() + DRAIN_SECONDS
        if self._receiver is not None:
            self._receiver.drain()

    def _fail(self, error: IsthmusError) -> None:
        self._error = self._error or error
        self._begin_end(f"failed: {error}")
        self._tell({"failed": True})  # Spark kills the worker of a task that failed: that death is no message's fault

    def _drained(self) -> bool:
        receiver = self._receiver
        return receiver is None or receiver.drained or receiver.error is not None

    def _done(self) -> bool:
        if not self._stopping:
            return False
        if self._error is not None:
            return self._drained() or time.monotonic() > self._drain_by
        if not self._finish_sent:
            return False
        if self._channel_file is None:
            return True
        if self._flushes.finish == 0:
            return False
        if not self._flushes.pushed_rows and not self.ledger.outstanding:
            return True
        stuck = not self._held and time.monotonic() - self._progress > CLOSING_SECONDS
        return self._flushes.is_finished or self._sink_ended or stuck

    # ---- the end

    def _close(self) -> None:
        try:
            if self._client is None and self._lost and self._error is None:
                settle_by_token(self.endpoint, self.path, self._lost)
            self._give_back()
        except IsthmusError as error:
            self._error = self._error or error
        except Exception as error:  # noqa: BLE001 - whatever it is, this was no good end
            self._error = self._error or LeaseError(f"'{self.path}': {type(error).__name__}: {error}")
        finally:
            if self._error is None:
                self._leave()
            # The sink waits for this word and holds the task until it comes: the goodbye to the source is not its concern.
            for sink in self._sinks.values():
                if self._error is None:
                    sink.send(frames.STOPPED, json.dumps({"settled": self.ledger.settled}).encode())
                sink.flush()
                sink.close()
            if self._client is not None:
                self._client.close()
            self._leave()  # after a failure not before the source has all that was given back
            told = {"state": "ended", "ended_by": self.ended_by, "error": str(self._error or "")}
            self._tell(told | ({"sink": self._sink_told} if self._sink_told else {}))
            self._report.close()
            if self._listener is not None:
                self._listener.discard()
            self.blocks.put(LeaseEnd(self._error))
            self._wake_read.close()
            self._wake_write.close()

    def _leave(self) -> None:
        if self._turn is not None:
            if self._client is not None:
                self._client.flush()
            self._turn.leave()

    def _give_back(self) -> None:
        if self._channel_file is None or not self.ledger.outstanding:
            return
        dropped = self._flushes.dropped()
        left = self.ledger.clear()
        self._release(left)
        if self._error is not None:
            return
        if dropped and self._flushes.is_finished:
            count = sum(len(span.tokens) for span in dropped)
            self._error = RowsDroppedError(count, dropped[0].sequence, self.steps)
        else:
            count = sum(len(span.tokens) for span in left)
            self._error = LeaseError(
                f"'{self.path}': {count} messages were not settled in time and have been given back"
            )

    # ---- the driver's side

    def _control_turn(self) -> None:
        control = self._report.channel
        if control is None or control.fileno() not in self._ready:
            return
        for kind, payload in self._report.receive():
            if kind == frames.STOP and not self._wished:
                self._wished = payload.decode() or "wish"
                self._begin_end(self._wished)
            elif kind == frames.GRANT:
                self._granted(json.loads(payload))

    def _granted(self, told: dict[str, Any]) -> None:
        now = time.monotonic()
        if not self._fence.is_open(now):
            self._last_arrival = now  # it is idle from when it may take in something
        if self._fence.answer(int(told.get("asked", 0)), float(told.get("held_seconds", 0.0))):
            for sink in self._sinks.values():
                sink.send(frames.FENCE, frames.packed(int(self._fence.until * 1e9)))
                sink.flush()
        if not self.ledger.added and told.get("window"):
            self._credit.narrow(int(told["window"]), int(told["span"]))
            self._set_aside = {int(told["set_aside"]): int(told["deaths"])} if told.get("set_aside") else {}
            self._window_changed()

    def _fence_closed(self) -> None:
        if self._error is None:
            self._fail(ClaimUnconfirmedError(self.path))

    def _state(self) -> str:
        return "holding" if self._held else "ending" if self._stopping else "running" if self._has_turn else "next"

    def _tell(self, more: dict[str, Any]) -> None:
        asked = self._fence.ask(time.monotonic())
        if not self._report.is_open:
            return
        if not more:
            lag_ms, now = 0, time.monotonic()
            if self._last_payload and now - self._last_arrival < 2 * REPORT_SECONDS:
                lag_ms = max(0, self._source_ms(now) - enqueued_ms_of(self._last_payload))
            more = {"lag_ms": lag_ms, "rate": self._report.rate(self.ledger.settled), "state": self._state()}
        blocked_by = self._blocked_by.sequence if self._blocked_by is not None else 0
        told = {
            "received_bytes": self.received_bytes,
            "held": self._held,
            "blocked_by": blocked_by,
            "window": self._credit.limit,
            "head": self.ledger.first_sequence or 0,
            "moved": self.ledger.settled - self._disposed.total(),
            "dead_lettered": self._disposed["dead-letter"] + len(self._dead_lettered),
            "discarded": self._disposed["complete"],
            "set_aside": self._dead_lettered,
            **more,
        }
        if asked:
            told["asked"] = asked
        self._report.tell(self.ledger, told)
