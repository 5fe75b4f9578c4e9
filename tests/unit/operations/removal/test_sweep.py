"""The pass over an entity, against a scripted receiver."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import isthmus.operations.removal.sweep as module
from isthmus.amqp import section
from isthmus.amqp.performative import Accepted
from isthmus.amqp.types import Long
from isthmus.entities.queue.run import RunSet
from isthmus.errors import SessionLockLostError
from isthmus.operations.removal.sweep import sweep

PARTITION = 1 << 48


def message(sequence: int) -> bytes:
    annotations = {"x-opt-sequence-number": Long(sequence)}
    return section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(b"x")


class Peer:
    """A client, its management and its receiver; each wait takes a second and brings what `coming` gives: messages, or so many bytes of one."""

    def __init__(self, coming: Any) -> None:
        self.now = 0.0
        self.received_bytes = 0
        self._coming = iter(coming)
        self._runs: list[SimpleNamespace] = []
        self._next = 0
        self.error = None
        self.credit = 0
        self.drained = False
        self.outcomes: deque[tuple[int, int, object]] = deque()
        self.settled: list[tuple[int, int, object]] = []
        self.renewed: list[set[int]] = []

    # client

    def wait(self, seconds: float) -> None:
        self.now += 1.0
        sequences = next(self._coming, ())
        if isinstance(sequences, int):
            self.received_bytes += sequences
        elif sequences:
            payloads = [message(each) for each in sequences]
            tags = [(number << 64 | each).to_bytes(16) for number, each in enumerate(sequences, self._next)]
            self._runs.append(SimpleNamespace(first_id=self._next, tags=tags, payloads=payloads))
            self._next += len(payloads)

    def wait_answer(self, holds: Any, seconds: float, what: str) -> None:
        assert holds(), what

    # receiver

    path = "spread"

    @property
    def arrived(self) -> list[SimpleNamespace]:
        return self._runs

    def wait_attached(self) -> Peer:
        return self

    def grant(self, count: int) -> None:
        self.credit = count

    def take(self) -> list[SimpleNamespace]:
        runs, self._runs = self._runs, []
        return runs

    def dispose(self, first: int, last: int, state: Any = None) -> None:
        state = Accepted() if state is None else state
        self.settled.append((first, last, state))
        self.outcomes.append((first, last, state))

    def drain(self) -> None:
        self.drained = True

    def close(self) -> None:
        pass

    # management

    renewal_seconds = stalled_until = 0.0

    def renew_groups(self, groups: Any) -> list[bytes]:
        self.now += self.renewal_seconds
        asked = [tag for group in groups for tag in group]
        self.renewed.append({int.from_bytes(tag) & (1 << 64) - 1 for tag in asked})
        return asked if self.now < self.stalled_until else []


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(coming: Any, wanted: RunSet, take: Any = lambda peer, taken, renew: taken, **settings: Any) -> Any:
        peer = Peer(coming)
        monkeypatch.setattr(module, "Receiver", lambda *_, **__: peer)
        monkeypatch.setattr(module, "Management", lambda *_: peer)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: peer.now, time=lambda: peer.now))
        return sweep(peer, peer.path, wanted, partial(take, peer), **settings), peer  # type: ignore[arg-type]

    return run


def runs(*sequences: int) -> RunSet:
    found = RunSet()
    for each in sequences:
        found.add(each, each)
    return found


def test_i1_only_what_is_wanted_is_completed_and_the_others_are_released(swept: Any) -> None:
    completed, peer = swept([(1, 2, 3)], runs(1, 3))
    assert completed == 2
    assert [(first, last, type(state).__name__) for first, last, state in peer.settled] == [
        (0, 0, "Accepted"),
        (2, 2, "Accepted"),
        (1, 1, "Released"),
    ]


def test_i3_what_was_completed_before_the_link_was_lost_is_reported(
    swept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = SessionLockLostError("spread", "s")

    def coming() -> Any:
        yield (1, 2)
        peers[0].error = lost
        yield (3,)

    peers: list[Any] = []
    begin = Peer.__init__

    def init(self: Peer, coming: Any) -> None:
        begin(self, coming)
        peers.append(self)

    monkeypatch.setattr(Peer, "__init__", init)
    with pytest.raises(SessionLockLostError) as raised:
        swept(coming(), runs(1, 2, 3, 4))
    assert raised.value.attributes["completed"] == 3


def test_i4_the_locks_of_messages_that_wait_behind_those_that_are_sent_are_renewed(swept: Any) -> None:
    """A target may be slow. Else they are sent as well, stay in their queue, and are sent again by the next call."""

    def take(peer: Peer, taken: Any, renew: Any) -> Any:
        for _ in range(2):  # while answers of the target are awaited
            peer.wait(0.0)
            peer.now += 5.0
            renew()
        return taken

    completed, peer = swept([(1,), (2,), (3,)], runs(1, 2, 3), take)
    assert completed == 3
    assert peer.renewed[:3] == [{1, 2}, {1, 2, 3}, {2, 3}]


def test_i5_messages_that_come_to_one_partition_do_not_keep_a_pass_waiting_for_another(swept: Any) -> None:
    """What is wanted of partition 2 no longer exists; partition 1 gets messages without end, which stay locked and unavailable to their consumers."""

    def coming() -> Any:
        for sequence in range(1, 1000):
            yield (PARTITION + sequence,)
        pytest.fail("the pass did not end")

    completed, peer = swept(coming(), runs(PARTITION + 1, 2 * PARTITION + 1))
    assert completed == 1
    assert peer.now < 10


def test_i6_renewals_that_last_do_not_end_a_pass(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 messages that are not wanted are locked before those that are."""
    monkeypatch.setattr(Peer, "renewal_seconds", 4.0)
    completed, peer = swept([(number,) for number in range(1, 20)], runs(19))
    assert completed == 1
    assert peer.now < 60, "messages come between them"


