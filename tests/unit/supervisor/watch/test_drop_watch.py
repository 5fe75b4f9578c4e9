"""The start and the end of the deletion in a mailbox; the messages are in a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from isthmus.amqp.performative import Accepted, Rejected
from isthmus.errors import ConnectionLostError
from isthmus.supervisor.watch import drop_watch
from isthmus.supervisor.watch.drop_watch import DropWatch
from isthmus.supervisor.watch.fill import Fill
from isthmus.topology.model import Endpoint

ROUTE: Any = SimpleNamespace(
    name="flights.ewr.jfk",
    source=Endpoint("ewr", "isthmus.flights.jfk"),
    options=SimpleNamespace(when_full="drop", feed="flights/Subscriptions/isthmus.flights.jfk"),
)


class Run(NamedTuple):
    first_id: int
    payloads: list[bytes]


class Mailbox:
    """Gives ten messages of 1,000 bytes at a time."""

    credit = 0

    def __init__(self) -> None:
        self.given = self.deleted = 0
        self.error: ConnectionLostError | None = None
        self.fills = [fill(95_000)]
        self.is_mine = True
        self.is_away = False
        self.after = 1 << 30  # so many were given, something changes
        self.outcomes: deque[tuple[int, int, Any]] = deque()
        self.loses_after = 1 << 30  # so many were deleted, the connection breaks: nothing more is confirmed

    def wait_attached(self) -> Mailbox:
        if self.is_away:
            raise ConnectionLostError("the namespace is away")
        return self

    def grant(self, credit: int) -> None:
        pass

    def take(self) -> list[Run]:
        self.given += 1
        if self.given == self.after:
            self.change()
        return [Run(self.deleted, [b"x" * 1000] * 2)]

    def change(self) -> None:
        self.is_mine = False

    def dispose(self, first: int, last: int) -> None:
        if self.deleted >= self.loses_after:
            self.error = ConnectionLostError("the connection broke")
            return
        self.deleted += last - first + 1
        self.outcomes.append((first, last, Accepted()))

    @contextmanager
    def clients(self) -> Iterator[Any]:
        client = SimpleNamespace(wait=lambda seconds: None, flush=lambda: None, close=lambda seconds: None)
        yield SimpleNamespace(open=lambda endpoint: client)


def fill(used_bytes: int) -> Fill:
    return Fill("ewr", "isthmus.flights.jfk", used_bytes, 100_000, kind="queue")


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    made = Mailbox()
    monkeypatch.setattr(drop_watch, "Receiver", lambda client, entity, confirms: made)
    return made


def watch(mailbox: Mailbox) -> DropWatch:
    return DropWatch([ROUTE], lambda: mailbox.fills, mailbox.clients, lambda route: mailbox.is_mine)


def test_i1_a_deletion_ends_with_the_claim(mailbox: Mailbox) -> None:
    mailbox.after = 3
    watch(mailbox)._drop_if_needed(ROUTE)
    assert mailbox.deleted == 6


def test_i1_a_deletion_ends_where_the_route_has_made_room(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is back; what is there would be copied."""
    mailbox.after = 3
    monkeypatch.setattr(mailbox, "change", lambda: mailbox.fills.__setitem__(0, fill(60_000)))
    watch(mailbox)._drop_if_needed(ROUTE)
    assert mailbox.deleted == 6


def test_i4_a_size_counts_once(mailbox: Mailbox) -> None:
    watched = watch(mailbox)
    watched._drop_if_needed(ROUTE)
    assert mailbox.deleted == 15
    mailbox.fills = [
        fill(95_000)._replace(hours_until_full=2.0)
    ]  # the next look, and the size has not been reported again
    watched._drop_if_needed(ROUTE)
    assert mailbox.deleted == 15
    mailbox.fills = [fill(91_000)]
    watched._drop_if_needed(ROUTE)
    assert mailbox.deleted == 15 + 11
    assert watched.dropped(ROUTE.name) == 26


def test_a_deletion_that_failed_is_tried_again(mailbox: Mailbox) -> None:
    watched = watch(mailbox)
    mailbox.is_away = True
    watched._drop_if_needed(ROUTE)
    mailbox.is_away = False
    watched._drop_if_needed(ROUTE)
    assert mailbox.deleted == 15


def test_i2_what_is_not_confirmed_is_not_counted(mailbox: Mailbox, caplog: pytest.LogCaptureFixture) -> None:
    """The messages come again, and would be counted twice."""
    mailbox.loses_after = 4
    watched = watch(mailbox)
    watched._drop_if_needed(ROUTE)
    assert (mailbox.deleted, watched.dropped(ROUTE.name)) == (4, 4)
    assert "for 2 more the outcome is unknown" in caplog.text


def test_i2_what_somebody_else_has_taken_is_not_counted(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "dispose", lambda first, last: mailbox.outcomes.append((first, last, Rejected())))
    watched = watch(mailbox)
    watched._drop_if_needed(ROUTE)
    assert watched.dropped(ROUTE.name) == 0
