from __future__ import annotations

import random

from isthmus.client.circuit import Circuit


def test_it_opens_at_a_failure_and_lets_one_trial_through_after_the_wait() -> None:
    """I1."""
    circuit = Circuit(first_seconds=1.0, limit_seconds=8.0, source=random.Random(1))
    assert circuit.allows(0.0)
    circuit.failed(0.0)
    assert circuit.is_open
    wait = circuit.retry_in(0.0)
    assert not circuit.allows(wait - 0.01)
    assert circuit.allows(wait)
    assert not circuit.allows(wait), "one trial at a time"
    circuit.failed(wait)
    assert not circuit.allows(wait)


def test_a_trial_that_never_ends_does_not_block_for_ever() -> None:
    circuit = Circuit(first_seconds=1.0)
    circuit.failed(0.0)
    assert circuit.allows(1.0, trial_seconds=5.0)
    assert not circuit.allows(5.9)
    assert circuit.allows(6.0)


def test_waits_grow_are_jittered_and_start_again_after_a_success() -> None:
    """I2."""
    circuit = Circuit(first_seconds=1.0, limit_seconds=8.0, source=random.Random(2))
    waits = []
    for _ in range(6):
        circuit.failed(0.0)
        waits.append(circuit.retry_in(0.0))
    for step, wait in zip((1, 2, 4, 8, 8, 8), waits, strict=True):
        assert step / 2 <= wait <= step
    circuit.succeeded()
    assert not circuit.is_open
    circuit.failed(0.0)
    assert circuit.retry_in(0.0) <= 1.0


def test_it_opens_at_its_threshold() -> None:
    circuit = Circuit(threshold=3)
    circuit.failed(0.0)
    circuit.failed(0.0)
    assert not circuit.is_open
    circuit.failed(0.0)
    assert circuit.is_open
    assert circuit.state().opened == 1
