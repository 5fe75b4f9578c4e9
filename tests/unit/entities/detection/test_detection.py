"""Duplicate detection when the clock is set, and when a generation ends between two messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from isthmus.entities import QueueDescription
from isthmus.entities.detection.detection import Detection
from isthmus.entities.storage.key import DETECTION, numbered_span
from isthmus.entities.storage.staging import Staging
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal

WINDOW_MS = 20_000
Make = Callable[..., bytes]


@pytest.fixture
def began(namespace: Any) -> int:
    """When a generation begins; the queue is there, and its clock is one second later."""
    namespace.engine.create_queue(
        "q",
        QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=WINDOW_MS),
    )
    namespace.commit()
    began: int = (namespace.clock.wall_ms() // WINDOW_MS + 1) * WINDOW_MS
    namespace.clock.set_wall(began + 1_000)
    return began


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_a_clock_that_goes_back_lets_no_equal_in_i1(
    namespace: Any, began: int, message: Make, committed: bool, restarted: bool
) -> None:
    namespace.sender("q").accept([message("m")])
    if committed or restarted:
        namespace.commit()
    namespace.clock.set_wall(began - 1_000)
    if restarted:
        namespace.crash()
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 1


def test_an_equal_in_the_same_commit_and_another_generation_is_seen_i1(
    namespace: Any, began: int, message: Make
) -> None:
    namespace.clock.set_wall(began + WINDOW_MS - 1)
    namespace.sender("q").accept([message("m")])
    namespace.clock.set_wall(began + WINDOW_MS)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 1


def test_a_clock_that_was_ahead_for_a_while_forgets_nothing_i1(namespace: Any, began: int, message: Make) -> None:
    namespace.clock.set_wall(began + WINDOW_MS - 1_000)
    namespace.send("q", message("m"))
    namespace.clock.set_wall(began + 2 * WINDOW_MS)
    namespace.send("q", message("other"))
    namespace.clock.set_wall(began + 2 * WINDOW_MS - 4_000)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 2
    namespace.clock.set_wall(began + 2 * WINDOW_MS - 999)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 3


@pytest.mark.parametrize("changed", [False, True])
def test_a_machine_whose_clock_begins_in_1970_takes_messages(
    namespace: Any, began: int, message: Make, changed: bool
) -> None:
    """There is no generation before the first; a machine without a battery starts there, until it has asked for the time."""
    if changed:  # another era
        window_ms = WINDOW_MS + 1_000
        description = QueueDescription(
            requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=window_ms
        )
        namespace.engine.update_queue("q", description)
    namespace.clock.set_wall(5_000)
    namespace.send("q", message("m"))
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 1
    namespace.clock.set_wall(began)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 2


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("window_ms", [WINDOW_MS // 2, WINDOW_MS + 7_000, 30 * WINDOW_MS])
def test_a_window_that_is_changed_forgets_nothing_i1(
    namespace: Any, began: int, message: Make, window_ms: int, committed: bool, restarted: bool
) -> None:
    namespace.sender("q").accept([message("m")])
    if committed or restarted:
        namespace.commit()
    changed = QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=window_ms)
    namespace.engine.update_queue("q", changed)
    if restarted:
        namespace.commit()
        namespace.crash()
    namespace.clock.set_wall(began + min(window_ms, 2 * WINDOW_MS))
    namespace.send("q", message("m"), message("other"))
    assert namespace.queue("q").active_count == 2
    namespace.clock.set_wall(began + 1_000 + window_ms)
    namespace.send("q", message("m"))
    assert namespace.queue("q").active_count == 3


class RefusingJournal(MemoryJournal):
    """A journal of which one read is refused.

    Attributes:
        reads_left: so many reads succeed before that one; None: all succeed.
    """

    reads_left: int | None = None

    def _look(self) -> None:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                self.reads_left = None
                raise StoreError("a block cannot be read")

    def get(self, key: bytes) -> bytes | None:
        self._look()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._look()
        return super().get_many(keys)

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._look()
        return super().scan(first, end, read_ahead=read_ahead)


class Changed(RuleBasedStateMachine):
    """Ids beside a list of all that was ever accepted; windows change while it runs and between runs (I1)."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 100 * WINDOW_MS
        self.window_ms = WINDOW_MS
        self.journal = RefusingJournal()
        self.seen: dict[bytes, int] = {}
        self.over: set[bytes] = set()
        self.latest_ms = self.now_ms
        self.start()

    def start(self) -> None:
        self.staging = Staging(self.journal)
        self.detection = Detection(7, self.window_ms, self.staging)

    @rule(ids=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
    def send(self, ids: list[int]) -> None:
        named = [b"%d" % each for each in ids]
        fresh = self.detection.fresh(named, self.now_ms)
        for each, is_new in zip(named, fresh, strict=True):
            if each in self.seen:
                assert is_new == (self.seen[each] <= self.now_ms - self.window_ms)
            elif each not in self.over:
                assert is_new
        new = [each for each, is_new in zip(named, fresh, strict=True) if is_new]
        self.detection.remember(new, self.now_ms)
        for each in new:
            self.seen[each] = self.now_ms
            self.over.discard(each)

    @rule(ids=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), reads=st.integers(0, 8))
    def send_while_a_read_is_refused(self, ids: list[int], reads: int) -> None:
        """What was staged before is written; of what raises nothing is, or its batch is forgotten (`Staging.whole`)."""
        self.staging.write()
        changes = self.staging._changes
        self.journal.reads_left = reads
        try:
            self.send(ids)
        except StoreError:
            if self.staging._changes != changes:
                self.start()
        self.journal.reads_left = None

    @rule(window_ms=st.sampled_from([WINDOW_MS // 3, WINDOW_MS, WINDOW_MS + 1, 50 * WINDOW_MS]), ends=st.booleans())
    def change_window(self, window_ms: int, ends: bool) -> None:
        for each in [each for each, at in self.seen.items() if at <= self.latest_ms - self.window_ms]:
            del self.seen[each]
            self.over.add(each)  # dropped or not: a longer window may find it again
        self.window_ms = window_ms
        if ends:
            self.restart()
        elif window_ms != self.detection.window_ms:
            self.detection.change(window_ms)

    @rule()
    def restart(self) -> None:
        self.staging.write()
        self.journal.sync()
        self.start()

    @rule()
    def write(self) -> None:
        self.staging.write()

    @rule(ms=st.sampled_from([1, WINDOW_MS // 2, WINDOW_MS, 3 * WINDOW_MS, -1, -WINDOW_MS // 3]))
    def pass_time(self, ms: int) -> None:
        self.now_ms = max(self.now_ms + ms, self.latest_ms - self.window_ms + 1)
        self.latest_ms = max(self.latest_ms, self.now_ms)


TestChanged = Changed.TestCase
TestChanged.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_ids_of_a_former_window_leave_the_store() -> None:
    journal = MemoryJournal()
    staging = Staging(journal)
    detection = Detection(7, WINDOW_MS, staging)
    for generation in range(100, 103):
        detection.remember([b"%d" % generation], generation * WINDOW_MS)
    staging.write()
    detection.change(3 * WINDOW_MS)
    for generation in range(35, 40):
        detection.remember([b"later"], generation * 3 * WINDOW_MS)
        staging.write()
    assert len(list(journal.scan(*numbered_span(DETECTION, 7)))) == 3
