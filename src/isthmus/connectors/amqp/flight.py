"""Deliveries of the delivery machine as messages on the link, and their outcomes as outcomes of deliveries.

What it is: the account of ordinals where an envelope of several messages is one delivery to the machine, and several on the link: no broker
but Service Bus has envelopes. What it is not: a link.

Invariants:
    I1. An envelope has an outcome once all of its messages have: accepted, or the first refusal of them.
    I2. As long as no envelope was sent, ordinals are the link's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal

__all__ = ["Flight"]


class Flight:
    """The account of one connection."""

    def __init__(self) -> None:
        self._sent = 0  # messages
        self._ordinals: Iterator[int] | None = None
        self._of: dict[int, int] = {}  # the machine's ordinal, by the link's
        self._left: dict[int, int] = {}
        self._refusals: dict[int, Refusal] = {}

    def sent(self, messages: int) -> None:
        """So many messages are sent, each a delivery."""
        if self._ordinals is not None:
            for at in range(messages):
                self._of[self._sent + at] = next(self._ordinals)
        self._sent += messages

    def sent_envelope(self, messages: int) -> None:
        """So many messages are sent that are one delivery."""
        if self._ordinals is None:
            self._ordinals = count(self._sent)
        ordinal = next(self._ordinals)
        self._left[ordinal] = messages
        for at in range(messages):
            self._of[self._sent + at] = ordinal
        self._sent += messages

    def answered(self, first: int, last: int, refusal: Refusal | None) -> list[Outcome]:
        """Messages first to last of the link have an outcome."""
        if self._ordinals is None:
            return [Outcome(first, last, refusal)]
        found = []
        for each in range(first, last + 1):
            ordinal = self._of.pop(each, each)
            if ordinal in self._left:
                if refusal is not None:
                    self._refusals.setdefault(ordinal, refusal)
                self._left[ordinal] -= 1
                if self._left[ordinal]:
                    continue
                del self._left[ordinal]
                found.append(Outcome(ordinal, ordinal, self._refusals.pop(ordinal, None)))
            else:
                found.append(Outcome(ordinal, ordinal, refusal))
        return found
