"""The driver hears its leases, and asks them to end."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.bridge.crash_search import CrashSearch, Plan
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, dial
from isthmus.replication.route_control import RouteControl
from isthmus.replication.tally import Counts


@pytest.fixture
def control(tmp_path: Path) -> Iterator[RouteControl]:
    opened = RouteControl(tmp_path / "flights.ewr.jfk").open()
    yield opened
    opened.close()


def connect(control: RouteControl) -> Channel:
    channel = dial(Path(control.path))
    assert channel is not None
    return channel


def report(channel: Channel, **values: Any) -> None:
    channel.send(frames.STATS, json.dumps(values).encode())
    channel.flush()


def test_a_route_is_ready_once_its_source_looks(control: RouteControl) -> None:
    assert not control.sighting().ready
    source = connect(control)
    assert not control.sighting().ready, "the source of the query whose turn it is not connects at once"
    report(source, looking=True)
    assert control.sighting().ready
    assert not control.busy()
    source.close()


def test_a_route_is_ready_once_it_has_a_lease(control: RouteControl) -> None:
    lease = connect(control)
    report(lease, lease="first/1/0", process=11, settled=0, state="running")
    assert control.sighting().ready
    lease.close()


def test_i1_settled_messages_are_summed_over_leases_and_never_fall(control: RouteControl) -> None:
    first = connect(control)
    report(first, lease="1/0", process=11, settled=10, state="running")
    assert control.sighting().counts.settled == 10
    assert control.sighting().processes == (11,)
    assert control.busy()
    report(first, lease="1/0", process=11, settled=15, state="ended")
    assert not control.busy()
    first.close()
    assert control.sighting().counts.settled == 15
    second = connect(control)
    report(second, lease="2/0", process=12, settled=1, state="running", held="jfk is away")
    sighting = control.sighting()
    assert (sighting.counts.settled, sighting.held) == (16, "jfk is away")
    second.close()


def test_moved_is_what_targets_acknowledged_and_nothing_that_was_set_aside(control: RouteControl) -> None:
    first = connect(control)
    told = {"moved": 5, "dead_lettered": 3, "discarded": 2, "sink": {"resent": 4}}
    report(first, lease="1/0", process=11, settled=10, state="running", **told)
    assert control.sighting().counts == Counts(10, 5, 3, 2, 4)
    first.close()
    second = connect(control)
    report(second, lease="2/0", process=12, settled=1, state="running", moved=1)
    assert control.sighting().counts == Counts(11, 6, 3, 2, 4)
    second.close()


def test_i2_leases_are_asked_to_end_also_those_that_come_later(control: RouteControl) -> None:
    early = connect(control)
    control.stop("the run ends")
    late = connect(control)
    control.sighting()
    for channel in (early, late):
        assert channel.receive() == [(frames.STOP, b"the run ends")]
        channel.close()


def test_nothing_remains_of_a_closed_control(tmp_path: Path) -> None:
    control = RouteControl(tmp_path / "route").open()
    control.close()
    assert not Path(control.path).exists()
    assert dial(Path(control.path)) is None


def test_i3_a_lease_that_asks_is_answered_at_once_though_nobody_looks(tmp_path: Path) -> None:
    held = [12.5]
    control = RouteControl(tmp_path / "route", lambda: held[0]).open()
    lease = connect(control)
    for asked, seconds in ((1, 12.5), (2, 0.0)):
        held[0] = seconds
        report(lease, lease="1/0", process=11, settled=0, state="running", asked=asked)
        assert select.select([lease], [], [], 10.0)[0]
        ((kind, payload),) = lease.receive()
        answer = json.loads(payload)
        assert (kind, answer["asked"], answer["held_seconds"]) == (frames.GRANT, asked, seconds)
    assert control.busy()
    lease.close()
    control.close()
    assert control._thread is not None
    assert not control._thread.is_alive()


class Killing:
    """A route's control over several leases, as it is created again at each start of the route."""

    def __init__(self, folder: Path) -> None:
        self.crashes = CrashSearch()
        self._folder = folder
        self._number = 0

    def lease(self, *, ends: str = "", **told: Any) -> Plan:
        """Runs a lease to its end, which is a death unless said otherwise; what it was told at its begin."""
        self._number += 1
        control = RouteControl(self._folder / "flights.ewr.jfk", lambda: 10.0, self.crashes).open()
        channel = connect(control)
        common = {"lease": f"{self._number}/0", "process": self._number, "state": "running", "settled": 0}
        report(channel, **common, asked=1)
        assert select.select([channel], [], [], 10.0)[0]
        answer = json.loads(channel.receive()[0][1])
        report(channel, **common | told)
        if ends == "stop":
            control.stop("the run ends")
        elif ends:
            report(channel, **common | told | {"state": "ended"})
        channel.close()
        control.close()
        return Plan(*(answer[name] for name in Plan._fields))


def test_i4_each_death_narrows_the_next_window_until_one_message_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    route = Killing(tmp_path)
    plans = [route.lease(window=window, outstanding=window, head=7) for window in (16_000, 64, 8, 1, 1)]
    assert plans == [Plan(), Plan(64, 16_000), Plan(8, 64), Plan(1, 8), Plan(1, 1)]
    told = {"window": 1, "outstanding": 0, "head": 0, "set_aside": [7], "settled": 1}
    assert route.lease(ends="time", **told) == Plan(1, 1, 7, 2)
    assert route.lease(ends="time") == Plan()
    assert "message 7 was dead-lettered: it killed 2 workers" in caplog.text


def test_i4_the_death_of_a_sink_is_told_by_the_reader_and_counts_once(tmp_path: Path) -> None:
    route = Killing(tmp_path)
    route.lease(window=64, outstanding=3, head=7, died=True)
    assert route.lease(ends="time") == Plan(8, 64)


@pytest.mark.parametrize("end", [{"ends": "error"}, {"ends": "stop"}, {"state": "next"}, {"failed": True}])
def test_i4_what_ends_by_itself_or_is_asked_to_killed_nobody(tmp_path: Path, end: dict[str, str]) -> None:
    route = Killing(tmp_path)
    route.lease(window=64, outstanding=3, head=7, **end)  # type: ignore[arg-type]
    assert route.lease(ends="time") == Plan()


@pytest.mark.parametrize("payload", [b"{", b"[1]", b'{"settled": "many"}', b'{"process": 1, "set_aside": 5}'])
def test_i5_what_is_no_report_harms_nobody_else(tmp_path: Path, payload: bytes) -> None:
    control = RouteControl(tmp_path / "route", lambda: 10.0).open()
    bad, good = connect(control), connect(control)
    bad.send(frames.STATS, payload)
    bad.flush()
    assert select.select([bad], [], [], 10.0)[0]
    assert bad.receive() == []
    assert bad.closed
    report(good, lease="1/0", process=11, settled=3, state="running", asked=1)
    assert select.select([good], [], [], 10.0)[0]
    assert control.sighting().counts.settled == 3
    for channel in (bad, good):
        channel.close()
    control.close()


def test_messages_that_move_open_the_window_again(tmp_path: Path) -> None:
    route = Killing(tmp_path)
    route.lease(window=64, outstanding=3, head=7)
    route.lease(ends="time", settled=40, window=8, outstanding=0, head=0)
    assert route.lease(ends="time", settled=24, window=8, outstanding=0, head=0) == Plan(8, 24)
    assert route.lease(ends="time") == Plan()
