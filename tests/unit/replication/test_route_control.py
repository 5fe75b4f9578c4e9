"""The driver hears its leases, and asks them to end."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, dial
from isthmus.replication.route_control import RouteControl


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
    assert control.sighting().moved == 10
    assert control.sighting().processes == (11,)
    assert control.busy()
    report(first, lease="1/0", process=11, settled=15, state="ended")
    assert not control.busy()
    first.close()
    assert control.sighting().moved == 15
    second = connect(control)
    report(second, lease="2/0", process=12, settled=1, state="running", held="jfk is away")
    sighting = control.sighting()
    assert (sighting.moved, sighting.held) == (16, "jfk is away")
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
        assert (kind, json.loads(payload)) == (frames.GRANT, {"asked": asked, "held_seconds": seconds})
    assert control.busy()
    lease.close()
    control.close()
    assert control._thread is not None
    assert not control._thread.is_alive()
