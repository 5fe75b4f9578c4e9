"""How many messages a delivery machine puts into one delivery.

What it is: the choice between single messages and envelopes, by the route's setting, the target's limits, and the remaining
credit. A target grants credit for deliveries, e.g. 1,000, and renews it a round trip later. At a long distance credit limits
the rate of a route: then envelopes carry more with the same credit. What it is not: which messages share an envelope
(`packing`), or the handling of a refused envelope (`delivery`).
CPU time of a namespace per message: 32 us in envelopes of 5 messages, 20 for single messages, 14 in envelopes of 150.

Invariants:
    I1. A route with a configured envelope size uses it for any credit; a strict one only where its target takes envelopes: another kind
        of target takes the messages one by one, and may accept messages after one that it refuses.
    I2. While more than half of the credit is left and the waiting messages need less than half of the rest, each message is sent
        alone, unless an envelope is in flight and `MANY_MESSAGES` wait.
    I3. While less than half of the credit is left, messages that are too few for an envelope wait for more, `WAIT_SECONDS` at most.
    I4. Without configuration, a target that does not offer envelopes gets none; neither does one that has refused an envelope and
        then accepted each of its messages alone.
    I5. A strict route puts all waiting messages into one envelope, because its next delivery waits for the answer to this one.
"""

from __future__ import annotations

import math

from isthmus.bridge.delivery.settings import DeliverySettings

__all__ = ["WAIT_SECONDS", "EnvelopeChoice"]

# At rates that exhaust credit, enough messages arrive in this time; and it allows more deliveries a second than any credit limits.
WAIT_SECONDS = 0.002
# After an envelope so many are put into one as well: credit is plentiful only because the previous one has saved it.
MANY_MESSAGES = 32
# A refusal without a clear reason may be temporary; after so many the envelope is the cause.
UNCLEAR_TIMES = 3


class EnvelopeChoice:
    """The choice of one route.

    Args:
        settings: how the route sends.

    Attributes:
        wait_until: when the messages that wait for others are sent in any case; infinite where none wait.
    """

    def __init__(self, settings: DeliverySettings) -> None:
        self._configured = settings.envelope_messages
        self.wait_until = math.inf
        self._is_strict = settings.is_strict
        self._most = 0
        # An envelope that was refused and is sent again message by message, and how many of these have been accepted.
        self._refused: tuple[int, int] | None = None
        self._accepted = 0
        self._is_certain = False
        self._times = 0

    @property
    def configured(self) -> int:
        """The route's setting: 0 leaves the choice to the machine, 1 is each message alone."""
        return min(self._configured, 1) if self._is_strict and self._most < 2 else self._configured

    def opened(self, most: int) -> None:
        """The target is connected, and takes so many messages in one envelope."""
        self._most = most

    def size(self, unsent: int, credit: int, in_flight: int, now: float, *, is_packed: bool = False) -> int:
        """How many messages are put into each delivery now; 0 or 1: each is sent alone.

        Args:
            unsent: messages to send.
            credit: deliveries that may be sent; 0 where credit is not the limit.
            in_flight: deliveries without an outcome, whose credit is renewed.
            now: monotonic seconds.
            is_packed: whether one of these deliveries is an envelope.

        Returns:
            Without meaning where the messages wait for others until `wait_until`.
        """
        until, self.wait_until = self.wait_until, math.inf
        if self.configured or self._most < 2 or self._times >= UNCLEAR_TIMES:
            return self.configured
        if self._is_strict:
            return min(self._most, unsent)
        if credit < 1:
            return self.configured
        share = (credit + in_flight) / 2 / credit
        half_of_rest = max(1, credit // 2)
        # A target renews its credit when, for example, half of it is used: the rest has to last until then. Quadratic, so that
        # little of it is left for single messages.
        wanted = min(self._most, math.ceil(share * share))
        if unsent < wanted:
            if now < until:
                self.wait_until = now + WAIT_SECONDS if until == math.inf else until
                return wanted
            return unsent
        # A small envelope costs its target more than its messages would alone, so an envelope takes all waiting messages.
        is_needed = wanted > 1 or unsent > half_of_rest or (is_packed and unsent >= MANY_MESSAGES)
        return min(self._most, unsent) if is_needed else wanted

    # ---- whether the target takes them

    def refused(self, start: int, stop: int, is_certain: bool) -> None:
        """An envelope of the messages from start up to stop was refused, perhaps for one of them; or, unless `is_certain`, for a
        temporary fault.
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
