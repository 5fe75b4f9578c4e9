"""The engine: names, descriptions, paths, group commit, restart, failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixture.partitioned_fixture import Stores
from harness.fixture.partitioned_fixture import message as partitioned_message
from isthmus.entities import (
    INFINITE_MS,
    AuthorizationRule,
    CorrelationFilter,
    Engine,
    EntityStatus,
    Limits,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.description import DateTime, Duration, dump, load
from isthmus.entities.hub import EventHubDescription
from isthmus.entities.storage.key import ERAS, FORMAT, state_key
from isthmus.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    NotAllowedError,
    QuotaExceededError,
    ServerBusyError,
    StoreError,
)
from isthmus.store import RocksJournal
from isthmus.testing.clock import ManualClock

Make = Callable[..., bytes]


def test_descriptions_survive_a_restart(namespace: Any) -> None:
    """I1; Description I1."""
    engine = namespace.engine
    queue = QueueDescription(
        lock_duration_ms=45_000,
        status=EntityStatus.SEND_DISABLED,
        authorization_rules=[AuthorizationRule("k", "p", "s", ["Send"], 5, 6)],
        user_metadata="é",
    )
    rule = RuleDescription(
        "r",
        CorrelationFilter(
            label="L", properties={"a": 1, "b": 2.5, "t": DateTime(5, False), "d": Duration(-5), "n": None}
        ),
        SqlAction("SET a = @p", {"@p": True}),
    )
    engine.create_queue("Orders/Inner", queue)
    engine.create_topic("Flights", TopicDescription(max_size_in_megabytes=2048))
    engine.create_subscription("flights", "Audit", SubscriptionDescription(max_delivery_count=7), rule)
    engine.create_rule("FLIGHTS", "audit", RuleDescription("Other", SqlFilter("a = 1")))
    before = [
        engine.list_queues(),
        engine.list_topics(),
        engine.list_subscriptions("flights"),
        engine.list_rules("flights", "AUDIT"),
        engine.runtime("flights"),
    ]
    namespace.commit()
    namespace.crash()
    engine = namespace.engine
    assert before == [
        engine.list_queues(),
        engine.list_topics(),
        engine.list_subscriptions("flights"),
        engine.list_rules("flights", "AUDIT"),
        engine.runtime("flights"),
    ]
    assert before[0] == [("Orders/Inner", queue)]
    assert [one.name for one in before[3]] == ["Other", "r"]
    assert engine.get_queue("ORDERS/inner") == queue
    assert engine.get_topic("flights").max_size_in_megabytes == 2048
    assert engine.get_subscription("flights", "AUDIT").max_delivery_count == 7
    assert engine.get_rule("flights", "audit", "R").action == rule.action
    assert (before[4].subscription_count, before[4].sql_filter_count, before[4].correlation_filter_count) == (1, 1, 1)
    nothing = [
        engine.get_queue("no"),
        engine.get_topic("no"),
        engine.get_subscription("no", "s"),
        engine.get_subscription("flights", "no"),
        engine.get_rule("flights", "audit", "no"),
        engine.get_rule("flights", "no", "no"),
        engine.get_rule("no", "no", "no"),
    ]
    assert nothing == [None] * 7


def test_descriptions_of_other_releases_load() -> None:
    """Description I2."""
    stored = dump(QueueDescription()).replace(b'"max_delivery_count":10,', b'"unheard_of":1,')
    assert load(stored, QueueDescription) == QueueDescription()
    with pytest.raises(TypeError):
        load(stored, TopicDescription)


def test_descriptions_are_defaults_of_the_service() -> None:
    queue = QueueDescription()
    assert (queue.lock_duration_ms, queue.max_delivery_count, queue.max_size_in_megabytes) == (60_000, 10, 1024)
    assert queue.default_message_time_to_live_ms == queue.auto_delete_on_idle_ms == INFINITE_MS
    assert queue.duplicate_detection_history_time_window_ms == 600_000


@pytest.mark.parametrize(
    "path",
    ["orders", "/Orders", "ORDERS/", "amqps://localhost:5672/orders", "sb://host/Orders/", "amqp://h:1/orders"],
)
def test_paths_of_all_spellings(path: str, namespace: Any) -> None:
    namespace.engine.create_queue("Orders")
    assert namespace.engine.sender(path) is namespace.engine.receiver(path)
    assert namespace.engine.canonical_name(path) == "Orders"
    assert namespace.engine.receiver(path.rstrip("/") + "/$DeadLetterQueue").path == "Orders/$DeadLetterQueue"


def test_paths_that_lead_nowhere(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("q")
    engine.create_topic("t")
    engine.create_subscription("t", "s")
    assert engine.receiver("amqps://h/T/Subscriptions/S/$DeadLetterQueue").path == "t/Subscriptions/s/$DeadLetterQueue"
    for path in (
        "",
        "x",
        "q/x",
        "t/Subscriptions/x",
        "x/Subscriptions/s",
        "t/$DeadLetterQueue",
        "x/$Transfer/$DeadLetterQueue",
    ):
        with pytest.raises(EntityNotFoundError, match="could not be found"):
            engine.receiver(path)
        with pytest.raises(EntityNotFoundError):
            engine.runtime(path)
    with pytest.raises(NotAllowedError):
        engine.receiver("t")
    for path in ("t/Subscriptions/s", "q/$DeadLetterQueue"):
        with pytest.raises(NotAllowedError):
            engine.sender(path)


def test_names_are_shared_and_checked(namespace: Any) -> None:
    namespace.limits = Limits(max_entities=4, max_subscriptions_per_topic=1, max_rules_per_subscription=2)
    namespace.start()
    engine = namespace.engine
    engine.create_queue("a")
    engine.create_topic("b.c-d_e/f")
    for name in ("A", "B.c-d_e/f"):
        with pytest.raises(EntityExistsError):
            engine.create_queue(name)
        with pytest.raises(EntityExistsError):
            engine.create_topic(name)
    for name in ("", "a b", "/a", "a/", "-a", "a//b", "x/Subscriptions/y", "ä", "a" * 261, "$q"):
        with pytest.raises(InvalidArgumentError):
            engine.create_queue(name)
    engine.create_subscription("b.c-d_e/f", "s")
    with pytest.raises(EntityExistsError):
        engine.create_subscription("b.c-d_e/f", "S")
    with pytest.raises(QuotaExceededError):
        engine.create_subscription("b.c-d_e/f", "s2")
    engine.create_rule("b.c-d_e/f", "s", RuleDescription("r"))
    with pytest.raises(EntityExistsError):
        engine.create_rule("b.c-d_e/f", "s", RuleDescription("R"))
    with pytest.raises(QuotaExceededError):
        engine.create_rule("b.c-d_e/f", "s", RuleDescription("r3"))
    engine.create_queue("third")
    engine.create_queue("fourth")
    with pytest.raises(QuotaExceededError):
        engine.create_topic("fifth")
    with pytest.raises(InvalidArgumentError):
        engine.create_subscription("b.c-d_e/f", "a/b")


@pytest.mark.parametrize(
    "description",
    [
        QueueDescription(lock_duration_ms=0),
        QueueDescription(lock_duration_ms=300_001),
        QueueDescription(max_delivery_count=0),
        QueueDescription(max_size_in_megabytes=0),
        QueueDescription(duplicate_detection_history_time_window_ms=1),
        QueueDescription(default_message_time_to_live_ms=0),
        QueueDescription(auto_delete_on_idle_ms=1_000),
        QueueDescription(enable_partitioning=True),
        QueueDescription(forward_to="other"),
    ],
)
def test_settings_out_of_range_are_refused(description: QueueDescription, namespace: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        namespace.engine.create_queue("q", description)
    namespace.engine.create_queue("q")
    with pytest.raises(InvalidArgumentError):
        namespace.engine.update_queue("q", description)


@pytest.mark.parametrize(
    ("setting", "low", "high"),
    [
        ("duplicate_detection_history_time_window_ms", 5_000, 604_800_000),
        ("lock_duration_ms", 5_000, 300_000),
        ("max_delivery_count", 1, 2**31 - 1),
        ("max_size_in_megabytes", 1, 81_920),
    ],
)
def test_the_ends_of_ranges_are_inside(setting: str, low: int, high: int, namespace: Any) -> None:
    for number, value in enumerate((low, high)):
        assert (
            getattr(namespace.engine.create_queue(f"q{number}", QueueDescription(**{setting: value})), setting) == value
        )
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidArgumentError):
            namespace.engine.create_queue("refused", QueueDescription(**{setting: value}))


def test_what_is_fixed_stays(namespace: Any) -> None:
    namespace.engine.create_queue("q")
    with pytest.raises(InvalidArgumentError, match="RequiresDuplicateDetection"):
        namespace.engine.update_queue("q", QueueDescription(requires_duplicate_detection=True))
    with pytest.raises(EntityNotFoundError):
        namespace.engine.update_queue("x", QueueDescription())
    with pytest.raises(InvalidArgumentError):
        namespace.engine.update_queue("q", TopicDescription())


def test_a_callers_description_is_not_shared(namespace: Any) -> None:
    mine = QueueDescription(user_metadata="before")
    namespace.engine.create_queue("q", mine)
    mine.user_metadata = "after"
    assert namespace.engine.get_queue("q").user_metadata == "before"


def test_updates_take_effect(namespace: Any, message: Make) -> None:
    engine = namespace.engine
    engine.create_queue("q")
    namespace.commit()
    created = engine.runtime("q").created_at_ms
    namespace.clock.advance(5)
    engine.update_queue("q", QueueDescription(lock_duration_ms=10_000))
    namespace.send("q", message("a"))
    assert namespace.queue("q").acquire(1).locked_until_ms == namespace.clock.wall_ms() + 10_000
    runtime = engine.runtime("q")
    assert (runtime.created_at_ms, runtime.updated_at_ms) == (created, created + 5)
    assert runtime.accessed_at_ms == created + 5


def test_deleting_takes_everything_along(namespace: Any, message: Make) -> None:
    engine = namespace.engine
    engine.create_topic("t")
    engine.create_subscription("t", "s")
    engine.create_queue("q")
    namespace.send("t", message("a"))
    namespace.send("q", message("b", ttl_ms=5_000), message("c"))
    queue = namespace.queue("q")
    queue.dead_letter(queue.acquire(1).tags)
    queue.schedule([(message("d"), namespace.clock.wall_ms() + 1_000)])
    namespace.commit()
    engine.delete_topic("T")
    engine.delete_queue("Q")
    for call in (lambda: engine.delete_topic("t"), lambda: engine.delete_queue("q")):
        with pytest.raises(EntityNotFoundError):
            call()
    with pytest.raises(EntityNotFoundError):
        engine.list_subscriptions("t")
    namespace.commit()
    namespace.advance(10_000)  # what the calendar still knows of them is passed over
    namespace.crash()
    assert namespace.engine.list_queues() == []
    assert namespace.engine.list_topics() == []
    left = [key for key, _ in namespace.journal.scan(b"", b"\xff")]
    assert all(key[0] == 0 for key in left), left


def test_numbers_are_not_given_twice(namespace: Any, message: Make) -> None:
    """Catalog I2: a queue of the same name does not find its predecessor's messages."""
    for _ in range(3):
        namespace.engine.create_queue("q")
        namespace.send("q", message("a"))
        assert namespace.engine.runtime("q").active_message_count == 1
        namespace.engine.delete_queue("q")
        namespace.commit()
        namespace.crash()


