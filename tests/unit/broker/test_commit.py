"""The commit loop over a fake engine and a store whose sync the test lets through."""

import asyncio
import threading

import pytest

from harness.check.until import passes
from isthmus.amqp import section
from isthmus.broker.commit import CommitLoop
from isthmus.entities import Engine
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock


class FakeEngine:
    def __init__(self, trace):
        self.trace = trace
        self.on_staged = None
        self.staged = []
        self.refuse = None
        self.on_acknowledged = None
        self.under_way = None
        self.waiters = {}

    def promise(self, on_durable, on_failed):
        if not self.staged and self.under_way is None:
            on_durable()
            return
        group = None if self.staged else self.under_way
        self.waiters.setdefault(group, []).append((on_durable, on_failed))

    def end(self, group, error=None):
        for on_durable, on_failed in self.waiters.pop(group, []):
            on_failed(error) if error else on_durable()

    @property
    def has_staged(self):
        return bool(self.staged)

    @property
    def is_awaited(self):
        return any(not name.startswith("patient") for name in self.staged)

    def stage(self, name):
        before = self.has_staged, self.is_awaited
        self.staged.append(name)
        if before != (self.has_staged, self.is_awaited) and self.on_staged:
            self.on_staged()

    def begin_commit(self):
        staged, self.staged = self.staged, []
        if self.refuse:
            error, self.refuse = self.refuse, None
            self.trace.append(("refused", tuple(staged)))
            self.end(None, error)
            raise error
        if not staged:
            return None
        self.trace.append(("written", tuple(staged)))
        self.under_way = tuple(staged)
        self.waiters[self.under_way] = self.waiters.pop(None, [])
        return self.under_way

    def end_commit(self, commit):
        self.trace.append(("acknowledged", commit))
        self.under_way = None
        self.end(commit)
        if self.on_acknowledged:
            then, self.on_acknowledged = self.on_acknowledged, None
            then()

    def fail_commit(self, commit, error):
        self.trace.append(("failed", commit))
        self.under_way = None
        self.end(commit, error)


class FakeStore:
    def __init__(self, trace):
        self.trace = trace
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.error = None
        self.delay_seconds = 0.0
        self.now = 0.0
        self.threads = set()

    def sync(self):
        self.threads.add(threading.get_ident())
        self.trace.append(("sync begins",))
        self.started.set()
        assert self.gate.wait(10)
        self.now += self.delay_seconds
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
    reported = []

    def go_on():
        store.gate.clear()
        engine.stage("b")
        loop.when_durable(lambda: reported.append("durable"), reported.append)

    engine.on_acknowledged = go_on
    engine.stage("a")
    while ("written", ("b",)) not in trace:  # noqa: ASYNC110 - the loop's own steps are waited for
        await asyncio.sleep(0)
    engine.stage("c")
    for _ in range(3):
        await asyncio.sleep(0)
    assert reported == []
    assert ("written", ("c",)) not in trace
    store.gate.set()
    await asyncio.wait_for(loop.wait_idle(), 10)
    assert reported == ["durable"]
    assert [each for each in trace if each[0] == "acknowledged"] == [("acknowledged", (name,)) for name in "abc"]


async def test_a_failed_sync_fails_its_group_and_the_loop_continues_i3(parts, trace, caplog):
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


async def test_waiting_for_durability_raises_a_failure(parts):
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
    await passes(5)
    assert not waiting.done()
    store.gate.set()
    await waiting
    assert trace[-1] == ("acknowledged", ("a",))


# ---- faults of others, with the engine itself


def refuse(*_):
    raise KeyError("a fault")


@pytest.fixture
async def real():
    journal = MemoryJournal()
    engine = Engine(journal, ManualClock())
    loop = CommitLoop(engine, journal)
    engine.create_queue("q")
    await loop.wait_durable()
    yield engine, journal, loop
    await asyncio.wait_for(loop.close(), 10)


def send(engine, on_durable, on_failed=refuse):
    engine.sender("q").accept([section.encode_message(b"x")], on_durable, on_failed)


