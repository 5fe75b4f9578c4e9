"""When a sink reads what its targets report."""

from __future__ import annotations

from isthmus.bridge.delivery.read_pace import READ_SECONDS, ReadPace


def test_without_rows_it_is_read_at_once() -> None:  # I1
    pace = ReadPace()
    pace.has_read(10.0)
    assert pace.waits_until(10.0) <= 10.0
    pace.rows_came(10.0)
    assert pace.waits_until(10.0 + READ_SECONDS * 1.5) <= 10.0


def test_while_rows_come_it_is_read_with_them_or_a_while_after_the_last_time() -> None:  # I1
    pace = ReadPace()
    pace.has_read(10.0)
    pace.rows_came(10.0)
    assert pace.waits_until(10.001) == 10.0 + READ_SECONDS
    pace.has_read(10.002)
    assert pace.waits_until(10.003) == 10.002 + READ_SECONDS
