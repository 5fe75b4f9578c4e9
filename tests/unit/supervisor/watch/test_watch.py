"""Measurements of backlogs are correct and cheap."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.connectors.system import Waits
from isthmus.replication.query.route_progress import Backlog
from isthmus.supervisor.watch import watch
from isthmus.supervisor.watch.watch import BUSY_SECONDS, IDLE_SECONDS, STALE_SECONDS, BacklogMeter, BacklogWatch
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Route


def message(sequence: int, enqueued_ms: int) -> bytes:
    return section.encode_message(
        b"", annotations={"x-opt-sequence-number": Long(sequence), "x-opt-enqueued-time": Timestamp(enqueued_ms)}
    )


class Source:
    def __init__(self, sequences: Sequence[int], clock: ManualClock) -> None:
        self.messages = [(sequence, message(sequence, clock.wall_ms())) for sequence in sequences]

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        return [encoded for sequence, encoded in self.messages if sequence >= from_sequence][:count]


def test_what_waits_is_the_span_of_sequence_numbers() -> None:
    clock = ManualClock()
    meter = BacklogMeter(clock)
    assert meter(Source(range(41, 141), clock).peek) == Backlog(100, clock.wall_ms())
    assert meter.interval_seconds == BUSY_SECONDS


def test_of_a_partitioned_source_the_spans_of_its_fragments_are_summed() -> None:
    """Their sequence numbers are 2**48 apart."""
    clock = ManualClock()
    one, four = 1 << 48, 4 << 48
    backlog = [*range(7, 9), *range(one + 3, one + 13), *range(four + 1, four + 101)]
    assert BacklogMeter(clock)(Source(backlog, clock).peek).waiting == 112
    assert BacklogMeter(clock)(Source(backlog[2:], clock).peek).waiting == 110


def test_i1_looks_at_an_idle_source_back_off_and_come_back() -> None:
    clock = ManualClock()
    meter = BacklogMeter(clock)
    empty, busy = Source([], clock), Source([7], clock)
    intervals = []
    for _ in range(8):
        assert meter(empty.peek) == Backlog()
        intervals.append(meter.interval_seconds)
    assert intervals == sorted(intervals)
    assert intervals[-1] == IDLE_SECONDS
    assert meter(busy.peek).waiting == 1
    assert meter.interval_seconds == BUSY_SECONDS


@pytest.mark.parametrize(
    ("reported", "found", "seconds"),
    [
        (Waits(3, 7, are_ready=True), Backlog(3, 7, are_ready=True), BUSY_SECONDS),
        (Waits(3), Backlog(3, 0, are_ready=False), BUSY_SECONDS),
        (Waits(), Backlog(are_ready=False), 2 * BUSY_SECONDS),
        (None, None, 2 * BUSY_SECONDS),
    ],
)
def test_what_another_system_reports_counts_and_what_it_does_not_report_is_unknown(
    reported: Waits | None, found: Backlog | None, seconds: float
) -> None:
    meter = BacklogMeter(ManualClock())
    clients: Any = SimpleNamespace(waiting=lambda endpoint, group: reported)
    route = replace(ROUTE, options=replace(ROUTE.options, log=replace(ROUTE.options.log, group="g")))
    assert meter.measure(clients, route) == found
    assert meter.interval_seconds == seconds


def test_the_age_of_what_waits_is_unknown_where_no_time_is_reported() -> None:
    assert [each.age_seconds(5000) for each in (Backlog(), Backlog(1), Backlog(1, 2000), Backlog(1, 9000))] == [
        0.0,
        None,
        3.0,
        0.0,
    ]


ROUTE = Route(name="t.a.b", task="t", pattern="copy", source=Endpoint("a", "q"), targets=(Endpoint("b", "q"),))


class Reached:
    """Namespaces whose looks return, one after the other, what is given; an error is raised."""

    def __init__(self, answers: list[Source | Exception], end: threading.Event) -> None:
        self.answers = answers
        self.end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def peek(self, endpoint: Endpoint) -> object:
        answer = self.answers.pop(0)
        if not self.answers:
            self.end.set()
        if isinstance(answer, Exception):
            raise answer
        return answer.peek


def test_i3_whatever_a_look_meets_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UNREACHABLE_SECONDS", 0.0)
    is_over = threading.Event()
    answers: list[Source | Exception] = [ValueError("odd"), Source(range(3), ManualClock())]
    running = BacklogWatch([ROUTE], lambda: Reached(answers, is_over))  # type: ignore[arg-type, return-value]
    running.start()
    assert is_over.wait(10.0)
    running.close()
    assert running.backlog(ROUTE) is not None


def test_i3_what_was_seen_long_ago_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    is_over = threading.Event()
    running = BacklogWatch(
        [ROUTE],
        lambda: Reached([Source(range(3), ManualClock())], is_over),  # type: ignore[arg-type, return-value]
        lambda: now[0],
    )
    running.start()
    assert is_over.wait(10.0)
    running.close()
    assert running.backlog(ROUTE) is not None
    now[0] = STALE_SECONDS
    assert running.backlog(ROUTE) is None