async def idle(loop):
    await asyncio.wait_for(loop.wait_idle(), 10)


async def test_a_fault_in_an_acknowledgement_costs_no_other_an_answer_i4(real, caplog):
    engine, _, loop = real
    reported = []

    def fault():
        send(engine, lambda: reported.append("staged by the fault"))
        refuse()

    send(engine, fault)
    send(engine, lambda: reported.append("beside"))
    loop.when_durable(refuse, reported.append)
    loop.when_durable(lambda: reported.append("waiter"), reported.append)
    await idle(loop)
    assert sorted(reported) == ["beside", "staged by the fault", "waiter"]
    assert engine.receiver("q").active_count == 3
    assert list(engine.receiver("q").acquire(10).sequences) == [1, 2, 3]
    assert "a fault" in caplog.text
    assert loop.statistics()["commit_failures"] == 0


async def test_a_fault_in_a_listener_costs_no_other_listener_a_message_i4(real):
    engine, _, loop = real
    reported = []
    engine.create_queue("other")
    engine.receiver("q").add_listener(refuse)
    engine.receiver("other").add_listener(lambda: reported.append("other"))
    send(engine, lambda: reported.append("q"))
    engine.sender("other").accept([section.encode_message(b"x")], lambda: reported.append("durable"), refuse)
    await idle(loop)
    assert sorted(reported) == ["durable", "other", "q"]
    send(engine, lambda: reported.append("again"))
    await idle(loop)
    assert reported[-1] == "again"


async def test_a_fault_after_the_commit_is_no_end_i4():
    journal = MemoryJournal()
    engine = Engine(journal, ManualClock())
    loop = CommitLoop(engine, journal, refuse)
    reported = []
    engine.create_queue("q")
    for number in range(3):
        send(engine, lambda number=number: reported.append(number))
        await idle(loop)
    assert reported == [0, 1, 2]
    await asyncio.wait_for(loop.close(), 10)


async def test_a_fault_before_the_write_fails_the_group_and_the_next_is_committed_i4(real, monkeypatch):
    engine, _, loop = real
    reported = []
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.sender("q")), "stage_state", refuse)
        send(engine, lambda: reported.append("durable"), lambda error: reported.append(type(error)))
        loop.when_durable(lambda: reported.append("durable"), lambda error: reported.append(type(error)))
        await idle(loop)
    assert reported == [KeyError, KeyError]
    assert loop.statistics()["commit_failures"] == 1
    send(engine, lambda: reported.append("durable"))
    await idle(loop)
    assert reported[-1] == "durable"
    assert engine.receiver("q").active_count == 1


async def test_a_fault_of_one_failure_callback_costs_no_other_an_answer_i4(real):
    engine, journal, loop = real
    reported = []
    journal.fail_syncs = OSError("the disk is gone")
    send(engine, refuse, refuse)
    send(engine, refuse, reported.append)
    with pytest.raises(StoreError):
        await asyncio.wait_for(loop.wait_durable(), 10)
    journal.fail_syncs = None
    await idle(loop)
    assert len(reported) == 1
    send(engine, lambda: reported.append("durable"))
    await idle(loop)
    assert reported[-1] == "durable"


