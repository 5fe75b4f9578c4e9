"""The conformance scenarios of Queue Storage, on a real Azurite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from azurite_server import azurite
from conformance_suite import CASE, LEAST, Suite, asked, cases, make_suite, pairs_of, servicebus_end
from isthmus.testing.bridge.system_pair import SystemEnd
from queuestorage_end import QueueStorageEnd

PAIRS = pairs_of("queuestorage")


@contextmanager
def queuestorage_end(folder: Path) -> Iterator[SystemEnd]:
    with azurite(folder) as server, closing(QueueStorageEnd(server)) as end:
        yield end


suite = make_suite({"servicebus": servicebus_end, "queuestorage": queuestorage_end})


@pytest.mark.parametrize(CASE, cases(PAIRS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
