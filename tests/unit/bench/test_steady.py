from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from isthmus.bench import steady
from isthmus.bench.process import Account, Usage, cpu_us_per_message
from isthmus.bench.steady import measure_steady
from isthmus.errors import OperationTimeoutError


class Copy:
    """A copy that moves 100 messages a second, on a clock that advances with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def count(self) -> int:
        # Nothing for the first two seconds, as while something starts.
        return min(1000, int(max(0.0, self.now - 2) * 100))


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Copy:
    fake = Copy()
    monkeypatch.setattr(steady, "time", fake)
    return fake


def test_the_rate_leaves_start_and_end_out(copy: Copy) -> None:
    result = measure_steady(copy.count, 1000, Account({"self": os.getpid()}))
    assert result.messages_per_second == pytest.approx(100, rel=0.02)
    assert result.resident_bytes > 0


def test_a_copy_that_stalls_ends_the_measurement(copy: Copy) -> None:
    def half() -> int:
        return copy.count() // 2

    with pytest.raises(OperationTimeoutError, match=r"500 of 1000 messages"):
        measure_steady(half, 1000, Account({}), timeout_seconds=60)


def test_a_failed_copy_is_noticed(copy: Copy) -> None:
    def fail() -> None:
        raise RuntimeError("exited")

    check: Callable[[], None] = fail
    with pytest.raises(RuntimeError, match="exited"):
        measure_steady(copy.count, 1000, Account({}), check=check)


def test_cost_per_message() -> None:
    before = {"a": Usage(cpu_seconds=1.0), "b": Usage(cpu_seconds=2.0)}
    after = {"a": Usage(cpu_seconds=1.5), "b": Usage(cpu_seconds=2.0), "late": Usage(cpu_seconds=0.1)}
    cost = cpu_us_per_message(before, after, 10_000)
    assert cost == {"a": 50.0, "b": 0.0, "late": 10.0, "total": 60.0}


def test_i1_a_process_that_ended_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account({"self": os.getpid()})
    seen = account.read()["self"].cpu_seconds
    monkeypatch.setattr(Account, "_groups", lambda _: {})
    assert account.read()["self"].cpu_seconds >= seen
