"""The conformance scenarios of the shared engine, for each pair of kinds; the real ones are in tests/interop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from harness.conformance.conformance_waiver import WAIVERS, reason
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.lease import state as lease_state
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability, MemoryPair
from isthmus.testing.bridge.scenario import SCENARIOS

PAIRS = [("queue", "queue"), ("queue", "log"), ("log", "queue"), ("log", "log")]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays of production, shortened: seconds become tenths."""
    monkeypatch.setattr(lease_state, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(lease_state, "FATAL_SECONDS", 0.05)
    monkeypatch.setattr(lease_state, "REOPEN_SECONDS", 0.01)
    monkeypatch.setattr(lease_state, "GIVE_BACK_SECONDS", 0.2)
    monkeypatch.setattr(sender_handle, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(sender_handle, "LONGEST_DELAY_SECONDS", 0.05)
    monkeypatch.setattr(sender_handle, "DeliverySettings", partial(DeliverySettings, set_aside_seconds=0.1))


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[MemoryPair]:
    made = MemoryPair(*request.param)
    yield made
    made.close()


def _cases() -> Iterator[object]:
    for source, target in PAIRS:
        for name in SCENARIOS:
            why = reason(source, target, name)
            marks = [pytest.mark.skip(reason=f"waived: {why}")] if why else []
            yield pytest.param((source, target), name, id=f"{source}-{target}-{name}", marks=marks)


@pytest.mark.parametrize(("pair", "name"), list(_cases()), indirect=["pair"])
def test_scenario(pair: MemoryPair, name: str) -> None:
    SCENARIOS[name].run(Bench(pair))


def test_there_are_scenarios_enough_and_waivers_name_some() -> None:
    assert len(SCENARIOS) >= 25
    assert {what for _, _, what in WAIVERS} <= {*SCENARIOS, *(each.value for each in Ability)}
