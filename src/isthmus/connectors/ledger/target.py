"""A target that keeps an account of the messages that another target accepts.

What it is: a target on the port around the target of a route. It appends an outcome before it reports it to the route, so that no message
is settled at its source that the account does not contain. What it is not: the account's files (`file`).

Invariants:
    I1. Outcomes are appended before they are passed on; also those of messages that are not sent, as long as the account can be written.
    I2. While the account cannot be written no outcome is passed on: the route waits for as long as that lasts, and its messages stay at the
        source. It is told so (`Stopped`): without this, its time-outs would pass, and accepted messages would be sent again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from isthmus.bridge.delivery_event import Lost, Outcome, Send, Stopped
from isthmus.bridge.port import Copies, Target, TargetEvent
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.ledger.file import LedgerFile
from isthmus.connectors.spool.block import Record

__all__ = ["MOVED", "LedgerTarget"]

MOVED = "moved"
"""The outcome of a message that a route's target has acknowledged."""

log = logging.getLogger(__name__)

_TICK_SECONDS = 5.0
_RETRY_SECONDS = 1.0


class LedgerTarget:
    """A target with an account.

    Args:
        inner: the target of the messages.
        route: the name of the route.
        file: the file of the account.
        taken: the outcome of an acknowledged message.
    """

    def __init__(self, inner: Target, route: str, file: LedgerFile, taken: str = MOVED) -> None:
        self._taken = taken
        self._inner = inner
        self._route = route
        self._file = file
        self._sent: deque[Sequence[bytes]] = deque()  # payloads of deliveries without outcome, in order
        self._early: dict[int, Sequence[bytes]] = {}
        self._first = 0
        self._records: list[Record] = []
        self._events: list[TargetEvent] = []  # that wait until they are appended
        self._reported_text = ""
        self._stopped = ""  # why the target accepts nothing, as it reported itself

    def open(self) -> None:
        """Begins to connect."""
        self._forget()
        self._inner.open()

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call, once they are appended."""
        for event in self._inner.poll(now):
            if isinstance(event, Outcome):
                self._records += self._noted(event)
            elif isinstance(event, Stopped):
                self._stopped = event.reason
            elif isinstance(event, Lost):
                self._forget()
            self._events.append(event)
        try:
            self._append()
            self._file.tick()
        except OSError as error:
            text = (
                f"the ledger of route {self._route} cannot be written, and the route waits: {error.strerror or error}"
            )
            if text == self._reported_text:
                return ()
            log.error("%s", text)
            self._reported_text = text
            return (Stopped(text),)
        events, self._events = self._events, []
        if self._reported_text:
            self._reported_text = ""
            events.append(Stopped(self._stopped))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without events."""
        due = self._inner.deadline(now)
        if self._reported_text:
            return min(due, now + _RETRY_SECONDS)
        return min(due, now + _TICK_SECONDS) if self._file.is_open or self._records else due

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as the target accepts them; messages that are not sent are appended with their outcome."""
        made = self._inner.copies(data, offsets, now_ms)
        for row, what in made.disposed:
            outcome = f"{what.kind}: {what.reason}" if what.reason else what.kind
            self._records.append(self._record(outcome, data[offsets[row] : offsets[row + 1]]))
        if made.disposed:
            with suppress(OSError):  # `poll` reports it, and tries again
                self._append()
        return made

    def send(self, send: Send) -> None:
        """Queues deliveries."""
        if send.is_envelope:
            self._sent.append(send.payloads)
        else:
            self._sent.extend((payload,) for payload in send.payloads)
        self._inner.send(send)

    def close(self) -> None:
        """Closes it."""
        self._inner.close()
        self._file.close()
        self._forget()

    def _append(self) -> None:
        if self._records:
            self._file.append(self._records)
            self._records = []

    def _noted(self, outcome: Outcome) -> list[Record]:
        found: list[Record] = []
        for ordinal in range(outcome.first, outcome.last + 1):
            while self._first <= ordinal and self._sent:
                self._early[self._first] = self._sent.popleft()
                self._first += 1
            payloads = self._early.pop(ordinal, ())
            taken = range(len(payloads)) if outcome.refusal is None else outcome.taken
            found += (self._record(self._taken, payloads[number]) for number in taken)
            if outcome.refusal is not None and outcome.refusal.kind is RefusalKind.MESSAGE and len(payloads) == 1:
                found.append(self._record(f"refused: {outcome.refusal.reason}", payloads[0]))
        return found

    def _record(self, outcome: str, message: bytes) -> Record:
        return Record(f"{self._route}\n{outcome}", -1, 0, message)

    def _forget(self) -> None:
        self._sent.clear()
        self._early.clear()
        self._first = 0
        self._stopped = ""
