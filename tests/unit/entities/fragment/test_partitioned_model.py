"""A partitioned queue against a small reference model, with stores that fail, kills and removals (hypothesis).

The model: each message sent is waiting for its outcome, present, possibly present (its commit failed or a kill preceded the
outcome), or removed. A present one is there once, in the fragment of its key, in the order of its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.fixture.partitioned_fixture import FRAGMENTS, STORES, Stores, body_of, message, sequence_of
from isthmus.entities import Acquired, PartitionedQueueBase, QueueDescription
from isthmus.entities.fragment.message_key import fragment_of, place
from isthmus.errors import ServerBusyError, StoreError

STEPS = 10_000
KEYS = st.sampled_from([None, None, "a", "b", "c", "d", "e"])


@dataclass
class Sent:
    """One message: `wanted` says what was last asked of it, `sure` whether that was answered."""

    key: str | None
    unit: int
    there: bool = True
    sure: bool = False


class PartitionedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = Stores()
        self.sent: dict[str, Sent] = {}
        self.units = 0
        self.taken: list[Acquired] = []
        self.bad: dict[int, str] = {}

    @initialize()
    def create(self) -> None:
        self.harness.engine.create_queue("q", QueueDescription(enable_partitioning=True, max_delivery_count=1000))
        self.harness.commit()

    @property
    def queue(self) -> PartitionedQueueBase:
        found = self.harness.engine.receiver("q")
        assert isinstance(found, PartitionedQueueBase)
        return found

    # ---- what clients do

    @rule(key=KEYS, count=st.integers(1, 4))
    def send(self, key: str | None, count: int) -> None:
        self.units += 1
        names = [f"{self.units}.{number}" for number in range(count)]

        def answered() -> None:
            for name in names:
                self.sent[name].sure = True

        payloads = [message(name, key=key) for name in names]
        try:
            for name in names:
                self.sent[name] = Sent(key, self.units)
            self.harness.engine.sender("q").accept(payloads, answered, lambda _: None)
        except ServerBusyError:
            down = {store.index for store in self.harness.stores if not store.is_up}
            for name in names:
                del self.sent[name]
            assert len(down) == STORES if key is None else place(key, FRAGMENTS) % STORES in down

    @rule(count=st.integers(1, 5))
    def acquire(self, count: int) -> None:
        acquired = self.queue.acquire(count)
        if acquired is None:
            return
        for payload in acquired.payloads:
            one = self.sent[body_of(payload)]
            assert one.there or not one.sure, "what was completed comes back"
        assert len({fragment_of(sequence) for sequence in acquired.sequences}) == 1
        assert list(acquired.sequences) == sorted(acquired.sequences)
        self.taken.append(acquired)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), what=st.sampled_from(["complete", "complete", "abandon", "release", "dead_letter", "defer"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        acquired = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        names = [body_of(payload) for payload in acquired.payloads]
        queue = self.queue
        try:
            locked = queue.holds(acquired.tags)
            if what in ("abandon", "release"):
                getattr(queue, what)(acquired.tags)
                return
            done: list[str] = []
            flags = getattr(queue, what)(acquired.tags, on_durable=lambda: done.append("ok"), on_failed=lambda _: None)
        except (ServerBusyError, StoreError):
            return
        assert flags == locked
        changed = [name for name, flag in zip(names, flags, strict=True) if flag]
        if what == "complete":
            for name in changed:
                self.sent[name].there = self.sent[name].sure = False
            self._when(done, partial(self._gone, changed))

    def _gone(self, names: list[str]) -> None:
        for name in names:
            self.sent[name].sure = True

    def _when(self, done: list[str], then: partial[None]) -> None:
        self.harness.commit()
        if done:
            then()

    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @rule(index=st.integers(0, STORES - 1))
    def commit_one(self, index: int) -> None:
        self.harness.commit_store(index)

    # ---- what happens to them

    @rule(index=st.integers(0, STORES - 1), how=st.sampled_from(["fail_writes", "fail_syncs"]))
    def break_store(self, index: int, how: str) -> None:
        journal = self.harness.journals.get(index)
        if journal is not None:
            setattr(journal, how, OSError("broken"))
            self.bad[index] = how

    @precondition(lambda self: self.bad)
    @rule()
    def repair(self) -> None:
        self._repair()

    def _repair(self) -> None:
        for index in self.bad:
            self.harness.journals[index].fail_writes = self.harness.journals[index].fail_syncs = None
        self.bad.clear()
        self.harness.broken.clear()
        for _ in range(3):
            self.harness.stores.retry()
            self.harness.commit()

    @rule(kept=st.integers(0, 3), unreadable=st.sets(st.integers(0, STORES - 1), max_size=1))
    def kill(self, kept: int, unreadable: set[int]) -> None:
        for index in self.bad:
            self.harness.journals[index].fail_writes = self.harness.journals[index].fail_syncs = None
        self.bad.clear()
        self.harness.broken = set(unreadable)
        if unreadable:
            self.bad = dict.fromkeys(unreadable, "open")
        self.taken.clear()
        self.harness.crash(kept)

    # ---- what must hold

    @invariant()
    def down_is_told(self) -> None:
        state = dict(self.harness.reported)
        assert all(store.is_up == state.get(store.index, True) for store in self.harness.stores)

    def teardown(self) -> None:
        self._repair()
        self.harness.crash()
        self.harness.commit()
        found: dict[str, int] = {}
        queue = self.queue
        seen = [*queue.peek(0, 10_000), *self.harness.engine.receiver("q/$DeadLetterQueue").peek(0, 10_000)]
        for payload in seen:
            name = body_of(payload)
            assert name not in found, f"{name} appears twice"
            found[name] = sequence_of(payload)
        for name, one in self.sent.items():
            if one.sure:
                assert (name in found) == one.there, f"{name}: {one}"
        units: dict[int, set[bool]] = {}
        for name, one in self.sent.items():
            if one.there:
                units.setdefault(one.unit, set()).add(name in found)
            if name in found and one.key is not None:
                assert fragment_of(found[name]) == place(one.key, FRAGMENTS)
        assert all(len(states) == 1 for states in units.values()), "a unit is there in part"
        assert set(found) <= set(self.sent)


def test_a_partitioned_queue_keeps_what_the_model_promises(
    run_model: Callable[[type[PartitionedMachine], int], None],
) -> None:
    run_model(PartitionedMachine, STEPS)
