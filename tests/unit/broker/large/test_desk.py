"""The threads of large messages, where the limit of threads is reached."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from harness.check.until import until_async
from isthmus.broker.large.desk import LargeDesk
from isthmus.entities.storage.blob import Blobs
from isthmus.entities.storage.staging import Staging
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal


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


async def test_i4_a_body_whose_last_user_the_garbage_collector_finds_is_removed_by_the_loop(monkeypatch):
    """The collector may run inside a `submit`, whose lock is not reentrant, and in any thread."""
    removed: list[int] = []
    blobs = Blobs(Staging(MemoryJournal()), SimpleNamespace(numbers=list, remove=removed.append))
    desk = LargeDesk(blobs)
    cycle = [blobs.whole(7, 100)]
    cycle.append(cycle)
    submit = ThreadPoolExecutor.submit
    is_in_submit: list[str] = []

    def collecting(pool, *arguments):
        assert not is_in_submit, "the executors' lock would be taken twice by one thread"
        is_in_submit.append("submit")
        gc.collect()
        is_in_submit.clear()
        return submit(pool, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", collecting)
    gc.disable()
    try:
        del cycle
        desk.read(lambda: None, lambda _: None)
    finally:
        gc.enable()
    assert blobs.pinned == {7: 1}, "only the loop changes what the engine's thread reads"
    await until_async(lambda: removed == [7])
    assert not blobs.pinned
    await asyncio.to_thread(desk.close)
