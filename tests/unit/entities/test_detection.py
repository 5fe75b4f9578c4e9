"""Duplicate detection where the clock is set, and where a window's generation ends between two messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.entities import QueueDescription

WINDOW_MS = 20_000
Make = Callable[..., bytes]


@pytest.fixture
def began(namespace: Any) -> int:
    """When a generation begins; the queue is there, and its clock stands one second later."""
    namespace.engine.create_queue(
        "q",
        QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=WINDOW_MS),
    )
    namespace.commit()
    began: int = (namespace.clock.wall_ms() // WINDOW_MS + 1) * WINDOW_MS
    namespace.clock.set_wall(began + 1_000)
    return began


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_a_clock_that_goes_back_lets_no_equal_in_i1(
    namespace: Any, began: int, message: Make, committed: bool, restarted: bool
) -> None:
    namespace.sender("q").accept([message("m")])
    if committed or restarted:
        namespace.commit()
    namespace.clock.set_wall(began - 1_000)
    if restarted:
        namespace.crash()
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 1


def test_an_equal_in_the_same_commit_and_another_generation_is_seen_i1(
    namespace: Any, began: int, message: Make
) -> None:
    namespace.clock.set_wall(began + WINDOW_MS - 1)
    namespace.sender("q").accept([message("m")])
    namespace.clock.set_wall(began + WINDOW_MS)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 1


def test_a_clock_that_was_ahead_for_a_while_forgets_nothing_i1(namespace: Any, began: int, message: Make) -> None:
    namespace.clock.set_wall(began + WINDOW_MS - 1_000)
    namespace.send("q", message("m"))
    namespace.clock.set_wall(began + 2 * WINDOW_MS)
    namespace.send("q", message("other"))
    namespace.clock.set_wall(began + 2 * WINDOW_MS - 4_000)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 2
    namespace.clock.set_wall(began + 2 * WINDOW_MS - 999)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 3
