"""The map from ordinals to messages."""

import random

import pytest

from isthmus.bridge.delivery.in_flight import Answered, InFlight


def test_runs_that_follow_each_other_are_answered_together() -> None:
    flight = InFlight()
    flight.sent(0, 3)
    flight.sent(3, 2)
    assert flight.answered(0, 4) == [Answered(0, 5, 1)]
    assert flight.outstanding == 0


def test_a_range_of_ordinals_may_cover_envelopes_and_messages_sent_again() -> None:
    flight = InFlight()
    flight.sent(10, 2)
    flight.sent(20, 1, size=5)
    flight.sent(4, 1)
    assert flight.answered(1, 3) == [Answered(11, 1, 1), Answered(20, 1, 5), Answered(4, 1, 1)]
    assert flight.outstanding == 1
    flight.clear()
    flight.sent(0, 1)
    assert flight.answered(0, 0) == [Answered(0, 1, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_every_ordinal_leads_to_its_messages_in_whatever_order_outcomes_come_i2(seed: int) -> None:
    chance = random.Random(seed)
    flight, sent, message = InFlight(), [], 0
    for _ in range(50):
        size, count = chance.choice([(1, chance.randint(1, 5)), (chance.randint(2, 5), 1)])
        flight.sent(message, count, size)
        for _ in range(count):
            sent.append((message, size))
            message += size
        message += chance.choice([0, 0, 7])
    ordinals = list(range(len(sent)))
    chance.shuffle(ordinals)
    for left, ordinal in zip(range(len(sent) - 1, -1, -1), ordinals, strict=True):
        first, size = sent[ordinal]
        assert flight.answered(ordinal, ordinal) == [Answered(first, 1, size)]
        assert flight.outstanding == left


def test_an_envelope_that_is_taken_in_part_is_divided() -> None:
    stored, rest = Answered(10, 1, 5).divided([0, 2, 3])
    assert list(stored) == [(10, 11), (12, 14)]
    assert list(rest) == [(11, 12), (14, 15)]
