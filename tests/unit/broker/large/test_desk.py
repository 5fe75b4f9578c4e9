"""The threads of large messages, where the limit of threads is reached."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from isthmus.broker.large.desk import LargeDesk
from isthmus.errors import StoreError
from until import until_async


@pytest.fixture
async def desk():
    removed: list[int] = []
    made = LargeDesk(SimpleNamespace(files=SimpleNamespace(remove=removed.append)))
    made.removed = removed
    yield made
    await asyncio.to_thread(made.close)


async def test_i3_work_for_which_no_thread_can_be_started_has_an_error_and_is_not_done_later(desk, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    ended = []
    with monkeypatch.context() as at_the_limit:
        at_the_limit.setattr(threading.Thread, "start", refuse)
        for ask in (desk.read, desk.write):
            ask(lambda: ran.append(1), ended.append)
        desk.remove(7)
    await until_async(lambda: len(ended) == 2)
    assert all(isinstance(each.exception(), StoreError) for each in ended)
    for ask in (desk.read, desk.write):
        ask(lambda: ran.append(2), ended.append)
    desk.remove(8)
    await until_async(lambda: len(ended) == 4 and desk.removed == [7, 8])
    assert ran == [2, 2]
