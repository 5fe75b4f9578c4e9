"""Sending with many messages in flight.

What it is: a sender link that numbers what it sends (ordinals, from 0), keeps no payload, and reports which ordinals the
peer settled and how. What it is not: a retry; the owner keeps what it may have to send again.

Invariants:
    I1. Ordinals are consecutive in the order of sending.
    I2. `outcomes` holds each ordinal exactly once, whatever ranges and repetitions the peer used.
    I3. When the link is lost, the ordinals without outcome are exactly those whose outcome is unknown.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.amqp import BATCH_FORMAT
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source, Target
from isthmus.errors import IsthmusError, OutcomeUnknownError
from isthmus.transport.error import TransportError, error_from

if TYPE_CHECKING:
    from isthmus.amqp import Link, Transfers
    from isthmus.transport.client import Client
    from isthmus.transport.terms import LinkTerms

__all__ = ["ENVELOPE_OVERHEAD_BYTES", "Outcome", "Sender", "envelope", "messages_of"]

ENVELOPE_OVERHEAD_BYTES = 8
"""Bytes that an envelope adds to each message."""

_TAG = struct.Struct(">I").pack
_LENGTH = struct.Struct(">I").pack
_MASK32 = 0xFFFFFFFF


class Outcome(NamedTuple):
    """What became of the deliveries `first` to `last` (ordinals); `error` is None where the peer accepted them."""

    first: int
    last: int
    error: IsthmusError | None


def envelope(messages: Sequence[bytes]) -> bytes:
    """One payload of format 0x80013700 that carries encoded messages (docs/explanation/protocol.md, Sending)."""
    parts: list[bytes] = []
    for message in messages:
        parts.append(b"\0Su\xb0" + _LENGTH(len(message)))
        parts.append(message)
    return b"".join(parts)


def messages_of(payload: bytes) -> list[bytes]:
    """The messages of a payload that `envelope` made."""
    found, at = [], 0
    while at < len(payload):
        start = at + 8
        at = start + int.from_bytes(payload[at + 4 : start], "big")
        found.append(payload[start:at])
    return found


class Sender:
    """A link to the entity at `path`.

    Args:
        client: an open connection, authorized for `path`.
        path: queue or topic.
        capabilities: the capabilities that the link asks the peer for.
        terms: of a link that is not to a Service Bus entity; then `path` only names it.

    Attributes:
        sent: ordinals given out so far.
        settled: ordinals whose outcome is known.
        outcomes: outcomes not yet taken by the owner.
        error: why the link can no longer be used.
    """

    def __init__(
        self, client: Client, path: str, capabilities: Sequence[str] = (), *, terms: LinkTerms | None = None
    ) -> None:
        self.client = client
        self.path = path
        self.sent = 0
        self.settled = 0
        self.outcomes: deque[Outcome] = deque()
        self.error: IsthmusError | None = None
        self.attached = False
        self._session = client.begin(self)
        self._first_id = self._session.next_delivery_id
        self._open: deque[list[int]] = deque()  # runs of ordinals without outcome: [first, last]
        self.link = self._session.attach_sender(
            (terms.name if terms is not None else "") or f"send-{uuid.uuid4().hex[:12]}",
            (terms.target if terms is not None else None) or Target(path),
            source=Source(client.connection.container_id),
            desired_capabilities=list(capabilities) or None,
        )
        self.link.context = self

    @property
    def sendable(self) -> int:
        """Deliveries that may be sent now."""
        return self.link.sendable if self.error is None else 0

    @property
    def outstanding(self) -> int:
        """Deliveries whose outcome is not known yet."""
        return self.sent - self.settled

    def offers(self, capability: str) -> bool:
        """Whether the peer has the capability; known once the link is attached."""
        peer = self.link.peer
        return peer is not None and capability in (peer.offered_capabilities or ())

    @property
    def max_message_bytes(self) -> int:
        """The largest delivery that the peer takes; 0: it named no limit."""
        return self.link.max_message_size_bytes

    def wait_ready(self, timeout_seconds: float = 30.0) -> Sender:
        """Blocks until the peer has attached the link and given credit.

        Raises:
            IsthmusError: the peer refused.
            OperationTimeoutError: no credit in time.
        """
        self._wait(lambda: self.sendable > 0, timeout_seconds, f"'{self.path}': no credit to send")
        return self

    def send(self, payloads: Sequence[bytes], *, message_format: int = 0) -> int:
        """Queues deliveries, at most `sendable` of them; the ordinal of the first.

        Raises:
            IsthmusError: the link is lost.
        """
        if self.error is not None:
            raise self.error
        first = self.sent
        count = len(payloads)
        low = first & _MASK32
        numbers = range(low, low + count)
        tags = list(map(_TAG, numbers if low + count <= _MASK32 else [number & _MASK32 for number in numbers]))
        self.link.send_many(payloads, tags, message_format=message_format)
        self.sent = first + count
        if self._open and self._open[-1][1] == first - 1:
            self._open[-1][1] = self.sent - 1
        else:
            self._open.append([first, self.sent - 1])
        return first

    def send_all(self, payloads: Sequence[bytes], *, batch: int = 0, timeout_seconds: float = 60.0) -> None:
        """Sends everything and waits until it is accepted; blocks.

        Args:
            payloads: encoded messages.
            batch: messages per envelope; 0 sends each alone.
            timeout_seconds: for everything together.

        Raises:
            IsthmusError: the first refusal.
            OutcomeUnknownError: the connection was lost, or the time was over, before everything was settled.
        """
        units = payloads if not batch else [envelope(payloads[i : i + batch]) for i in range(0, len(payloads), batch)]
        message_format = BATCH_FORMAT if batch else 0
        limit = time.monotonic() + timeout_seconds
        done, goal = 0, self.sent + len(units)
        try:
            while self.settled < goal:
                count = min(self.sendable, len(units) - done, 1000)
                if count > 0:
                    self.send(units[done : done + count], message_format=message_format)
                    done += count
                    self.client.service()
                else:
                    before = self.settled
                    self._wait(
                        lambda: self.settled > before or (done < len(units) and self.sendable > 0),  # noqa: B023
                        limit - time.monotonic(),
                        f"'{self.path}': not settled",
                    )
                self.raise_refusal()
        except IsthmusError as error:
            if error.retryable and self.settled < self.sent:
                raise OutcomeUnknownError(
                    f"'{self.path}': {self.outstanding} deliveries were not confirmed: {error}"
                ) from error
            raise

    def raise_refusal(self) -> None:
        """Takes the outcomes; raises the first refusal among them."""
        while self.outcomes:
            outcome = self.outcomes.popleft()
            if outcome.error is not None:
                raise outcome.error

    def _wait(self, condition: Any, timeout_seconds: float, what: str) -> None:
        self.client.wait_until(lambda: self.error is not None or condition(), timeout_seconds, what)
        if self.error is not None and not condition():
            raise self.error

    def close(self) -> None:
        """Detaches."""
        self.link.detach()
        self.client.end(self._session)

    # ---- called by the client

    def on_attached(self, link: Link) -> None:
        """The peer answered; a null target announces a refusal."""
        self.attached = link.target is not None

    def on_credit(self, link: Link) -> None:
        """Credit came; a drain is answered when nothing waits, which is always so here."""
        if link.drain:
            link.drained()

    def on_transfers(self, event: Transfers) -> None:
        """Senders receive none."""

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        """The peer sent the outcome of deliveries first to last (ids)."""
        base = (first - self._first_id) & 0xFFFFFFFF
        base += (self.sent - 1 - base) >> 32 << 32  # ids wrap at 2^32, ordinals do not
        self._settle(base, base + ((last - first) & 0xFFFFFFFF), _error(state, self.path))

    def on_lost(self, error: IsthmusError) -> None:
        """The link is gone."""
        if self.error is None:
            self.error = error

    def _settle(self, first: int, last: int, error: IsthmusError | None) -> None:
        kept: deque[list[int]] = deque()
        runs = self._open
        while runs and runs[0][0] <= last:
            run = runs.popleft()
            if run[1] < first:
                kept.append(run)
                continue
            low, high = max(run[0], first), min(run[1], last)
            self.outcomes.append(Outcome(low, high, error))
            self.settled += high - low + 1
            if run[0] < low:
                kept.append([run[0], low - 1])
            if high < run[1]:
                runs.appendleft([high + 1, run[1]])
                break
        runs.extendleft(reversed(kept))


def _error(state: Any, path: str) -> IsthmusError | None:
    """The error of a settled delivery's state, or of a terminal state; None for accepted (OASIS AMQP 1.0 3.4)."""
    if isinstance(state, Accepted):
        return None
    if isinstance(state, Rejected):
        if state.error is None:
            return TransportError("", "the message was rejected", path)
        return error_from(state.error.condition, state.error.description, path=path)
    if isinstance(state, Released):
        return TransportError("", "the message was released unprocessed", path)
    if isinstance(state, Modified):
        return TransportError("", "the message was answered with modified", path)
    # Such a delivery has the source's default outcome (3.5.3), and this source declares none.
    name = "no state" if state is None else f"the state {type(state).__name__.lower()}, which is no outcome"
    return OutcomeUnknownError(f"'{path}': the target settled a message with {name}")
