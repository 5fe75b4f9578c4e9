"""Which of two relays a request goes to, and what follows from what came of it: the decisions of `RelayRequester`.

What it is: pure roles and outcomes. What it is not: HTTP (`requester`).
Spec: Microsoft Learn, "Best practices for insulating applications against Service Bus outages and disasters" (relay endpoints);
"Azure Relay Hybrid Connections protocol" (HTTP request protocol: the codes, and ``Via`` of a listener's answers).

Invariants:
    I1. The first active relay is drawn at random. Roles are swapped only after the other relay answered, or after a request of
        which nobody knows whether it was handled; if both fail they stay as they are.
    I2. A request that may have been handled is not sent again, unless its method or its caller says that it may be.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from enum import Enum

from isthmus.errors import IsthmusError

__all__ = ["IDEMPOTENT", "Outcome", "Pair", "RelayRefusedError", "RelayUnavailableError", "outcome_of_status"]

# RFC 9110 9.2.2.
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class Outcome(Enum):
    """What came of an attempt."""

    ANSWERED = "answered"
    """By a listener."""
    NOT_DELIVERED = "not delivered"
    """No listener has it: the relay is away, or has none."""
    UNKNOWN = "no answer"
    """A listener may have it."""
    REFUSED = "refused"
    """The relay does not take it: the token, or the request itself, is wrong."""


class RelayUnavailableError(IsthmusError):
    """No relay led to an answer.

    Attributes:
        entity: the hybrid connection.
        failures: side → what came of its attempt.
        unknown: whether a listener may have handled the request all the same.
    """

    code = "relay-unavailable"
    retryable = True

    def __init__(self, entity: str = "", failures: Mapping[str, str] | None = None, unknown: bool = False) -> None:
        super().__init__("", entity=entity, failures=dict(failures or {}), unknown=unknown)

    def text(self) -> str:
        a = self.attributes
        told = ", ".join(f"{side}: {failure}" for side, failure in a.get("failures", {}).items())
        text = f"no listener of {a.get('entity')!r} answered ({told})"
        if a.get("unknown"):
            text += "; one may have handled the request: send it again only if it may be handled twice"
        return text


class RelayRefusedError(IsthmusError):
    """A relay does not take a request or a listener.

    Attributes:
        side: which of the two.
        status: of its answer.
        reason: what it says.
    """

    code = "relay-refused"

    def __init__(self, side: str = "", status: int = 0, reason: str = "") -> None:
        super().__init__("", side=side, status=status, reason=reason)
        self.status = status

    def text(self) -> str:
        a = self.attributes
        return f"the {a.get('side')} relay refuses it with {a.get('status')}: {a.get('reason')}"


def outcome_of_status(status: int, via: Collection[str], host: str) -> Outcome:
    """What an answer says.

    Args:
        status: of the answer.
        via: its ``Via`` headers; a listener's answer names the relay there.
        host: of the relay, with its port if it has one.
    """
    name = host.rpartition(":")[0] or host
    if any(name.lower() in each.lower() for each in via):
        return Outcome.ANSWERED
    if status in (404, 502, 503):
        return Outcome.NOT_DELIVERED
    if status >= 500:  # e.g. 504; or 500, a fault of the relay's own, which may come after the listener has the request
        return Outcome.UNKNOWN
    return Outcome.REFUSED


class Pair:
    """The roles of two relays, or of one.

    Args:
        sides: their names, e.g. primary and secondary.
        source: draws the first active one; a seeded one in tests.

    Attributes:
        active: the side that is tried first.
        swaps: changes of roles.
    """

    def __init__(self, sides: tuple[str, ...], source: random.Random | None = None) -> None:
        self._sides = sides
        self.active = (source or random.Random()).choice(sides)
        self.swaps = 0

    def order(self) -> tuple[str, ...]:
        """The sides in the order in which they are tried."""
        return self.active, *(side for side in self._sides if side != self.active)

    def answered(self, side: str) -> None:
        """A listener answered by way of a side."""
        if side != self.active:
            self.active = side
            self.swaps += 1

    def doubted(self, side: str) -> None:
        """Nobody knows what became of a request at a side: the next one goes elsewhere first."""
        if side == self.active and len(self._sides) > 1:
            self.answered(self.order()[1])
