"""The conformance scenarios from queues that require sessions."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from conformance_suite import CASE, LEAST, Suite, asked, cases, make_suite, servicebus_end
from isthmus.testing.bridge.system_pair import SystemEnd
from session_end import SessionEnd

PAIRS = [("sessions", "servicebus")]
ALWAYS = frozenset(
    {
        "order_is_kept",
        "reader_killed_after_a_settlement",
        "sink_killed_after_a_store",
        "source_lost_after_a_settlement",
        "target_lost_after_it_stored",
        "one_is_refused_for_itself",
    }
)


def session_end(folder: Path) -> AbstractContextManager[SystemEnd]:
    return closing(SessionEnd(folder))


suite = make_suite({"sessions": session_end, "servicebus": servicebus_end})


@pytest.mark.parametrize(CASE, cases(PAIRS, ALWAYS))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert asked(source, target) >= LEAST
