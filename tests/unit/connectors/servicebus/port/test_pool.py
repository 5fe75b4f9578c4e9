"""isthmus.connectors.servicebus.port.pool"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.connectors.servicebus.port.connection import Remote, SharedConnection
from isthmus.connectors.servicebus.port.end import End, Step
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.errors import ConnectionLostError, IsthmusError


class FakeClient:
    """A connection whose service raises what it is set to."""

    def __init__(self) -> None:
        self.error: IsthmusError | None = None
        self.fault: Exception | None = None
        self.abandon_fault: Exception | None = None
        self.served = 0
        self.connection = SimpleNamespace(channel_max=255)
        self._ends = socket.socketpair()

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def interest(self) -> int:
        return select.POLLIN

    def deadline(self) -> float | None:
        return None

    def service(self) -> None:
        self.served += 1
        if self.fault is not None:
            raise self.fault

    def flush(self) -> None:
        if self.fault is not None:
            raise self.fault

    def start_close(self) -> None:
        self.error = ConnectionLostError("closed")

    def abandon(self) -> None:
        self.error = self.error or ConnectionLostError("closed")
        for end in self._ends:
            end.close()
        if self.abandon_fault is not None:
            raise self.abandon_fault

    def withdraw(self, path: str) -> None:
        """No token is kept."""

    def start_authorize(self, path: str) -> None:
        if self.fault is not None:
            raise self.fault


class FakeEnd(End):
    def attach(self, client: Any) -> None:
        self.attached()


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    made = ConnectionPool()
    yield made
    made.close()


def joined(pool: ConnectionPool, key: int, endpoint: str) -> tuple[FakeEnd, FakeClient]:
    """An end on a connection of its own, which is open."""
    client = FakeClient()
    end = FakeEnd(pool, key, f"q{key}", Remote(endpoint, lambda: client), 1)  # type: ignore[arg-type, return-value]
    end._begin(Step.CONNECTING)
    connection = SharedConnection(endpoint)
    pool._connections[endpoint] = [connection]
    connection.join(end)
    end._connection = connection
    connection.adopt(client)  # type: ignore[arg-type]
    return end, client


@pytest.mark.parametrize("call", ["service", "flush"])
@pytest.mark.parametrize("abandon_fault", [None, RuntimeError("and again")])
def test_i4_a_fault_at_a_connection_costs_that_one_alone(
    pool: ConnectionPool, call: str, abandon_fault: Exception | None
) -> None:
    """One loop serves all routes of a process: raised out of it, the fault would end them all, again and again."""
    first, bad = joined(pool, 1, "first")
    second, good = joined(pool, 2, "second")
    pool._marked.clear()
    bad.fault, bad.abandon_fault = AttributeError("'NoneType' object has no attribute 'on_transfers'"), abandon_fault
    ready = {bad.fileno(): select.POLLIN, good.fileno(): select.POLLIN}
    now = time.monotonic()
    if call == "flush":
        pool.flush()
        marked = pool.service({good.fileno(): select.POLLIN}, now)
    else:
        marked = pool.service(ready, now)
    assert marked == [1]
    assert first.fault is not None
    assert first.fault.retryable
    assert "on_transfers" in str(first.fault)
    assert good.served == 1
    assert (second.step, second.fault) == (Step.ATTACHED, None)
    assert [connection.connection_key for connection in pool._all()] == ["second"]


def test_i3_a_fault_of_one_end_is_not_its_neighbours(pool: ConnectionPool) -> None:
    end, client = joined(pool, 1, "place")
    client.fault = ValueError("a credential that is odd")
    other = FakeEnd(pool, 2, "other", Remote("place", lambda: client), 1)  # type: ignore[arg-type, return-value]
    other.open()
    assert "odd" in str(other.fault)
    assert (end.step, end.fault) == (Step.ATTACHED, None)
    client.fault = None


def test_i4_a_fault_of_a_closed_end_is_its_own(pool: ConnectionPool) -> None:
    class Odd:
        leave_by = 5.0

        def leave(self, now: float) -> bool:
            raise ValueError("odd")

    class Even:
        leave_by = 6.0
        asked = 0

        def leave(self, now: float) -> bool:
            self.asked += 1
            return False

    even = Even()
    for end in (Odd(), Odd(), even):
        pool.add_leaving(end)
    pool.service({}, 1.0)
    assert even.asked == 1
    assert list(pool._leaving) == [even]
    pool.service({}, 7.0)
    assert not pool._leaving


def test_i3_a_path_that_is_reported_by_the_connection_is_kept_fresh_as_long_as_it_is_used() -> None:
    """An IoT hub reports the name of its event hub, for which the token is."""

    class Renamed(FakeEnd):
        def on_connected(self, client: Any) -> None:
            self.path = "told"
            super().on_connected(client)

    class Noting(FakeClient):
        def __init__(self) -> None:
            super().__init__()
            self.withdrawn: list[str] = []

        def withdraw(self, path: str) -> None:
            self.withdrawn.append(path)

    client, connection = Noting(), SharedConnection("place")
    pool: Any = SimpleNamespace()
    ends = [Renamed(pool, key, "events", Remote("place", lambda: client), 1) for key in (1, 2)]  # type: ignore[arg-type, return-value]
    connection.join(ends[0])
    connection.adopt(client)  # type: ignore[arg-type]
    connection.join(ends[1])
    connection.leave(ends[0], 1.0)
    assert client.withdrawn == []
    connection.leave(ends[1], 1.0)
    assert client.withdrawn == ["told"]
    client.abandon()
