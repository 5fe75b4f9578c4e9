"""From every kind of source to every kind of target: nothing is lost, in order where that is promised, types kept; also with every server
killed meanwhile.

The whole runs with `--soak`, in one slice for each kind of source, and is recorded for docs/explanation/any-to-any.md. With all tests the
kinds whose servers start in a second move fewer messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.matrix import any_record
from harness.matrix.any_record import Cell
from harness.matrix.any_to_any import SOURCES, TARGETS, AnyToAny

MESSAGES = 2_000
KILL_MESSAGES = 600
QUICK = ("servicebus", "eventhubs", "eventgrid", "http")
QUICK_MESSAGES = 100
# To so many targets at once: Azurite looks through all messages that it has at each request.
AT_ONCE = {"queuestorage": 2}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyToAny]:
    with AnyToAny(tmp_path_factory.mktemp("systems")) as running:
        yield running


def check(cells: dict[str, Cell], count: int, *, may_double: bool) -> None:
    reported = "\n".join(f"{target}: {cell}" for target, cell in cells.items())
    assert all(cell.sent == count and not cell.lost for cell in cells.values()), reported
    assert may_double or not any(cell.duplicated for cell in cells.values()), reported
    assert not any(cell.ordered and cell.out_of_order for cell in cells.values()), reported
    assert not any(cell.changed for cell in cells.values()), reported


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyToAny]:
    with AnyToAny(tmp_path_factory.mktemp("quick"), QUICK) as running:
        yield running


@pytest.mark.parametrize("source", QUICK)
def test_messages_come_whole_to_every_target(quick: AnyToAny, source: str) -> None:
    check(quick.move(source, QUICK, QUICK_MESSAGES), QUICK_MESSAGES, may_double=False)


@pytest.mark.soak
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_reaches_every_target(everything: AnyToAny, source: str) -> None:
    cells: dict[str, Cell] = {}
    width = AT_ONCE.get(source, len(TARGETS))
    for at in range(0, len(TARGETS), width):
        cells |= everything.move(source, TARGETS[at : at + width], MESSAGES)
    any_record.write(source, "calm", cells)
    check(cells, MESSAGES, may_double=True)  # a request without an answer in time is made again


@pytest.mark.soak
@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_lost_while_every_server_is_killed(everything: AnyToAny, source: str) -> None:
    cells = everything.move(source, TARGETS, KILL_MESSAGES, kills=True)
    any_record.write(source, "killed", cells)
    check(cells, KILL_MESSAGES, may_double=True)
