"""A spool as a target: acknowledged messages are on disk, and errors are reported."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section, types
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import TargetEvent
from isthmus.bridge.refusal import RefusalKind
from isthmus.bridge.registry import connector
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.spool.connector import SpoolTargets
from isthmus.connectors.spool.folder import SpoolError
from isthmus.connectors.spool.option import numbering_of, target_options
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.target import SpoolTarget, SpoolThread, record_of
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import ConfigError

LIMIT_SECONDS = 60.0


def message(number: int, body: bytes = b"x") -> bytes:
    return section.encode_message(
        body,
        annotations={
            "x-opt-sequence-number": types.Long(number),
            "x-opt-enqueued-time": types.Timestamp(1_000 + number),
        },
    )


def test_a_number_that_another_system_gave_shows_nothing() -> None:
    """A queue of a broker without numbers may hold messages of two queues that had them, and they may have the same."""
    assert record_of("q id", message(7)).sequence == 7
    assert record_of("q id", message(7), is_numbered=False).sequence == -1


class Loop:
    """The loop of a process that has one target."""

    def __init__(self, pool: SpoolTargets, target: SpoolTarget) -> None:
        self.pool, self.target = pool, target
        self.events: list[TargetEvent] = []

    def until(self, holds: Callable[[], object]) -> None:
        poll = select.poll()
        for descriptor, events in self.pool.descriptors():
            poll.register(descriptor, events)
        limit = time.monotonic() + LIMIT_SECONDS
        while not holds():
            assert time.monotonic() < limit, self.events
            ready = dict(poll.poll(100))
            self.pool.service(ready, time.monotonic())
            self.events += self.target.poll(time.monotonic())

    def has(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self.events)

    @property
    def answered(self) -> int:
        return max((each.last + 1 for each in self.events if isinstance(each, Outcome)), default=0)


@pytest.fixture
def pool() -> Iterator[SpoolTargets]:
    made = SpoolTargets()
    yield made
    made.close()


def target(pool: SpoolTargets, path: Path, identity: str = "id", **options: str) -> Loop:
    made = pool.target(1, {"path": str(path), "source": "ewr/q", **options}, origin_identity=identity)
    assert isinstance(made, SpoolTarget)
    return Loop(pool, made)


def stored(path: Path) -> list[int]:
    reader = SpoolReader(path)
    return [
        record.sequence
        for part in reader.ranges(reader.first(), reader.last(), 1 << 40)
        for _, records in reader.blocks(part)
        for record in records
    ]


def test_i1_what_is_acknowledged_is_on_disk(pool: SpoolTargets, tmp_path: Path) -> None:
    loop = target(pool, tmp_path)
    loop.target.open()
    loop.until(lambda: loop.has(Granted))
    assert isinstance(loop.events[0], Opened)
    loop.target.send(Send([message(number) for number in range(5)]))
    loop.target.send(Send([message(number) for number in range(5, 8)], is_envelope=True))
    loop.until(lambda: loop.answered == 6)
    assert stored(tmp_path) == list(range(8))
    loop.target.close()


def test_what_comes_again_is_acknowledged_and_kept_once(pool: SpoolTargets, tmp_path: Path) -> None:
    loop = target(pool, tmp_path)
    loop.target.open()
    loop.until(lambda: loop.has(Granted))
    loop.target.send(Send([message(1), message(2), message(1)]))
    loop.until(lambda: loop.answered == 3)
    loop.target.send(Send([message(2)]))
    loop.until(lambda: loop.answered == 4)
    assert stored(tmp_path) == [1, 2]
    loop.target.close()


@pytest.mark.parametrize(
    ("kind", "kept"), [("kafka", [1, 1, 2]), ("rabbitmq-streams", [1, 1, 2]), ("servicebus", [1, 2])]
)
def test_what_has_the_number_and_the_time_of_another_is_known_by_what_it_holds(
    pool: SpoolTargets, tmp_path: Path, kind: str, kept: list[int]
) -> None:
    loop = target(pool, tmp_path, **numbering_of(kind))
    loop.target.open()
    loop.until(lambda: loop.has(Granted))
    loop.target.send(Send([message(1), message(1, b"other"), message(1, b"other"), message(2)]))
    loop.until(lambda: loop.answered == 4)
    assert stored(tmp_path) == kept
    loop.target.close()


def test_another_namespace_under_the_same_alias_has_numbers_of_its_own(pool: SpoolTargets, tmp_path: Path) -> None:
    for identity in ("one", "two"):
        loop = target(pool, tmp_path, identity)
        loop.target.open()
        loop.until(lambda loop=loop: loop.has(Granted))
        loop.target.send(Send([message(1)]))
        loop.until(lambda loop=loop: loop.answered == 1)
        loop.target.close()
    assert stored(tmp_path) == [1, 1]


def test_i3_the_next_opening_takes_the_spool_when_the_one_before_has_left_it(
    pool: SpoolTargets, tmp_path: Path
) -> None:
    loop = target(pool, tmp_path)
    for _ in range(3):
        loop.events.clear()
        loop.target.open()
        loop.until(lambda: loop.has(Granted))
    loop.target.send(Send([message(1)]))
    loop.until(lambda: loop.answered == 1)
    loop.target.close()


def test_i3_a_spool_that_another_process_writes_is_waited_for_and_then_refused(
    pool: SpoolTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.connectors.spool.target._LOCK_SECONDS", 0.0)
    other = SpoolWriter(tmp_path).open()
    loop = target(pool, tmp_path)
    loop.target.open()
    loop.until(lambda: loop.has(Lost))
    (lost,) = (each for each in loop.events if isinstance(each, Lost))
    assert lost.refusal.kind is RefusalKind.BLOCKED
    assert "written by another process" in lost.refusal.description
    other.close()
    loop.target.open()
    loop.until(lambda: loop.has(Granted))
    loop.target.close()


def test_a_disk_that_refuses_is_reported_and_nothing_is_acknowledged(pool: SpoolTargets, tmp_path: Path) -> None:
    class Full(SpoolWriter):
        def sync(self) -> None:
            raise SpoolError("spool cannot be synced: No space left on device")

    def thread(*arguments: object) -> SpoolThread:
        return SpoolThread(*arguments, writer=Full)  # type: ignore[arg-type]

    loop = target(pool, tmp_path)
    loop.target._make_thread = thread  # type: ignore[method-assign]
    loop.target.open()
    loop.until(lambda: loop.has(Granted))
    loop.target.send(Send([message(1)]))
    loop.until(lambda: loop.has(Lost))
    assert loop.answered == 0


def test_a_message_that_cannot_be_read_is_kept() -> None:
    assert record_of("k", b"junk") == ("k", -1, 0, b"junk", 0)
    assert record_of("k", message(3))[:3] == ("k", 3, 1_003)
    for odd in (True, types.ULong(1 << 63), types.Long(-5), "7"):
        made = section.encode_message(b"x", annotations={"x-opt-sequence-number": odd, "x-opt-enqueued-time": odd})
        assert record_of("k", made)[:3] == ("k", -1, 0)


def test_the_options_of_a_spool_are_checked(pool: SpoolTargets) -> None:
    sources = connector("spool").sources()
    with pytest.raises(ConfigError, match="path"):
        sources.source(1, {})
    sources.close()
    with pytest.raises(ConfigError, match="path"):
        pool.target(1, {"source": "ewr/q"})


def test_what_is_on_disk_of_an_envelope_is_reported_before_the_spool_is_lost(tmp_path: Path) -> None:
    """An envelope may lie in two groups. Sent again as a whole, a message without a number would be there twice."""
    made: list[_Silent] = []

    def make(*arguments: Any) -> _Silent:
        made.append(_Silent(*arguments))
        return made[0]

    pool = EndPool()
    options = target_options({"path": str(tmp_path), "source": "ewr/q"})
    silent = SpoolTarget(pool, 1, options, "id", make)
    silent.open()
    made[0].is_open = True
    silent.poll(0.0)
    silent.send(Send([message(1)]))
    silent.send(Send([message(number) for number in range(2, 6)], is_envelope=True))
    made[0]._answered = 3
    made[0].lost = SpoolError("the disk is full")
    first, _, part, lost = silent.poll(0.0)
    assert isinstance(lost, Lost)
    assert (first, part) == (Outcome(0, 0), Outcome(1, 1, lost.refusal, (0, 1)))
    pool.close()


class _Silent(SpoolThread):
    """Does nothing by itself."""

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        pass


def test_what_is_on_disk_when_the_spool_is_lost_is_reported(tmp_path: Path) -> None:
    """The thread may write, and then fail, between two looks of the loop."""
    late = _Late({"path": str(tmp_path), "source": "ewr/q"})
    late.target.poll(0.0)
    late.target.send(Send([message(1)]))
    assert not [each for each in late.target.poll(0.0) if isinstance(each, Lost)]
    outcome, _, lost = late.target.poll(0.0)
    assert outcome == Outcome(0, 0)
    assert isinstance(lost, Lost)
    late.pool.close()


class _Late:
    """A target whose thread writes and fails as its answers are taken."""

    def __init__(self, options: dict[str, str]) -> None:
        self.pool = EndPool()

        class Failing(_Silent):
            def take(self) -> int:
                count = super().take()
                if self._queue and self.lost is None:
                    self._answered, self.lost = 1, SpoolError("the disk is full")
                return count

        self.target = SpoolTarget(self.pool, 1, target_options(options), "id", Failing)
        self.target.open()
        assert self.target._thread is not None
        self.target._thread.is_open = True
