"""Uploads against a disk that is always ready, without a loop of their own."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.broker.large.desk import LargeDesk
from isthmus.broker.large.upload import Upload
from isthmus.errors import QuotaExceededError, ServerBusyError

START = b"\0Su\xb0" + (1 << 30).to_bytes(4, "big") + bytes(1000)


class Room:
    def __init__(self, limit: int = 1 << 20) -> None:
        self.reserved = 0
        self.limit = limit

    def reserve_room(self, size_bytes: int, /) -> None:
        if self.reserved + size_bytes > self.limit:
            raise QuotaExceededError("full")
        self.reserved += size_bytes

    def release_room(self, size_bytes: int, /) -> None:
        self.reserved -= size_bytes


class Desk:
    """Does nothing at once; jobs end when the test says so."""

    files: Any = SimpleNamespace(create=lambda number: None)

    def __init__(self, limit: int = 2) -> None:
        self.waiting_bytes = 0
        self.uploads = 0
        self._uploads_limit = limit
        self.blobs = SimpleNamespace(reserve=lambda: 1)
        self.jobs: list[Any] = []
        self.removed = 0

    check_room = LargeDesk.check_room

    def write(self, work: Any, done: Any) -> Future[None]:
        future: Future[None] = Future()
        self.jobs.append((future, done))
        return future

    def remove(self, number: int, after: Any = None) -> None:
        self.removed += 1

    def finish_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for future, done in jobs:
            future.set_result(None)
            done(future)


def upload(desk: Desk, room: Room) -> Upload:
    return Upload(desk, lambda size: None, room)  # type: ignore[arg-type]


def test_room_is_reserved_while_parts_come_and_given_back_at_an_abort_i3() -> None:
    desk, room = Desk(), Room()
    one = upload(desk, room)
    one.add([START])
    one.add([bytes(5000)])
    assert room.reserved == len(START) + 5000
    one.abort()
    assert room.reserved > 0  # until the thread has closed the file
    desk.finish_jobs()
    assert (room.reserved, desk.removed, desk.uploads, desk.waiting_bytes) == (0, 1, 0, 0)


def test_what_does_not_fit_is_removed_at_once_and_refused_at_its_end_i3() -> None:
    desk, room = Desk(), Room(5000)
    one = upload(desk, room)
    one.add([START])
    desk.finish_jobs()
    one.add([bytes(5000)])
    assert (room.reserved, desk.removed, desk.uploads, one.is_over) == (0, 1, 0, False)
    one.add([bytes(5000)])
    ended: list[int] = []
    one.finish(lambda: ended.append(1))
    assert (ended, desk.removed, desk.uploads) == ([1], 1, 0)
    with pytest.raises(QuotaExceededError):
        one.payload()


def test_one_upload_too_many_is_refused_and_the_others_continue() -> None:
    desk, room = Desk(limit=2), Room()
    uploads = [upload(desk, room) for _ in range(2)]
    for each in uploads:
        each.add([START])
    late = upload(desk, room)
    late.add([START])
    assert isinstance(late.error, ServerBusyError)
    for each in uploads:
        each.add([bytes(100)])
        assert each.error is None
    uploads[0].abort()
    desk.finish_jobs()
    again = upload(desk, room)
    again.add([START])
    assert again.error is None
