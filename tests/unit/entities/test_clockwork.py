"""The due work of one store: bounded ticks, and an entity with a fault."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from isthmus.entities import QueueDescription
from isthmus.errors import StoreError

Make = Callable[..., bytes]


def test_many_expired_messages_go_in_bounded_ticks(namespace: Any, message: Make) -> None:
    """I1."""
    namespace.engine.create_queue("q")
    queue = namespace.queue("q")
    namespace.send("q", *(message(f"{number}", ttl_ms=1_000) for number in range(5_000)))
    namespace.clock.advance(3_000)
    for left in (4_000, 3_000, 2_000):
        next_ms = namespace.engine.tick()
        namespace.commit()
        assert queue.active_count == left
        assert next_ms <= namespace.clock.wall_ms()
    namespace.advance(0)
    assert queue.active_count == 0
    assert queue.head == 5_001


def test_a_fault_in_the_clockwork_delays_one_entity_and_leaves_nothing_half_done(
    namespace: Any, message: Make, monkeypatch: Any
) -> None:
    """I2. Whatever raises: locks, lives and schedules of others continue, and what is scheduled is not lost."""
    engine = namespace.engine
    settings = QueueDescription(lock_duration_ms=5_000, dead_lettering_on_message_expiration=True)
    for path in ("bad", "good"):
        engine.create_queue(path, settings)
        namespace.sender(path).accept([message("locked")])
        namespace.commit()
        assert namespace.queue(path).acquire(1) is not None
        namespace.sender(path).accept([message("brief", ttl_ms=3_000)])
        namespace.sender(path).schedule([(message("later"), namespace.clock.wall_ms() + 4_000)])
        namespace.commit()
    bad = namespace.queue("bad")

    def raises(*args: object) -> None:
        raise ZeroDivisionError

    def pass_seconds(count: int) -> None:
        for _ in range(2 * count):
            namespace.clock.advance(500)
            engine.tick()
            namespace.commit()

    for name in ("expire_locks", "_take", "expire_messages"):
        monkeypatch.setattr(bad, name, raises)
    pass_seconds(20)
    good = engine.runtime("good")
    assert (good.active_message_count, good.dead_letter_message_count, good.scheduled_message_count) == (2, 1, 0)
    assert engine.runtime("bad").scheduled_message_count == 1
    monkeypatch.undo()
    pass_seconds(70)
    healed = engine.runtime("bad")
    assert (healed.active_message_count, healed.dead_letter_message_count, healed.scheduled_message_count) == (2, 1, 0)
    assert len(bad.acquire(9).tags) == 2


def test_a_read_that_is_refused_while_locks_end_leaves_no_message_unavailable(
    namespace: Any, message: Make, monkeypatch: Any
) -> None:
    """I2. Nor do locks of other entities stay for good."""
    engine = namespace.engine
    for path in ("a", "b"):
        engine.create_queue(path, QueueDescription(lock_duration_ms=5_000))
        namespace.send(path, message(path))
        assert namespace.queue(path).acquire(1) is not None

    def refuses(keys: Any) -> Any:
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(namespace.journal, "get_many", refuses)
        namespace.clock.advance(6_000)
        with suppress(StoreError):
            engine.tick()
    for _ in range(20):
        namespace.clock.advance(5_000)
        engine.tick()
        namespace.commit()
    assert [len(namespace.queue(path).acquire(9).tags) for path in ("a", "b")] == [1, 1]


def test_what_is_due_for_an_entity_at_fault_keeps_nothing_of_others_waiting(
    namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Not even where there is more of it than one tick does, and the clockwork rests in between."""
    engine = namespace.engine
    for path in ("bad", "good"):
        engine.create_queue(path, QueueDescription(dead_lettering_on_message_expiration=True))
    now_ms = namespace.clock.wall_ms()
    namespace.sender("bad").schedule([(message(str(number)), now_ms + 1_000) for number in range(1_001)])
    for number in range(1_001):
        namespace.sender("bad").accept([message(f"b{number}", ttl_ms=1_000 * number + 1_000)])
    namespace.sender("good").schedule([(message("later"), now_ms + 2_000)])
    namespace.sender("good").accept([message("brief", ttl_ms=1_102_000)])
    namespace.commit()

    def raises(*args: object) -> None:
        raise StoreError("a block cannot be read")

    bad = namespace.queue("bad")
    for name in ("activate", "expire_messages"):
        monkeypatch.setattr(bad, name, raises)
    namespace.advance(3_000)
    assert engine.runtime("good").scheduled_message_count == 0
    namespace.clock.advance(1_200_000)
    namespace.advance(0)
    assert engine.runtime("good").dead_letter_message_count == 1
    assert engine.tick() > namespace.clock.wall_ms()
    monkeypatch.undo()
    for _ in range(80):
        namespace.advance(1_000)
    assert engine.runtime("bad").scheduled_message_count == 0
    assert engine.runtime("bad").dead_letter_message_count == 1_001
