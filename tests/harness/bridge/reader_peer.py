"""A sink whose every frame a test sends, over the real socket; and the driver's end of a control connection."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus.bridge.frame import Kind, pack_json, pack_numbers, pack_runs, unpack_json, unpack_numbers
from isthmus.bridge.host.channel import Channel, dial

WAIT_SECONDS = 10.0


def eventually(condition: Callable[[], Any], text: str) -> Any:
    """What a condition gives once it gives something."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.002)
    raise AssertionError(f"not within {WAIT_SECONDS:g} s: {text}")


class FakePeer:
    """One end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.frames: list[tuple[int, bytes]] = []

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.channel.send(kind, payload)
        while self.channel.has_queued():
            self.channel.flush()

    def receive(self, seconds: float = 0.0) -> None:
        poll = select.poll()
        if not self.channel.closed:
            poll.register(self.channel, select.POLLIN)
            if poll.poll(seconds * 1000):
                self.frames += self.channel.receive()

    def wait(self, kind: int, number: int = 1) -> list[bytes]:
        """The payloads of a kind once there are so many."""

        def found() -> list[bytes]:
            self.receive(0.01)
            payloads = self.of(kind)
            return payloads if len(payloads) >= number else []

        return eventually(found, f"{number} frames {Kind(kind).name}, have {[Kind(k).name for k, _ in self.frames]}")

    def of(self, kind: int) -> list[bytes]:
        return [payload for each, payload in self.frames if each == kind]

    def close(self) -> None:
        self.channel.close()


class FakeSink(FakePeer):
    def __init__(self, path: Path) -> None:
        super().__init__(eventually(lambda: dial(path), "the reader listens"))
        self.send(Kind.HELLO, pack_json({"process": 4711}))

    def opens(self, number: int = 1) -> list[dict[str, Any]]:
        return [unpack_json(payload) for payload in self.wait(Kind.OPEN, number)]

    def ready(self, handle: int) -> None:
        self.send(Kind.READY, pack_numbers(handle))

    def settle(self, handle: int, first: int, last: int) -> None:
        self.send(Kind.SETTLE, pack_runs([(handle, first, last)]))

    def closes(self, number: int = 1) -> list[int]:
        return [unpack_numbers(payload)[0] for payload in self.wait(Kind.CLOSE, number)]
