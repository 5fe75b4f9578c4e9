"""The conformance scenarios of Queue Storage, on a real Azurite.

Each message takes several requests, so that all scenarios take minutes: those of `ALWAYS` run with all tests, the others with --soak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.conformance.conformance_suite import CASE, LEAST, Suite, asked, cases, make_suite, pairs_of, servicebus_end
from harness.conformance.queuestorage_end import QueueStorageEnd
from harness.server.azurite_server import azurite
from isthmus.testing.bridge.system_pair import SystemEnd

PAIRS = pairs_of("queuestorage")
# Each message takes several requests, and each change of Azurite a sync of its disk: with all tests, only what is the kind's own.
ALWAYS = {
    "empty_messages",
    "a_message_that_is_too_large_for_the_target",
    "locks_are_kept_while_the_target_says_nothing",
    "only_present_of_an_empty_source_ends",
    "reader_killed_after_a_settlement",
    "sink_killed_after_a_store",
    "source_lost_after_a_settlement",
    "target_lost_after_it_stored",
    "the_server_of_the_source_is_killed",
    "the_server_of_the_target_is_killed",
}
ALWAYS_ACROSS = {"empty_messages", "a_message_that_is_too_large_for_the_target"}


@contextmanager
def queuestorage_end(folder: Path) -> Iterator[SystemEnd]:
    with azurite(folder) as server, closing(QueueStorageEnd(server)) as end:
        yield end


suite = make_suite({"servicebus": servicebus_end, "queuestorage": queuestorage_end})


def _cases() -> Iterator[Any]:
    for each in cases(PAIRS):
        source, target, name = each.values
        is_always = name in (ALWAYS if source == target else ALWAYS_ACROSS)
        marks = [*each.marks, *([] if is_always else [pytest.mark.soak])]
        yield pytest.param(*each.values, id=each.id, marks=marks)


@pytest.mark.parametrize(CASE, list(_cases()))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
