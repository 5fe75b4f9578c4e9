"""Copies that are missing, and which of them cannot be called lost.

What it is: what entered and is neither at the target nor waiting at, in or set aside by the route, less what may have expired, or may have been
consumed. Pure. What it is not: the reading (`isthmus.replication.verification.audit.audit`, whose I3 is decided here), what duplicate
detection dropped (`isthmus.replication.verification.audit.detection`), or origins whose messages are not retained
(`isthmus.replication.verification.audit.unkept`).
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.audit.passage import DRIFT_MS, Passage
from isthmus.replication.verification.reconciliation.reading import Reading
from isthmus.replication.verification.reconciliation.reconcile import Holding, Undelivered

__all__ = ["doubt", "leave_out", "missing_copies"]


def missing_copies(
    holdings: Mapping[str, Holding], rest: Mapping[tuple[str, str], Undelivered]
) -> dict[tuple[str, str], set[int]]:
    """By (origin, member), what is missing for no reason that the routes' sources show."""
    return {
        pair: set(holdings[pair[0]].entered)
        - set(holdings[pair[1]].arrived.get(pair[0], ()))
        - undelivered.waiting
        - undelivered.expired
        - undelivered.dead_lettered
        - undelivered.diverted
        - undelivered.dropped
        - undelivered.elsewhere
        for pair, undelivered in rest.items()
    }


def leave_out(
    alias: str,
    holding: Holding,
    origin: Audited,
    missing: Mapping[tuple[str, str], set[int]],
    during_ms: tuple[int, int],
) -> None:
    """Removes from the comparison what is missing and expired during the reading.

    Args:
        alias: of the origin.
        holding: what is there; those messages are removed from it.
        origin: what was read there.
        missing: by (origin, member); those messages are removed from it.
        during_ms: when the reading began and ended.
    """
    numbers = set().union(*(each for pair, each in missing.items() if pair[0] == alias))
    ended = {number for number in numbers if during_ms[0] <= origin.originals.ends_ms(number) <= during_ms[1]}
    if not ended:
        return
    holding.entered = [number for number in holding.entered if number not in ended]
    for pair, each in missing.items():
        if pair[0] == alias:
            each.difference_update(ended)


def doubt(
    undelivered: Undelivered,
    missing: set[int],
    origin: Audited,
    reading: Reading,
    during_ms: tuple[int, int],
    passage: Passage,
    explained: int = 0,
) -> int:
    """Classifies those missing messages that cannot be called lost.

    Args:
        undelivered: receives the result.
        missing: sequence numbers at the origin.
        origin: what was read there.
        reading: of the member where the copies have to be.
        during_ms: when the reading began and ended.
        passage: the one that they take.
        explained: how many of the numbers that are absent at that member are explained by missing messages of other origins.

    Returns:
        How many of them are explained by these, too: a number is that of one message.
    """
    absent = max(0, reading.absent_before + reading.absent_between - explained)
    over: list[int] = []
    nearly: list[int] = []  # a copy that expires while it is looked for may be gone
    taken: list[int] = []
    for number in sorted(missing):
        enqueued_ms = origin.originals.enqueued_ms(number)
        expires_ms = enqueued_ms + passage.expires_ms if passage.expires_ms and not reading.shared else during_ms[1]
        if expires_ms < during_ms[0]:
            over.append(number)
        elif 0 < origin.originals.ends_ms(number) < during_ms[0]:
            undelivered.ended.add(number)
        elif passage.drops:
            undelivered.consumed.add(number)
        elif expires_ms < during_ms[1]:
            nearly.append(number)
        elif reading.may_have_held(enqueued_ms, DRIFT_MS):
            taken.append(number)
    # Where fewer numbers are absent at the target, some copies were never there, or were the last ones, whose removal leaves no trace.
    shown = [*over, *nearly[: absent - len(over)]] if len(over) <= absent else []
    undelivered.copy_expired.update(shown)
    undelivered.consumed.update({*over, *nearly}.difference(shown))
    consumed = taken if reading.most_taken is None else taken[: absent - len(shown)]
    undelivered.consumed.update(consumed)
    return explained + len(shown) + len(consumed)
