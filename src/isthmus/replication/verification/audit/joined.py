"""Messages that entered before a member took part.

What it is: of what is missing at a member, what was sent before the subscription that its route reads was created: no route was ever given it. Pure. What
it is not: the query of that time (`isthmus.replication.verification.joining`).

Invariants:
    I1. A subscription that was deleted and created again excuses nothing that its predecessor has lost: what entered after a message that is known to
        have reached the route, or the member, counts as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.reconciliation.reconcile import Undelivered

__all__ = ["entered_before"]


def entered_before(
    passage: Passage,
    missing: Collection[int],
    audited: Mapping[str, Audited],
    undelivered: Undelivered,
    joined_ms: int,
) -> set[int]:
    """Those of the missing messages of a passage that no route was given.

    Args:
        passage: the passage.
        missing: sequence numbers at its origin, whose messages are retained there.
        audited: what was read, by label.
        undelivered: what the passage's routes show.
        joined_ms: when the subscription that its route reads was created, by the clock of its namespace; 0: not known.
    """
    origin = audited[passage.origin]
    if not joined_ms or origin.is_log or passage.by_content:
        return set()
    until_ms = joined_ms
    arrivals = audited[passage.member].arrivals.get(passage.origin)
    if arrivals is not None:
        for number, entered_ms in zip(arrivals.numbers, arrivals.entered_ms, strict=True):
            # 0 where neither says it: then the member took part before everything that is known.
            known_ms = origin.originals.enqueued_ms(number) if number in origin.originals else entered_ms
            until_ms = min(until_ms, known_ms)
    for number in undelivered.waiting | undelivered.expired | undelivered.dead_lettered | undelivered.diverted:
        if number in origin.originals:
            until_ms = min(until_ms, origin.originals.enqueued_ms(number))
    return {number for number in missing if origin.originals.enqueued_ms(number) < until_ms}
