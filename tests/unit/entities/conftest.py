"""A namespace in memory with a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.entities import Engine, Limits, Queue, Topic
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock


class Namespace:
    """An engine with the means to control it."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.clock = ManualClock()
        self.limits = Limits()
        self.start()

    def start(self) -> None:
        self.engine = Engine(self.journal, self.clock, limits=self.limits)

    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)

    def crash(self) -> None:
        self.journal.crash()
        self.start()

    def advance(self, ms: int) -> None:
        """Let time pass and do what it asks for."""
        self.clock.advance(ms)
        for _ in range(1000):
            next_ms = self.engine.tick()
            self.commit()
            if next_ms is None or next_ms > self.clock.wall_ms():
                return
        raise AssertionError("tick never comes to rest")

    def queue(self, path: str) -> Queue:
        return self.engine.receiver(path)

    def sender(self, path: str) -> Queue | Topic:
        return self.engine.sender(path)

    def send(self, path: str, *messages: bytes) -> None:
        self.sender(path).accept(messages)
        self.commit()


def make_message(body: str = "", /, *, ttl_ms: int | None = None, **fields: Any) -> bytes:
    """A message; keyword arguments are properties, `user` the application properties, `annotations` the annotations."""
    return section.encode_message(
        body.encode(),
        header=section.Header(ttl_ms=ttl_ms) if ttl_ms is not None else None,
        annotations=fields.pop("annotations", None),
        application_properties=fields.pop("user", None),
        properties={"message_id": body, **fields} if body else fields or None,
    )


class Read:
    """A delivered message, decoded."""

    def __init__(self, message: bytes) -> None:
        found = section.locate(message)
        self.header = section.decode_header(message, found.header)
        self.annotations = section.decode_map(message, found.message_annotations)
        self.delivery_annotations = section.decode_map(message, found.delivery_annotations)
        self.properties = section.decode_properties(message, found.properties)
        self.user = section.decode_map(message, found.application_properties)
        self.body = message[slice(*found.body)]

    @property
    def sequence(self) -> int:
        return int(self.annotations["x-opt-sequence-number"])


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
def message() -> Callable[..., bytes]:
    return make_message


@pytest.fixture
def read() -> type[Read]:
    return Read
