"""Regions for applications' tests: each trouble, and that it is over afterwards. Also the examples of the page about it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from isthmus.testing.region import Region, RegionLostError, region

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(scope="module")
def shared() -> Iterator[Region]:
    with region("queues: {orders: {}}") as running:
        yield running


@contextmanager
def publisher(connection_string: str) -> Iterator[Callable[[], None]]:
    """Sends one message each time; the link is open before, since the SDK waits without end for a peer that hangs then."""
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        yield lambda: sender.send_messages(ServiceBusMessage(b"order"), timeout=3)


def publish(connection_string: str) -> None:
    with publisher(connection_string) as send:
        send()


def count(connection_string: str) -> int:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        return len(receiver.peek_messages(1000, sequence_number=1))


@pytest.mark.parametrize("trouble", ["outage", "stalled", "frozen", "crash"])
def test_a_region_in_trouble_takes_nothing_and_is_as_before_afterwards(shared: Region, trouble: str) -> None:
    with publisher(shared.connection_string) as send:
        send()
        before = count(shared.direct_connection_string)
        with getattr(shared, trouble)(), pytest.raises((ServiceBusError, OSError)):
            send()
    publish(shared.connection_string)
    # What was sent to a region that hung may have arrived afterwards: its outcome was unknown.
    assert count(shared.direct_connection_string) - before in (1, 2)


def test_a_region_that_is_cut_off_lives_on(shared: Region) -> None:
    with shared.outage():
        before = count(shared.direct_connection_string)
        publish(shared.direct_connection_string)
        assert count(shared.direct_connection_string) == before + 1


def test_a_region_that_is_far_away_is_slow(shared: Region) -> None:
    with shared.slow(timedelta(seconds=0.3)):
        began = time.monotonic()
        publish(shared.connection_string)
        assert time.monotonic() - began > 0.9  # connecting alone takes some round trips


def test_a_trouble_is_over_where_the_test_fails_in_it(shared: Region) -> None:
    with pytest.raises(RuntimeError), shared.outage():
        raise RuntimeError
    publish(shared.connection_string)


def test_a_lost_region_does_not_come_back() -> None:
    with region("queues: {orders: {}}") as lost:
        publish(lost.connection_string)
        lost.lose()
        with pytest.raises((ServiceBusError, OSError)):
            publish(lost.connection_string)
        with pytest.raises(RegionLostError), lost.frozen():
            pass
        assert not lost.namespace.data.exists()


def test_the_example_of_the_page_is_a_test_that_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/test-your-application-against-an-outage.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "test_example.py").write_text(example, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "1 passed" in done.stdout
