"""Delivering the messages that wait in an outbox.

What it is: one thread that takes batches from a source, sends them over a lane, and stores progress after the acknowledgement; and the
decision that follows an outcome. What it is not: the reading of files or tables (`backlog`, `table`).

Invariants:
    I1. Messages of a stream are sent in order: after a failure nothing later is sent before the failed message has its outcome.
    I2. A message leaves the outbox only when the namespace accepted it, or refused the message itself; refused ones are stored separately.
    I3. Only one process delivers at a time.
    I4. No error of the source ends the thread: `state` reports it, and the source is opened again.
    I5. A batch is not given up while its bytes arrive at the namespace, however slowly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from isthmus.client.circuit import Circuit
from isthmus.client.failure import Failure
from isthmus.client.outbox.backlog import Batch
from isthmus.client.send.lane import Attempt, Lane
from isthmus.client.send.parcel import Parcel
from isthmus.errors import IsthmusError

__all__ = ["CLOSE_SECONDS", "Drain", "DrainState", "Source", "Step", "decide"]

_log = logging.getLogger(__name__)

BATCH_COUNT = 1000
BATCH_BYTES = 512 << 10
_UNKNOWN_LIMIT_BYTES = 200 << 10  # until the link has reported its limit; the smallest tier accepts 256 KiB
_ENVELOPE_BYTES = 4 << 10
CLOSE_SECONDS = 2.0
"""How long a drain that is closed waits for an attempt that is under way."""
_POLL_SECONDS = 0.2
_LEADER_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 1.0


class Source(Protocol):
    """The source that a drain delivers from; one thread uses it."""

    def acquire(self) -> bool:
        """Become the delivering process; False if another process is."""

    def release(self) -> None:
        """Let another process deliver."""

    def next_batch(self, limit_bytes: int, limit_count: int) -> Batch | None:
        """The next batch; None if nothing waits."""

    def done(self, batch: Batch) -> None:
        """The namespace accepted the batch."""

    def set_aside(self, batch: Batch, reason: str) -> None:
        """The namespace refused the one message of the batch itself."""


class Step(Enum):
    """The action that follows an attempt."""

    GO_ON = "go on"
    SPLIT = "split"
    SET_ASIDE = "set aside"
    WAIT = "wait"


def decide(attempt: Attempt, count: int) -> Step:
    """The action that follows an attempt to send a batch of `count` messages."""
    if attempt.failure is None:
        return Step.GO_ON
    if attempt.failure is Failure.REFUSED and attempt.was_sent:
        return Step.SPLIT if count > 1 else Step.SET_ASIDE
    return Step.WAIT


@dataclass(frozen=True, slots=True)
class DrainState:
    """The state of a drain.

    Attributes:
        delivered: messages that the namespace accepted from this process.
        refused: messages that it refused themselves.
        retries: attempts that failed.
        is_leader: whether this process delivers.
        failure: the kind of the last failure; empty after the namespace accepted or refused a message, and when nothing waits.
        error: the text of that failure.
        oldest_ms: wall time at which the oldest message that waits was written; 0 if none waits.
    """

    delivered: int = 0
    refused: int = 0
    retries: int = 0
    is_leader: bool = False
    failure: str = ""
    error: str = ""
    oldest_ms: int = 0


class Drain:
    """A thread that delivers until it is closed.

    Args:
        source: the waiting messages.
        lane: the connection that sends them.
        attempt_timeout: seconds within which the namespace has to answer, from when the last bytes of a batch have arrived there.
        on_limits: called with the largest message in bytes when the link has reported it.
        retry_limit: the longest wait between two attempts, in seconds.
    """

    def __init__(
        self,
        source: Source,
        lane: Lane,
        *,
        attempt_timeout: float = 10.0,
        on_limits: Callable[[int], None] = lambda _: None,
        retry_limit: float = 30.0,
    ) -> None:
        self._source = source
        self._lane = lane
        self._attempt_timeout = attempt_timeout
        self._on_limits = on_limits
        self._circuit = Circuit(0.2, retry_limit)
        self._limit_count = BATCH_COUNT
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._idle = threading.Event()
        self._delivered = self._refused = self._retries = self._oldest_ms = 0
        self._failure: Failure | None = None
        self._error = ""
        self._is_leader = False
        self._thread = threading.Thread(target=self._run, name=f"isthmus-outbox-{lane.entity}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def wake(self) -> None:
        """New messages were added."""
        if not self._wake.is_set():  # cheaper than to set it again; it is cleared before the source is read
            self._wake.set()

    def state(self) -> DrainState:
        """The current state."""
        return DrainState(
            self._delivered, self._refused, self._retries, self._is_leader,
            "" if self._failure is None else self._failure.value, self._error, self._oldest_ms,
        )  # fmt: skip

    @property
    def failure(self) -> Failure | None:
        """The kind of the last failure; None after the namespace accepted or refused a message, and when nothing waits."""
        return self._failure

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Stop delivering; waits for a running attempt, `timeout` seconds at most; None: until it has an outcome, or is given up."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._thread.is_alive():
            self._lane.abandon()
            self._thread.join(timeout)

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    if not self._source.acquire():
                        self._closing.wait(_LEADER_POLL_SECONDS)
                        continue
                    self._is_leader = True
                    self._deliver()
                except Exception as error:  # noqa: BLE001  # a drain that ends delivers nothing more
                    self._error = str(error) or type(error).__name__
                    self._failure = (
                        None  # another process may deliver from now on, and this one would learn nothing more
                    )
                    level = logging.ERROR if isinstance(error, (OSError, IsthmusError)) else logging.CRITICAL
                    _log.log(level, "the outbox cannot be delivered: %s", self._error, exc_info=level > logging.ERROR)
                    self._closing.wait(_AGAIN_SECONDS)
                finally:
                    self._is_leader = False
                    self._source.release()
        finally:
            self._lane.close()

    def _deliver(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            batch = self._source.next_batch(self._limit_bytes(), self._limit_count)
            if batch is None:
                self._oldest_ms = 0
                self._failure = None  # with nothing to try, this sender would never learn that it may send again
                self._wake.wait(_POLL_SECONDS)
                continue
            self._oldest_ms = batch.oldest_ms
            attempt = self._lane.send(Parcel.of_payloads(batch.payloads), self._attempt_timeout, is_patient=True)
            if self._lane.max_message_bytes:
                self._on_limits(self._message_limit())
            self._follow(batch, attempt)

    def _follow(self, batch: Batch, attempt: Attempt) -> None:
        step = decide(attempt, len(batch.payloads))
        if step is Step.GO_ON:
            self._delivered += len(batch.payloads)
            self._source.done(batch)
            self._limit_count = min(BATCH_COUNT, self._limit_count * 2)
            self._circuit.succeeded()
            self._failure, self._error = None, ""
            return
        self._error = _plain(f"{type(attempt.error).__name__}: {attempt.error}")
        if step is not Step.WAIT:  # the namespace accepts this sender, and refuses only this message
            self._circuit.succeeded()
            self._failure = None
        if step is Step.SPLIT:
            self._limit_count = max(1, len(batch.payloads) // 2)
        elif step is Step.SET_ASIDE:
            self._source.set_aside(batch, self._error)
            self._refused += 1
            _log.error(
                "the namespace refused a message, it is set aside: entity=%s error=%s", self._lane.entity, self._error
            )
        else:
            if (
                attempt.was_sent and not attempt.is_definite
            ):  # a connection that does not last for this batch may last for a part of it
                self._limit_count = max(1, len(batch.payloads) // 2)
            self._failure = attempt.failure
            self._retries += 1
            self._circuit.failed(time.monotonic())
            self._closing.wait(self._circuit.retry_in(time.monotonic()))

    def _limit_bytes(self) -> int:
        return min(BATCH_BYTES, (self._lane.max_batch_bytes or _UNKNOWN_LIMIT_BYTES) - _ENVELOPE_BYTES)

    def _message_limit(self) -> int:
        """The largest message that can be delivered: it is sent in a batch."""
        return min(self._lane.max_message_bytes, self._lane.max_batch_bytes) - _ENVELOPE_BYTES


def _plain(text: str) -> str:
    """Text that every source and log can store. A reason that a source cannot store, e.g. with a NUL that the namespace quotes, would
    cause a message to be sent and refused for ever.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
