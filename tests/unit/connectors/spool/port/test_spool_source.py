"""A spool as the source of a route."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.check.until import until
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.connector import SpoolSources
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.port import thread as thread_module
from isthmus.connectors.spool.refused import count_refused, set_aside
from isthmus.connectors.spool.writer import SpoolWriter

KEY = "ewr/flights here"


def write(path: Path, *numbers: int, key: str = KEY, segment_bytes: int = 1 << 20) -> None:
    writer = SpoolWriter(path, segment_bytes=segment_bytes).open()
    SpoolFolder(path).write_origin(key.rpartition(" ")[2] or "here")
    for number in numbers:
        writer.append([Record(key, number, 1, b"m%d" % number)])
    writer.sync()
    writer.close()


class Watched:
    """A source and what it reported."""

    def __init__(self, path: Path, *, only_present: bool = False) -> None:
        self.pool = SpoolSources()
        self.source = self.pool.source(1, {"path": str(path)}, only_present=only_present)
        self.events: list[SourceEvent] = []
        self.source.open()

    def wait(self, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            if condition():
                return True
            self.pool.service({}, time.monotonic())
            self.events += self.source.poll(time.monotonic())
            return False

        until(is_so, lambda: self.events)

    def wait_for(self, kind: type) -> None:
        self.wait(lambda: any(isinstance(each, kind) for each in self.events))

    @property
    def arrived(self) -> list[int]:
        return [number for each in self.events if isinstance(each, Arrived) for number in each.positions]


@contextmanager
def watched(path: Path, *, only_present: bool = False) -> Iterator[Watched]:
    opened = Watched(path, only_present=only_present)
    try:
        yield opened
    finally:
        opened.source.close()
        opened.pool.close()


def test_messages_come_within_the_credit_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, *range(10))
    with watched(tmp_path) as end:
        end.wait_for(SourceOpened)
        assert end.events[0] == SourceOpened("here")
        end.source.grant(4)
        end.wait(lambda: len(end.arrived) >= 4)
        end.source.drain()
        end.wait_for(Drained)
        assert end.arrived == [0, 1, 2, 3]
        end.source.grant(100)
        end.wait(lambda: len(end.arrived) == 10)
        assert end.arrived == list(range(10))


def test_what_is_settled_does_not_come_again_and_what_is_not_does(tmp_path: Path) -> None:
    write(tmp_path, *range(6))
    with watched(tmp_path) as end:
        end.source.grant(6)
        end.wait(lambda: len(end.arrived) == 6)
        end.source.settle(0, 2)
        end.source.settle(4, 4)
    with watched(tmp_path) as again:
        again.source.grant(100)
        again.wait(lambda: len(again.arrived) == 3)
        assert again.arrived == [3, 4, 5]


def test_what_is_given_back_comes_again(tmp_path: Path) -> None:
    write(tmp_path, *range(4))
    with watched(tmp_path) as end:
        end.source.grant(100)
        end.wait(lambda: len(end.arrived) == 4)
        end.source.settle(2, 2)
        end.source.release(1, 3)
        end.wait(lambda: len(end.arrived) == 6)
        assert end.arrived[4:] == [1, 3]


def test_what_is_written_later_comes(tmp_path: Path) -> None:
    with watched(tmp_path) as end:
        end.source.grant(10)
        write(tmp_path, 0)
        end.wait(lambda: len(end.arrived) == 1)
        write(tmp_path, 1, 2)
        end.wait(lambda: len(end.arrived) == 3)
        assert end.events[0] == SourceOpened("here")


def test_notes_are_no_messages(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, -1, key="")
    write(tmp_path, 1)
    with watched(tmp_path, only_present=True) as end:
        end.source.grant(10)
        end.wait_for(Exhausted)
        assert end.arrived == [0, 2]
        end.source.settle(0, 2)
    assert SpoolFolder(tmp_path).taken() == 3


def test_segments_that_are_settled_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.connectors.spool.port.thread._RELEASE_SECONDS", 0.01)
    write(tmp_path, *range(6), segment_bytes=1)
    folder = SpoolFolder(tmp_path)
    with watched(tmp_path) as end:
        end.source.grant(10)
        end.wait(lambda: len(end.arrived) == 6)
        end.source.settle(0, 2)
        end.wait(lambda: folder.numbers() == [3, 4, 5])
        end.source.settle(3, 5)
        end.wait(lambda: folder.numbers() == [5])
    write(tmp_path, 6)
    with watched(tmp_path) as again:
        again.source.grant(10)
        again.wait(lambda: len(again.arrived) == 1)
        assert again.arrived == [6]


def test_a_message_that_is_set_aside_is_kept_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, *range(3))
    with watched(tmp_path) as end:
        end.source.grant(10)
        end.wait(lambda: len(end.arrived) == 3)
        end.source.settle(1, 1, Disposition("dead-letter", "TooLarge", "it has 2 GB"))
        end.wait(lambda: count_refused(tmp_path) == 1)
        end.source.settle(0, 0)
        end.source.settle(2, 2)
        end.wait(lambda: SpoolFolder(tmp_path).taken() == 3)
    assert next((tmp_path / "refused").glob("*.amqp")).read_bytes() == b"m1"
    assert '"reason": "TooLarge"' in next((tmp_path / "refused").glob("*.json")).read_text()


def test_messages_of_another_namespace_come_after_another_opening(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 0, key="ewr/flights there")
    with watched(tmp_path) as end:
        end.source.grant(10)
        end.wait(lambda: len(end.arrived) == 1)
        end.source.settle(0, 0)
        end.wait_for(SourceLost)
        end.source.open()
        end.wait(lambda: end.events[-1] == SourceOpened("there"))
        end.source.grant(10)
        end.wait(lambda: end.arrived == [0, 1])


def test_two_processes_do_not_read_one_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.connectors.spool.port.thread.LOCK_SECONDS", 0.05)
    write(tmp_path, 0)
    with watched(tmp_path) as end:
        end.wait_for(SourceOpened)
        with watched(tmp_path) as other:
            other.wait_for(SourceLost)
            lost = next(each for each in other.events if isinstance(each, SourceLost))
            assert "another process reads it" in lost.text
            assert not lost.is_fatal


def test_a_note_of_what_was_taken_from_another_spool_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    folder = SpoolFolder(tmp_path)
    descriptor = folder.open_taken()
    folder.write_taken(descriptor, "f" * 32, 1)
    assert folder.taken() is None
    folder.write_taken(descriptor, folder.identity(), 1)
    os.close(descriptor)
    assert folder.taken() == 1


def test_a_message_that_cannot_be_set_aside_now_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full; it would not be tried a second time, and its segment would stay for good."""
    write(tmp_path, 0, 1, 2)
    failures = [OSError(28, "No space left on device")]

    def full(*arguments: object) -> None:
        if failures:
            raise failures.pop()
        set_aside(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(thread_module, "set_aside", full)
    with watched(tmp_path) as opened:
        opened.source.grant(10)
        opened.wait(lambda: len(opened.arrived) == 3)
        opened.source.settle(1, 1, Disposition("dead-letter", "Refused", "no"))
        opened.wait_for(SourceLost)
        opened.source.settle(0, 0)
        opened.source.open()
        opened.source.grant(10)
        opened.wait(lambda: len(opened.arrived) == 4)
        assert opened.arrived == [0, 1, 2, 1]
        opened.source.settle(1, 1, Disposition("dead-letter", "Refused", "no"))
        opened.source.settle(2, 2)
        opened.wait(lambda: SpoolFolder(tmp_path).taken() == 3)
    assert count_refused(tmp_path) == 1


def lost(end: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is lost by a disk that refuses, while messages 0 to 3 are with the owner."""
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(thread_module, "set_aside", full)
        end.source.grant(10)
        end.wait(lambda: len(end.arrived) == 4)
        end.source.settle(0, 0, Disposition("dead-letter", "Refused", "no"))
        end.wait_for(SourceLost)
        end.wait(lambda: not end.source._thread.is_alive())  # type: ignore[attr-defined]


def test_i1_what_is_set_aside_while_the_source_is_lost_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind it would be noted as settled until the next lease, which would send all of that again."""
    write(tmp_path, *range(4))
    with watched(tmp_path) as end:
        lost(end, monkeypatch)
        end.source.settle(1, 1, Disposition("dead-letter", "Refused", "no"))
        end.source.settle(2, 3)
        end.source.open()
        end.source.grant(10)
        end.wait(lambda: len(end.arrived) == 6)
        assert end.arrived[4:] == [0, 1]
        end.source.settle(0, 1, Disposition("dead-letter", "Refused", "no"))
        end.wait(lambda: SpoolFolder(tmp_path).taken() == 4)
    assert count_refused(tmp_path) == 2


def test_what_is_settled_while_the_source_is_lost_is_noted_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *range(4))
    with watched(tmp_path) as end:
        lost(end, monkeypatch)
        end.source.open()
        end.wait(lambda: sum(isinstance(each, SourceOpened) for each in end.events) == 2)
        end.source.grant(1)
        end.wait(lambda: len(end.arrived) == 5)
        # It is lost again at once, and all is settled meanwhile.
        end.source._thread.stop()  # type: ignore[attr-defined]
        end.wait(lambda: not end.source._thread.is_alive())  # type: ignore[attr-defined]
        end.source.settle(0, 3)
        assert not SpoolFolder(tmp_path).taken()
        end.source.open()
        end.wait(lambda: sum(isinstance(each, SourceOpened) for each in end.events) == 3)
        assert SpoolFolder(tmp_path).taken() == 4


def test_a_source_has_left_only_when_its_thread_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 0)
    begun, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: object) -> None:
        begun.set()
        goes_on.wait(60)

    monkeypatch.setattr(thread_module, "set_aside", slow)
    with watched(tmp_path) as end:
        end.source.grant(1)
        end.wait(lambda: len(end.arrived) == 1)
        end.source.settle(0, 0, Disposition("dead-letter", "Refused", "no"))
        assert begun.wait(60)
        end.source.close()
        assert not end.source.has_left
        goes_on.set()
        end.wait(lambda: end.source.has_left)
        assert SpoolFolder(tmp_path).taken() == 1


def test_what_is_set_aside_just_before_the_end_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for what exists closes its source then: the message was released, and counted as set aside."""
    write(tmp_path, 0)
    look = thread_module.SpoolSourceThread._set_aside_all
    with watched(tmp_path, only_present=True) as end:
        end.source.grant(10)
        end.wait(lambda: end.arrived == [0])

        def then_the_owner_ends_it(thread: thread_module.SpoolSourceThread) -> None:
            look(thread)
            monkeypatch.setattr(thread_module.SpoolSourceThread, "_set_aside_all", look)
            end.source.settle(0, 0, Disposition("dead-letter", "Bad", "it is"))
            end.source.close()

        monkeypatch.setattr(thread_module.SpoolSourceThread, "_set_aside_all", then_the_owner_ends_it)
        until(lambda: end.source.has_left)
    assert count_refused(tmp_path) == 1
    assert SpoolFolder(tmp_path).taken() == 1
