"""The unconfirmed deliveries of one connection of a target.

What it is: the assignment of confirms to deliveries: publications are numbered by the channel from 1, messages from 0, and some are not published.
An envelope of the machine is several messages (`envelope`). What it is not: a connection. Specification: RabbitMQ documentation,
"Publisher Confirms".

A returned message has no number. It is found among the unconfirmed ones by its contents; of equal ones any will do,
because a broker routes equal messages alike.

Invariants:
    I1. A delivery has one outcome: when all of its publications are confirmed; refused, when one of them is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal
from isthmus.connectors.envelope import EnvelopeAccount
from isthmus.connectors.flight import ranges
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.table import TableError

__all__ = ["CREDIT", "Flight"]

# The limit of unconfirmed deliveries; the delivery machine's window is smaller.
CREDIT = 20_000


class Flight:
    """The account of one connection.

    Attributes:
        credit: deliveries that may be sent.
        since: since when no confirm has arrived while deliveries are outstanding; infinite where none are.
    """

    def __init__(self) -> None:
        self.credit = CREDIT
        self.since = math.inf
        self._account = EnvelopeAccount()
        self._number = 0
        self._lowest = 1  # all below it are confirmed
        self._outstanding: dict[int, tuple[int, bytes]] = {}
        self._returned: dict[int, Refusal] = {}
        self._prints: dict[int, int] = {}
        self._accepted: list[int] = []  # deliveries
        self._refused: list[Outcome] = []
        self._has_answer = False

    def begin(self, messages: int) -> int:
        """Counts a delivery; returns the number of its first message."""
        self.credit -= 1
        return self._account.sent(1) if messages == 1 else self._account.sent_envelope(messages)

    def begin_singles(self, deliveries: int) -> int:
        """Counts deliveries of one message each; returns the number of the first message."""
        self.credit -= deliveries
        return self._account.sent(deliveries)

    def sent(self, message: int, payload: bytes, now: float) -> None:
        """A message is published."""
        self._number += 1
        self._outstanding[self._number] = message, payload
        if self.since == math.inf:
            self.since = now

    def refuse(self, message: int, refusal: Refusal) -> None:
        """A message is refused without being published."""
        self._answer(message, refusal)

    def lost(self, refusal: Refusal) -> list[Outcome]:
        """The connection is lost; returns the outcomes of deliveries that were accepted in part."""
        return self._account.lost(refusal)

    def answered(self, number: int, multiple: bool, refusal: Refusal | None) -> None:
        """The broker answered a publication, or all up to it."""
        outstanding, returned = self._outstanding, self._returned
        self._has_answer = True
        first = min(self._lowest, number) if multiple else number
        is_plain = refusal is None and not self._account.has_envelopes
        numbers = range(first, number + 1)
        if is_plain and not returned and not self._prints:
            pop = outstanding.pop
            self._accepted += [found[0] for each in numbers if (found := pop(each, None)) is not None]
            numbers = range(0)
        for each in numbers:
            found = outstanding.pop(each, None)
            if found is None:
                continue
            if returned or self._prints:
                self._prints.pop(each, None)
                self._answer(found[0], refusal or returned.pop(each, None))
            else:
                self._answer(found[0], refusal)
        if multiple or number == self._lowest:
            self._lowest = max(self._lowest, number + 1)

    def returned(self, record: Record, refusal: Refusal, routed: Callable[[bytes], Record]) -> bool:
        """A message was returned; returns whether it was found."""
        wanted = _print_of(record)
        prints = self._prints
        for number, (_, payload) in self._outstanding.items():
            if number in self._returned:
                continue
            found = prints.get(number)
            if found is None:
                found = prints[number] = _print_of(routed(payload))
            if found == wanted:
                self._returned[number] = refusal
                return True
        return False

    def wait_again(self, now: float) -> None:
        """The broker's silence counts from now on, not from when it was blocked."""
        self.since = now if self._outstanding else math.inf

    def take(self, now: float) -> list[Outcome]:
        """The outcomes since the last call."""
        accepted, refused = self._accepted, self._refused
        self._accepted, self._refused = [], []
        self.credit += len(accepted) + len(refused)
        if self._has_answer:
            self._has_answer = False
            self.wait_again(now)
        return [Outcome(first, last) for first, last in ranges(accepted)] + refused

    def _answer(self, message: int, refusal: Refusal | None) -> None:
        for outcome in self._account.answered(message, message, refusal):
            if outcome.refusal is None:
                self._accepted.append(outcome.first)
            else:
                self._refused.append(outcome)


def _print_of(record: Record) -> int:
    """A digest of a message's contents, independent of the order of its fields."""
    body, properties, exchange, routing_key = record
    try:
        found = props.read(properties)
        fields = repr(found._replace(headers=tuple(sorted(found.headers))))
    except (TableError, struct.error):
        fields = repr(properties)
    return hash((fields, body, exchange, routing_key))
