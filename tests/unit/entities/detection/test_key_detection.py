"""Marks of sources save reads and change no result: each entity's keys are compared with a `Detection` without marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isthmus.entities.detection import source_mark
from isthmus.entities.detection.detection import Detection
from isthmus.entities.detection.key_detection import KeyDetection
from isthmus.entities.storage.key import DUPLICATE_KEY, KEY_RUN, SOURCE_MARK, numbered_span
from isthmus.entities.storage.staging import Staging
from isthmus.message.duplicate_key import KEY_BYTES
from isthmus.store import MemoryJournal

WINDOW_MS = 10_000
NUMBER = 7


def key(source: int, number: int, other: int = 0) -> bytes:
    """A key as `copy` makes it; `other` distinguishes messages of the same number. Source 9: the number cannot be read."""
    own = b"%d%d" % (source, other) + number.to_bytes(8, "big")
    place = b"" if source == 9 else b"%08d" % source + number.to_bytes(8, "big")
    return own.rjust(KEY_BYTES) + place


class Side:
    """One store, and the object that a restart makes again."""

    def __init__(self, *, marked: bool) -> None:
        self.marked = marked
        self.window_ms = WINDOW_MS
        self.journal = MemoryJournal()
        self.start()

    def start(self) -> None:
        self.staging = Staging(self.journal)
        self.keys = KeyDetection(NUMBER, self.window_ms, self.staging)
        self.plain = Detection(NUMBER, self.window_ms, self.staging, DUPLICATE_KEY)

    def send(self, keys: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per key whether it was seen before."""
        if self.marked:
            return self.keys.repeated(keys, now_ms) or [False] * len(keys)
        ids = [one[:KEY_BYTES] for one in keys]
        flags = self.plain.fresh(ids, now_ms)
        self.plain.remember([one for one, is_new in zip(ids, flags, strict=True) if is_new], now_ms)
        return [not is_new for is_new in flags]

    def commit(self) -> None:
        self.staging.begin()
        self.journal.sync()

    def kill(self) -> None:
        self.journal.crash()
        self.start()

    def become_old(self) -> None:
        """As a release without marks leaves a store."""
        batch = self.journal.batch()
        batch.delete_range(*numbered_span(SOURCE_MARK, NUMBER))
        self.journal.write(batch)
        self.journal.sync()
        self.start()


numbers = st.integers(1, 12) | st.integers(1, 3).map(lambda number: (5 << 48) + number)
keys = st.builds(key, st.sampled_from([1, 2, 3, 9]), numbers, st.integers(0, 1))


class Marked(RuleBasedStateMachine):
    """Every answer is that of a detection without marks, through kills, clocks set back and stores of an earlier release."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = self.latest_ms = 100 * WINDOW_MS
        self.sides = Side(marked=True), Side(marked=False)
        self.taken: dict[bytes, int] = {}
        # Over when the window was changed: a longer one may find them again, where they were not dropped yet.
        self.over: set[bytes] = set()

    @rule(sent=st.lists(keys, min_size=1, max_size=6))
    def send(self, sent: list[bytes]) -> None:
        sent = [one for one in sent if one not in self.over]
        if sent:
            marked, plain = (side.send(sent, self.now_ms) for side in self.sides)
            assert marked == plain
            self.taken |= {one: self.now_ms for one, was in zip(sent, marked, strict=True) if not was}

    @rule(source=st.integers(1, 2), first=st.integers(1, 40), count=st.integers(1, 10))
    def send_run(self, source: int, first: int, count: int) -> None:
        self.send([key(source, number) for number in range(first, first + count)])

    @rule()
    def commit(self) -> None:
        for side in self.sides:
            side.commit()

    @rule()
    def write(self) -> None:
        for side in self.sides:
            side.staging.write()

    @rule()
    def kill(self) -> None:
        for side in self.sides:
            side.kill()

    @rule()
    def open_with_an_earlier_release(self) -> None:
        self.commit()
        for side in self.sides:
            side.become_old()

    @rule(window_ms=st.sampled_from([WINDOW_MS // 3, WINDOW_MS, WINDOW_MS + 1, 7 * WINDOW_MS]))
    def start_with_another_window(self, window_ms: int) -> None:
        over_ms = self.latest_ms - self.sides[0].window_ms
        self.over |= {one for one, at in self.taken.items() if at <= over_ms}
        for side in self.sides:
            side.window_ms = window_ms
        self.kill()

    @rule(ms=st.sampled_from([1, WINDOW_MS // 2, WINDOW_MS, 3 * WINDOW_MS, -WINDOW_MS // 2, -WINDOW_MS]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.latest_ms = max(self.latest_ms, self.now_ms)

    @invariant()
    def no_more_marks_than_may_be(self) -> None:
        rows = list(self.sides[0].journal.scan(*numbered_span(SOURCE_MARK, NUMBER)))
        assert len(rows) <= source_mark.MOST_SOURCES + 1


TestMarked = Marked.TestCase
TestMarked.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class FewSources(Marked):
    """The same, where the marks are given up often (I3 of `source_mark`)."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.most = source_mark.MOST_SOURCES
        source_mark.MOST_SOURCES = 2

    def teardown(self) -> None:
        source_mark.MOST_SOURCES = self.most


