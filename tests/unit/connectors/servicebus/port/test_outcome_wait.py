"""isthmus.connectors.servicebus.port.outcome_wait."""

from __future__ import annotations

import math
from types import SimpleNamespace

from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.connectors.transit import LOOK_SECONDS


def test_i1_it_begins_again_as_long_as_bytes_of_the_deliveries_arrive() -> None:
    """A large message over a slow network was sent again and again: its upload took longer than the time-out."""
    carrier = SimpleNamespace(queued_bytes=0, arrived_bytes=0)
    wait = OutcomeWait(carrier)
    assert wait.due == math.inf
    wait.sent(100.0)
    carrier.queued_bytes = 1 << 20
    assert wait.due == 100.0 + LOOK_SECONDS
    assert not wait.progresses(wait.due - 0.1)
    for _ in range(100):
        now = wait.due
        carrier.arrived_bytes += 1 << 10
        assert wait.progresses(now)
        assert wait.since == now
        assert not wait.is_over(now)
    assert not wait.progresses(now + LOOK_SECONDS), "nothing has arrived since"
    assert (wait.since, wait.due) == (now, now + 2 * LOOK_SECONDS)
    assert not wait.progresses(now + OUTCOME_SECONDS - 0.1)
    assert wait.due == now + OUTCOME_SECONDS
    assert not wait.is_over(now + OUTCOME_SECONDS - 0.1)
    assert wait.is_over(now + OUTCOME_SECONDS)
