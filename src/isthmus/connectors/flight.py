"""The unanswered deliveries of one connection of a target.

What it is: the credit, the time since which no answer has arrived, and the conversion of answers to outcomes of deliveries (`envelope`).
What it is not: a connection.

Invariants:
    I1. Ordinals count the deliveries of one connection from 0, in the order of sending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal
from isthmus.connectors.envelope import EnvelopeAccount
from isthmus.entities.queue.run import runs_of

__all__ = ["Flight", "ranges"]


class Flight:
    """The deliveries of one connection.

    Args:
        credit: deliveries that may be in flight.

    Attributes:
        credit: deliveries that may be sent now.
        since: since when no answer has arrived while deliveries are outstanding; infinite where none are.
    """

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.since = math.inf
        self._most = credit
        self._account = EnvelopeAccount()

    def sent(self, messages: int, now: float) -> int:
        """Counts a delivery of so many messages; returns the number of the first message."""
        self.credit -= 1
        if self.since == math.inf:
            self.since = now
        return self._account.sent(1) if messages == 1 else self._account.sent_envelope(messages)

    def answered(self, accepted: Sequence[int], refused: Sequence[tuple[int, Refusal]], now: float) -> list[Outcome]:
        """Converts answers to messages, by their numbers, to outcomes of deliveries."""
        if not accepted and not refused:
            return []
        account = self._account
        outcomes = [Outcome(number, number, refusal) for number, refusal in refused]
        if account.has_envelopes:
            answers = [*((number, None) for number in accepted), *refused]
            answered_outcomes = [
                each for number, refusal in answers for each in account.answered(number, number, refusal)
            ]
            accepted = [each.first for each in answered_outcomes if each.refusal is None]
            outcomes = [each for each in answered_outcomes if each.refusal is not None]
        self.credit += len(accepted) + len(outcomes)
        self.since = now if self.credit < self._most else math.inf
        return [Outcome(first, last) for first, last in ranges(accepted)] + outcomes

    def lost(self, refusal: Refusal) -> list[Outcome]:
        """The connection is lost; returns the outcomes of deliveries that were accepted in part."""
        return self._account.lost(refusal)


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as ascending ranges (first, last)."""
    return runs_of(sorted(numbers))