TestFewSources = FewSources.TestCase
TestFewSources.settings = TestMarked.settings


class Reads:
    """Counts reads of keys."""

    def __init__(self, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        get_many = side.journal.get_many

        def counted(keys: Sequence[bytes]) -> list[Any]:
            self.count += 1
            return get_many(keys)

        monkeypatch.setattr(side.journal, "get_many", counted)


def run(source: int, first: int, end: int) -> list[bytes]:
    return [key(source, number) for number in range(first, end)]


@pytest.mark.parametrize("killed", [False, True])
def test_copies_in_order_are_not_looked_up_and_others_are(monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    side = Side(marked=True)
    reads = Reads(side, monkeypatch)
    now_ms = 100 * WINDOW_MS
    assert not any(side.send(run(1, 1, 10), now_ms))
    assert not any(side.send(run(2, 5, 10) + run(1, 20, 30), now_ms))  # another source, and a gap
    side.commit()
    if killed:
        side.kill()
    assert not any(side.send(run(1, 30, 40), now_ms))
    assert reads.count == 0
    assert not any(side.send(run(1, 12, 14), now_ms))
    assert all(side.send(run(1, 12, 14) + run(1, 5, 9), now_ms))
    assert reads.count > 0


def test_a_store_of_an_earlier_release_is_looked_up_until_its_keys_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(marked=True)
    now_ms = 100 * WINDOW_MS
    side.send(run(1, 1, 10), now_ms)
    side.commit()
    side.become_old()
    reads = Reads(side, monkeypatch)
    assert side.send(run(1, 5, 12), now_ms) == [True] * 5 + [False] * 2
    side.commit()
    side.kill()
    side.send(run(1, 12, 14), now_ms + WINDOW_MS)
    count = reads.count
    assert count > 1
    side.send(run(1, 14, 16), now_ms + 2 * WINDOW_MS)
    assert reads.count == count


def test_a_write_that_fails_leaves_no_mark_without_its_key() -> None:
    side = Side(marked=True)
    now_ms = 100 * WINDOW_MS
    side.send(run(1, 1, 3), now_ms)
    side.commit()
    side.journal.fail_writes = OSError("full")
    side.send(run(1, 3, 9), now_ms)
    with pytest.raises(Exception, match="full"):
        side.staging.write()
    side.journal.fail_writes = None
    side.start()
    assert side.send(run(1, 1, 9), now_ms) == [True] * 2 + [False] * 6


def rows(side: Side, table: int) -> int:
    return len(list(side.journal.scan(*numbered_span(table, NUMBER))))


def test_copies_in_order_share_a_row_for_each_source_and_others_have_their_own() -> None:
    side = Side(marked=True)
    now_ms = 100 * WINDOW_MS
    side.send(run(1, 1, 100), now_ms)
    side.send([key(1, 200), key(2, 7), key(1, 201), key(2, 9)], now_ms)
    side.commit()
    assert (rows(side, KEY_RUN), rows(side, DUPLICATE_KEY)) == (3, 0)
    side.send([key(1, 150)], now_ms)
    side.commit()
    assert (rows(side, KEY_RUN), rows(side, DUPLICATE_KEY)) == (3, 1)


def test_a_key_is_found_in_a_row_only_as_a_whole() -> None:
    side = Side(marked=True)
    now_ms = 100 * WINDOW_MS
    place = key(1, 5)[KEY_BYTES:], key(1, 6)[KEY_BYTES:]
    side.send([bytes(8) + b"a" * 8 + place[0], b"b" * 8 + bytes(8) + place[1]], now_ms)
    assert side.send([b"a" * 8 + b"b" * 8 + place[0]], now_ms) == [False]
    assert side.send([b"b" * 8 + bytes(8) + place[1]], now_ms) == [True]


def test_runs_that_are_over_leave_the_store() -> None:
    side = Side(marked=True)
    for generation in range(100, 106):
        side.send(run(1, 10 * generation, 10 * generation + 5), generation * WINDOW_MS)
        side.commit()
    assert rows(side, KEY_RUN) == 3


def test_a_restart_with_a_clock_set_back_forgets_nothing_though_other_copies_come_first() -> None:
    side = Side(marked=True)
    now_ms = 100 * WINDOW_MS
    side.send(run(2, 1, 3), now_ms)
    side.commit()
    side.kill()
    now_ms -= WINDOW_MS // 2
    assert not any(side.send(run(1, 1, 3), now_ms))
    assert all(side.send(run(2, 1, 3), now_ms))
