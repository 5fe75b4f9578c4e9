"""Messages that a pair moves, and scheduled messages that a planned fail-over moves; moves under locks are in tests/interop/federation/test_pair.py."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Int, Long, Symbol, Timestamp
from isthmus.entities.queue.run import RunSet
from isthmus.errors import IsthmusError, MessageTooLargeError, ServerBusyError
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.message import entered_as, sequence_of, state_of
from isthmus.operations.peek import Census
from isthmus.operations.removal.purge import Removal
from isthmus.operations.removal.sweep import Taken
from isthmus.pairing.failover import mover
from isthmus.pairing.failover.mover import as_copy

NOW_MS = 1_800_000_000_000


def scheduled(number: int, due_ms: int) -> bytes:
    annotations = {
        Symbol("x-opt-sequence-number"): Long(number),
        Symbol("x-opt-message-state"): Int(2),
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms),
    }
    return section.encode_message(b"x", annotations=annotations)


class Entity:
    """An entity of the old member: a look at it, and what was sent to the new one and removed here, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages: Sequence[bytes]) -> None:
        self.messages = list(messages)
        self.sent: list[int] = []
        self.groups: list[int] = []
        monkeypatch.setattr(mover, "messages", lambda client, path: iter(list(self.messages)))
        monkeypatch.setattr(mover, "remove", self._remove)
        monkeypatch.setattr(mover, "_Pass", lambda source, target, path: self._pass())
        monkeypatch.setattr(mover.time, "time_ns", lambda: NOW_MS * 1_000_000)

    def _pass(self) -> Any:
        made: Any = object.__new__(_PASS)
        made._source, made._path, made.count, made.first_refusal, made._lost = None, "orders", 0, "", None
        made._send, made.close = self._send, lambda: None
        return made

    def _send(self, payloads: Sequence[bytes]) -> list[bool]:
        self.groups.append(len(payloads))
        self.sent += [sequence_of(each) for each in payloads]
        return [True] * len(payloads)

    def _remove(self, client: object, path: str, meant: Census) -> Removal:
        removed = [each for each in self.messages if sequence_of(each) in meant.scheduled]
        self.messages = [each for each in self.messages if each not in removed]
        return Removal(len(removed), 0)


_PASS = mover._Pass


def moved(**options: bool) -> mover.Moved:
    no_client: Any = None
    return mover.move(no_client, no_client, "orders", in_sessions=False, **options)


def test_i5_what_is_due_soon_stays_until_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due between its copy and its removal, it would be moved once more as a message under another number."""
    entity = Entity(monkeypatch, [scheduled(1, NOW_MS + 60_000), scheduled(2, NOW_MS + 1_000)])
    assert moved() == (1, "")
    assert entity.sent == [1]
    assert [sequence_of(each) for each in entity.messages] == [2]


def test_i5_at_a_topic_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    entity = Entity(monkeypatch, [scheduled(1, NOW_MS + 60_000), scheduled(2, NOW_MS + 1_000)])
    assert moved(is_topic=True) == (2, "")
    assert entity.sent == [2, 1], "what is due first goes first"


def test_few_scheduled_messages_are_between_their_copies_and_their_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    entity = Entity(monkeypatch, [scheduled(number, NOW_MS + 60_000) for number in range(1, 121)])
    assert moved() == (120, "")
    assert max(entity.groups) <= 50
    assert entity.sent == list(range(1, 121)), "of one time in their order"


def test_i1_what_the_new_member_acknowledged_before_it_was_lost_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be moved again, and a namespace that does not know the keys would have it twice."""
    lost = UnconfirmedError("gone")
    lost.results = [None, lost, None]
    completed: list[object] = []

    def deliver(*_: object) -> Any:
        raise lost

    def sweep(client: object, path: str, wanted: RunSet, take: Any, **_: object) -> int:
        completed.extend(take([Taken(number, b"", scheduled(number, 0)) for number in range(3)], lambda: None))
        assert not wanted, "the pass ends"
        return len(completed)

    monkeypatch.setattr(mover, "deliver", deliver)
    monkeypatch.setattr(mover, "sweep", sweep)
    made: Any = object.__new__(_PASS)
    made._source = made._target = None
    made._sender = SimpleNamespace(max_message_bytes=0)
    made._path, made._are_dead, made._keeps_keys, made.count, made.first_refusal, made._lost = (
        "orders",
        False,
        False,
        0,
        "",
        None,
    )
    wanted = RunSet()
    wanted.add(0, 2)
    with pytest.raises(UnconfirmedError):
        made.carry(wanted, None)
    assert [each.delivery_id for each in completed] == [0, 2]  # type: ignore[attr-defined]
    assert (made.count, made.first_refusal) == (2, "")


