"""The threads of a source that pulls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from harness.check.until import until
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.pull.puller import Lease, Pulled, PullError
from isthmus.connectors.pull.threads import PullThreads

WAIT_SECONDS = 60.0


class Fake:
    """Has one message; after that a receive waits until it is interrupted. The first completion fails."""

    entity = "q"
    batch = settle_batch = 10
    max_deliveries = 0
    clock_offset_ms = None

    def __init__(self) -> None:
        self.opened = 0
        self.completed: list[str] = []
        self.failures = [PullError("no answer")]
        self._waiting = threading.Event()
        self._messages = [Pulled(Lease("1", "r1", 60.0), section.encode_message(b"x"))]

    def open(self) -> str:
        self.opened += 1
        self._waiting = threading.Event()
        return "here"

    def receive(self, count: int) -> Sequence[Pulled]:
        if self._messages:
            return [self._messages.pop()]
        assert self._waiting.wait(WAIT_SECONDS)
        return ()

    def waiting(self) -> int | None:
        return None

    def complete(self, leases: Sequence[Lease]) -> Sequence[bool]:
        if self.failures:
            raise self.failures.pop()
        self.completed += [each.name for each in leases]
        return [True] * len(leases)

    def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
        return [True] * len(leases)

    def renew(self, leases: Sequence[Lease]) -> Sequence[Lease | None]:
        return list(leases)

    def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
        return True

    def interrupt(self) -> None:
        self._waiting.set()

    def close(self) -> None:
        self.interrupt()


def test_i3_a_receive_that_waits_delays_no_opening() -> None:
    """What is settled waits for it, and its lock ends."""
    fake = Fake()
    threads = PullThreads(fake, parallel=1, most=10, pause_seconds=1.0, only_present=False, wake=lambda: None)
    reported: list[object] = []
    positions: list[int] = []

    def look() -> list[object]:
        more, messages = threads.take()
        reported.extend(more)
        positions.extend(each.position for each in messages)
        return reported

    threads.open()
    threads.grant(10)
    until(lambda: look() and positions)
    threads.settle(positions[0], positions[0])
    until(lambda: any(isinstance(each, SourceLost) for each in look()))
    threads.open()
    until(lambda: sum(isinstance(each, SourceOpened) for each in look()) == 2)
    until(lambda: fake.completed == ["1"])
    threads.stop()
    threads.join(WAIT_SECONDS)
    assert not threads.is_alive()


def test_the_end_of_what_was_there_is_reported_though_what_came_later_cannot_be_given_back() -> None:
    class Later(Fake):
        """Has one message that came after the opening; it cannot be given back."""

        def __init__(self) -> None:
            super().__init__()
            self._messages = [Pulled(Lease("1", "r1", 60.0), section.encode_message(b"x"), 1, 1 << 60)]

        def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
            raise PullError("no answer")

    fake = Later()
    threads = PullThreads(fake, parallel=1, most=10, pause_seconds=1.0, only_present=True, wake=lambda: None)
    reported: list[object] = []

    def has_ended() -> bool:
        reported.extend(threads.take()[0])
        return any(isinstance(each, Exhausted) for each in reported)

    threads.open()
    threads.grant(10)
    until(has_ended)
    threads.stop()
    threads.join(WAIT_SECONDS)


def test_i5_the_end_waits_for_a_message_that_cannot_be_set_aside() -> None:
    """A run ended in good order, and counted the message as dead-lettered; it was nowhere but at its source."""

    class Refusing(Fake):
        """The place for messages that are set aside accepts the second one."""

        def __init__(self) -> None:
            super().__init__()
            self.failures = [PullError("the poison queue may not be written", True)]

        def receive(self, count: int) -> Sequence[Pulled]:
            return [self._messages.pop()] if self._messages else ()

        def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
            if self.failures:
                raise self.failures.pop()
            return True

    fake = Refusing()
    threads = PullThreads(fake, parallel=1, most=10, pause_seconds=0.01, only_present=True, wake=lambda: None)
    order: list[object] = []

    def look() -> list[object]:
        reported, messages = threads.take()
        order.extend(type(each) for each in reported)
        order.extend(each.position for each in messages)
        return order

    threads.open()
    threads.grant(10)
    until(lambda: len(look()) == 2)
    until(lambda: threads._present is not None and threads._present.is_over)
    assert Exhausted not in look()
    position = order[-1]
    assert isinstance(position, int)
    threads.settle(position, position, Disposition("dead-letter", "Bad", "it is"))
    until(lambda: look()[-1] is SourceLost)
    threads.open()
    until(lambda: Exhausted in look())
    threads.stop()
    threads.join(WAIT_SECONDS)


def test_what_another_reader_has_locked_is_waited_for_though_something_is_completed_meanwhile() -> None:
    class Shared(Fake):
        """A second message is with another reader, which dies; the first is completed while the messages are counted."""

        def __init__(self) -> None:
            super().__init__()
            self.failures = []
            self.looks = 0
            self.settle: Callable[[], None] = lambda: None

        def receive(self, count: int) -> Sequence[Pulled]:
            if self._messages:
                return [self._messages.pop()]
            if self.looks == 1:
                self.looks += 1
                return [Pulled(Lease("2", "r2", 60.0), section.encode_message(b"y"))]
            return ()

        def waiting(self) -> int | None:
            self.looks += 1
            if self.looks == 1:
                self.settle()
                until(lambda: self.completed == ["1"])
            return 2 - len(self.completed)

    fake = Shared()
    threads = PullThreads(fake, parallel=1, most=10, pause_seconds=0.01, only_present=True, wake=lambda: None)
    order: list[object] = []

    def settle() -> None:
        until(lambda: look() and 1 in order)

    def look() -> list[object]:
        reported, messages = threads.take()
        for each in messages:
            order.append(len(fake.completed) + 1)
            threads.settle(each.position, each.position)
        order.extend(type(each) for each in reported)
        return order

    fake.settle = settle
    threads.open()
    threads.grant(10)
    until(lambda: Exhausted in look())
    assert order == [SourceOpened, 1, 2, Exhausted]
    threads.stop()
    threads.join(WAIT_SECONDS)


def test_what_cannot_start_all_its_threads_ends_with_those_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of threads is reached: waiting for the threads raised an error, and the puller stayed open."""

    class Closing(Fake):
        is_closed = False

        def close(self) -> None:
            super().close()
            self.is_closed = True

    fake = Closing()
    threads = PullThreads(fake, parallel=1, most=10, pause_seconds=1.0, only_present=False, wake=lambda: None)
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name.startswith("settle-"):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError):
        threads.open()
    threads.stop()
    threads.join(WAIT_SECONDS)
    assert not threads.is_alive()
    assert fake.is_closed
