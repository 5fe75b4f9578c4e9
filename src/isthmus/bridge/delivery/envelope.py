"""How many messages a delivery machine puts into one delivery.

What it is: the choice between messages each alone and envelopes, by what the route is told, what its target takes, and how much
credit is left. A target grants credit for deliveries, e.g. 1,000; it comes back a round trip later. Far away it is
credit, and not work, that a route waits for: then envelopes carry more with the same credit. What it is not: which messages go
together (`packing`), or what becomes of an envelope that is refused (`delivery`).
Of envelopes of 5 messages a namespace takes 32 us of CPU for each, of messages alone 20, of envelopes of 150 14.

Invariants:
    I1. A route that is told how many messages to put into an envelope does that, whatever the credit; a strict one only where its target takes
        envelopes: another takes the messages each for itself, and some behind one that it refuses.
    I2. While more than half of the credit is left and what waits needs less than half of the rest, each message goes alone, unless
        an envelope is under way and `MANY_MESSAGES` wait.
    I3. While less than half of the credit is left, messages that are too few for an envelope wait for more, `HOLD_SECONDS` at most.
    I4. A target that does not say that it takes envelopes gets none by itself; neither does one that has refused an envelope and
        then accepted each of its messages alone.
    I5. A strict route puts all that wait into one envelope, as its next delivery waits for the answer to this one.
"""

from __future__ import annotations

import math

from isthmus.bridge.delivery.settings import DeliverySettings

__all__ = ["HOLD_SECONDS", "EnvelopeChoice"]

# At the rates at which credit is short, enough messages come within so little; and so many deliveries a second no credit is short of.
HOLD_SECONDS = 0.002
# Behind an envelope so many go in one as well: credit is plentiful again only because the one before has saved it.
MANY_MESSAGES = 32
# A refusal without a clear reason may pass by itself; so often it is the envelope.
UNCLEAR_TIMES = 3


class EnvelopeChoice:
    """The choice of one route.

    Args:
        settings: how the route sends.

    Attributes:
        held_until: when what is held back goes, whatever comes; infinite where nothing is.
    """

    def __init__(self, settings: DeliverySettings) -> None:
        self._told = settings.envelope_messages
        self.held_until = math.inf
        self._is_strict = settings.is_strict
        self._most = 0
        # An envelope that was refused and is sent again message by message, and how many of these have been accepted.
        self._refused: tuple[int, int] | None = None
        self._accepted = 0
        self._is_certain = False
        self._times = 0

    @property
    def told(self) -> int:
        """What the route is told: 0 leaves it to the machine, 1 is each alone."""
        return min(self._told, 1) if self._is_strict and self._most < 2 else self._told

    def opened(self, most: int) -> None:
        """The target is connected; in one envelope it takes so many messages."""
        self._most = most

    def size(self, unsent: int, credit: int, in_flight: int, now: float, *, is_packed: bool = False) -> int:
        """How many messages go into each delivery now; 0 or 1: each goes alone.

        Args:
            unsent: messages to send.
            credit: deliveries that may be sent; 0 where it is not credit that bounds them.
            in_flight: deliveries without an outcome, whose credit comes back.
            now: monotonic seconds.
            is_packed: whether one of these deliveries is an envelope.

        Returns:
            Of no meaning where the messages are to wait for others until `held_until`.
        """
        until, self.held_until = self.held_until, math.inf
        if self.told or self._most < 2 or self._times >= UNCLEAR_TIMES:
            return self.told
        if self._is_strict:
            return min(self._most, unsent)
        if credit < 1:
            return self.told
        share = (credit + in_flight) / 2 / credit
        half_of_rest = max(1, credit // 2)
        # A target renews its credit when half of it is used up, say: what is left has to last that long. By the square, so that
        # little of it is left over for messages alone.
        wanted = min(self._most, math.ceil(share * share))
        if unsent < wanted:
            if now < until:
                self.held_until = now + HOLD_SECONDS if until == math.inf else until
                return wanted
            return unsent
        # A small envelope costs its target more than its messages would alone; so one that is made takes all that waits.
        is_needed = wanted > 1 or unsent > half_of_rest or (is_packed and unsent >= MANY_MESSAGES)
        return min(self._most, unsent) if is_needed else wanted

    # ---- whether the target takes them

    def refused(self, start: int, stop: int, is_certain: bool) -> None:
        """An envelope of the messages from start up to stop was refused, perhaps for one of them; or, unless that is certain, for
        a fault that passes.
        """
        if self._refused is None:
            self._refused, self._accepted, self._is_certain = (start, stop), 0, is_certain

    def accepted(self, start: int, stop: int) -> None:
        """Messages were accepted."""
        if self._refused is None:
            return
        first, behind = self._refused
        self._accepted += max(0, min(stop, behind) - max(start, first))
        if self._accepted == behind - first:
            self._refused = None
            self._times += UNCLEAR_TIMES if self._is_certain else 1

    def set_aside(self, index: int) -> None:
        """A message was refused for itself: so was its envelope."""
        if self._refused is not None and self._refused[0] <= index < self._refused[1]:
            self._refused = None
