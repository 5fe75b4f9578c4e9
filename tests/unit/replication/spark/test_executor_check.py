"""What an executor's process reports about itself before routes start."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import isthmus
from isthmus.bridge.host.control.server import ControlServer
from isthmus.bridge.lease.crash_search import Plan
from isthmus.replication.spark.executor_check import try_here

VERSION = isthmus.__version__


@pytest.fixture
def server() -> Iterator[ControlServer]:
    opened = ControlServer(
        "key", claim_seconds=lambda _: 0.0, plan_of=lambda _: Plan(), on_death=lambda _, __: None
    ).start()
    yield opened
    opened.close()


def test_i1_an_executor_that_reaches_the_driver_has_nothing_to_say(server: ControlServer) -> None:
    assert try_here(server.address, "key", VERSION) == ""


def test_i1_a_port_that_is_blocked_is_reported_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        reported = try_here(address, "key", VERSION)
    assert reported.startswith(
        f"the executor on {socket.gethostname()}: cannot reach the driver at {address} (Connection refused); open"
    )


def test_i1_the_port_of_another_run_is_reported(server: ControlServer) -> None:
    assert "has another key" in try_here(server.address, "another", VERSION)


def test_i1_another_version_is_reported(server: ControlServer) -> None:
    assert try_here(server.address, "key", "0.0.7").endswith(
        f"has isthmus {VERSION} and the driver 0.0.7: install the same on both"
    )
