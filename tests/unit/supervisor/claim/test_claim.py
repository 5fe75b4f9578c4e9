"""A claim's attempts, without a namespace."""

from __future__ import annotations

import pytest

from isthmus.errors import ConnectionLostError
from isthmus.supervisor.claim.claim import Claim, _Held
from isthmus.supervisor.supervisor import ClaimState
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint
from isthmus.transport import Client


@pytest.mark.parametrize("error", [ConnectionLostError("away"), OSError("away"), ValueError("away")])
def test_i3_any_obstacle_is_reported_and_tried_again(error: Exception) -> None:
    """The thread that keeps a claim ends with the first attempt that raises, and the claim is not kept any more."""

    def connect(endpoint: Endpoint) -> Client:
        raise error

    claim = Claim("flights", "ewr", connect)
    assert 0 < claim.attempt() <= 2.0
    assert claim.view().state is ClaimState.UNREACHABLE
    assert "away" in claim.view().text


def test_i4_a_claim_is_held_for_what_is_left_of_its_lock_counted_from_the_asking() -> None:
    clock = ManualClock()
    claim = Claim("flights", "ewr", lambda _: pytest.fail("not connected"), clock=clock, lock_ms=15_000)
    assert claim.remaining_seconds() == 0.0
    claim._held = _Held([], clock.monotonic() + 15.0)
    clock.advance(6_000)
    assert claim.remaining_seconds() == 9.0
    clock.advance(10_000)
    assert claim.remaining_seconds() == 0.0
    assert claim.view().state is ClaimState.UNREACHABLE
