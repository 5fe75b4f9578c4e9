"""When a failover receiver takes the secondary for drained, without namespaces."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from isthmus.client.failover_receiver import FailoverReceiver, FailoverState
from isthmus.client.receive.failover import SECONDARY

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"
LATER_SECONDS = 60.0


class Engine:
    """Answers probes when a test says so."""

    def __init__(self) -> None:
        self.probes: list[Future[Any]] = []

    def begin(self, side: str, what: object) -> Future[Any]:
        assert side == SECONDARY
        self.probes.append(Future())
        return self.probes[-1]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[FailoverReceiver]:
    """Made while the way back was under way."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"version": 1, "state": "draining", "watermark_ms": 0}))
    made = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=state)
    assert made.state is FailoverState.DRAINING
    yield made
    made.close()


def test_a_secondary_that_is_silent_is_drained_only_once_it_has_answered(receiver: FailoverReceiver) -> None:
    """A namespace that stands still sends nothing either, and what was sent there would be left behind."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = time.monotonic() + LATER_SECONDS
    assert not receiver._is_caught_up(now)
    receiver._probe_read(now)
    assert not receiver._is_caught_up(now)
    engine.probes[0].set_result([])
    receiver._probe_read(now)
    assert receiver._is_caught_up(now)
    receiver._engine = kept


def test_after_a_restart_a_message_from_before_it_does_not_say_that_all_have_arrived(
    receiver: FailoverReceiver,
) -> None:
    """Only one from after the switch does; when that was is not kept, and it was before the restart."""
    receiver._arrived_at = time.monotonic()
    receiver._latest_ms = time.time_ns() // 1_000_000 - 3_600_000
    assert not receiver._is_caught_up(time.monotonic())
    receiver._latest_ms = time.time_ns() // 1_000_000 + 3_600_000
    assert receiver._is_caught_up(time.monotonic())


def test_a_turn_that_changes_nothing_is_followed_by_a_pause(receiver: FailoverReceiver) -> None:
    """Whatever wakes the thread at the end of its own turn keeps it busy for ever."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = receiver._tried_primary_at = time.monotonic()
    receiver._turn(now)
    assert not receiver._wake.is_set()
    receiver.fail_over()
    assert receiver._wake.is_set()
    receiver._engine = kept
