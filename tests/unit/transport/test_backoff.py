import random

from hypothesis import given
from hypothesis import strategies as st

from isthmus.transport import Backoff


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_a_delay_stays_within_its_step_and_the_limit_i1(seed: int, attempts: int) -> None:
    backoff = Backoff(0.2, 30.0, source=random.Random(seed))
    for attempt in range(attempts):
        step = min(30.0, 0.2 * 2.0 ** min(attempt, 64))
        assert step / 2 <= backoff.next_seconds() <= step


def test_reset_starts_again() -> None:
    backoff = Backoff(1.0, 100.0, source=random.Random(1))
    for _ in range(5):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= 1.0
