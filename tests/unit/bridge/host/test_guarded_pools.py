"""The pools of one process by kind."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from harness.check.until import until
from isthmus.bridge.host.guarded_pools import GuardedPools


class _Pool:
    def __init__(self) -> None:
        self.closed_by: list[threading.Thread] = []

    def descriptors(self) -> list[tuple[int, int]]:
        raise ValueError("a fault")

    def close(self) -> None:
        self.closed_by.append(threading.current_thread())


def _faulty(pool: _Pool) -> GuardedPools[Any]:
    pools: GuardedPools[Any] = GuardedPools(lambda kind: pool)
    pools.get("kind")
    pools.descriptors()
    assert list(pools.take_faults()) == ["kind"]
    return pools


def _no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_i2_a_faulty_pool_is_closed_in_another_thread_only_once_that_is_called_for() -> None:
    pool = _Pool()
    pools = _faulty(pool)
    pools.service({}, 0.0)
    assert not pool.closed_by
    pools.close_faulty()
    until(lambda: pool.closed_by)
    assert pool.closed_by != [threading.current_thread()]


def test_i2_a_faulty_pool_is_closed_later_where_no_thread_can_be_started() -> None:
    pool = _Pool()
    pools = _faulty(pool)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        pools.close_faulty()
        pools.service({}, pools.deadline(0.0))
    assert not pool.closed_by
    assert pools.deadline(0.0) < math.inf
    pools.service({}, pools.deadline(0.0))
    until(lambda: pool.closed_by)
    assert pools.deadline(0.0) == math.inf
    pools.close()
    assert len(pool.closed_by) == 1


def test_i2_a_faulty_pool_is_closed_at_the_end_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = _Pool()
    pools = _faulty(pool)
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    pools.close()
    assert pool.closed_by == [threading.current_thread()]
