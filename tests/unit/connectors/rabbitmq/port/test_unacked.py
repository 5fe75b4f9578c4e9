"""isthmus.connectors.rabbitmq.port.unacked: the fewest acknowledgements of done deliveries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.rabbitmq.port.unacked import Unacked


def made(count: int) -> Unacked:
    unacked = Unacked()
    for tag in range(1, count + 1):
        unacked.add(tag)
    return unacked


def test_a_run_from_the_beginning_is_one_acknowledgement() -> None:
    unacked = made(10)
    assert unacked.settle([1, 2, 3]) == [(3, True)]
    assert unacked.settle(range(4, 11)) == [(10, True)]
    assert len(unacked) == 0


def test_what_follows_another_is_acknowledged_alone() -> None:
    """I1: `multiple` would take the first with it."""
    unacked = made(4)
    assert unacked.settle([2, 4]) == [(2, False), (4, False)]
    assert unacked.settle([1]) == [(1, True)]
    assert unacked.settle([3]) == [(3, True)]


def test_no_acknowledgement_names_a_tag_that_was_rejected() -> None:
    """I2: the broker would close the channel, and deliver everything again."""
    unacked = made(3)
    unacked.remove(2)
    assert unacked.settle([1]) == [(1, True)]
    assert unacked.settle([3]) == [(3, True)]


def test_what_was_rejected_delays_nothing() -> None:
    unacked = made(3)
    unacked.remove(1)
    assert unacked.settle([2]) == [(2, True)]
    unacked.remove(3)
    assert len(unacked) == 0


@given(st.lists(st.lists(st.integers(1, 20), max_size=6), max_size=12), st.sets(st.integers(1, 20)))
def test_all_that_is_done_and_nothing_else_is_acknowledged(settled: list[list[int]], removed: set[int]) -> None:
    """I1 and I2, as the broker counts: an acknowledgement that names a tag which it does not know closes the channel."""
    unacked, done = made(20), set(removed)
    for tag in sorted(removed):
        unacked.remove(tag)
    at_broker = set(range(1, 21)) - removed
    for tags in settled:
        fresh = [tag for tag in dict.fromkeys(tags) if tag not in done]
        done.update(fresh)
        for tag, multiple in unacked.settle(fresh):
            assert tag in at_broker
            if multiple:
                at_broker = {each for each in at_broker if each > tag}
            else:
                at_broker.discard(tag)
        assert at_broker == set(range(1, 21)) - done