@pytest.mark.parametrize("are_dead", [False, True])
def test_i2_no_message_overtakes_one_that_is_too_large(are_dead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait at the new member when the fail-over is rolled back, and its session continue without it. Dead letters have no order."""
    small, large = scheduled(1, 0), section.encode_message(b"x" * 1000)
    sent: list[bytes] = []

    def deliver(client: object, sender: object, copies: Sequence[bytes], renew: object) -> list[IsthmusError | None]:
        sent.extend(copies)
        return [MessageTooLargeError(len(each), 500) if len(each) > 500 else None for each in copies]

    def sweep(client: object, path: str, wanted: RunSet, take: Any, **_: object) -> int:
        taken = [Taken(number, b"", payload) for number, payload in enumerate((small, large, small))]
        return len(take(taken, lambda: None))

    monkeypatch.setattr(mover, "deliver", deliver)
    monkeypatch.setattr(mover, "sweep", sweep)
    made: Any = object.__new__(_PASS)
    made._source = made._target = made._lost = None
    made._sender = SimpleNamespace(max_message_bytes=500)
    made._path, made._are_dead, made._keeps_keys, made.count, made.first_refusal = "orders", are_dead, False, 0, ""
    made.carry(RunSet(), None)
    assert made.count == (2 if are_dead else 1)
    assert [len(each) > 500 for each in sent] == ([False, True, False] if are_dead else [False, True])
    assert "1" in made.first_refusal


def test_i1_what_the_new_member_acknowledged_before_a_renewal_failed_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy namespace refuses a renewal, and takes settlements all the same."""
    completed: list[object] = []

    def renew() -> None:
        raise ServerBusyError("busy")

    def sweep(client: object, path: str, wanted: RunSet, take: Any, **_: object) -> int:
        completed.extend(take([Taken(number, b"", scheduled(number, 0)) for number in range(3)], renew))
        assert not wanted, "the pass ends"
        return len(completed)

    monkeypatch.setattr(mover, "sweep", sweep)
    made: Any = object.__new__(_PASS)
    made._source, made._path, made.count, made.first_refusal, made._lost = None, "orders", 0, "", None
    made._are_dead, made._send = False, lambda payloads, renew, in_order: [True] * len(payloads)
    wanted = RunSet()
    wanted.add(0, 2)
    with pytest.raises(ServerBusyError):
        made.carry(wanted, None)
    assert made.count == len(completed) == 3


def test_a_message_whose_sender_s_annotations_cannot_be_read_is_moved_with_them() -> None:
    own = [b"\xa3\4mine", b"\xa1\2\xff\xff"]
    pairs = [
        *own,
        codec.encode(Symbol("x-opt-enqueue-sequence-number")), codec.encode(Long(5)),
        codec.encode(Symbol("x-opt-sequence-number")), codec.encode(Long(7)),
        codec.encode(Symbol("x-opt-enqueued-time")), codec.encode(Timestamp(1_000)),
        codec.encode(Symbol("x-opt-message-state")), codec.encode(Long(2)),
    ]  # fmt: skip
    payload = (
        section.encode_header(Header(ttl_ms=10_000))
        + b"\0Sr"
        + codec.encode_map(pairs)
        + section.encode_message(b"body")
    )
    assert (sequence_of(payload), entered_as(payload), state_of(payload)) == (7, 5, 2)
    copy = as_copy(payload, 4_000, moved="0" * 32)
    found = section.locate(copy)
    assert section.decode_header(copy, found.header).ttl_ms == 7_000
    assert b"".join(own) in copy[slice(*found.message_annotations)]
    assert copy[slice(*found.body)] == b"\0Su\xa0\4body"


@pytest.mark.parametrize(
    ("due_ms", "now_ms", "left_ms"),
    [(9_000, 4_000, 2_000), (9_000, 10_500, 500), (9_000, 20_000, 1), (500, 2_500, 500), (None, 2_500, 500)],
)
def test_the_life_of_a_scheduled_message_begins_when_it_is_due(due_ms: int | None, now_ms: int, left_ms: int) -> None:
    """With less, one that was scheduled for longer than it lives would expire at the new member as soon as it is there."""
    annotations: dict[Any, Any] = {Symbol("x-opt-enqueued-time"): Timestamp(1_000)}
    if due_ms is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(due_ms)
    payload = section.encode_header(Header(ttl_ms=2_000)) + section.encode_message(b"x", annotations=annotations)
    copy = as_copy(payload, now_ms)
    assert section.decode_header(copy, section.locate(copy).header).ttl_ms == left_ms


def test_a_scheduled_message_whose_sender_s_annotations_cannot_be_read_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [
        b"\xa3\4mine", b"\xa1\2\xff\xff",
        codec.encode(Symbol("x-opt-sequence-number")), codec.encode(Long(7)),
        codec.encode(Symbol("x-opt-message-state")), codec.encode(Int(2)),
        codec.encode(Symbol("x-opt-scheduled-enqueue-time")), codec.encode(Timestamp(NOW_MS + 60_000)),
    ]  # fmt: skip
    unread = b"\0Sr" + codec.encode_map(pairs) + section.encode_message(b"x")
    entity = Entity(monkeypatch, [scheduled(8, NOW_MS + 120_000), unread])
    assert moved() == (2, "")
    assert entity.sent == [7, 8]
