"""The quota of one entity: messages still being received, and a topic's copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.entities.member.quota import Quota
from isthmus.errors import QuotaExceededError


def owner(stored_bytes: int, *, active_count: int = 0, size_bytes: int = 0, dead: bool = False) -> Any:
    """An entity with so many bytes; `dead`: a look for dead bodies frees all of them."""
    left = [stored_bytes]
    asked: list[bool] = []

    def release_dead(*, written: bool) -> bool:
        asked.append(written)
        if dead:
            left[0] = 0
        return dead

    return SimpleNamespace(
        path="q",
        active_count=active_count,
        size_bytes=size_bytes,
        stored_bytes=lambda: left[0],
        context=SimpleNamespace(blobs=SimpleNamespace(release_dead=release_dead)),
        asked=asked,
    )


def test_what_is_coming_counts_until_it_is_given_back() -> None:
    quota = Quota()
    quota.limit_bytes = 100
    entity = owner(40)
    quota.reserve(entity, 50)
    assert isinstance(quota.refusal(entity, 11), QuotaExceededError)
    with pytest.raises(QuotaExceededError, match="in bytes:40, Max entity size in bytes:100"):
        quota.reserve(entity, 11)
    quota.check(entity, 10)
    quota.release(50)
    quota.check(entity, 60)


def test_without_a_limit_everything_fits() -> None:
    assert Quota().refusal(owner(1 << 40), 1 << 40) is None


@pytest.mark.parametrize("midway", [False, True])
def test_dead_bodies_are_given_up_before_a_refusal(*, midway: bool) -> None:
    """I1. In the middle of an operation nothing is written for that."""
    quota = Quota()
    quota.limit_bytes = 100
    entity = owner(100, dead=True)
    assert quota.refusal(entity, 1, midway=midway) is None
    assert entity.asked == [not midway]
    assert isinstance(quota.refusal(owner(100), 1, midway=midway), QuotaExceededError)


def test_copies_that_are_sure_to_be_made_count_and_those_of_what_waits() -> None:
    quota = Quota()
    quota.limit_bytes = 100
    quota.copies = 2
    assert quota.refusal(owner(0, size_bytes=90), 50) is None, "what is scheduled does not wait to be copied"
    assert quota.refusal(owner(0, active_count=1, size_bytes=30), 20) is None
    assert quota.refusal(owner(0, active_count=1, size_bytes=30), 21) is not None
