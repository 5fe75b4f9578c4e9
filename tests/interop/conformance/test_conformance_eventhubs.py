"""The conformance scenarios with Event Hubs as source and as target, on a namespace of isthmus."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from harness.conformance.conformance_suite import (
    ACROSS,
    CASE,
    LEAST,
    Suite,
    asked,
    cases,
    make_suite,
    pairs_of,
    servicebus_end,
)
from harness.conformance.eventhubs_end import EventHubsEnd
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = pairs_of("eventhubs")


def eventhubs_end(folder: Path) -> AbstractContextManager[SystemEnd]:
    return closing(EventHubsEnd(folder))


suite = make_suite({"servicebus": servicebus_end, "eventhubs": eventhubs_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ACROSS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
