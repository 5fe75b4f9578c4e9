"""Lock tokens, spans and expiry."""

from array import array

from isthmus.entities.queue.lock import Lock, LockTable


def lock(random: int, first: int, count: int, expires_at_ms: int = 1000, step: int = 1) -> Lock:
    head = random.to_bytes(8, "big")
    numbers = range(first, first + count) if step == 1 else list(range(first, first + count * step, step))
    tags = [head + number.to_bytes(8, "big") for number in numbers]
    return Lock(head, tags, numbers, array("Q", [10] * count), expires_at_ms)


def test_a_run_is_one_span() -> None:
    table = LockTable()
    entry = lock(1, 5, 100)
    tags = entry.tags
    table.add(entry)
    flags, spans = table.take(tags)
    assert flags == [True] * 100
    assert [(span.sequences, span.size_bytes) for span in spans] == [(range(5, 105), 1000)]
    assert table.locked == 0


def test_a_token_settles_once() -> None:
    """I1."""
    table = LockTable()
    entry = lock(1, 5, 4)
    tags = list(entry.tags)
    table.add(entry)
    assert table.take([tags[1], tags[1]])[0] == [True, False]
    assert table.take(tags)[0] == [True, False, True, True]
    assert table.take(tags)[0] == [False] * 4


def test_tokens_of_several_locks_and_strangers() -> None:
    table = LockTable()
    one, two = lock(1, 1, 3), lock(2, 10, 3, step=2)
    tokens = [two.tags[1], one.tags[0], b"?" * 16, one.tags[1], one.tags[2][:8] + bytes(8), two.tags[2], two.tags[0]]
    table.add(one)
    table.add(two)
    flags, spans = table.take(tokens)
    assert flags == [True, True, False, True, False, True, True]
    assert [list(span.sequences) for span in spans] == [[12], [1], [2], [14], [10]]
    assert table.locked == 1


def test_expiry_looks_at_due_locks_only() -> None:
    """I2."""
    table = LockTable()
    for number in range(100):
        table.add(lock(number, number * 10, 10, expires_at_ms=1000 + number))
    assert table.due_ms == 1000
    assert table.expire(999, 1000) == []
    spans = table.expire(1004, 1000)
    assert [span.sequences[0] for span in spans] == [0, 10, 20, 30, 40]
    assert table.due_ms == 1005
    assert len(table.expire(5000, 25)) == 3
    assert table.locked == 1000 - 80


def test_renewed_alone_and_all_together() -> None:
    table = LockTable()
    entry = lock(1, 1, 3)
    tags = list(entry.tags)
    table.add(entry)
    assert table.renew([tags[1], b"x" * 16], 5000) == [True, False]
    (first, last) = table.expire(1000, 100)
    assert (list(first.sequences), list(last.sequences)) == ([1], [3])
    assert table.due_ms == 5000
    assert table.renew([tags[1]], 9000) == [True]
    assert table.expire(5000, 100) == []
    assert table.due_ms == 9000
    (span,) = table.expire(9000, 100)
    assert list(span.sequences) == [2]
    assert table.due_ms is None


def test_a_lock_renewed_for_less_is_due_then() -> None:
    table = LockTable()
    entry = lock(1, 1, 2)
    tags = list(entry.tags)
    table.add(entry)
    table.renew(tags, 2000)
    assert table.expire(1500, 100) == []
    assert len(table.expire(2000, 100)) == 1


def test_a_lock_renewed_for_a_shorter_time_than_is_left_is_due_then() -> None:
    """LockDuration was shortened meanwhile."""
    table = LockTable()
    whole, part = lock(1, 1, 2, 300_000), lock(2, 5, 2, 300_000)
    tags = [*whole.tags, part.tags[1]]
    table.add(whole)
    table.add(part)
    table.renew(tags, 5000)
    assert table.due_ms == 5000
    assert [list(span.sequences) for span in table.expire(5000, 100)] == [[1, 2], [6]]
    assert table.due_ms == 300_000
    assert [list(span.sequences) for span in table.expire(300_000, 100)] == [[5]]


def test_settled_locks_do_not_pile_up() -> None:
    table = LockTable()
    for number in range(10_000):
        entry = lock(number, number, 1, expires_at_ms=60_000)
        tags = list(entry.tags)
        table.add(entry)
        table.take(tags)
    assert len(table._heap) < 200  # it is about the memory of expired locks


def test_clear() -> None:
    table = LockTable()
    entry = lock(1, 1, 2)
    tags = list(entry.tags)
    table.add(entry)
    table.clear()
    assert table.take(tags)[0] == [False, False]
    assert table.locked == 0
    assert table.due_ms is None


def test_a_token_named_twice_renews_no_other() -> None:
    table = LockTable()
    entry = lock(1, 1, 2)
    tags = list(entry.tags)
    table.add(entry)
    assert table.renew([tags[0], tags[0]], 5000) == [True, True]
    assert [list(span.sequences) for span in table.expire(2000, 100)] == [[2]]
    assert table.holds(tags) == [True, False]
