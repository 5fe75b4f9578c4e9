"""How a route sends, and the counts of its messages.

What it is: the settings and the counts of a delivery machine. What it is not: options of a connector or of a file, which are
declared there and become these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["DeliveryCounts", "DeliverySettings"]

# Enough to use a whole grant of credit at once, and little memory where messages are large.
WAITING_MESSAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """How a route sends.

    Attributes:
        window: messages in flight at most.
        envelope_messages: messages in one delivery at most: 1, each goes alone; 0, as many as the credit makes necessary
            (`isthmus.bridge.delivery.envelope`).
        envelope_bytes: size of an envelope at most.
        overhead_bytes: what an envelope adds to each message.
        is_strict: whether the order is kept also across refusals: one delivery is in flight at a time, with as many messages as it can
            contain, and no message is tried ahead of one that was refused.
        block_refused: whether a message that is refused individually blocks its route; otherwise it is set aside.
        is_quiet: whether few messages come: one that has been refused for so long is set aside without another to compare with.
        set_aside_seconds: how long a message is refused before it is set aside.
        timeout_seconds: how long the target may accept nothing while messages have to be sent again.
        delay_seconds: how long to wait before attempt n, from 0.
    """

    window: int = 8_000
    envelope_messages: int = 0
    envelope_bytes: int = 250_000
    overhead_bytes: int = 8
    is_strict: bool = False
    block_refused: bool = False
    is_quiet: bool = False
    set_aside_seconds: float = 10.0
    timeout_seconds: float = 30.0
    delay_seconds: Callable[[int], float] = lambda attempt: min(5.0, 0.1 * 2.0 ** min(attempt, 16))

    @property
    def waiting(self) -> int:
        """Messages that may wait to be sent besides those in flight."""
        return max(self.envelope_messages, min(self.window, WAITING_MESSAGES))


@dataclass(slots=True)
class DeliveryCounts:
    """Messages by outcome.

    Attributes:
        completed: settled because the target accepted them.
        dead_lettered: set aside at the source with a reason.
        discarded: completed at the source without being sent.
        deferred: deferred at the source.
        abandoned: released to the source.
        resent: sent again; one counts as often as that happened.
    """

    completed: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    deferred: int = 0
    abandoned: int = 0
    resent: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name; faster than `dataclasses.asdict`, because it is called for every flush row."""
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, kind: str) -> None:
        """Counts a message that got another disposition than sent and completed."""
        name = {"dead-letter": "dead_lettered", "complete": "discarded", "defer": "deferred"}.get(kind, "abandoned")
        setattr(self, name, getattr(self, name) + 1)
