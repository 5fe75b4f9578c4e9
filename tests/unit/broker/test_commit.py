"""The commit loop over a fake engine and a store whose sync the test lets through."""

import asyncio
import threading

import pytest

from isthmus.broker.commit import CommitLoop
from isthmus.errors import StoreError


class FakeEngine:
    def __init__(self, trace):
        self.trace = trace
        self.on_staged = None
        self.staged = []
        self.refuse = None
        self.on_acknowledged = None

    @property
    def has_staged(self):
        return bool(self.staged)

    def stage(self, name):
        first = not self.staged
        self.staged.append(name)
        if first and self.on_staged:
            self.on_staged()

    def begin_commit(self):
        staged, self.staged = self.staged, []
        if self.refuse:
            error, self.refuse = self.refuse, None
            self.trace.append(("refused", tuple(staged)))
            raise error
        if not staged:
            return None
        self.trace.append(("written", tuple(staged)))
        return tuple(staged)

    def end_commit(self, commit):
        self.trace.append(("acknowledged", commit))
        if self.on_acknowledged:
            then, self.on_acknowledged = self.on_acknowledged, None
            then()

    def fail_commit(self, commit, error):
        self.trace.append(("failed", commit))


class FakeStore:
    def __init__(self, trace):
        self.trace = trace
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.error = None
        self.threads = set()

    def sync(self):
        self.threads.add(threading.get_ident())
        self.trace.append(("sync begins",))
        self.started.set()
        assert self.gate.wait(10)
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.trace.append(("synced",))


@pytest.fixture
def trace():
    return []


@pytest.fixture
async def parts(trace):
    engine, store = FakeEngine(trace), FakeStore(trace)
    loop = CommitLoop(engine, store)
    yield engine, store, loop
    store.gate.set()
    await loop.close()


async def test_nothing_is_acknowledged_before_its_sync_returned_i1(parts, trace):
    engine, store, loop = parts
    store.gate.clear()
    engine.stage("a")
    engine.stage("b")
    assert await asyncio.to_thread(store.started.wait, 10)
    await asyncio.sleep(0)
    assert trace == [("written", ("a", "b")), ("sync begins",)]
    store.gate.set()
    await loop.wait_idle()
    assert trace[2:] == [("synced",), ("acknowledged", ("a", "b"))]


async def test_what_comes_during_a_sync_is_one_further_group_i2(parts, trace):
    engine, store, loop = parts
    store.gate.clear()
    engine.stage("a")
    assert await asyncio.to_thread(store.started.wait, 10)
    for name in "bcd":
        engine.stage(name)
        await asyncio.sleep(0)
    store.gate.set()
    await loop.wait_idle()
    assert [each for each in trace if each[0] == "acknowledged"] == [
        ("acknowledged", ("a",)),
        ("acknowledged", ("b", "c", "d")),
    ]
    assert threading.get_ident() not in store.threads
    assert len(store.threads) == 1


async def test_what_an_acknowledgement_stages_is_one_further_group_and_is_waited_for_i2(parts, trace):
    engine, store, loop = parts
    told = []

    def go_on():
        store.gate.clear()
        engine.stage("b")
        loop.when_durable(lambda: told.append("durable"), told.append)

    engine.on_acknowledged = go_on
    engine.stage("a")
    while ("written", ("b",)) not in trace:  # noqa: ASYNC110 - the loop's own steps are waited for
        await asyncio.sleep(0)
    engine.stage("c")
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == []
    assert ("written", ("c",)) not in trace
    store.gate.set()
    await asyncio.wait_for(loop.wait_idle(), 10)
    assert told == ["durable"]
    assert [each for each in trace if each[0] == "acknowledged"] == [("acknowledged", (name,)) for name in "abc"]


async def test_a_failed_sync_fails_its_group_and_the_loop_goes_on_i3(parts, trace, caplog):
    engine, store, loop = parts
    store.error = StoreError("no space left")
    engine.stage("a")
    await loop.wait_idle()
    engine.stage("b")
    await loop.wait_idle()
    assert ("failed", ("a",)) in trace
    assert ("acknowledged", ("b",)) in trace
    assert loop.statistics() == {"commits": 1, "commit_failures": 1}
    assert len(caplog.records) == 1


async def test_a_refused_write_is_no_end_either_i3(parts, trace):
    engine, _, loop = parts
    engine.refuse = StoreError("no space left")
    engine.stage("a")
    await loop.wait_idle()
    engine.stage("b")
    await loop.wait_idle()
    assert trace[0] == ("refused", ("a",))
    assert trace[-1] == ("acknowledged", ("b",))


async def test_waiting_for_durability_covers_what_is_staged_now(parts, trace):
    engine, _, loop = parts
    await loop.wait_durable()
    engine.stage("a")
    await loop.wait_durable()
    assert trace[-1] == ("acknowledged", ("a",))


async def test_waiting_for_durability_tells_of_a_failure(parts):
    engine, store, loop = parts
    store.error = StoreError("no space left")
    engine.stage("a")
    with pytest.raises(StoreError):
        await loop.wait_durable()


async def test_waiting_while_a_sync_is_under_way_waits_for_that_one(parts, trace):
    engine, store, loop = parts
    store.gate.clear()
    engine.stage("a")
    assert await asyncio.to_thread(store.started.wait, 10)
    waiting = asyncio.create_task(loop.wait_durable())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    store.gate.set()
    await waiting
    assert trace[-1] == ("acknowledged", ("a",))
