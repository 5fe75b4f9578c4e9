"""The counts of a reconciliation, and the meaning of each for the task.

What it is: one table that the comparison, `isthmus verify` and the documentation use. What it is not: the counting
(`isthmus.replication.verification.reconciliation.reconcile`).

Invariants:
    I1. Every count has exactly one verdict. A task's verdict is the worst of those of its counts that are not zero.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["COUNTS", "Count", "Verdict", "verdict_of"]


class Verdict(IntEnum):
    """What a count that is not zero means; the greater verdict prevails."""

    CLEAN = 0
    UNCLEAR = 1
    FAULTY = 2

    @property
    def exit_code(self) -> int:
        """The exit code of `isthmus verify`."""
        return {Verdict.CLEAN: 0, Verdict.UNCLEAR: 3, Verdict.FAULTY: 1}[self]


class Count(NamedTuple):
    """One count: its name in `--json`, its verdict, and its meaning."""

    name: str
    verdict: Verdict
    meaning: str


COUNTS = (
    Count(
        "entered", Verdict.CLEAN, "publishers sent them to this member, the task replicates them, and they are there"
    ),
    Count("filtered", Verdict.CLEAN, "the task's `filter` does not select them"),
    Count(
        "earlier",
        Verdict.CLEAN,
        "records of a log that are older than the first one that is known to have reached the task in their partition (`start: now`)",
    ),
    Count("held_back", Verdict.CLEAN, "their publisher set the mark itself, so that they are not replicated"),
    Count("returned", Verdict.CLEAN, "copies that the task made when it had the opposite direction"),
    Count("arrived", Verdict.CLEAN, "a copy with the same content is at the other member"),
    Count("waiting", Verdict.CLEAN, "they are in the route's source: a route moves them later"),
    Count(
        "before_route",
        Verdict.CLEAN,
        "they entered before the subscription that the route reads was created, e.g. before the member was added: no route moves them",
    ),
    Count(
        "dropped",
        Verdict.CLEAN,
        "duplicate detection dropped the copy, at the target or at the entity of `divert_to`; an equal message is there",
    ),
    Count(
        "copy_expired",
        Verdict.CLEAN,
        "the task's time to live of copies at the target has passed, and at least as many numbers are absent there",
    ),
    Count("resent", Verdict.CLEAN, "dead letters that were sent again: they entered again, and count as that message"),
    Count(
        "delivered",
        Verdict.CLEAN,
        "according to the task's ledger the target acknowledged them; an application may have consumed them since",
    ),
    Count(
        "diverted",
        Verdict.CLEAN,
        "a step sent them to the entity of its `divert_to`, where they are, or the ledger confirms it",
    ),
    Count(
        "consumed",
        Verdict.UNCLEAR,
        "the copy may have been taken out of the subscription that was read, or have expired without a trace, or a step completed or diverted the message, or it was lost",
    ),
    Count("ended", Verdict.UNCLEAR, "found nowhere, and expired before the reading began"),
    Count(
        "unknown", Verdict.UNCLEAR, "copies whose original may have been taken out of the subscription that was read"
    ),
    Count("expired", Verdict.FAULTY, "their time to live ended in the route's source, before a route moved them"),
    Count("dead_lettered", Verdict.FAULTY, "they are in the dead-letter queue of the route's source"),
    Count(
        "stopped",
        Verdict.FAULTY,
        "new messages that the rule does not select because they have the properties of a copy",
    ),
    Count(
        "incomparable", Verdict.FAULTY, "the rule cannot compare the value of their mark, so that no route gets them"
    ),
    Count(
        "unequal",
        Verdict.FAULTY,
        "a copy names them as its original and has another body or other properties; also lost",
    ),
    Count("forged", Verdict.FAULTY, "copies that name an original that never entered"),
    Count("lost", Verdict.FAULTY, "found nowhere"),
    Count("duplicated", Verdict.FAULTY, "further copies of one message, also at its own member"),
    Count(
        "out_of_order",
        Verdict.FAULTY,
        "copies after a later one of the same origin, with `ordering: session` of the same session, except those that `redrive` has sent; no fault with `ordering: none`",
    ),
)

_VERDICTS = {count.name: count.verdict for count in COUNTS}


def verdict_of(name: str) -> Verdict:
    """The verdict of a count that is not zero."""
    return _VERDICTS[name]
