"""What is left of a message's time to live goes by the clock of the namespace that it stands in, not by the worker's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fault_client import connected, endpoint_for
from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.connectors.servicebus.lease import Lease, LeaseLimits
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.outflow import Outflow, stream
from isthmus.connectors.servicebus.outlet import Outlet
from isthmus.connectors.servicebus.sink import _Rows
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Sender

QUEUE = "orders"
LOCK_SECONDS = 30.0
CONFIG = f"queues: {{{QUEUE}: {{lock_duration: 30s}}}}"
TTL_MS = 120_000
AGE_SECONDS = 2.0
OPTIONS = {"connection": "env:UNUSED", "entity": QUEUE}


@pytest.fixture(name="target", scope="module")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("target"), config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("ahead_seconds", [-60, 60])
@pytest.mark.parametrize("lock_seconds", [LOCK_SECONDS, 0.0])
def test_a_copy_lives_as_long_as_is_left_whatever_the_workers_clock_says(
    tmp_path: Path, target: NamespaceProcess, ahead_seconds: int, lock_seconds: float
) -> None:
    """Without a lock duration, a message that the lease waits for tells the time."""
    with ExitStack() as stack:
        arguments = ("--clock-offset", str(ahead_seconds))
        source = stack.enter_context(namespace(tmp_path / "source", config=CONFIG, arguments=arguments))
        began = time.monotonic()
        if lock_seconds:
            publish(source)
            time.sleep(AGE_SECONDS)
        lease = Lease(
            endpoint_for(source),
            QUEUE,
            LeaseLimits(seconds=30, rows=1, nbytes=1 << 30, idle_seconds=20),
            channel_file=tmp_path / "task.lease",
            lock_seconds=lock_seconds,
        )
        outlet = Outlet(endpoint_for(target), QUEUE, channel_file=tmp_path / "task.lease").open()
        lease.start()
        if not lock_seconds:
            time.sleep(AGE_SECONDS)  # the link waits
            publish(source)
        move(lease, outlet)
    longest_ms = int((time.monotonic() - began) * 1000)  # of a slow machine; far from a minute
    left_ms = take_ttl_ms(target)
    shortest_ms = int(AGE_SECONDS * 1000) if lock_seconds else 0
    assert TTL_MS - longest_ms - 1000 <= left_ms <= TTL_MS - shortest_ms


def publish(ns: NamespaceProcess) -> None:
    with connected(ns, QUEUE) as client:
        message = section.encode_message(b"x", header=Header(ttl_ms=TTL_MS))
        Sender(client, QUEUE).wait_ready().send_all([message])


def move(lease: Lease, outlet: Outlet) -> None:
    """What Spark does between reader and sink, without Spark."""
    rows = _Rows(SinkOptions.read(OPTIONS), outlet, None)
    options = SourceOptions.read(OPTIONS)
    for batch in stream(options, lease, Outflow(options, 1 << 16)):
        rows.take(batch)
    outlet.wait_source_end()
    outlet.finish()


def take_ttl_ms(ns: NamespaceProcess) -> int:
    """The time to live of the message that came last."""
    with connected(ns, QUEUE) as client:
        message = Management(client, QUEUE).peek(0, 100)[-1]
    return section.decode_header(message, section.locate(message).header).ttl_ms or 0
