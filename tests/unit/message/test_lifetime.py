"""How long a copy lives."""

from __future__ import annotations

import pytest

from isthmus.message import iso
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.lifetime import TTL_LIMIT_MS, life_ms, milliseconds

SENT_MS = 1_700_000_000_000
NOW_MS = SENT_MS + 10_000


def left(policy: CopyPolicy, ttl_ms: int = 0, enqueued_ms: int = SENT_MS, first_ms: int = 0) -> int | None:
    return life_ms(policy, ttl_ms=ttl_ms, enqueued_ms=enqueued_ms, first_ms=first_ms, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("ttl_ms", "enqueued_ms", "wanted"),
    [
        (0, SENT_MS, 0),
        (60_000, SENT_MS, 50_000),
        (60_000, 0, 60_000),
        (10_000, SENT_MS, 1),  # I1
        (60_000, NOW_MS + 5_000, 60_000),  # I2
    ],
)
def test_without_a_policy_a_copy_has_what_is_left(ttl_ms: int, enqueued_ms: int, wanted: int) -> None:
    assert left(CopyPolicy(), ttl_ms, enqueued_ms) == wanted


@pytest.mark.parametrize(("ttl_ms", "wanted"), [(0, 30_000), (20_000, 10_000), (3_600_000, 30_000), (1, 1)])
def test_a_ceiling_bounds_what_is_left_and_what_has_no_end(ttl_ms: int, wanted: int) -> None:
    assert left(CopyPolicy(ttl_ceiling_ms=30_000), ttl_ms) == wanted


def test_a_deadline_counts_from_the_first_send() -> None:
    policy = CopyPolicy(deadline_ms=60_000, deadline_spent_ms=30_000)
    assert left(policy, first_ms=SENT_MS - 5_000) == 45_000
    assert left(policy, ttl_ms=1, first_ms=SENT_MS) == 50_000  # the original's own life has ended


def test_without_a_first_time_a_part_of_the_deadline_counts_as_spent() -> None:
    assert left(CopyPolicy(deadline_ms=60_000)) == 50_000
    assert left(CopyPolicy(deadline_ms=60_000, deadline_spent_ms=30_000)) == 20_000


@pytest.mark.parametrize("first_ms", [NOW_MS - 60_000, NOW_MS - 61_000])
def test_nothing_left_of_a_deadline_makes_no_copy(first_ms: int) -> None:  # I1
    assert left(CopyPolicy(deadline_ms=60_000, ttl_ceiling_ms=5), first_ms=first_ms) is None


def test_a_life_fits_its_field() -> None:
    assert left(CopyPolicy(ttl_ceiling_ms=10**12)) == TTL_LIMIT_MS
    assert left(CopyPolicy(deadline_ms=10**12)) == TTL_LIMIT_MS


@pytest.mark.parametrize("ms", [0, SENT_MS, 10**15])
def test_the_time_of_a_hop_is_read_as_it_was_written(ms: int) -> None:
    assert milliseconds(iso(ms)) == ms
    assert milliseconds("yesterday") == 0
