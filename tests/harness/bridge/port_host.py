"""Sources and targets of the connector `servicebus`, driven by one small loop as a host drives them.

The connection string is read from the environment variable PORT_TEST.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Arrived, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.registry import connector

__all__ = ["Host", "Route", "first_times", "host", "message_id"]


def message_id(message: bytes) -> str:
    return str(section.decode_properties(message, section.locate(message).properties)["message_id"])


class Host:
    """The loop: every event of every end goes to `on_event(key, event)`."""

    def __init__(self) -> None:
        kind = connector("servicebus")
        self.sources, self.targets = kind.sources(), kind.targets()
        self.ends: dict[int, Any] = {}
        self.events: dict[int, list[Any]] = {}
        self.handlers: dict[int, Callable[[Any], None]] = {}
        self.polls = self.iterations = 0
        self.longest = 0.0

    def source(
        self,
        key: int,
        path: str,
        *,
        opens: bool = True,
        sessions: int = 0,
        states: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> Any:
        reported = {"connection": "env:PORT_TEST", "entity": path, "sessions": str(sessions), **states}
        source = self.sources.source(key, reported, **options)
        return self._add(key, source, opens)

    def target(self, key: int, path: str, **options: str) -> Any:
        return self._add(key, self.targets.target(key, {"connection": "env:PORT_TEST", "entity": path} | options))

    def _add(self, key: int, end: Any, opens: bool = True) -> Any:
        self.ends[key], self.events[key] = end, []
        if opens:
            end.open()
        return end

    def run_once(self, until: float) -> None:
        self.iterations += 1
        pools = (self.sources, self.targets)
        now = time.monotonic()
        due = min(until, *(pool.deadline(now) for pool in pools), *(end.deadline(now) for end in self.ends.values()))
        poll = select.poll()
        for pool in pools:
            for descriptor, interest in pool.descriptors():
                poll.register(descriptor, interest)
        ready = dict(poll.poll(max(0.0, due - now) * 1000))
        now = time.monotonic()
        keys = {key for pool in pools for key in pool.service(ready, now)}
        keys |= {key for key, end in self.ends.items() if end.deadline(now) <= now}
        for key in sorted(keys):
            self.polls += 1
            for event in self.ends[key].poll(now):
                self.events[key].append(event)
                if key in self.handlers:
                    self.handlers[key](event)
        for pool in pools:
            pool.flush()
        self.longest = max(self.longest, time.monotonic() - now)

    def run(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, {key: events[-5:] for key, events in self.events.items()}
            self.run_once(min(until, time.monotonic() + 0.5))

    def reported(self, key: int, kind: type) -> list[Any]:
        return [event for event in self.events[key] if isinstance(event, kind)]

    def ids(self, key: int) -> list[str]:
        return [message_id(payload) for event in self.reported(key, Arrived) for payload in event.payloads]

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        self.sources.close()
        self.targets.close()


@contextmanager
def host() -> Iterator[Host]:
    made = Host()
    try:
        yield made
    finally:
        made.close()


class Route:
    """Joins a source and a target: what the target accepts is settled; all that is not is sent again after a loss."""

    target_options: ClassVar[dict[str, str]] = {}

    def __init__(self, host: Host, key: int, source: str, target: str, window: int = 1000, **options: Any) -> None:
        self.window = window
        self.waiting: list[tuple[int, bytes]] = []
        self.sent: list[tuple[int, bytes]] = []  # by ordinal
        self.answered = 0
        self.room = 0
        self.settled: set[int] = set()
        self.unsettled = 0
        self.is_exhausted = False
        self.reopen_at: dict[int, float] = {}
        self.host, self.key = host, key
        self.is_open = False
        self.target = host.target(key + 100_000, target, **self.target_options)
        self.source = host.source(key, source, opens=False, **options)
        host.handlers[key] = self.on_source
        host.handlers[key + 100_000] = self.on_target

    def on_source(self, event: Any) -> None:
        if isinstance(event, SourceOpened):
            self.source.grant(self.window)
        elif isinstance(event, Arrived):
            positions, payloads = list(event.positions), list(event.payloads)
            offsets = [0]
            for payload in payloads:
                offsets.append(offsets[-1] + len(payload))
            copies = self.target.copies(b"".join(payloads), offsets, int(time.time() * 1000))
            assert copies.rows is None
            self.waiting += zip(positions, copies.payloads, strict=True)
            self.send()
        elif isinstance(event, SourceLost):
            self.reopen_at[0] = time.monotonic() + 0.2
        elif isinstance(event, Exhausted):
            self.is_exhausted = True

    def on_target(self, event: Any) -> None:
        if isinstance(event, Granted):
            self.room = event.credit
        elif isinstance(event, Outcome):
            assert event.refusal is None, event
            positions = [position for position, _ in self.sent[event.first : event.last + 1]]
            for position in positions:
                self.source.settle(position, position)
            self.settled.update(positions)
            self.answered = event.last + 1
            self.source.grant(self.window)
        elif isinstance(event, Opened):
            if not self.is_open:
                self.is_open = True
                self.source.open()
            again, self.sent, self.answered = self.sent[self.answered :], [], 0
            self.waiting = again + self.waiting
        elif isinstance(event, Lost):
            self.room = 0
            self.reopen_at[1] = time.monotonic() + 0.2
        self.send()

    def send(self) -> None:
        count = min(self.room, len(self.waiting))
        if count > 0:
            part, self.waiting = self.waiting[:count], self.waiting[count:]
            self.sent += part
            self.room -= count
            self.target.send(Send([payload for _, payload in part]))

    def reopen(self) -> None:
        now = time.monotonic()
        for which, at in list(self.reopen_at.items()):
            if now >= at:
                del self.reopen_at[which]
                (self.source, self.target)[which].open()


def first_times(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))
