"""The fill of topics and its forecast are reported early and never guessed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from isthmus.connectors.administration import EntitySize
from isthmus.errors import ConnectionLostError
from isthmus.supervisor.display import fill_lines
from isthmus.supervisor.watch import fill as fill_module
from isthmus.supervisor.watch.fill import WINDOW_SECONDS, Fill, FillTrend, FillWatch, entity_of, fill_now, topics_of
from isthmus.topology import read
from isthmus.topology.model import NamespaceRef
from isthmus.topology.route import routes

FEDERATION = read(
    """isthmus: 1
namespaces:
  ewr: {host: ewr.example.com}
  jfk: {host: jfk.example.com}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""
)
GB = 1024**3


def test_i1_a_forecast_needs_growth_over_some_time() -> None:
    trend = FillTrend()
    assert trend.hours_until_full(GB) is None
    trend.add(0.0, 0)
    trend.add(5.0, GB // 100)
    assert trend.hours_until_full(GB) is None
    trend.add(36.0, GB // 100)
    assert trend.hours_until_full(GB) == pytest.approx(0.99)
    trend.add(37.0, 0)
    assert trend.hours_until_full(GB) is None


def test_i1_what_was_long_ago_does_not_count() -> None:
    trend = FillTrend()
    for hour, used in enumerate([0, 900, 900, 910]):
        trend.add(hour * WINDOW_SECONDS, used)
    assert trend.hours_until_full(1000) == pytest.approx(9.0)


def test_a_full_topic_is_full_now() -> None:
    trend = FillTrend()
    trend.add(0, 10)
    trend.add(100, 1100)
    assert trend.hours_until_full(1000) == 0.0


@pytest.mark.parametrize(
    ("fill", "text", "warns"),
    [
        (Fill("ewr", "orders", GB, 5 * GB, kind="queue"), "queue orders at ewr: 20 % of 5 GB", False),
        (Fill("ewr", "flights", GB, 5 * GB), "topic flights at ewr: 20 % of 5 GB", False),
        (Fill("ewr", "flights", GB, 5 * GB, 30.0), "topic flights at ewr: 20 % of 5 GB, full in 30 h", False),
        (Fill("ewr", "flights", GB, 5 * GB, 0.5), "topic flights at ewr: 20 % of 5 GB, full in 30 min", True),
        (Fill("ewr", "flights", 9 * GB, 10 * GB), "topic flights at ewr: 90 % of 10 GB", True),
        (Fill("ewr", "flights", 10 * GB, 10 * GB, 0.0), "topic flights at ewr: 100 % of 10 GB, full in 0 min", True),
    ],
)
def test_a_fill_is_reported_with_its_forecast(fill: Fill, text: str, warns: bool) -> None:
    assert (fill.text(), fill.warns) == (text, warns)
    assert [str(line) for line in fill_lines([fill.to_dict()])] == [text]


class Administration:
    closed = 0
    is_closed = False

    def __init__(self, namespace: NamespaceRef) -> None:
        self.alias = namespace.alias

    def size(self, entity: str) -> EntitySize | None:
        assert entity == "flights"
        if self.alias == "jfk":
            raise ConnectionLostError("jfk: Connection refused")
        return EntitySize(3 * GB, 5 * GB)

    def close(self) -> None:
        Administration.closed += 1


OPENER: Any = Administration


def test_i2_a_namespace_that_cannot_be_asked_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = routes(FEDERATION)
    assert topics_of(chosen) == {"ewr": ["flights"], "jfk": ["flights"]}
    monkeypatch.setattr(fill_module.time, "time", lambda: 7200.0)
    found = fill_now(FEDERATION, chosen, {("ewr", "flights"): (3600.0, 2 * GB)}, OPENER)
    assert found == [Fill("ewr", "flights", 3 * GB, 5 * GB, pytest.approx(2.0))]
    assert Administration.closed == 2


def test_the_watch_keeps_what_it_found() -> None:
    looked = threading.Event()

    class Looking(Administration):
        def size(self, entity: str) -> EntitySize | None:
            found = super().size(entity)
            if self.alias == "ewr":
                looked.set()
            return found

    opener: Any = Looking
    watch = FillWatch(FEDERATION, routes(FEDERATION), opener)
    assert watch.fills() == []
    watch.start()
    try:
        assert looked.wait(10)
        while not watch.fills():
            threading.Event().wait(0.001)
        assert watch.fills() == [Fill("ewr", "flights", 3 * GB, 5 * GB)]
    finally:
        watch.close()


@pytest.mark.parametrize("path", ["orders", "orders/$DeadLetterQueue", "orders/Subscriptions/s/$DeadLetterQueue"])
def test_a_dead_letter_queue_is_part_of_its_entity(path: str) -> None:
    assert entity_of(path) == "orders"


def test_the_watch_asks_over_one_connection_and_over_another_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_module, "INTERVAL_SECONDS", 0.001)
    opened: list[Administration] = []
    sizes = iter([EntitySize(GB, 5 * GB), EntitySize(2 * GB, 5 * GB), None, EntitySize(3 * GB, 5 * GB)])
    ended = threading.Event()

    class Failing(Administration):
        def __init__(self, namespace: NamespaceRef) -> None:
            super().__init__(namespace)
            opened.append(self)

        def size(self, entity: str) -> EntitySize | None:
            try:
                size = next(sizes)
            except StopIteration:
                ended.set()
                return EntitySize(4 * GB, 5 * GB)
            if size is None:
                raise ConnectionLostError("ewr: Connection reset")
            return size

        def close(self) -> None:
            self.is_closed = True

    opener: Any = Failing
    watch = FillWatch(FEDERATION, [route for route in routes(FEDERATION) if route.source.alias == "ewr"][:1], opener)
    del watch._threads[1:]
    watch.start()
    assert ended.wait(10)
    watch.close()
    watch._threads[0].join(10)
    assert len(opened) == 2
    assert [each.is_closed for each in opened] == [True, True]


def test_i2_whatever_a_look_meets_others_follow_and_what_is_old_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """`when_full: drop` would delete by an old size, or without one."""
    monkeypatch.setattr(fill_module, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(fill_module, "IDLE_SECONDS", 0.001)
    now, failed, again = [1_000.0], threading.Event(), threading.Event()
    answers: list[Any] = [EntitySize(GB, 5 * GB)]

    class Failing(Administration):
        def size(self, entity: str) -> EntitySize | None:
            if not answers:
                failed.set()
                raise TypeError("what came is not what was expected")
            if failed.is_set():
                again.set()
                return EntitySize(2 * GB, 5 * GB)
            return answers.pop()

    opener: Any = Failing
    watch = FillWatch(FEDERATION, routes(FEDERATION), opener, lambda: now[0])
    del watch._threads[1:]
    watch.start()
    try:
        assert failed.wait(10)
        assert [each.used_bytes for each in watch.fills()] == [GB]
        now[0] += fill_module.STALE_SECONDS
        assert watch.fills() == []
        answers.append(None)
        assert again.wait(10)
        while not watch.fills():
            threading.Event().wait(0.001)
        assert [each.used_bytes for each in watch.fills()] == [2 * GB]
    finally:
        watch.close()
