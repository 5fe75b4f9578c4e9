"""The conformance scenarios of Event Grid, on a server that is written from the vendor's public contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from harness.conformance.eventgrid_end import EventGridEnd
from harness.server.eventgrid_server import eventgrid_server
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = pairs_of("eventgrid")


@contextmanager
def eventgrid_end(folder: Path) -> Iterator[SystemEnd]:
    with eventgrid_server(folder) as server:
        yield EventGridEnd(server)


suite = make_suite({"servicebus": servicebus_end, "eventgrid": eventgrid_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ACROSS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
