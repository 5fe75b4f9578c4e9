"""Reconciliation: every identity is accounted for once, whatever happened to it."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict
from isthmus.replication.verification.reconciliation.reconcile import Holding, Undelivered, compare, reconcile


def test_a_clean_federation_is_clean() -> None:
    holdings = {
        "ewr": Holding(entered=[1, 2, 3], arrived={"ewr": [1, 2, 3], "jfk": [7, 9]}),
        "jfk": Holding(entered=[7, 9], arrived={"ewr": [1, 2, 3], "jfk": [7, 9]}),
    }
    result = reconcile("flights", holdings)
    assert result.clean
    assert result.to_dict()["entered"] == 5
    assert result.to_dict()["arrived"] == 5
    assert len(result.comparisons) == 4


def test_i2_a_copy_that_came_back_counts_as_duplicated() -> None:
    holdings = {
        "ewr": Holding(entered=[1, 2], arrived={"ewr": [1, 2, 1]}),
        "jfk": Holding(entered=[], arrived={"ewr": [1, 2]}),
    }
    result = reconcile("flights", holdings)
    assert result.total("duplicated") == 1
    assert not result.clean


def test_i3_order_is_judged_over_first_arrivals_only() -> None:
    late_repeat = compare("ewr", "jfk", [1, 2, 3], [1, 2, 3, 1, 2])
    assert (late_repeat.duplicated, late_repeat.out_of_order) == (2, 0)
    swapped = compare("ewr", "jfk", [1, 2, 3], [2, 1, 3])
    assert (swapped.duplicated, swapped.out_of_order) == (0, 1)
    assert swapped.samples["out_of_order"] == (1,)


def test_what_waits_or_was_set_aside_is_not_lost() -> None:
    rest = Undelivered(waiting={3}, expired={4}, dead_lettered={5})
    result = compare("ewr", "jfk", [1, 2, 3, 4, 5, 6], [1, 2], rest)
    assert (result.arrived, result.waiting, result.expired, result.dead_lettered, result.lost) == (2, 1, 1, 1, 1)
    assert result.samples["lost"] == (6,)


def test_an_arrival_without_a_known_original_is_named_unknown() -> None:
    result = compare("ewr", "jfk", [5], [4, 5])
    assert (result.unknown, result.arrived, result.lost) == (1, 1, 0)


def test_samples_are_bounded() -> None:
    result = compare("ewr", "jfk", range(1, 1000), [])
    assert result.lost == 999
    assert len(result.samples["lost"]) == 20


@given(
    outcomes=st.lists(
        st.sampled_from(["arrived", "twice", "waiting", "expired", "dead_lettered", "lost"]), max_size=60
    ),
    seed=st.integers(0, 2**32),
)
def test_i1_every_identity_has_exactly_one_outcome(outcomes: list[str], seed: int) -> None:
    numbers = {kind: [n for n, outcome in enumerate(outcomes) if outcome == kind] for kind in set(outcomes)}
    arrived = sorted([*numbers.get("arrived", []), *numbers.get("twice", [])])
    repeats = numbers.get("twice", [])[:]
    random.Random(seed).shuffle(repeats)
    rest = Undelivered(
        waiting=set(numbers.get("waiting", [])) | set(arrived[:2]),
        expired=set(numbers.get("expired", [])),
        dead_lettered=set(numbers.get("dead_lettered", [])),
    )
    result = compare("ewr", "jfk", range(len(outcomes)), [*arrived, *repeats], rest)
    assert result.arrived == len(arrived)
    assert result.duplicated == len(repeats)
    assert result.out_of_order == 0
    assert result.lost == len(numbers.get("lost", []))
    assert result.waiting == len(numbers.get("waiting", []))
    assert result.arrived + result.waiting + result.expired + result.dead_lettered + result.lost == len(outcomes)


def test_the_page_has_every_count_with_its_verdict() -> None:
    page = (Path(__file__).parents[5] / "docs/how-to/verify-a-federation.md").read_text(encoding="utf-8")
    texts = {Verdict.CLEAN: "–", Verdict.UNCLEAR: "cannot tell (3)", Verdict.FAULTY: "fault (1)"}
    for count in COUNTS:
        assert f"| {count.name.replace('_', ' ')} | {count.meaning} | {texts[count.verdict]} |" in page
    assert [verdict.exit_code for verdict in Verdict] == [0, 3, 1]
