"""Deliveries of the delivery machine as messages of a system that has no envelopes, and their answers as outcomes of deliveries.

What it is: the account of one connection, in which an envelope is one delivery to the machine and several messages to the system. Messages are
numbered from 0 in the order of sending. What it is not: a connection.

Invariants:
    I1. An envelope has an outcome once all of its messages are answered: accepted, or their first refusal.
    I2. As long as no envelope was sent, ordinals of deliveries are the numbers of their messages.
    I3. Messages that the system has accepted from an envelope that is refused, or whose connection was lost, are reported: they are not
        sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal

__all__ = ["EnvelopeAccount"]


class _Open:
    """An envelope with unanswered messages; `first` is the number of its first message."""

    __slots__ = ("first", "missing", "refusal", "taken")

    def __init__(self, first: int, messages: int) -> None:
        self.first = first
        self.missing = messages
        self.refusal: Refusal | None = None
        self.taken: list[int] = []

    def outcome(self, ordinal: int, refusal: Refusal | None) -> Outcome:
        return Outcome(ordinal, ordinal, refusal, () if refusal is None else tuple(sorted(self.taken)))


class EnvelopeAccount:
    """The account of one connection."""

    def __init__(self) -> None:
        self._sent = 0  # messages
        self._ordinals: Iterator[int] | None = None
        self._of: dict[int, int] = {}  # the machine's ordinal, by the message's number
        self._open: dict[int, _Open] = {}

    @property
    def has_envelopes(self) -> bool:
        """Whether an envelope was sent (I2)."""
        return self._ordinals is not None

    def sent(self, messages: int) -> int:
        """Counts messages that are sent as one delivery each; returns the number of the first."""
        first = self._sent
        if self._ordinals is not None:
            for at in range(messages):
                self._of[first + at] = next(self._ordinals)
        self._sent += messages
        return first

    def sent_envelope(self, messages: int) -> int:
        """Counts messages that are sent as one delivery; returns the number of the first."""
        first = self._sent
        if self._ordinals is None:
            self._ordinals = count(first)
        ordinal = next(self._ordinals)
        self._open[ordinal] = _Open(first, messages)
        for at in range(messages):
            self._of[first + at] = ordinal
        self._sent += messages
        return first

    def answered(self, first: int, last: int, refusal: Refusal | None) -> list[Outcome]:
        """Messages `first` to `last` are answered; returns the outcomes of the deliveries that have all their answers."""
        if self._ordinals is None:
            return [Outcome(first, last, refusal)]
        found = []
        for each in range(first, last + 1):
            ordinal = self._of.pop(each, each)
            envelope = self._open.get(ordinal)
            if envelope is None:
                found.append(Outcome(ordinal, ordinal, refusal))
                continue
            envelope.missing -= 1
            if refusal is None:
                envelope.taken.append(each - envelope.first)
            else:
                envelope.refusal = envelope.refusal or refusal
            if not envelope.missing:
                del self._open[ordinal]
                found.append(envelope.outcome(ordinal, envelope.refusal))
        return found

    def lost(self, refusal: Refusal) -> list[Outcome]:
        """The connection is lost, and no more answers follow; returns the outcomes of the envelopes that were accepted in part."""
        found = [each.outcome(ordinal, each.refusal or refusal) for ordinal, each in self._open.items() if each.taken]
        self._open.clear()
        return found
