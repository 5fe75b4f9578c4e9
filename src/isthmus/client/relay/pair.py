"""Which of two relays a request is sent to, and the consequences of its outcome: the decisions of `RelayRequester`.

What it is: roles and outcomes, pure. What it is not: HTTP (`requester`).
Spec: Microsoft Learn, "Best practices for insulating applications against Service Bus outages and disasters" (relay endpoints);
"Azure Relay Hybrid Connections protocol" (HTTP request protocol: the codes, and ``Via`` of a listener's answers).

Invariants:
    I1. The first active relay is chosen at random. Roles are swapped only after the other relay answered, or after a request with an
        unknown outcome; if both relays fail, the roles stay.
    I2. A request that may have been handled is not sent again, unless its method or its caller permits it.
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
    """The outcome of an attempt."""

    ANSWERED = "answered"
    """A listener answered."""
    NOT_DELIVERED = "not delivered"
    """No listener has the request: the relay is unavailable, or has no listener."""
    UNKNOWN = "no answer"
    """A listener may have the request."""
    REFUSED = "refused"
    """The relay refuses it: the token, or the request itself, is wrong."""


class RelayUnavailableError(IsthmusError):
    """No relay returned an answer of a listener.

    Attributes:
        entity: the hybrid connection.
        failures: side → the outcome of its attempt.
        unknown: whether a listener may have handled the request nevertheless.
    """

    code = "relay-unavailable"
    retryable = True

    def __init__(self, entity: str = "", failures: Mapping[str, str] | None = None, unknown: bool = False) -> None:
        super().__init__("", entity=entity, failures=dict(failures or {}), unknown=unknown)

    def text(self) -> str:
        a = self.attributes
        listed = ", ".join(f"{side}: {failure}" for side, failure in a.get("failures", {}).items())
        text = f"no listener of {a.get('entity')!r} answered ({listed})"
        if a.get("unknown"):
            text += "; one may have handled the request: send it again only if it may be handled twice"
        return text


class RelayRefusedError(IsthmusError):
    """A relay refuses a request or a listener.

    Attributes:
        side: which of the two.
        status: the status of its answer.
        reason: the reason in its answer.
    """

    code = "relay-refused"

    def __init__(self, side: str = "", status: int = 0, reason: str = "") -> None:
        super().__init__("", side=side, status=status, reason=reason)
        self.status = status

    def text(self) -> str:
        a = self.attributes
        return f"the {a.get('side')} relay refuses it with {a.get('status')}: {a.get('reason')}"


def outcome_of_status(status: int, via: Collection[str], host: str) -> Outcome:
    """The outcome that an HTTP status means.

    Args:
        status: of the answer.
        via: its ``Via`` headers; a listener's answer names the relay there.
        host: host of the relay, with its port if it has one.
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
        source: chooses the first active one; seeded in tests.

    Attributes:
        active: the side that is tried first.
        swaps: number of role swaps.
    """

    def __init__(self, sides: tuple[str, ...], source: random.Random | None = None) -> None:
        self._sides = sides
        self.active = (source or random.Random()).choice(sides)
        self.swaps = 0

    def order(self) -> tuple[str, ...]:
        """The sides in the order in which they are tried."""
        return self.active, *(side for side in self._sides if side != self.active)

    def answered(self, side: str) -> None:
        """A listener answered over a side."""
        if side != self.active:
            self.active = side
            self.swaps += 1

    def doubted(self, side: str) -> None:
        """The outcome of a request at a side is unknown: the next request tries the other side first."""
        if side == self.active and len(self._sides) > 1:
            self.answered(self.order()[1])
