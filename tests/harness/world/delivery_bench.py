"""A delivery machine and a model of its target: no socket, no thread, no sleep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from isthmus.bridge.delivery.delivery import Delivery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery_event import (
    Dispose,
    Disposition,
    Event,
    Fail,
    Flushed,
    Granted,
    HandedOver,
    Lost,
    Open,
    Opened,
    Outcome,
    Pause,
    Resume,
    Send,
    Settle,
    Tick,
)
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.refusal_memory import RefusalMemory

__all__ = [
    "BAD",
    "BUSY",
    "CONNECTION_LOST",
    "MISSING",
    "NO_OUTCOME",
    "ODD",
    "Bench",
    "Verdict",
    "bench",
    "message",
    "number_of",
]

BUSY = Refusal(RefusalKind.BLOCKED, "server-busy", "come back later")
ODD = Refusal(RefusalKind.UNCLEAR, "x:odd", "no")
BAD = Refusal(RefusalKind.MESSAGE, "argument-error", "malformed")
CONNECTION_LOST = Refusal(RefusalKind.UNKNOWN, "", "connection lost")
NO_OUTCOME = Refusal(RefusalKind.UNKNOWN, "", "settled without an outcome")
MISSING = Refusal(RefusalKind.FATAL, "not-found", "no such entity")

Verdict = Callable[[int, float], Refusal | None]


def message(number: int, size: int = 4) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "big")


@dataclass
class Bench:
    """A machine and a model of its target; positions at the source are the messages' numbers and 1,000.

    Attributes:
        verdict: the target's answer to a message at a time; None accepts.
        takes: messages that the target takes in one envelope.
        stored: the numbers of the messages that the target took, in order.
        wire: deliveries that the target has not answered: (ordinal, numbers).
    """

    machine: Delivery
    verdict: Verdict = lambda number, now: None
    credit: int = 1_000_000
    message_bytes: int = 0
    takes: int = 0
    now: float = 0.0
    handed: int = 0
    stored: list[int] = field(default_factory=list)
    sent: list[list[int]] = field(default_factory=list)
    wire: deque[tuple[int, list[int]]] = field(default_factory=deque)
    settled: list[int] = field(default_factory=list)
    disposed: dict[int, Disposition] = field(default_factory=dict)
    flushed: list[int] = field(default_factory=list)
    paused_reason: str = ""
    wants_open: bool = False
    failed: Fail | None = None
    ordinal: int = 0

    def apply(self, event: Event) -> None:
        for effect in self.machine.on(event, self.now):
            if isinstance(effect, Send):
                numbers = [number_of(payload) for payload in effect.payloads]
                for group in [numbers] if effect.is_envelope else [[number] for number in numbers]:
                    self.wire.append((self.ordinal, group))
                    self.sent.append(group)
                    self.ordinal += 1
                    self.credit -= 1
                assert self.credit >= 0
                assert sum(len(group) for _, group in self.wire) <= self.machine.settings.window
            elif isinstance(effect, Settle):
                self.settled += [position - 1000 for position in effect.positions]
            elif isinstance(effect, Dispose):
                assert effect.position is not None
                at = effect.position - 1000
                assert at not in self.disposed
                self.disposed[at] = effect.disposition
            elif isinstance(effect, Flushed):
                self.flushed.append(effect.number)
            elif isinstance(effect, Pause):
                self.paused_reason = effect.text
            elif isinstance(effect, Resume):
                self.paused_reason = ""
            elif isinstance(effect, Open):
                self.wants_open = True
            elif isinstance(effect, Fail):
                self.failed = effect

    def open(self, credit: int = 1_000_000) -> Bench:
        self.wants_open = False
        self.ordinal, self.credit = 0, credit
        self.wire.clear()
        self.apply(Opened(self.message_bytes, self.takes))
        self.apply(Granted(credit))
        return self

    def hand_over(self, count: int, size: int = 4) -> None:
        numbers = range(self.handed, self.handed + count)
        self.handed += count
        positions = [number + 1000 for number in numbers]
        self.apply(HandedOver([message(number, size) for number in numbers], positions))

    def answer(self) -> None:
        """The target answers the oldest delivery."""
        ordinal, numbers = self.wire.popleft()
        refusals = [refusal for number in numbers if (refusal := self.verdict(number, self.now)) is not None]
        if not refusals:
            self.stored += numbers
        self.apply(Outcome(ordinal, ordinal, refusals[0] if refusals else None))

    def answer_all(self) -> None:
        while self.wire:
            self.answer()

    def lose(self) -> None:
        self.wire.clear()
        self.apply(Lost(CONNECTION_LOST))

    def pass_time(self, seconds: float) -> None:
        """Answers everything at once, and wakes the machine at its deadlines, for so long."""
        end = self.now + seconds
        while True:
            self.answer_all()
            if self.wants_open:
                self.open()
                continue
            due = self.machine.deadline(self.now)
            if due > end or self.failed:
                break
            self.now = max(self.now + 1e-6, due)
            self.apply(Tick())
        self.now = end

    @property
    def unsettled(self) -> list[int]:
        return sorted(set(range(self.handed)) - set(self.settled) - set(self.disposed))


def bench(
    verdict: Verdict = lambda number, now: None,
    memory: RefusalMemory | None = None,
    now: float = 0.0,
    **changes: object,
) -> Bench:
    return Bench(Delivery(DeliverySettings(**changes), memory), verdict, now=now).open()  # type: ignore[arg-type]
