"""isthmus.supervisor.watch.binding"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from isthmus.connectors.system import Waits
from isthmus.errors import ConnectionLostError
from isthmus.supervisor.watch.binding import INTERVAL_SECONDS, BindingWatch
from isthmus.supervisor.watch.watch import BacklogWatch
from isthmus.topology.model import Endpoint, Route

PLAIN = Route(
    name="flights/ewr",
    task="flights",
    pattern="copy",
    source=Endpoint("lga", "flights"),
    targets=(Endpoint("ewr", "q"),),
)
ROUTE = replace(
    PLAIN,
    options=replace(
        PLAIN.options,
        plain=replace(PLAIN.options.plain, reads=True, reads_topic=True, subscription="isthmus.flights.ewr"),
    ),
)
TEXT = "queue isthmus.flights.ewr is not bound to exchange flights at lga: what is published there is not moved"


class Reached:
    """A namespace whose answers are given."""

    def __init__(self, *answers: bool | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Endpoint, str]] = []

    def is_bound(self, endpoint: Endpoint, group: str) -> bool | None:
        self.asked.append((endpoint, group))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def warned(watch: BindingWatch, clients: Any, caplog: pytest.LogCaptureFixture) -> list[int]:
    """After which queries there was a warning more."""
    found = []
    for number in range(len(clients.answers)):
        caplog.clear()
        watch.query(clients, number * INTERVAL_SECONDS)
        if caplog.messages:
            assert [TEXT in each for each in caplog.messages] == [True]
            found.append(number)
    return found


def test_i1_a_missing_binding_is_logged_once_and_again_after_it_was_there(caplog: pytest.LogCaptureFixture) -> None:
    clients = Reached(True, False, False, ConnectionLostError("away"), False, None, False, True, False)
    assert warned(BindingWatch([ROUTE]), clients, caplog) == [1, 6, 8]
    assert set(clients.asked) == {(ROUTE.source, "isthmus.flights.ewr")}


@pytest.mark.parametrize("fault", [ConnectionLostError("away"), TimeoutError(), ValueError("odd")])
def test_i2_a_namespace_that_does_not_answer_is_asked_once_for_all_its_routes(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watch, clients = BindingWatch([ROUTE, replace(ROUTE, name="other")]), Reached(fault, True, True)
    for now in (0.0, 1.0, INTERVAL_SECONDS - 1.0):
        watch.query(clients, now)  # type: ignore[arg-type]
    assert len(clients.asked) == 1
    watch.query(clients, INTERVAL_SECONDS)  # type: ignore[arg-type]
    assert len(clients.asked) == 3
    assert not caplog.messages


def test_a_route_without_a_queue_of_its_own_is_not_asked_for() -> None:
    watch = BindingWatch([PLAIN])
    watch.query(Reached(), 0.0)  # type: ignore[arg-type]
    assert watch.due == math.inf


def test_a_run_names_what_is_missing_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def is_bound(*_: object) -> bool:
        asked.set()
        return False

    class Opened(SimpleNamespace):
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

    clients: Any = Opened(is_bound=is_bound, waiting=lambda endpoint, group: Waits())
    running = BacklogWatch([ROUTE], lambda: clients).start()
    assert asked.wait(10.0)
    running.close()
    assert any(TEXT in each for each in caplog.messages)