def test_i6_a_message_that_takes_long_to_arrive_is_waited_for(swept: Any) -> None:
    """Else each pass over a slow network would end before its first message, which would count as locked by others."""
    completed, peer = swept([*[20_000] * 50, (1,), *[600] * 50, (2,)], runs(1, 2))
    assert completed == 2
    assert peer.now > 100


def test_i6_heartbeats_do_not_keep_a_pass_from_its_end(swept: Any) -> None:
    completed, peer = swept([8] * 100, runs(1))
    assert completed == 0
    assert peer.now < 10


def test_a_pass_waits_for_several_round_trips(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def far(self: Peer) -> Peer:
        self.now += 4.0
        return self

    monkeypatch.setattr(Peer, "wait_attached", far)
    assert swept([(), (), (), (), (), (1,)], runs(1), quiet_seconds=0.5)[0] == 1


def test_answers_that_come_slowly_are_waited_for(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come behind the messages that are in transit."""
    held: list[tuple[int, int, object]] = []

    def dispose(self: Peer, first: int, last: int, state: Any = None) -> None:
        held.append((first, last, Accepted() if state is None else state))

    def wait(self: Peer, seconds: float) -> None:
        begin(self, seconds)
        if self.received_bytes > 90 * 20_000:
            self.outcomes.extend(held)
            held.clear()

    begin = Peer.wait
    monkeypatch.setattr(Peer, "dispose", dispose)
    monkeypatch.setattr(Peer, "wait", wait)
    completed, _ = swept([(1, 2), *[20_000] * 200], runs(1))
    assert completed == 1


def test_i7_a_message_whose_lock_is_lost_is_passed_on_when_it_comes_again(swept: Any) -> None:
    """Else it is sent, stays, since it cannot be completed, and is sent again by the next call."""
    passed: list[tuple[int, ...]] = []

    def take(peer: Peer, taken: Any, renew: Any) -> Any:
        passed.append(tuple(each.delivery_id for each in taken))
        if len(passed) == 1:
            peer.wait(0.0)  # the next ones come
            peer.now += 60.0
            peer.stalled_until = peer.now + 1.0
            renew()
        return taken

    swept([(1,), (2, 3), (), (2, 3)], runs(1, 2, 3), take)
    assert passed == [(0,), (3, 4)]


def test_i7_locks_are_looked_at_between_the_parts_that_are_sent(swept: Any) -> None:
    """`resubmit` and `redrive` send a hundred at once: the second hundred would be sent after a stall during the first."""
    passed: list[int] = []

    def take(peer: Peer, taken: Any, renew: Any) -> Any:
        passed.append(len(taken))
        if len(passed) == 1:
            peer.now += 60.0
            peer.stalled_until = peer.now + 1.0
        return taken

    numbers = range(1, 151)
    _, peer = swept([numbers, numbers[100:]], runs(*numbers), take)
    assert passed == [100, 50]
    assert [(first, last) for first, last, _ in peer.settled] == [(0, 99), (150, 199)]


def test_i8_what_a_stalled_network_holds_back_is_not_called_locked_by_others(
    swept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives before the answer to the drain."""

    def drain(self: Peer) -> None:
        self.drained = True
        if late:
            self._coming = iter([late.pop()])
            self.wait(0.0)

    late = [(1, 2), (3,)][::-1]
    monkeypatch.setattr(Peer, "drain", drain)
    completed, _ = swept([], runs(1, 3, 4))
    assert completed == 2


def test_a_pass_that_is_told_to_stop_completes_what_was_taken_and_releases_the_rest(swept: Any) -> None:
    def coming() -> Any:
        yield (1, 2, 3)
        yield (4,)
        pytest.fail("the pass did not end")

    wanted = runs(1, 3, 4, 5)
    answers = iter((False, True))
    completed, peer = swept(coming(), wanted, is_stopped=lambda: next(answers))
    assert completed == 2
    assert [type(state).__name__ for _, _, state in peer.settled] == ["Accepted", "Accepted", "Released"]
    assert list(wanted) == [(4, 5)]
