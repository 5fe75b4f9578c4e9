"""Origins whose messages carry no number: what entered is identified by its content.

What it is: the numbering of copies by an origin's record (a stream beside the queues of an exchange), and the classification of a message
that is found nowhere while the routes' queues cannot be browsed. What it is not: any reading.

A copy from such an origin carries no number that its record knows. The n-th copy with some content belongs to the n-th message with this content
in the record; further copies count as second copies of the last one.

Invariants:
    I1. Equal messages are counted, not merged: two of them want two copies.
    I2. As many missing messages as wait in the route's queue, or are with its consumer, count as waiting, the latest first; a count may be some
        seconds old, too low or too high, and the caller waits for a later one before anything is called lost, or waiting.
    I3. A copy that was read before the end of its origin was reached, and whose content is not in the record, is unequal to what was sent, or forged.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from isthmus.replication.verification.audit.audited import Arrivals, Audited
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.reconciliation.reconcile import Undelivered

__all__ = ["Recorded"]


class Recorded:
    """The origins of an audit whose messages are identified by a record.

    Args:
        passages: all passages that are audited together.
        audited: by label, what was read.
    """

    def __init__(self, passages: Sequence[Passage], audited: Mapping[str, Audited]) -> None:
        self._passages = [each for each in passages if each.by_content]
        self._audited = audited

    def number(self) -> None:
        """Give all copies the numbers of their originals, by what was read until now."""
        for origin in {each.origin: None for each in self._passages}:
            record = self._audited[origin]
            known: dict[int, list[int]] = defaultdict(list)
            for digest, number in record.contents:
                known[digest].append(number)
            for member, at in self._audited.items():
                if member != origin and origin in at.arrivals:
                    at.arrivals[origin].numbers = _numbers(at.arrivals[origin], known, record)

    def misses(self) -> bool:
        """Whether any message of an origin has not arrived somewhere."""
        return any(set(self._audited[each.origin].own) - self._arrived(each) for each in self._passages)

    def explain(
        self,
        missing: Mapping[tuple[str, str], set[int]],
        rest: Mapping[tuple[str, str], Undelivered],
        unsettled: Mapping[tuple[str, str], int],
    ) -> None:
        """Removes what waits, and what cannot be determined, from what is missing (I2).

        Args:
            missing: by (origin, member).
            rest: receives the result.
            unsettled: how many messages wait at each route, or are with its consumer.
        """
        for each in self._passages:
            at = missing[each.pair]
            late = sorted(at)[max(0, len(at) - unsettled.get(each.pair, 0)) :]
            rest[each.pair].waiting |= set(late)
            at.difference_update(late)
            # Rejected messages go to an exchange that is not read; whether a message has expired cannot be seen in a record.
            rejects = any(route.options.refused != "block" for route in each.routes)
            doubtful = set(at) if rejects else at & self._audited[each.origin].perishable
            rest[each.pair].consumed |= doubtful
            at.difference_update(doubtful)

    def met(self, passage: Passage, unsettled: int) -> set[int]:
        """The origin's messages that are known to have reached the route: if some wait there, including the latest."""
        own = self._audited[passage.origin].own
        return self._arrived(passage) | set(own[max(0, len(own) - unsettled) :])

    def _arrived(self, passage: Passage) -> set[int]:
        arrivals = self._audited[passage.member].arrivals.get(passage.origin)
        return set(arrivals.numbers) if arrivals is not None else set()


def _numbers(arrivals: Arrivals, known: Mapping[int, list[int]], record: Audited) -> array[int]:
    """The number of each copy, by its content (I1)."""
    seen: Counter[int] = Counter()
    after = max(record.last_numbers.values(), default=0) + 1
    first = min(record.first_numbers.values(), default=0)
    found: array[int] = array("q")
    for index, digest in enumerate(arrivals.digests):
        of = known.get(digest, ())
        at = seen[digest]
        seen[digest] += 1
        if at < len(of):
            found.append(of[at])
        elif index >= arrivals.first_pass:
            found.append(after)  # it entered since
        elif of:
            found.append(of[-1])
        else:
            found.append(first - 1)  # removed from the record by its age, or never in it
    return found
