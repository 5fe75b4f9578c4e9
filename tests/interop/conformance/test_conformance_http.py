"""The conformance scenarios of an HTTP target, on a receiver of its own process.

What concerns the target runs with all tests, the others with --soak: their source is Service Bus, which has them with itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.conformance.conformance_suite import ACROSS, CASE, LEAST, Suite, asked, cases, make_suite, servicebus_end
from harness.conformance.http_end import HttpEnd
from harness.server.http_server import http_receiver
from isthmus.testing.bridge.scenario import SCENARIOS
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = [("servicebus", "http")]
OF_THE_TARGET = ACROSS | {name for name in SCENARIOS if "target" in name or "refuse" in name}


@contextmanager
def http_end(folder: Path) -> Iterator[SystemEnd]:
    with http_receiver(folder) as server:
        yield HttpEnd(server)


suite = make_suite({"servicebus": servicebus_end, "http": http_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, OF_THE_TARGET))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
