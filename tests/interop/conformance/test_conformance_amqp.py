"""The conformance scenarios for AMQP 1.0 brokers: ActiveMQ Artemis with itself, and with Service Bus in either direction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness.conformance.artemis_end import ArtemisEnd
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
from harness.server.artemis_broker import artemis
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = pairs_of("amqp")


@contextmanager
def artemis_end(folder: Path) -> Iterator[SystemEnd]:
    # Little credit: what was granted before an address is blocked may still be sent.
    with artemis(folder, credit=20) as running, closing(ArtemisEnd(running)) as end:
        yield end


suite = make_suite({"servicebus": servicebus_end, "amqp": artemis_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ACROSS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
