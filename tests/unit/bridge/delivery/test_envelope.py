"""How many messages go into a delivery."""

from __future__ import annotations

import math

import pytest

from isthmus.bridge.delivery.envelope import MANY_MESSAGES, WAIT_SECONDS, EnvelopeChoice
from isthmus.bridge.delivery.settings import DeliverySettings


def choice(reported: int = 0, most: int = 200) -> EnvelopeChoice:
    made = EnvelopeChoice(DeliverySettings(envelope_messages=reported))
    made.opened(most)
    return made


@pytest.mark.parametrize("reported", [1, 7])
def test_what_a_route_is_set_to_wins_i1(reported: int) -> None:
    assert choice(reported).size(500, 1, 999, 0.0) == reported


@pytest.mark.parametrize(
    ("unsent", "credit", "in_flight"), [(1, 1000, 0), (500, 1000, 0), (1, 500, 500), (250, 501, 499)]
)
def test_while_credit_is_plentiful_each_goes_alone_i2(unsent: int, credit: int, in_flight: int) -> None:
    made = choice()
    assert made.size(unsent, credit, in_flight, 0.0) <= 1
    assert made.wait_until == math.inf


@pytest.mark.parametrize(
    ("unsent", "credit", "in_flight", "size"),
    [
        (500, 800, 200, 200),
        (500, 100, 900, 200),
        (120, 100, 900, 120),
        (500, 1, 999, 200),
        (4, 250, 750, 4),
        (2, 2, 0, 2),
    ],
)
def test_where_credit_is_short_an_envelope_takes_all_that_waits(
    unsent: int, credit: int, in_flight: int, size: int
) -> None:
    assert choice().size(unsent, credit, in_flight, 0.0) == size


def test_behind_an_envelope_many_go_in_one_as_well_i2() -> None:
    made = choice()
    assert made.size(MANY_MESSAGES, 1000, 3, 0.0, is_packed=True) == MANY_MESSAGES
    assert made.size(MANY_MESSAGES - 1, 1000, 3, 0.0, is_packed=True) <= 1
    assert made.size(500, 1000, 0, 0.0) <= 1


def test_where_it_is_not_credit_that_bounds_each_goes_alone() -> None:
    assert choice().size(500, 0, 1000, 0.0) == 0


def test_too_few_wait_for_others_but_not_long_i3() -> None:
    made = choice()
    made.size(3, 250, 750, 1.0)
    assert made.wait_until == 1.0 + WAIT_SECONDS
    made.size(3, 250, 750, 1.001)
    assert made.wait_until == 1.0 + WAIT_SECONDS
    assert made.size(4, 250, 750, 1.001) == 4  # enough have come
    assert made.wait_until == math.inf
    made.size(3, 250, 750, 2.0)
    assert made.size(3, 250, 750, 2.0 + WAIT_SECONDS) == 3
    assert made.wait_until == math.inf


@pytest.mark.parametrize("most", [0, 1])
def test_a_target_that_does_not_say_that_it_takes_them_gets_none_i4(most: int) -> None:
    assert choice(most=most).size(500, 1, 999, 0.0) == 0


def test_a_target_that_takes_each_message_of_a_refused_envelope_alone_gets_no_more_i4() -> None:
    made = choice()
    made.refused(10, 15, True)
    made.accepted(5, 13)
    assert made.size(500, 1, 999, 0.0) == 200
    made.accepted(13, 20)
    assert made.size(500, 1, 999, 0.0) == 0


def test_an_envelope_that_was_refused_for_one_message_says_nothing_about_others() -> None:
    made = choice()
    made.refused(10, 15, True)
    made.set_aside(12)
    made.accepted(10, 12)
    made.accepted(13, 15)
    assert made.size(500, 1, 999, 0.0) == 200


def test_a_refusal_that_may_pass_counts_when_it_comes_again_and_again() -> None:
    made = choice()
    for round_ in range(3):
        assert made.size(500, 1, 999, 0.0) == 200
        made.refused(round_ * 10, round_ * 10 + 5, False)
        made.accepted(round_ * 10, round_ * 10 + 5)
    assert made.size(500, 1, 999, 0.0) == 0
