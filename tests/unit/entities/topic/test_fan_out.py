"""A topic's messages are copied in slices, each within a budget, with the same results as without one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.fixture.partitioned_fixture import Stores, body_of
from harness.fixture.partitioned_fixture import message as partition_message
from isthmus.entities import RuleDescription, SqlAction, SqlFilter, SubscriptionDescription, TopicDescription
from isthmus.entities.storage.key import MESSAGE, UNREADABLE, message_key, message_span, numbered_span
from isthmus.entities.topic import fan_out
from isthmus.errors import QuotaExceededError, StoreError
from isthmus.store import MemoryJournal

Make = Callable[..., bytes]
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def set_budget(sent: int, slice_units: int) -> None:
        monkeypatch.setattr(fan_out, "SENT_UNITS", sent)
        monkeypatch.setattr(fan_out, "SLICE_UNITS", slice_units)

    return set_budget


def make_topic(namespace: Any, *names: str, **settings: Any) -> Any:
    namespace.engine.create_topic("t", TopicDescription(**settings))
    for name in names:
        namespace.engine.create_subscription("t", name)
    rest(namespace)
    return namespace.sender("t")


def rest(namespace: Any, limit: int = 1000) -> int:
    """Commit until nothing is staged; how many commits that took."""
    for count in range(limit):
        if not namespace.engine.has_staged:
            namespace.engine.tick()
            if not namespace.engine.has_staged:
                return count
        namespace.commit()
    raise AssertionError("the copying never ends")


def contents(namespace: Any, read: Any, name: str) -> list[Any]:
    return [read(one).properties["message_id"] for one in namespace.queue(f"t/Subscriptions/{name}").peek(0, 1000)]


@pytest.mark.parametrize(("sent", "slice_units"), [(1, 1), (3, 2), (7, 5), (10, 12), (1000, 1)])
def test_all_copies_come_in_order_whatever_the_budget_i4(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None], sent: int, slice_units: int
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(sent, slice_units)
    texts = [f"m{n}" for n in range(13)]
    topic.accept([message(text) for text in texts[:7]])
    namespace.commit()
    topic.accept([message(text) for text in texts[7:]])
    rest(namespace)
    assert {name: contents(namespace, read, name) for name in NAMES} == dict.fromkeys(NAMES, texts)
    assert topic.active_count == topic.size_bytes == 0
    origins = [
        read(one).annotations["x-opt-enqueue-sequence-number"]
        for one in namespace.queue("t/Subscriptions/e").peek(0, 100)
    ]
    assert origins == list(range(1, 14))
    namespace.crash()
    assert contents(namespace, read, "e") == texts


def test_a_slice_stages_no_more_than_its_budget_i1(
    namespace: Any, message: Make, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(10, 15)
    topic.accept([message(f"m{n}") for n in range(100)])
    copies = [0]
    while namespace.engine.has_staged:
        namespace.commit()
        copies.append(sum(namespace.queue(f"t/Subscriptions/{name}").committed for name in NAMES))
    steps = [after - before for before, after in itertools.pairwise(copies)]
    assert steps[0] == 10
    assert max(steps) == 15
    assert sum(steps) == 500


def test_a_sender_gets_its_outcome_when_all_its_copies_are_durable_i3(
    namespace: Any, message: Make, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(5, 5)
    reported: list[tuple[str, int]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: reported.append((name, namespace.queue("t/Subscriptions/e").last))

    topic.accept([message(f"m{n}") for n in range(4)], note("first"))
    topic.accept([message("late")], note("second"))
    namespace.commit()
    assert reported == []
    rest(namespace)
    assert [name for name, _ in reported] == ["first", "second"]
    assert reported[0][1] >= 4
    topic.accept([message("alone")], note("third"))
    namespace.commit()
    assert reported[2:] == [("third", 6)]


@pytest.mark.parametrize("kill", range(12))
def test_no_kill_loses_or_doubles_a_copy_i1(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None], kill: int
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(3, 4)
    texts = [f"m{n}" for n in range(8)]
    topic.accept([message(text) for text in texts])
    namespace.commit()
    for _ in range(kill):
        namespace.commit()
    if kill % 2:  # written and not synced
        namespace.engine.begin_commit()
    namespace.crash()
    rest(namespace)
    assert {name: contents(namespace, read, name) for name in NAMES} == dict.fromkeys(NAMES, texts)


def test_a_failed_commit_in_the_midst_is_made_up_for_i1(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(3, 4)
    reported: list[str] = []
    topic.accept([message(f"m{n}") for n in range(8)], lambda: reported.append("durable"))
    namespace.commit()
    namespace.commit()
    commit = namespace.engine.begin_commit()
    namespace.engine.fail_commit(commit, StoreError("no space"))
    assert reported == ["durable"]  # it is, and it is not asked for again
    rest(namespace)
    assert {len(contents(namespace, read, name)) for name in NAMES} == {8}


def test_rules_cost_their_looks_and_select_as_ever(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, "all", "none")
    namespace.engine.create_rule("t", "none", RuleDescription("odd", SqlFilter("n % 2 = 1"), SqlAction("SET mark = 1")))
    namespace.engine.delete_rule("t", "none", "$Default")
    rest(namespace)
    budget(2, 3)
    topic.accept([message(f"m{n}", user={"n": n}) for n in range(20)])
    assert rest(namespace) > 10
    assert contents(namespace, read, "all") == [f"m{n}" for n in range(20)]
    assert contents(namespace, read, "none") == [f"m{n}" for n in range(1, 20, 2)]


def test_slow_rules_end_a_slice_by_the_clock_i4(namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic(namespace, "a")
    namespace.engine.create_rule("t", "a", RuleDescription("slow", SqlFilter("n = 1")))
    namespace.engine.delete_rule("t", "a", "$Default")
    rest(namespace)
    now = [0.0]
    monkeypatch.setattr(namespace.engine._context.fan_out, "_now", lambda: now[0])
    [subscriber] = topic._subscribers.values()
    copies = subscriber.selection.copies

    def slow(view: Any) -> Any:
        now[0] += 0.004
        return copies(view)

    monkeypatch.setattr(type(subscriber.selection), "copies", lambda self, view: slow(view))
    monkeypatch.setattr("isthmus.entities.topic.topic._RULE_UNITS", 2)
    topic.accept([message(f"m{n}", user={"n": 1}) for n in range(50)])
    assert topic.active_count >= 38
    counts = []
    while namespace.engine.has_staged:
        namespace.commit()
        counts.append(topic.active_count)
    assert counts[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 4


def test_a_subscription_that_goes_takes_nothing_more(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(3, 4)
    topic.accept([message(f"m{n}") for n in range(8)])
    namespace.commit()
    namespace.engine.delete_subscription("t", "c")
    rest(namespace)
    assert {len(contents(namespace, read, name)) for name in NAMES if name != "c"} == {8}


def test_a_topic_that_is_deleted_informs_its_senders(
    namespace: Any, message: Make, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(3, 4)
    reported: list[str] = []
    topic.accept([message(f"m{n}") for n in range(8)], lambda: reported.append("durable"))
    namespace.commit()
    namespace.engine.delete_topic("t")
    rest(namespace)
    assert reported == ["durable"]
    assert not namespace.engine._context.fan_out.is_waiting


def test_topics_that_wait_are_served_in_turn_i2(
    namespace: Any, message: Make, budget: Callable[[int, int], None]
) -> None:
    topics = []
    for name in ("x", "y"):
        namespace.engine.create_topic(name)
        namespace.engine.create_subscription(name, "a")
        topics.append(namespace.sender(name))
    rest(namespace)
    budget(0, 1)
    for topic in topics:
        topic.accept([message(f"m{n}") for n in range(10)])
    seen = []
    while namespace.engine.has_staged:
        namespace.commit()
        seen.append(tuple(topic.active_count for topic in topics))
    assert all(abs(x - y) <= 1 for x, y in seen)
    assert seen[-1] == (0, 0)


def test_topics_behind_a_topic_share_its_budget_i1(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None]
) -> None:
    for number in range(5):
        namespace.engine.create_topic(f"t{number}")
        for name in NAMES:
            namespace.engine.create_subscription(f"t{number}", name)
    namespace.engine.create_topic("t")
    for number in range(5):
        namespace.engine.create_subscription("t", f"s{number}", SubscriptionDescription(forward_to=f"t{number}"))
    rest(namespace)
    budget(20, 20)
    namespace.sender("t").accept([message(f"m{n}") for n in range(20)])
    most = before = 0
    while namespace.engine.has_staged:
        namespace.commit()
        now = sum(namespace.queue(f"t{number}/Subscriptions/{name}").last for number in range(5) for name in NAMES)
        most, before = max(most, now - before), now
    assert before == 20 * 25
    assert most <= 60


def test_copies_count_to_the_quota_before_they_are_made(namespace: Any, message: Make) -> None:
    topic = make_topic(namespace, *NAMES, max_size_in_megabytes=1)
    payload = message("m", user={"pad": "x" * 10_000})
    topic.accept([payload] * 15)  # 750 KB of copies
    namespace.commit()
    with pytest.raises(QuotaExceededError):
        topic.accept([payload] * 15)


def test_large_envelopes_leave_the_budget_in_bytes(namespace: Any, message: Make, monkeypatch: Any) -> None:
    topic = make_topic(namespace, *NAMES)
    monkeypatch.setattr(fan_out, "SENT_BYTES", 100_000)
    monkeypatch.setattr(fan_out, "SLICE_BYTES", 100_000)
    topic.accept([message("m", user={"pad": "x" * 10_000})] * 8)
    assert topic.active_count in {6, 7}
    assert rest(namespace) >= 4
    assert {namespace.queue(f"t/Subscriptions/{name}").last for name in NAMES} == {8}


@pytest.mark.parametrize("end", ["rest", "crash", "down"])
def test_a_partitioned_topic_copies_in_slices_too(read: Any, budget: Callable[[int, int], None], end: str) -> None:
    """I1, in each store by itself; also when one is lost or down during it."""
    stores = Stores()
    stores.engine.create_topic("t", TopicDescription(enable_partitioning=True))
    for name in NAMES:
        stores.engine.create_subscription("t", name)
    stores.commit()
    budget(3, 4)
    texts = [str(n) for n in range(20)]
    stores.engine.sender("t").accept([partition_message(text, key="k") for text in texts])
    stores.commit_catalog()
    for store in stores.stores:
        stores.commit_store(store.index)
        stores.commit_store(store.index)
    if end == "crash":
        stores.crash()
    elif end == "down":
        for journal in stores.journals.values():
            journal.fail_writes = OSError("no room")
        stores.commit()
        for journal in stores.journals.values():
            journal.fail_writes = None
        stores.stores.retry()
    for _ in range(30):
        stores.engine.tick()
        stores.commit()
    for name in NAMES:
        stored = [body_of(one) for one in stores.engine.receiver(f"t/Subscriptions/{name}").peek(0, 100)]
        assert stored == texts, name


def test_a_store_that_refuses_in_the_middle_of_a_slice_doubles_nothing_i1(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(3, 4)
    topic.accept([message(f"m{n}") for n in range(4)])
    with monkeypatch.context() as patch:

        def refused(*_: Any, **__: Any) -> None:
            raise StoreError("cannot be read")

        patch.setattr(namespace.queue("t/Subscriptions/e"), "store", refused)
        with pytest.raises(ExceptionGroup):
            rest(namespace)
    rest(namespace)
    assert {tuple(contents(namespace, read, name)) for name in NAMES} == {("m0", "m1", "m2", "m3")}


def test_a_fault_in_a_rule_stops_no_other(
    namespace: Any, message: Make, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(namespace, "a", "b")
    namespace.engine.create_rule("t", "a", RuleDescription("r", SqlFilter("n = 1")))
    namespace.engine.delete_rule("t", "a", "$Default")
    rest(namespace)
    monkeypatch.setattr("isthmus.entities.topic.selection.Selection.copies", lambda self, view: 1 // 0)
    topic.accept([message("m")])
    rest(namespace)
    assert (contents(namespace, read, "a"), contents(namespace, read, "b")) == ([], ["m"])


def test_what_was_copied_leaves_the_store_also_where_more_comes_in_the_same_commit(
    namespace: Any, message: Make, budget: Callable[[int, int], None]
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(5, 100)
    topic.accept([message(f"m{n}") for n in range(8)])
    namespace.commit()
    assert (topic.active_count, namespace.engine.has_staged) == (0, True)  # the rest is copied, and not written
    topic.accept([message(f"n{n}") for n in range(8)])
    rest(namespace)
    assert list(namespace.journal.scan(*message_span(MESSAGE, topic.number, 0, (1 << 64) - 2))) == []


def test_a_transaction_that_ends_while_a_store_comes_back_has_its_copies() -> None:
    stores = Stores()
    stores.engine.create_topic("t", TopicDescription(enable_partitioning=True))
    stores.engine.create_subscription("t", "a")
    stores.commit()
    topic = stores.engine.sender("t")
    transaction = stores.engine.transaction()
    transaction.send(topic, [partition_message("x", key="k")])

    def closed() -> None:
        raise StoreError("cannot be opened")

    for journal in stores.journals.values():
        journal.fail_writes = OSError("no room")
        journal.reopen = closed
    topic.accept([partition_message("y", key="k")])
    stores.commit()
    for journal in stores.journals.values():
        journal.fail_writes = None
        del journal.reopen
    stores.stores.retry()  # the fragments are loaded, and not in service before the next commit
    reported: list[str] = []
    transaction.commit(lambda: reported.append("durable"))
    stores.commit()
    stored = [body_of(one) for one in stores.engine.receiver("t/Subscriptions/a").peek(0, 100)]
    assert (reported, stored) == (["durable"], ["x"])


def test_a_failed_commit_costs_no_topic_its_slices(
    namespace: Any, message: Make, budget: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(1, 1)
    monkeypatch.setattr(fan_out, "SLICES", 2)
    topic.accept([message(f"m{n}") for n in range(8)])
    namespace.commit()
    namespace.engine.fan_out()
    namespace.journal.fail_writes = OSError("no room")
    with pytest.raises(StoreError):
        namespace.engine.begin_commit()
    namespace.journal.fail_writes = None
    rest(namespace)
    assert topic.active_count == 0


# ---- rows that cannot be read


def damage(namespace: Any, topic: Any, sequence: int, record: bytes = b"\0\0") -> None:
    batch = namespace.journal.batch()
    batch.put(message_key(MESSAGE, topic.number, sequence), record)
    namespace.journal.write(batch)
    namespace.journal.sync()


@pytest.mark.parametrize("place", [1, 3, 6])
def test_a_row_that_nothing_can_be_made_of_is_set_aside_and_named(
    namespace: Any,
    message: Make,
    read: Any,
    budget: Callable[[int, int], None],
    caplog: pytest.LogCaptureFixture,
    place: int,
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(0, 7)
    reported: list[str] = []
    texts = [f"m{n}" for n in range(1, 7)]
    topic.accept([message(text) for text in texts], lambda: reported.append("accepted"))
    commit = namespace.engine.begin_commit()
    namespace.journal.sync()
    damage(namespace, topic, place)
    namespace.engine.end_commit(commit)
    rest(namespace)
    rests = [text for text in texts if text != f"m{place}"]
    assert {name: contents(namespace, read, name) for name in NAMES} == dict.fromkeys(NAMES, rests)
    assert topic.active_count == 0
    assert reported == ["accepted"]
    assert dict(namespace.journal.scan(*numbered_span(UNREADABLE, topic.number))) == {
        message_key(UNREADABLE, topic.number, place): b"\0\0"
    }
    assert [each for each in caplog.messages if "'t'" in each and f"sequence={place}" in each]
    namespace.crash()
    namespace.engine.delete_topic("t")
    rest(namespace)
    assert not list(namespace.journal.scan(*numbered_span(UNREADABLE, topic.number)))


class Unreadable(MemoryJournal):
    """A journal in memory in which the disk gives one key no more, and what lies behind it in a scan."""

    bad: bytes | None = None

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(first, end, read_ahead=read_ahead):
            if self.bad is not None and key >= self.bad and first <= self.bad < end:
                raise StoreError("input/output error")
            yield key, value


def test_a_topic_that_the_disk_does_not_give_delays_no_other_and_fails_nothing(
    namespace: Any, message: Make, read: Any, budget: Callable[[int, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    namespace.journal = Unreadable()
    namespace.start()
    topic = make_topic(namespace, *NAMES)
    namespace.engine.create_topic("u")
    namespace.engine.create_subscription("u", "all")
    namespace.engine.create_queue("q")
    budget(0, 7)
    topic.accept([message(f"m{n}") for n in range(1, 4)])
    namespace.sender("u").accept([message("other")])
    namespace.journal.bad = message_key(MESSAGE, topic.number, 2)
    failed: list[Exception] = []
    for n in range(10):
        namespace.sender("q").accept([message(f"q{n}")], None, failed.append)
        namespace.commit()
    assert failed == []
    assert len(namespace.queue("q").peek(0, 100)) == 10
    assert contents(namespace, read, "e") == ["m1"]
    assert [read(one).properties["message_id"] for one in namespace.queue("u/Subscriptions/all").peek(0, 9)] == [
        "other"
    ]
    named = [each for each in caplog.messages if "'t'" in each and "input/output error" in each]
    assert len(named) == 1
    namespace.journal.bad = None
    namespace.advance(120_000)
    rest(namespace)
    assert contents(namespace, read, "e") == ["m1", "m2", "m3"]


@pytest.mark.parametrize("how", ["copied", "deleted", "failed"])
def test_a_sender_that_raises_in_its_callback_keeps_no_other_callback_from_running(
    namespace: Any, message: Make, budget: Callable[[int, int], None], how: str
) -> None:
    topic = make_topic(namespace, *NAMES)
    budget(1, 1)
    reported: list[str] = []

    def odd() -> None:
        reported.append("odd")
        raise ValueError("odd")

    topic.accept([message("a")], odd)
    topic.accept([message("b")], lambda: reported.append("even"))
    namespace.commit()
    assert not reported
    if how == "copied":
        rest(namespace)
    elif how == "deleted":
        namespace.engine.delete_topic("t")
    else:
        namespace.sender("t").accept([message("c")], None, lambda _: None)
        commit = namespace.engine.begin_commit()
        namespace.engine.fail_commit(commit, StoreError("no space"))
    assert reported == ["odd", "even"]
