"""When a mailbox is emptied, and when that ends; the messages are those of a list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

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

    error = None
    credit = 0

    def __init__(self) -> None:
        self.given = self.deleted = 0
        self.fills = [fill(95_000)]
        self.is_mine = True
        self.is_away = False
        self.after = 1 << 30  # so many were given, something changes

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
        self.deleted += last - first + 1

    @contextmanager
    def reach(self) -> Iterator[Any]:
        client = SimpleNamespace(wait=lambda seconds: None, flush=lambda: None, close=lambda seconds: None)
        yield SimpleNamespace(open=lambda place: client)


def fill(used_bytes: int) -> Fill:
    return Fill("ewr", "isthmus.flights.jfk", used_bytes, 100_000, kind="queue")


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    made = Mailbox()
    monkeypatch.setattr(drop_watch, "Receiver", lambda client, entity: made)
    return made


def watch(mailbox: Mailbox) -> DropWatch:
    return DropWatch([ROUTE], lambda: mailbox.fills, mailbox.reach, lambda route: mailbox.is_mine)


def test_i1_a_deletion_ends_with_the_claim(mailbox: Mailbox) -> None:
    mailbox.after = 3
    watch(mailbox)._look(ROUTE)
    assert mailbox.deleted == 6


def test_i1_a_deletion_ends_where_the_route_has_made_room(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is back; what stands would be copied."""
    mailbox.after = 3
    monkeypatch.setattr(mailbox, "change", lambda: mailbox.fills.__setitem__(0, fill(60_000)))
    watch(mailbox)._look(ROUTE)
    assert mailbox.deleted == 6


def test_i4_a_size_counts_once(mailbox: Mailbox) -> None:
    watched = watch(mailbox)
    watched._look(ROUTE)
    assert mailbox.deleted == 15
    mailbox.fills = [fill(95_000)._replace(hours_until_full=2.0)]  # the next look, and the size has not been told anew
    watched._look(ROUTE)
    assert mailbox.deleted == 15
    mailbox.fills = [fill(91_000)]
    watched._look(ROUTE)
    assert mailbox.deleted == 15 + 11
    assert watched.dropped(ROUTE.name) == 26


def test_a_deletion_that_failed_is_tried_again(mailbox: Mailbox) -> None:
    watched = watch(mailbox)
    mailbox.is_away = True
    watched._look(ROUTE)
    mailbox.is_away = False
    watched._look(ROUTE)
    assert mailbox.deleted == 15
