"""Roles of two relays, and the meaning of answers."""

from __future__ import annotations

import pickle
import random

import pytest

from isthmus.client.relay.pair import Outcome, Pair, RelayRefusedError, RelayUnavailableError, outcome_of_status

BOTH = ("primary", "secondary")


def test_the_first_one_is_drawn_at_random_i1() -> None:
    drawn = {Pair(BOTH, random.Random(seed)).active for seed in range(20)}
    assert drawn == set(BOTH)
    assert Pair(("primary",)).order() == ("primary",)


def test_roles_are_swapped_by_an_answer_of_the_other_only_i1() -> None:
    pair = Pair(BOTH, random.Random(1))
    active, other = pair.order()
    pair.answered(active)
    assert (pair.active, pair.swaps) == (active, 0)
    pair.answered(other)
    assert (pair.order(), pair.swaps) == ((other, active), 1)
    pair.doubted(active)  # it is not the active one
    assert pair.active == other
    pair.doubted(other)
    assert (pair.active, pair.swaps) == (active, 2)
    alone = Pair(("primary",))
    alone.doubted("primary")
    assert (alone.active, alone.swaps) == ("primary", 0)


@pytest.mark.parametrize(
    ("status", "via", "expected"),
    [
        (200, ["1.1 relay.example:5671"], Outcome.ANSWERED),
        (502, ["1.1 proxy, 1.1 RELAY.example"], Outcome.ANSWERED),
        (502, ["1.1 proxy"], Outcome.NOT_DELIVERED),
        (503, [], Outcome.NOT_DELIVERED),
        (404, [], Outcome.NOT_DELIVERED),
        (504, [], Outcome.UNKNOWN),
        (401, [], Outcome.REFUSED),
        (403, [], Outcome.REFUSED),
        (431, [], Outcome.REFUSED),
        (500, [], Outcome.UNKNOWN),
    ],
)
def test_what_an_answer_says(status: int, via: list[str], expected: Outcome) -> None:
    assert outcome_of_status(status, via, "relay.example:5671") is expected


def test_errors_have_texts_and_are_pickled() -> None:
    error = RelayUnavailableError("stock", {"primary": "away"}, unknown=True)
    assert str(error) == (
        "no listener of 'stock' answered (primary: away); one may have handled the request: "
        "send it again only if it may be handled twice"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(RelayRefusedError("primary", 403, "no")) == "the primary relay refuses it with 403: no"
