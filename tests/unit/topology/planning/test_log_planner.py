"""isthmus.topology.planning.log_planner: existing logs compared with the wanted ones."""

from __future__ import annotations

import pytest

from isthmus.topology import NamespaceState, read
from isthmus.topology.planning.change import Change
from isthmus.topology.planning.log_planner import log_changes, wanted_logs
from isthmus.topology.state import GroupState, LogState

HEAD = (
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n"
    "  hub: {kind: kafka, bootstrap: 'a:1'}\n  lake: {kind: kafka, bootstrap: 'b:1'}\ntasks:\n"
)
STREAM = "  t: {pattern: stream-to-queue, source: hub, stream: flights, target: ewr, queue: q, %s}\n"
MIRROR = "  m: {pattern: copy, source: hub, topic: flights, target: lake}\n"


def changes(text: str, hub: tuple[LogState, ...] = (), lake: tuple[LogState, ...] = ()) -> tuple[list[str], list[str]]:
    """What is made, and the notes."""
    federation = read(HEAD + text)
    found = log_changes(
        federation,
        {
            "ewr": NamespaceState(alias="ewr"),
            "hub": NamespaceState(alias="hub", logs=hub),
            "lake": NamespaceState(alias="lake", logs=lake),
        },
    )
    assert not found.faults
    return [_reported(each) for each in found.changes], found.notes


def _reported(change: Change) -> str:
    after = change.after
    size = f" {after.initial_partitions}" if isinstance(after, LogState) else ""
    return f"{change.alias} {change.kind} {change.path}{size}"


def existing(name: str = "flights", partitions: int = 4, *groups: str) -> LogState:
    return LogState(name=name, partitions=partitions, groups=tuple(GroupState(name=each) for each in groups))


def test_a_group_is_made_after_its_log() -> None:
    """I3."""
    made, notes = changes(STREAM % "partitions: 3")
    assert made == ["hub log flights 3", "hub group flights/Groups/isthmus.t"]
    assert notes == []


def test_what_exists_is_left_and_not_planned_again() -> None:
    """I1, I2."""
    made, notes = changes(STREAM % "partitions: 3", (existing("flights", 4, "isthmus.t"),))
    assert made == []
    assert "has 4 partitions, not 3" in notes[0]


@pytest.mark.parametrize(
    ("start", "reported"),
    [
        ("now", "or the records since then are skipped"),
        ("existing", "also those that the task has moved before under another name, to another alias"),
    ],
)
def test_a_log_that_exists_without_its_group_is_noted(start: str, reported: str) -> None:
    """The group may be a new name of one that has moved records: some are passed over, or come twice."""
    made, notes = changes(STREAM % f"start: {start}", (existing(),))
    assert made == ["hub group flights/Groups/isthmus.t"]
    assert sum(reported in note for note in notes) == 1
    assert changes(STREAM % f"start: {start}", (existing("flights", 4, "isthmus.t"),)) == ([], [])


def test_a_copy_of_a_log_has_as_many_partitions() -> None:
    made, notes = changes(MIRROR, (existing("flights", 4, "isthmus.m.lake"),))
    assert made == ["lake log flights 4"]
    assert notes == [
        "task m: a message that is sent again after a crash appears twice in lake/flights: a log drops none"
    ]
    made, _ = changes(MIRROR)
    assert made == ["hub log flights 1", "hub group flights/Groups/isthmus.m.lake", "lake log flights 1"]
    assert changes(MIRROR, (existing("flights", 4, "isthmus.m.lake"),), (existing(partitions=2),))[0] == []


def test_the_wishes_of_two_tasks_for_one_log_become_one() -> None:
    found = wanted_logs(read(HEAD + STREAM % "partitions: 3" + MIRROR))
    (flights,) = found["hub"]
    assert flights.initial_partitions == 3
    assert [group.name for group in flights.groups] == ["isthmus.t", "isthmus.m.lake"]
