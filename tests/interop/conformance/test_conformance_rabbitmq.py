"""The conformance scenarios between RabbitMQ and itself, and between RabbitMQ and Service Bus, in either direction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
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
from harness.conformance.rabbitmq_end import RabbitEnd
from harness.server.rabbitmq_server import rabbit_server
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = pairs_of("rabbitmq")


@contextmanager
def rabbitmq_end(folder: Path) -> Iterator[SystemEnd]:
    with rabbit_server(folder) as server, closing(RabbitEnd(server)) as end:
        yield end


suite = make_suite({"servicebus": servicebus_end, "rabbitmq": rabbitmq_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ACROSS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
