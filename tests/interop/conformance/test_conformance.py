"""The conformance scenarios between real systems: Service Bus and Kafka, each as source and as target.

Each kind with itself has all scenarios; from one to the other those of `ACROSS` run with all tests, the others with --soak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness.conformance.conformance_suite import ACROSS, CASE, LEAST, Suite, asked, cases, make_suite, servicebus_end
from harness.conformance.kafka_end import KafkaEnd
from harness.server.kafka_broker import broker
from isthmus.testing.bridge.system_pair import SystemEnd

KINDS = ("servicebus", "kafka")
PAIRS = [(source, target) for source in KINDS for target in KINDS]


@contextmanager
def kafka_end(folder: Path) -> Iterator[SystemEnd]:
    with broker(folder) as running, closing(KafkaEnd(running)) as end:
        yield end


suite = make_suite({"servicebus": servicebus_end, "kafka": kafka_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ACROSS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
