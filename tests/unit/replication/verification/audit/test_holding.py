"""isthmus.replication.verification.audit.holding: copies, each compared with the original that it names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isthmus.replication.verification.audit.audited import Arrivals, Audited
from isthmus.replication.verification.audit.holding import holding_of, met_of
from isthmus.replication.verification.audit.passage import DRIFT_MS
from isthmus.replication.verification.reconciliation.reading import Reading
from isthmus.replication.verification.reconciliation.reconcile import Holding, Undelivered

ENTERED_MS = 100_000


def copies(
    *found: tuple[int, int],
    entered_ms: int = 0,
    ends_ms: int = 0,
    late: Sequence[int] = (),
    proofs: Sequence[int] = (),
) -> Audited:
    """A member with copies: of each its original's number and the digest of its content; all of the first reading."""
    at, arrivals = Audited("jfk", "q"), Arrivals()
    for number, digest in found:
        arrivals.numbers.append(number)
        arrivals.digests.append(digest)
        arrivals.entered_ms.append(entered_ms)
        arrivals.ends_ms.append(ends_ms)
        arrivals.lanes.append(0)
    arrivals.proofs.extend(proofs or [0] * len(found))
    arrivals.first_pass, arrivals.late = len(found), set(late)
    at.arrivals["ewr"] = arrivals
    return at


def origin(*numbers: int) -> Audited:
    """With originals whose digests are ten times their numbers."""
    found = Audited("ewr", "q", messages=len(numbers), own=list(numbers))
    for number in numbers:
        found.originals.add(number, 10 * number, ENTERED_MS, 0)
    if numbers:
        found.first_numbers, found.last_numbers = {0: min(numbers)}, {0: max(numbers)}
    return found


def holding(at: Audited, entered: Audited, *, absent: int = 0, **more: object) -> Holding:
    readings = {"ewr": Reading("ewr", "q", absent_between=absent), "jfk": Reading("jfk", "q")}
    given: dict[str, object] = {"ended_ms": 0, "unkept": {}, "changed": ()} | more
    return holding_of(at, {"ewr": entered, "jfk": at}, readings, **given)  # type: ignore[arg-type]


def test_a_copy_arrived_if_it_has_the_content_of_its_original() -> None:
    found = holding(copies((1, 10), (2, 21)), origin(1, 2))
    assert (found.arrived["ewr"], found.unequal, found.forged) == ([1], {"ewr": [2]}, {})


def test_steps_may_change_it_and_so_may_who_sends_it_again() -> None:
    assert holding(copies((1, 11)), origin(1), changed={("ewr", "jfk")}).arrived["ewr"] == [1]
    assert holding(copies((1, 11), late=[1]), origin(1)).arrived["ewr"] == [1]


@pytest.mark.parametrize(("earlier_ms", "is_forged"), [(DRIFT_MS, False), (DRIFT_MS + 1, True)])
def test_a_copy_of_what_entered_before_its_original_is_of_another_one(earlier_ms: int, is_forged: bool) -> None:
    """I5 of the audit: an entity that was made again gives its numbers again."""
    found = holding(copies((1, 10), entered_ms=ENTERED_MS - earlier_ms), origin(1))
    assert (found.forged == {"ewr": [1]}, "ewr" in found.arrived) == (is_forged, not is_forged)


def test_a_number_at_which_nothing_entered_is_forged_unless_something_was_removed_there() -> None:
    entered = origin(1, 3)
    assert holding(copies((2, 20)), entered).forged == {"ewr": [2]}
    assert holding(copies((2, 20)), entered, absent=1).unknown == {"ewr": [2]}


def test_what_was_read_of_the_second_reading_may_have_entered_since() -> None:
    """I2 of the audit."""
    at = copies((9, 90))
    assert holding(at, origin(1)).forged == {"ewr": [9]}
    at.arrivals["ewr"].first_pass = 0
    assert holding(at, origin(1)) == Holding(entered=[], arrived={"jfk": []}, late={"ewr": set()})


def test_of_an_origin_that_is_not_retained_the_numbers_that_entered_are_believed() -> None:
    found = holding(copies((1, 1), (7, 1)), origin(), unkept={"ewr": [1, 2]})
    assert found.arrived == {"jfk": [], "ewr": [1]}


def test_what_a_task_has_met_waits_somewhere_or_has_arrived() -> None:
    rest = {
        ("ewr", "jfk"): Undelivered(waiting={1}, expired={2}, dead_lettered={3}, diverted={4}, consumed={9}),
        ("lga", "jfk"): Undelivered(waiting={8}),
    }
    assert met_of("ewr", {"jfk": copies((5, 0))}, rest) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("proofs", "arrived"),
    [
        ((7, 8, 9), [1]),  # three messages that rules made of one
        ((7, 8, 7), [1, 1]),  # two, the first of which is there twice
        ((7, 7, 7), [1, 1, 1]),
        ((0, 0, 7), [1, 1, 1]),  # a step has changed the contents: nothing distinguishes them
    ],
)
def test_messages_that_rules_made_of_one_are_not_copies_of_each_other(
    proofs: Sequence[int], arrived: Sequence[int]
) -> None:
    found = holding(copies((1, 1), (1, 2), (1, 3), proofs=proofs), origin(), unkept={"ewr": [1]})
    assert found.arrived["ewr"] == arrived
