"""What a sink reports to its reader, and when."""

from __future__ import annotations

import math

from isthmus.bridge.delivery.settle_account import SEND_MESSAGES, SEND_SECONDS, SettleAccount
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.frame import Kind, unpack_flushed, unpack_json, unpack_runs
from isthmus.bridge.host.channel import FRAME_LIMIT_BYTES


def _account(*handles: int) -> SettleAccount:
    account = SettleAccount()
    for handle in handles:
        account.open(handle)
    account.take(0.0)
    return account


def _runs(account: SettleAccount, now: float = 0.0) -> list[tuple[int, int, int]]:
    return [run for kind, payload in account.take(now) if kind == Kind.SETTLE for run in unpack_runs(payload)]


def test_runs_that_follow_each_other_are_reported_as_one() -> None:
    account = _account(1, 2)
    account.settle(1, range(10, 20))
    account.settle(2, range(5))
    account.settle(1, range(20, 30))
    account.settle(1, [32, 31, 30, 40])
    account.settle(2, [7, 6, 9])
    assert _runs(account) == [(1, 10, 32), (1, 40, 40), (2, 0, 4), (2, 6, 7), (2, 9, 9)]
    assert not _runs(account)  # I1


def test_a_position_that_was_delivered_twice_is_reported_twice() -> None:
    account = _account(1)
    account.settle(1, [5])
    account.settle(1, [5, 6])
    assert sum(last - first + 1 for _, first, last in _runs(account)) == 3


def test_nothing_is_due_without_anything_to_report() -> None:
    assert _account(1).deadline() == math.inf


def test_few_settlements_wait_and_many_do_not() -> None:  # I2
    account = _account(1)
    account.came(1, 1_000)
    account.settle(1, range(SEND_MESSAGES - 1))
    assert account.deadline() == SEND_SECONDS
    account.settle(1, range(SEND_MESSAGES, SEND_MESSAGES + 1))
    assert account.deadline() == -math.inf
    account.take(5.0)
    account.settle(1, [100])
    assert account.deadline() == 5.0 + SEND_SECONDS


def test_a_source_that_may_be_waiting_is_reported_at_once() -> None:  # I2
    account = _account(1, 2)
    account.set_window(1, 8)
    account.came(1, 5)
    account.came(2, 500)
    account.settle(1, [0])
    account.settle(2, [0])
    assert account.deadline() == SEND_SECONDS
    account.came(1, 1)  # 6 of 8 are out, and one of them is settled and not reported
    assert [account.is_source_waiting] == [True]
    assert account.deadline() == -math.inf
    account.take(1.0)
    assert [account.is_source_waiting] == [False]
    account.set_window(1, 4)
    assert [account.is_source_waiting] == [True]
    assert account.deadline() == math.inf
    account.dispose(1, 1, Disposition("defer"))
    assert account.deadline() == -math.inf


def test_dispositions_that_follow_each_other_are_reported_as_one() -> None:
    account = _account(1, 2)
    for position in (4, 5, 7):
        account.dispose(1, position, Disposition("dead-letter", "a", "b"))
    account.dispose(2, 8, Disposition("dead-letter", "a", "b"))
    account.dispose(2, 9, Disposition("dead-letter", "a", "c" * 10_000))
    ((kind, payload),) = account.take(0.0)
    assert kind == Kind.DISPOSE
    found = [(item["handle"], item["first"], item["last"], len(item["description"])) for item in unpack_json(payload)]
    assert found == [(1, 4, 5, 1), (1, 7, 7, 1), (2, 8, 8, 1), (2, 9, 9, 4_000)]


def test_what_is_too_much_for_a_frame_goes_into_several() -> None:
    account = _account(1)
    account.settle(1, range(0, 240_000, 2))
    frames = account.take(0.0)
    assert [kind for kind, _ in frames] == [Kind.SETTLE] * 3
    assert sum(len(unpack_runs(payload)) for _, payload in frames) == 120_000
    assert max(len(payload) for _, payload in frames) < 1 << 24


def test_flush_rows_show_what_came_before_them_and_not_later() -> None:  # I3
    account = _account(1, 2, 3)
    account.came(1, 4)
    account.flush(1)
    account.came(2, 3)
    account.flush(2)
    account.came(1, 1)
    account.close(3)
    ((kind, payload),) = account.take(0.0)
    assert kind == Kind.FLUSHED
    assert unpack_flushed(payload) == (2, {1: 4, 2: 3})
    account.flush(3)
    ((_, payload),) = account.take(0.0)
    assert unpack_flushed(payload) == (3, {1: 5, 2: 3})


def test_closed_and_unknown_handles_are_not_reported() -> None:
    account = _account(1)
    account.came(1, 2)
    account.settle(1, [1])
    account.close(1)
    account.settle(1, [2])
    account.dispose(9, 3, Disposition("defer"))
    account.came(9, 1)
    account.set_window(9, 1)
    assert not account.take(0.0)
    assert not account.is_source_waiting


def test_no_frame_is_larger_than_a_channel_takes() -> None:
    account = _account(1)
    for position in range(0, 2 * 1_000, 2):  # every other one: none are reported together
        text = "\N{GRINNING FACE}" * 10_000
        account.dispose(1, position, Disposition("dead-letter", text, text))
    reported = account.take(0.0)
    assert max(len(payload) for _, payload in reported) <= FRAME_LIMIT_BYTES
    assert sum(len(unpack_json(payload)) for _, payload in reported) == 1_000
