"""isthmus.bridge.host.sender.handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.bridge.delivery_event import Granted, Opened, Outcome, Progressed, Send, Stopped
from isthmus.bridge.host.sender.handle import TargetHandle
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.route_spec import End, RouteSpec

SPEC = RouteSpec(name="r", source=End("k", "a", {}), target=End("k", "b", {}), target_seconds=30.0)


class Target:
    """Reports what it is set to."""

    def __init__(self) -> None:
        self.events: list[TargetEvent] = []
        self.sends: list[Send] = []

    def open(self) -> None:
        pass

    def poll(self, now: float) -> Sequence[TargetEvent]:
        events, self.events = self.events, []
        return events

    def deadline(self, now: float) -> float:
        return float("inf")

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        return Copies([data])

    def send(self, send: Send) -> None:
        self.sends.append(send)

    def close(self) -> None:
        pass


class Reports:
    """Notes failures and settlements."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.settled: list[Any] = []

    def failed(self, handle: int, error: Exception, is_fatal: bool) -> None:
        self.failures.append(str(error))

    def settle(self, handle: int, positions: Any) -> None:
        self.settled.append(positions)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: True


def test_i4_a_target_has_not_failed_while_bytes_of_the_messages_arrive_there() -> None:
    """A message whose upload took longer than the time-out was sent again and again, and never arrived."""
    target, reports = Target(), Reports()
    handle = TargetHandle(1, SPEC, target, reports, 0.0)  # type: ignore[arg-type]
    target.events += [Opened(), Granted(10)]
    handle.step(0.0, True)
    handle.add(Part([7], b"message", [0, 7], (), None, ()))
    handle.step(1.0, False)
    assert len(target.sends) == 1
    for now in range(20, 200, 20):
        target.events.append(Progressed())
        handle.step(float(now), True)
    assert not reports.failures
    target.events.append(Outcome(0, 0))
    handle.step(205.0, True)
    assert len(reports.settled) == 1

    handle.add(Part([8], b"message", [0, 7], (), None, ()))
    handle.step(300.0, False)
    handle.step(329.9, False)
    assert not reports.failures
    handle.step(330.0, False)
    assert reports.failures == ["b: the target gave no outcome for 30 s"]


def test_i4_a_target_has_not_failed_while_it_reports_that_it_accepts_nothing() -> None:
    target, reports = Target(), Reports()
    handle = TargetHandle(1, SPEC, target, reports, 0.0)  # type: ignore[arg-type]
    target.events += [Opened(), Granted(10)]
    handle.step(0.0, True)
    handle.add(Part([7], b"message", [0, 7], (), None, ()))
    handle.step(1.0, False)
    target.events.append(Stopped("low on memory"))
    handle.step(2.0, True)
    handle.step(1000.0, False)
    assert not reports.failures
    target.events.append(Stopped(""))
    handle.step(1001.0, True)
    handle.step(1030.9, False)
    assert not reports.failures
    handle.step(1031.0, False)
    assert reports.failures == ["b: the target gave no outcome for 30 s"]