def test_idle_entities_delete_themselves(namespace: Any, message: Make) -> None:
    engine = namespace.engine
    engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    engine.create_queue("used", QueueDescription(auto_delete_on_idle_ms=300_000))
    engine.create_topic("t", TopicDescription(auto_delete_on_idle_ms=600_000))
    engine.create_subscription("t", "s", SubscriptionDescription(auto_delete_on_idle_ms=300_000))
    namespace.commit()
    namespace.advance(250_000)
    namespace.send("used", message("a"))
    namespace.advance(100_000)
    assert [name for name, _ in engine.list_queues()] == ["used"]
    assert engine.list_subscriptions("t") == []
    assert engine.get_topic("t") is not None
    namespace.advance(400_000)
    assert engine.list_topics() == []


@pytest.mark.parametrize("use", ["listen", "listen to dead letters", "schedule", "peek", "receive", "settings", "none"])
def test_what_is_used_is_not_idle(namespace: Any, message: Make, use: str) -> None:
    engine = namespace.engine
    engine.create_topic("t", TopicDescription(auto_delete_on_idle_ms=300_000))
    engine.create_subscription("t", "s", SubscriptionDescription(auto_delete_on_idle_ms=300_000))
    engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    namespace.commit()
    for path in ("q", "t/subscriptions/s"):
        queue = namespace.queue(path)
        if use.startswith("listen"):
            (queue.dead_letters if "dead" in use else queue).add_listener(list)
    if use == "schedule":
        later = namespace.clock.wall_ms() + 86_400_000
        for path in ("q", "t"):
            namespace.sender(path).schedule([(message("m"), later)])
        namespace.commit()
    for _ in range(4):
        namespace.advance(100_000)
        for path in ("q", "t/subscriptions/s") if use in ("peek", "receive", "settings") else ():
            if use == "peek":
                namespace.queue(path).peek(0, 1)
            elif use == "receive":
                namespace.send(path.partition("/")[0], message("m"))
                namespace.queue(path).complete(namespace.queue(path).acquire(9).tags)
        if use == "settings":
            engine.update_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
            engine.update_subscription("t", "s", SubscriptionDescription(auto_delete_on_idle_ms=300_000))
    used = use != "none"
    assert (engine.get_queue("q") is not None) is used
    assert (engine.get_topic("t") is not None) is used
    # A subscription has no scheduled messages itself: its topic keeps them.
    assert (engine.get_subscription("t", "s") is not None) is (used and use != "schedule")


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_an_entity_that_is_looked_at_is_not_idle(sessions: bool, partitioned: bool) -> None:
    harness = Stores()
    settings = QueueDescription(
        auto_delete_on_idle_ms=300_000, requires_session=sessions, enable_partitioning=partitioned
    )
    harness.engine.create_queue("seen", settings)
    harness.commit()
    for _ in range(4):
        harness.advance(100_000)
        harness.engine.receiver("seen").peek(0, 1)
        harness.commit()
    harness.advance(100_000)
    assert harness.engine.get_queue("seen") is not None


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_an_entity_is_idle_from_when_its_last_receiver_was_closed(sessions: bool, partitioned: bool) -> None:
    """And not while one waits, be it for a session."""
    harness = Stores()
    settings = QueueDescription(
        auto_delete_on_idle_ms=300_000, requires_session=sessions, enable_partitioning=partitioned
    )
    harness.engine.create_queue("waits", settings)
    harness.commit()
    queue: Any = harness.engine.receiver("waits")

    def pass_time(ms: int) -> None:
        for _ in range(ms // 10_000):
            harness.advance(10_000)

    if sessions:
        queue.sessions.wait_for_session(list)
    else:
        queue.add_listener(list)
    pass_time(600_000)
    if sessions:
        queue.sessions.cancel_wait(list)
        hold = queue.sessions.open_session("s")
        harness.clock.advance(20_000)
        hold.release()
    else:
        queue.remove_listener(list)
    pass_time(280_000)
    assert harness.engine.get_queue("waits") is not None
    pass_time(40_000)
    assert harness.engine.get_queue("waits") is None


def test_dead_letters_that_continue_keep_no_idle_entity(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("to")
    settings = QueueDescription(auto_delete_on_idle_ms=300_000, forward_dead_lettered_messages_to="to")
    engine.create_queue("q", settings)
    namespace.commit()
    namespace.advance(320_000)
    assert engine.get_queue("q") is None


def test_nothing_is_idle_for_longer_than_the_engine_runs(namespace: Any) -> None:
    namespace.engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    namespace.commit()
    namespace.clock.advance(3_600_000)
    namespace.crash()
    namespace.advance(290_000)
    assert namespace.engine.get_queue("q") is not None
    namespace.advance(20_000)
    assert namespace.engine.get_queue("q") is None


@pytest.mark.parametrize("step_ms", [86_400_000, -86_400_000])
def test_a_step_of_the_wall_clock_makes_nothing_idle(namespace: Any, message: Make, step_ms: int) -> None:
    engine = namespace.engine
    engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    engine.create_topic("t", TopicDescription(auto_delete_on_idle_ms=300_000))
    engine.create_subscription("t", "s", SubscriptionDescription(auto_delete_on_idle_ms=300_000))
    namespace.advance(250_000)
    for path in ("q", "t"):
        namespace.send(path, message("kept"))
    namespace.clock.set_wall(namespace.clock.wall_ms() + step_ms)
    namespace.advance(10_000)
    namespace.advance(280_000)
    assert engine.get_queue("q") is not None
    assert engine.get_subscription("t", "s") is not None
    if step_ms > 0:
        namespace.advance(30_000)
        assert engine.get_queue("q") is None


def test_a_time_in_which_no_client_could_connect_makes_nothing_idle(namespace: Any) -> None:
    namespace.engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    namespace.commit()
    namespace.clock.advance(3_600_000)
    namespace.engine.restart_idle_counts()
    namespace.advance(10_000)
    assert namespace.engine.get_queue("q") is not None
    namespace.advance(300_000)
    assert namespace.engine.get_queue("q") is None


def test_on_staged_is_called_once_per_commit(namespace: Any, message: Make) -> None:
    calls: list[int] = []
    namespace.engine.create_queue("q")
    namespace.commit()
    assert namespace.engine.begin_commit() is None
    namespace.engine.on_staged = lambda: calls.append(1)
    queue = namespace.queue("q")
    queue.accept([message("a")])
    queue.accept([message("b")])
    queue.peek(0, 1)  # writes through, and stays the same commit
    queue.complete([])
    assert calls == [1]
    namespace.commit()
    queue.accept([message("c")])
    assert calls == [1, 1]


def test_a_completion_that_nothing_waits_for_asks_for_no_commit(namespace: Any, message: Make) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", message("a"), message("b"), message("c"))
    queue = namespace.queue("q")
    tokens = queue.acquire(3).tags
    calls: list[bool] = []
    engine = namespace.engine
    engine.on_staged = lambda: calls.append(engine.is_awaited)
    queue.complete(tokens[:1])
    queue.complete(tokens[1:2])
    assert (calls, engine.has_staged) == ([False], True)
    queue.peek(0, 1)  # writes through, and still nothing waits
    assert calls == [False]
    queue.complete(tokens[2:], lambda: None)
    assert calls == [False, True]
    queue.accept([message("d")])
    assert calls == [False, True]
    namespace.commit()
    assert not engine.is_awaited
    namespace.crash()
    assert namespace.queue("q").active_count == 1


def test_a_completion_that_nothing_waits_for_goes_with_what_is_awaited(namespace: Any, message: Make) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", message("a"))
    queue = namespace.queue("q")
    (token,) = queue.acquire(1).tags
    queue.accept([message("b")])
    engine = namespace.engine
    calls: list[int] = []
    engine.on_staged = lambda: calls.append(1)
    queue.complete([token])
    assert calls == []
    assert engine.is_awaited


def test_commits_may_overlap(namespace: Any, message: Make) -> None:
    engine = namespace.engine
    engine.create_queue("q")
    namespace.commit()
    queue, done = namespace.queue("q"), list[str]()
    queue.accept([message("a")], lambda: done.append("a"))
    one = engine.begin_commit()
    queue.accept([message("b")], lambda: done.append("b"))
    two = engine.begin_commit()
    namespace.journal.sync()
    engine.end_commit(one)
    assert done == ["a"]
    assert list(queue.acquire(9).sequences) == [1]
    engine.end_commit(two)
    assert done == ["a", "b"]
    assert list(queue.acquire(9).sequences) == [2]


def test_a_failed_sync_fails_all_that_is_not_durable(namespace: Any, message: Make) -> None:
    """I2."""
    engine = namespace.engine
    engine.create_queue("q")
    namespace.send("q", message("kept"), message("locked"))
    queue = namespace.queue("q")
    events: list[str] = []
    queue.add_listener(lambda: events.append("listener"))
    tags = queue.acquire(2).tags
    queue.accept([message("a")], lambda: events.append("a"), lambda error: events.append(f"a: {error}"))
    queue.complete(tags[:1], lambda: events.append("done"), lambda error: events.append(f"complete: {error}"))
    first = engine.begin_commit()
    queue.accept([message("b")], lambda: events.append("b"), lambda error: events.append(f"b: {error}"))
    second = engine.begin_commit()
    engine.create_queue("new")
    queue.accept([message("c")], None, lambda error: events.append(f"c: {error}"))
    namespace.journal.fail_syncs = OSError("I/O error")
    with pytest.raises(StoreError):
        namespace.journal.sync()
    namespace.journal.fail_syncs = None
    engine.fail_commit(first, StoreError("I/O error"))
    engine.end_commit(second)  # has failed already
    engine.fail_commit(second, StoreError("again"))
    assert sorted(events) == ["a: I/O error", "b: I/O error", "c: I/O error", "complete: I/O error", "listener"]
    assert engine.get_queue("new") is None
    assert engine.receiver("q") is queue
    assert queue.complete(tags) == [False, False]
    assert list(queue.acquire(9).sequences) == [1, 2]
    assert engine.runtime("q").active_message_count == 2
    namespace.send("q", message("after"))
    assert list(queue.acquire(9).sequences) == [3]


@pytest.mark.parametrize("stage", ["reopen", "scan"])
def test_a_store_that_cannot_be_reopened_is_healed_by_the_probe(
    namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """I2, where the disk is away for longer, or comes back with a part that cannot be read at first."""
    engine, journal = namespace.engine, namespace.journal
    engine.create_queue("q")
    namespace.send("q", message("kept"), message("completed"))
    queue = namespace.queue("q")
    reported: list[str] = []
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise StoreError("the disk is away")

        journal.fail_syncs = OSError("I/O error")
        queue.complete(queue.acquire(1).tags, None, lambda error: reported.append(str(error)))
        commit = engine.begin_commit()
        with pytest.raises(StoreError):
            journal.sync()
        patch.setattr(journal, stage, fail)
        with pytest.raises(StoreError, match="away"):
            engine.fail_commit(commit, StoreError("I/O error"))
        for _ in range(2):
            with pytest.raises(StoreError, match="away"):
                engine.probe()
        if stage == "scan":  # what is there and was not loaded is not called unknown
            with pytest.raises(StoreError):
                engine.receiver("q")
        # What memory holds, and the store does not, is never written.
        queue.accept([message("early")], None, lambda error: reported.append(str(error)))
        with pytest.raises(StoreError):
            engine.begin_commit()
        assert len(reported) == 2
    journal.fail_syncs = None
    engine.probe()
    namespace.commit()
    assert reported[0] == "I/O error"
    assert namespace.queue("q") is queue
    assert list(queue.acquire(9).sequences) == [1, 2]
    namespace.send("q", message("after"))
    assert list(queue.acquire(9).sequences) == [3]


def test_a_refused_write_leaves_entities_as_they_were(namespace: Any, message: Make) -> None:
    """I2: also where the write was brought forward by a read."""
    engine = namespace.engine
    engine.create_queue("q")
    engine.create_topic("t")
    engine.create_subscription("t", "s")
    namespace.send("q", message("a"))
    queue = namespace.queue("q")
    for read in (lambda: queue.peek(0, 1), lambda: queue.receive_deferred([1]), engine.begin_commit):
        failed: list[Exception] = []
        engine.delete_topic("t")
        queue.accept([message("b")], None, failed.append)
        namespace.journal.fail_writes = OSError("No space left on device")
        with pytest.raises(StoreError, match="No space left"):
            read()
        namespace.journal.fail_writes = None
        assert len(failed) == 1
        assert engine.runtime("q").active_message_count == 1
        assert engine.list_subscriptions("t")[0][0] == "s"
        assert not engine.has_staged
        engine.create_subscription("t", "rolled-back")
        namespace.journal.fail_writes = OSError("No space left on device")
        with pytest.raises(StoreError, match="No space left"):
            engine.begin_commit()
        namespace.journal.fail_writes = None
    namespace.send("t", message("c"))
    assert engine.runtime("t/subscriptions/s").active_message_count == 1
    assert engine.runtime("t").size_bytes == engine.runtime("t/subscriptions/s").size_bytes


def test_closing_commits(namespace: Any, message: Make) -> None:
    done: list[int] = []
    namespace.engine.create_queue("q")
    namespace.queue("q").accept([message("a")], lambda: done.append(1))
    namespace.engine.close()
    assert done == [1]
    namespace.crash()
    assert namespace.engine.runtime("q").active_message_count == 1


def test_a_store_of_another_format_is_refused(namespace: Any) -> None:
    batch = namespace.journal.batch()
    batch.put(FORMAT, b"99")
    namespace.journal.write(batch)
    with pytest.raises(StoreError, match="99"):
        namespace.start()


@given(st.integers(0, 40))
def test_whatever_a_power_cut_leaves_is_consistent(kept: int) -> None:
    """Journal I1, Backlog I3: any prefix of the batches is a state in which counts, cursors and messages agree."""
    from isthmus.entities import Engine
    from isthmus.entities.storage.key import MESSAGE, message_key, numbered_span
    from isthmus.store import MemoryJournal
    from isthmus.testing.clock import ManualClock

    journal, clock = MemoryJournal(), ManualClock()
    engine = Engine(journal, clock)
    engine.create_queue("q", QueueDescription(max_delivery_count=2))
    engine.close()
    queue = engine.receiver("q")
    body = b"\0Su\xa0\x01x"
    for step in range(10):
        queue.accept([body] * (step + 1))
        engine.end_commit(engine.begin_commit())
        acquired = queue.acquire(3)
        queue.complete(acquired.tags[::2])
        queue.abandon(acquired.tags[1::2])
        engine.end_commit(engine.begin_commit())
        queue.peek(0, 1)
    journal.crash(keep=kept)
    engine = Engine(journal, clock)
    queue = engine.receiver("q")
    first, end = numbered_span(MESSAGE, queue.number)
    rows = list(journal.scan(message_key(MESSAGE, queue.number, queue.head), end))
    assert queue.active_count == len(rows)
    assert queue.size_bytes == sum(len(record) for _, record in rows)
    dead = queue.dead_letters
    assert dead.active_count == len(list(journal.scan(*numbered_span(MESSAGE, dead.number))))
    acquired = queue.acquire(1000)
    assert len(acquired.tags if acquired else []) == len(rows)
    assert first < end


def test_a_topic_s_filter_counts_include_the_default_rule(namespace: Any) -> None:
    namespace.engine.create_topic("counted")
    for name in ("a", "b"):
        namespace.engine.create_subscription("counted", name)
    namespace.engine.create_rule("counted", "b", RuleDescription("by-label", CorrelationFilter(label="red")))
    runtime = namespace.engine.runtime("counted")
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1)


def test_what_was_staged_before_the_store_is_back_fails_and_is_not_written(
    namespace: Any, message: Any, read: Any
) -> None:
    """With numbers that the store never had: they would overlap those that are given out once it is back."""
    namespace.engine.create_queue("q")
    namespace.commit()
    queue, reported = namespace.queue("q"), []

    def accept(text: str) -> None:
        queue.accept(
            [message(text)], lambda: reported.append((text, True)), lambda error: reported.append((text, False))
        )

    def closed() -> None:
        raise StoreError("cannot be opened")

    accept("a")
    namespace.journal.fail_writes, namespace.journal.reopen = OSError("no room"), closed
    with pytest.raises(StoreError):
        namespace.engine.begin_commit()
    accept("b")
    namespace.journal.fail_writes = None
    del namespace.journal.reopen
    namespace.engine.probe()
    assert reported == [("a", False), ("b", False)]
    accept("c")
    namespace.commit()
    namespace.crash()
    assert reported[2:] == [("c", True)]
    remaining = [read(each) for each in namespace.queue("q").peek(0, 9)]
    assert [(each.sequence, each.properties["message_id"]) for each in remaining] == [(1, "c")]
    assert namespace.queue("q").active_count == 1


def test_a_failure_while_a_commit_ends_gives_no_message_out_twice(namespace: Any, message: Make) -> None:
    """I1. What the commit made visible is visible since the entities were loaded again; it is not made so once more."""
    engine = namespace.engine
    for path in ("a", "b"):
        engine.create_queue(path)
    namespace.commit()
    namespace.send("b", message("returned"))
    first, second = namespace.queue("a"), namespace.queue("b")
    locked = second.acquire(1).tags
    armed = [True]

    def fails() -> None:
        if armed:
            armed.clear()
            first.accept([message("refused")])
            namespace.journal.fail_writes = OSError("no space")
            with suppress(StoreError):
                first.peek(0, 1)
            namespace.journal.fail_writes = None

    first.add_listener(fails)
    first.accept([message("news")])
    second.abandon(locked)
    namespace.commit()
    assert not armed
    assert len(second.acquire(9).tags) == 1
    assert second.acquire(9) is None
    assert len(first.acquire(9).tags) == 1


def test_what_is_due_stays_while_its_entity_could_not_be_loaded_again(
    namespace: Any, message: Make, monkeypatch: Any
) -> None:
    """I1. After a failure the store was open, and a read of an entity's row was refused."""
    engine, journal = namespace.engine, namespace.journal
    engine.create_queue("a")
    engine.create_queue("q", QueueDescription(dead_lettering_on_message_expiration=True))
    namespace.commit()
    queue = namespace.queue("q")
    queue.schedule([(message("later"), namespace.clock.wall_ms() + 2_000)])
    namespace.send("q", message("brief", ttl_ms=2_000))
    get, row = journal.get, state_key(queue.number)

    def refuses(key: bytes) -> Any:
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "get", refuses)
        namespace.sender("a").accept([message("fails")])
        journal.fail_syncs = OSError("no space")
        commit = engine.begin_commit()
        with pytest.raises(StoreError):
            engine.fail_commit(commit, StoreError("no space"))
        journal.fail_syncs = None
        for _ in range(20):
            namespace.clock.advance(500)
            with suppress(StoreError):
                engine.tick()
            with suppress(StoreError):
                namespace.commit()
    for _ in range(30):
        namespace.clock.advance(500)
        engine.tick()
        namespace.commit()
    found = engine.runtime("q")
    assert (found.active_message_count, found.scheduled_message_count, found.dead_letter_message_count) == (1, 0, 1)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_an_update_that_is_refused_for_a_read_has_changed_nothing(namespace: Any, monkeypatch: Any, kind: str) -> None:
    """Administration I1: another window of detection is passed to the store, which is read for that."""
    engine, journal = namespace.engine, namespace.journal
    described = QueueDescription if kind == "queue" else TopicDescription
    create, update, got = (getattr(engine, f"{verb}_{kind}") for verb in ("create", "update", "get"))
    before = described(requires_duplicate_detection=True, max_size_in_megabytes=1)
    create("q", before)
    namespace.commit()
    get = journal.get

    def refuses(key: bytes) -> Any:
        if key[0] == ERAS:
            raise StoreError("a block cannot be read")
        return get(key)

    after = described(
        requires_duplicate_detection=True,
        max_size_in_megabytes=2,
        duplicate_detection_history_time_window_ms=3_600_000,
    )
    with monkeypatch.context() as patched:
        patched.setattr(journal, "get", refuses)
        with pytest.raises(StoreError, match="a block cannot be read"):
            update("q", after)
    assert got("q") == before
    namespace.commit()
    namespace.crash()
    assert getattr(namespace.engine, f"get_{kind}")("q") == before
    assert getattr(namespace.engine, f"update_{kind}")("q", after) == after


def test_what_came_while_entities_were_not_loaded_again_is_refused(
    namespace: Any, message: Make, monkeypatch: Any
) -> None:
    """I1. The clockwork brings them back: what was staged on top of the state in memory in the meantime is not written."""
    engine, journal = namespace.engine, namespace.journal
    for path in ("a", "q"):
        engine.create_queue(path)
    namespace.commit()
    namespace.send("q", message("kept"))
    get, row = journal.get, state_key(namespace.queue("q").number)

    def refuses(key: bytes) -> Any:
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    queue, answers = namespace.queue("q"), []
    with monkeypatch.context() as patched:
        patched.setattr(journal, "get", refuses)
        namespace.sender("a").accept([message("fails")])
        with pytest.raises(StoreError):
            engine.fail_commit(engine.begin_commit(), StoreError("no space"))
        queue.accept([message("refused")], lambda: answers.append("accepted"), lambda error: answers.append("refused"))
    namespace.clock.advance(20_000)
    engine.tick()
    namespace.commit()
    assert answers == ["refused"]
    assert len(queue.acquire(9).tags) == engine.runtime("q").active_message_count == 1


def test_a_time_in_which_the_store_was_away_makes_nothing_idle(
    namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Senders came, and were refused."""
    engine, journal = namespace.engine, namespace.journal
    engine.create_queue("q", QueueDescription(auto_delete_on_idle_ms=300_000))
    namespace.send("q", message("kept"))

    def fails() -> None:
        raise StoreError("cannot be opened")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "reopen", fails)
        journal.fail_writes = OSError("I/O error")
        for _ in range(40):
            namespace.clock.advance(10_000)
            with suppress(StoreError):
                namespace.sender("q").accept([message("refused")])
                namespace.commit()
            with suppress(StoreError):
                engine.tick()
        journal.fail_writes = None
    namespace.advance(10_000)
    namespace.advance(10_000)
    assert [queue for queue, _ in engine.list_queues()] == ["q"]
    assert namespace.queue("q").active_count == 1


@pytest.mark.parametrize("at_start", [False, True])
def test_a_partitioned_queue_whose_store_is_unavailable_is_not_idle(at_start: bool) -> None:
    """Senders were refused, and what the store holds of use and schedules is not known."""
    harness = Stores()
    harness.engine.create_queue("p", QueueDescription(auto_delete_on_idle_ms=300_000, enable_partitioning=True))
    harness.commit()
    harness.engine.sender("p").accept([partitioned_message("kept", key="a")])
    harness.commit()
    if at_start:
        harness.broken = {0, 1, 2}
        harness.crash()
    else:
        for journal in harness.journals.values():
            journal.fail_writes = journal.fail_syncs = OSError("I/O error")
    for _ in range(40):
        harness.clock.advance(10_000)
        for body in ("a", "b", "c"):
            with suppress(ServerBusyError, StoreError):
                harness.engine.sender("p").accept([partitioned_message(body, key=body)])
        harness.commit()
        harness.engine.tick()
    harness.broken = set()
    for journal in harness.journals.values():
        journal.fail_writes = journal.fail_syncs = None
    harness.stores.retry()
    harness.advance(10_000)
    harness.advance(10_000)
    assert [queue for queue, _ in harness.engine.list_queues()] == ["p"]
    assert harness.engine.runtime("p").active_message_count == 1


def test_a_store_whose_rows_could_not_be_read_is_opened_again(
    tmp_path: Path, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver reads meanwhile from an entity that was not loaded again: what it holds open must not stay so."""
    clock, journal = ManualClock(), RocksJournal(tmp_path / "store")
    engine = Engine(journal, clock)

    def commit() -> None:
        begun = engine.begin_commit()
        journal.sync()
        if begun is not None:
            engine.end_commit(begun)

    for path in ("a", "q"):
        engine.create_queue(path)
    commit()
    queue: Any = engine.receiver("q")
    queue.accept([message(str(number)) for number in range(500)])
    commit()
    get, row = journal.get, state_key(engine.sender("a").number)

    def refuses(key: bytes) -> Any:
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "get", refuses)
        queue.accept([message("fails")])
        with pytest.raises(StoreError):
            engine.fail_commit(engine.begin_commit(), StoreError("no space"))
        assert len(queue.acquire(9).tags) == 9
    engine.probe()
    commit()
    queue.accept([message("taken")])
    commit()
    assert engine.runtime("q").active_message_count >= 501
    journal.close()


@pytest.mark.parametrize("reads", range(12))
def test_keys_and_hubs_are_there_while_the_store_could_not_be_read_again(
    namespace: Any, message: Make, monkeypatch: Any, reads: int
) -> None:
    """A client with a key, or for an event hub, must be asked to try again, not get the answer that there is none."""
    rules = [AuthorizationRule("k", "p", "s", ["Send"])]
    namespace.engine.create_queue("q", QueueDescription(authorization_rules=rules))
    namespace.engine.create_queue("r", QueueDescription(authorization_rules=rules))
    for name in ("hub", "other"):
        namespace.engine.hubs.create(name, EventHubDescription(partition_count=2, authorization_rules=rules))
    namespace.commit()
    hub = namespace.engine.hubs.find("hub")
    left = reads

    def look() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreError("a block cannot be read")

    get, scan = namespace.journal.get, namespace.journal.scan

    def getting(key: bytes) -> bytes | None:
        look()
        return get(key)  # type: ignore[no-any-return]

    def scanning(first: bytes, end: bytes, **more: Any) -> Any:
        for pair in scan(first, end, **more):
            look()
            yield pair
        look()

    namespace.sender("q").accept([message("a")], None, lambda _: None)
    commit = namespace.engine.begin_commit()
    monkeypatch.setattr(namespace.journal, "get", getting)
    monkeypatch.setattr(namespace.journal, "scan", scanning)
    with suppress(StoreError):
        namespace.engine.fail_commit(commit, StoreError("no space"))
    monkeypatch.undo()
    for _ in range(2):
        assert namespace.engine.key_names.having("k") == ["q", "r"]
        assert namespace.engine.hubs.key_names.having("k") == ["hub", "other"]
        assert namespace.engine.hubs.names() == ["hub", "other"]
        assert namespace.engine.hubs.find("hub") is hub
        assert not hub.is_deleted
        namespace.engine.probe()
        namespace.commit()
    hub.accept_batch(b"", [message("e")], hub.partitions[0])
    namespace.commit()
    assert hub.partitions[0].committed.next == 1


def test_a_fault_in_a_listener_leaves_neither_others_waiting_nor_the_store_away(namespace: Any, message: Make) -> None:
    reported: list[str] = []

    def odd(name: str) -> Callable[[], None]:
        def listener() -> None:
            reported.append(name)
            raise ValueError(name)

        return listener

    for name in ("q", "r"):
        namespace.engine.create_queue(name)
    namespace.commit()
    for name in ("q", "r"):
        namespace.queue(name).add_listener(odd(f"{name}1"))
        namespace.queue(name).add_listener(odd(f"{name}2"))
    namespace.sender("q").accept([message("a")])
    with pytest.raises(ExceptionGroup):
        namespace.commit()
    assert reported == ["q1", "q2"]
    reported.clear()
    namespace.sender("q").accept([message("b")], None, lambda _: None)
    commit = namespace.engine.begin_commit()
    namespace.engine.fail_commit(commit, StoreError("no space"))
    assert sorted(reported) == ["q1", "q2", "r1", "r2"]
    namespace.sender("r").accept([message("c")], lambda: reported.append("durable"))
    with pytest.raises(ExceptionGroup):
        namespace.commit()
    assert "durable" in reported
