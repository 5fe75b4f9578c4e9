"""Messages of one origin that the filters of several targets select.

What it is: at an origin whose messages are not retained, a message that is found at one target, or on the way to it, is checked against the
filters of the other targets: where they select it too, it has to be there as well. What it is not: any reading.

Invariants:
    I1. A message that is found for one target and that another target's filter selects is missing at the other target until it is found there.
    I2. Where a passage changes messages, its copies do not show what the filters selected; unless these exclude each other, that is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations

from isthmus.amqp.codec import CodecError
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.record.view import MessageView
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.identity import Identity
from isthmus.rules import Filter, FilterError, parse_filter
from isthmus.rules.analysis.analysis import never_matches
from isthmus.rules.syntax.tree import And

__all__ = ["Siblings", "matches"]

Pair = tuple[str, str]


class Siblings:
    """The passages from origins whose messages are not retained to targets with filters.

    Args:
        passages: all passages that are audited together.

    Attributes:
        wanted: by (origin, member), sequence numbers of messages that were found for another target and have to be at this one, too.
        unknown: what cannot be determined, and why.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.wanted: dict[Pair, set[int]] = defaultdict(set)
        self.unknown: list[str] = []
        self._others: dict[Pair, list[tuple[Pair, Filter]]] = defaultdict(list)
        filtered = [(each, parse_filter(each.filter)) for each in passages if each.filter and not each.is_witnessed]
        for (one, first), (other, second) in permutations(filtered, 2):
            if one.origin != other.origin or one.member == other.member:
                continue
            if never_matches(And((first.tree, second.tree))):
                continue
            if one.changes:
                self.unknown.append(
                    f"messages of {one.origin} that are at {one.member} are not checked for at {other.member}: steps or an action change them, and "
                    "whether its filter selected them is not known"
                )
            else:
                self._others[one.pair].append((other.pair, second))

    def see(self, pair: Pair, message: bytes, identity: Identity) -> None:
        """A message of this origin was found at this member, or waiting for it."""
        for other, rule in self._others.get(pair, ()):
            enqueued_ms = identity.entered_ms or peeked_message(message).enqueued_ms
            if matches(rule, MessageView(split(message, HeadCache(0)), identity.number, enqueued_ms)):
                self.wanted[other].add(identity.number)


def matches(rule: Filter, view: MessageView) -> bool | None:
    """Whether a rule selects a message; None where that is undefined."""
    try:
        return rule.matches(view)
    except (FilterError, CodecError):
        return None