async def test_no_thread_for_the_sync_is_a_failure_and_no_end_i4(real, monkeypatch):
    engine, _, loop = real
    reported = []
    with monkeypatch.context() as patch:
        patch.setattr(loop._syncer, "submit", lambda _: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        send(engine, refuse, reported.append)
        await idle(loop)
    assert [type(error) for error in reported] == [StoreError]
    send(engine, lambda: reported.append("durable"))
    await idle(loop)
    assert reported[-1] == "durable"


async def test_what_a_read_finds_refused_is_reported_to_waiting_threads(real):
    """A read brings what is staged into the store: what is refused there has failed as well."""
    engine, journal, loop = real
    reported = []
    send(engine, refuse, reported.append)
    loop.when_durable(lambda: reported.append("durable"), reported.append)
    journal.fail_writes = OSError("disk full")
    with pytest.raises(StoreError):
        engine.receiver("q").peek(0, 1)
    journal.fail_writes = None
    await idle(loop)
    assert [type(error) for error in reported] == [StoreError, StoreError]


# ---- what nothing waits for


async def test_what_nothing_waits_for_goes_with_the_next_group_i5(parts, trace, monkeypatch):
    engine, _, loop = parts
    monkeypatch.setattr("isthmus.broker.commit.PATIENCE_SECONDS", 3600)
    engine.stage("patient a")
    for _ in range(3):
        await asyncio.sleep(0)
    assert trace == []
    engine.stage("b")
    await asyncio.wait_for(loop.wait_idle(), 10)
    assert [each for each in trace if each[0] == "acknowledged"] == [("acknowledged", ("patient a", "b"))]


async def test_what_nothing_waits_for_is_written_all_the_same_i5(parts, trace, monkeypatch):
    engine, _, loop = parts
    monkeypatch.setattr("isthmus.broker.commit.PATIENCE_SECONDS", 0.01)
    engine.stage("patient a")
    await asyncio.wait_for(loop.wait_idle(), 10)
    assert ("acknowledged", ("patient a",)) in trace


async def test_what_is_staged_patiently_during_a_sync_asks_for_no_group_of_its_own_i5(parts, trace, monkeypatch):
    engine, store, loop = parts
    monkeypatch.setattr("isthmus.broker.commit.PATIENCE_SECONDS", 3600)
    store.gate.clear()
    engine.stage("a")
    assert await asyncio.to_thread(store.started.wait, 10)
    engine.stage("patient b")
    store.gate.set()
    while ("acknowledged", ("a",)) not in trace:  # noqa: ASYNC110 - the loop's own steps are waited for
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ("written", ("patient b",)) not in trace
    engine.stage("c")
    await asyncio.wait_for(loop.wait_idle(), 10)
    assert ("acknowledged", ("patient b", "c")) in trace


# ---- syncs on the loop


@pytest.fixture
async def quick(trace):
    """Syncs have been quick so far."""
    engine, store = FakeEngine(trace), FakeStore(trace)
    store.unsynced_bytes = 0
    loop = CommitLoop(engine, store, quick_bytes=1000, clock=lambda: store.now)
    loop._sync_mean = 0.0
    yield engine, store, loop
    await loop.close()


async def commit(engine, loop, name):
    engine.stage(name)
    await asyncio.wait_for(loop.wait_idle(), 10)


async def test_a_small_group_is_synced_on_the_loop_where_syncs_are_quick_i2(quick, trace):
    engine, store, loop = quick
    store.unsynced_bytes = 1000
    engine.on_acknowledged = lambda: engine.stage("b")
    await commit(engine, loop, "a")
    assert store.threads == {threading.get_ident()}
    steps = [("written", ("a",)), ("sync begins",), ("synced",), ("acknowledged", ("a",))]
    assert trace[:4] == steps
    assert trace[4:] == [(name, *(("b",) for _ in what)) for name, *what in steps]


async def test_a_large_group_is_synced_in_a_thread_i2(quick):
    engine, store, loop = quick
    store.unsynced_bytes = 1001
    await commit(engine, loop, "a")
    assert threading.get_ident() not in store.threads


async def test_a_sync_that_stalls_sends_the_next_to_a_thread_i2(quick):
    engine, store, loop = quick
    store.delay_seconds = 0.1
    await commit(engine, loop, "a")
    assert store.threads == {threading.get_ident()}
    store.delay_seconds = 0
    store.threads.clear()
    await commit(engine, loop, "b")
    assert threading.get_ident() not in store.threads
    for number in range(200):
        await commit(engine, loop, f"c{number}")
    assert threading.get_ident() in store.threads, "quick syncs bring it back"


async def test_a_sync_that_fails_on_the_loop_fails_its_group_i3(quick, trace):
    engine, store, loop = quick
    store.error = OSError("the disk is gone")
    await commit(engine, loop, "a")
    assert ("failed", ("a",)) in trace
    assert not loop.is_healthy
    await commit(engine, loop, "b")
    assert ("acknowledged", ("b",)) in trace
    assert loop.is_healthy
