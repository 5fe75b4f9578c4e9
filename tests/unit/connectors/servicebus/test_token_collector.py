"""Lock tokens reach the driver over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.connectors.servicebus.token_collector import TokenCollector, hand_over_tokens


@pytest.fixture(name="collector")
def _collector() -> Iterator[TokenCollector]:
    made = TokenCollector()
    yield made
    made.close()


def token(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_the_tokens_of_all_readers_up_to_a_lease_are_given_once(collector: TokenCollector) -> None:
    place = (collector.address, collector.key)
    hand_over_tokens(place, 3, 0, [token(1), token(2)])
    hand_over_tokens(place, 3, 1, [token(3)])
    hand_over_tokens(place, 4, 0, [token(4)])
    assert collector.through(3) == [token(1), token(2), token(3)]
    assert collector.through(4) == [token(4)]
    assert collector.through(4) == []


def test_of_a_task_that_spark_repeated_only_the_last_attempt_counts_i2(collector: TokenCollector) -> None:
    """What an attempt read and did not write must not be completed with what the next one read."""
    place = (collector.address, collector.key)
    hand_over_tokens(place, 3, 0, [token(1), token(2)])
    hand_over_tokens(place, 3, 0, [token(3)])
    assert collector.through(3) == [token(3)]
