"""Topics: rules, copies, numbering."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.types import Described, Symbol, Timestamp
from isthmus.entities import (
    CorrelationFilter,
    DateTime,
    Duration,
    EntityStatus,
    FalseFilter,
    Limits,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from isthmus.entities.topic import selection
from isthmus.errors import EntityDisabledError, EntityNotFoundError, InvalidArgumentError, QuotaExceededError

Make = Callable[..., bytes]


@pytest.fixture
def engine(namespace: Any) -> Any:
    namespace.engine.create_topic("t")
    namespace.commit()
    return namespace.engine


def texts(namespace: Any, read: Any, name: str, what: str = "message_id") -> list[Any]:
    acquired = namespace.queue(f"t/Subscriptions/{name}").acquire(100)
    return [read(one).properties[what] for one in acquired.payloads] if acquired else []


def test_every_subscription_gets_a_copy_with_the_topics_number(
    namespace: Any, engine: Any, message: Make, read: Any
) -> None:
    """I2."""
    namespace.send("t", message("lost"))  # there is no subscription: accepted all the same
    engine.create_subscription("t", "a")
    namespace.send("t", message("m2"))
    engine.create_subscription("t", "b")
    namespace.send("t", message("m3"), message("m4"))
    a = [read(one) for one in namespace.queue("t/Subscriptions/a").acquire(9).payloads]
    b = [read(one) for one in namespace.queue("T/subscriptions/B").acquire(9).payloads]
    assert [(one.sequence, one.annotations["x-opt-enqueue-sequence-number"]) for one in a] == [(1, 2), (2, 3), (3, 4)]
    assert [(one.sequence, one.annotations["x-opt-enqueue-sequence-number"]) for one in b] == [(1, 3), (2, 4)]
    namespace.crash()
    assert namespace.engine.runtime("t").subscription_count == 2
    namespace.send("t", message("m5"))
    last = [read(one) for one in namespace.queue("t/subscriptions/b").acquire(9).payloads][-1]
    assert last.annotations["x-opt-enqueue-sequence-number"] == 5


def test_plain_rules_make_one_copy_and_each_action_its_own(
    namespace: Any, engine: Any, message: Make, read: Any
) -> None:
    engine.create_subscription("t", "s", default_rule=RuleDescription("one", SqlFilter("n > 1")))
    engine.create_rule("t", "s", RuleDescription("two", SqlFilter("n > 2")))
    engine.create_rule("t", "s", RuleDescription("act", SqlFilter("n > 2"), SqlAction("SET seen = n * 10; REMOVE x")))
    engine.create_rule("t", "s", RuleDescription("all", TrueFilter(), SqlAction("SET sys.Label = 'L'; SET N = 'new'")))
    namespace.send("t", message("1", user={"n": 1}), message("3", user={"n": 3, "X": "y"}))
    copies = [read(one) for one in namespace.queue("t/subscriptions/s").acquire(9).payloads]
    assert [(one.properties["message_id"], one.user, one.properties.get("subject")) for one in copies] == [
        ("1", {"n": "new", "RuleName": "all"}, "L"),
        ("3", {"n": 3, "X": "y"}, None),
        ("3", {"n": 3, "seen": 30, "RuleName": "act"}, None),
        ("3", {"n": "new", "X": "y", "RuleName": "all"}, "L"),
    ]
    assert len({one.sequence for one in copies}) == 4


def test_a_mark_against_loops(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    rule = RuleDescription("r", SqlFilter("replication IS NULL OR replication <> 1"), SqlAction("SET replication = 1"))
    engine.create_subscription("t", "s", default_rule=rule)
    namespace.send(
        "t",
        message("no"),
        message("zero", user={"replication": 0}),
        message("one", user={"replication": 1}),
        message("other", user={"a": "b", "l": 2**40}),
    )
    copies = [read(one) for one in namespace.queue("t/subscriptions/s").acquire(9).payloads]
    assert [one.properties["message_id"] for one in copies] == ["no", "zero", "other"]
    assert copies[2].user == {"a": "b", "l": 2**40, "RuleName": "r", "replication": 1}
    assert copies[1].user == {"replication": 1, "RuleName": "r"}


def test_an_action_sets_the_time_to_live(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    rule = RuleDescription("r", TrueFilter(), SqlAction("SET sys.TimeToLive = '0:2:0'"))
    engine.create_subscription("t", "s", default_rule=rule)
    namespace.send("t", message("a"), message("b", ttl_ms=7_200_000))
    copies = [read(one) for one in namespace.queue("t/subscriptions/s").acquire(9).payloads]
    assert [one.header.ttl_ms for one in copies] == [120_000, 120_000]
    namespace.send("t", message("c"))
    namespace.advance(180_001)
    assert namespace.engine.runtime("t/subscriptions/s").message_count == 0


def test_correlation_filters_and_parameters(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    engine.create_subscription(
        "t", "c", default_rule=RuleDescription("r", CorrelationFilter(label="L", properties={"Region": "eu"}))
    )
    at = DateTime(1_767_225_600_000)
    engine.create_subscription(
        "t",
        "p",
        default_rule=RuleDescription(
            "r", SqlFilter("t - @at < @span AND k IN (@k)", {"@at": at, "@span": Duration(2_000), "@k": "v"})
        ),
    )
    engine.create_subscription("t", "f", default_rule=RuleDescription("r", FalseFilter()))
    namespace.send(
        "t",
        message("1", subject="L", user={"region": "eu", "t": Timestamp(at.ms + 1_000), "k": "v"}),
        message("2", subject="L", user={"region": "us", "t": Timestamp(at.ms + 3_000), "k": "v"}),
        message("3", user={"region": "eu", "t": Timestamp(at.ms + 1_999), "k": "v"}),
    )
    assert texts(namespace, read, "c") == ["1"]
    assert texts(namespace, read, "p") == ["1", "3"]
    assert texts(namespace, read, "f") == []


def test_system_properties_are_seen(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    expressions = {
        "id": "sys.MessageId = 'm'",
        "guid": "sys.CorrelationId LIKE '%-%'",
        "key": "sys.PartitionKey = 'pk'",
        "ttl": "sys.TimeToLive > @minute",
        "number": "sys.SequenceNumber = 1 AND sys.DeliveryCount = 0 AND sys.Size > 10",
        "time": "sys.EnqueuedTimeUtc < sys.ExpiresAtUtc",
        "none": "sys.To IS NULL AND sys.ScheduledEnqueueTimeUtc IS NULL AND sys.DeadLetterSource IS NULL",
    }
    for name, expression in expressions.items():
        filters = SqlFilter(expression, {"@minute": Duration(60_000)} if "@" in expression else {})
        engine.create_subscription("t", name, default_rule=RuleDescription("r", filters))
    namespace.send(
        "t",
        message(
            "m",
            ttl_ms=90_000,
            correlation_id=UUID(int=5),
            annotations={"x-opt-partition-key": "pk"},
        ),
    )
    assert [name for name in expressions if texts(namespace, read, name) != ["m"]] == []


def test_names_match_without_case_beyond_ascii(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    for name, expression in (("u", "[größe] = 1"), ("k", "kelvin = 1"), ("x", "EXISTS(ÄRA)"), ("y", "exists([ära])")):
        engine.create_subscription("t", name, default_rule=RuleDescription("r", SqlFilter(expression)))
    namespace.send("t", message("m", user={"GRÖSSE": 0, "GRÖße": 1, "\N{KELVIN SIGN}elvin": 1, "Ära": None}))
    assert [texts(namespace, read, name) for name in "ukxy"] == [["m"]] * 4


def test_values_that_actions_write(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    action = (
        "SET a = sys.EnqueuedTimeUtc; SET b = sys.TimeToLive; SET c = b; SET sys.PartitionKey = 'k'; REMOVE sys.To; "
        "SET sys.CorrelationId = newid(); SET d = newid()"
    )
    engine.create_subscription("t", "s", default_rule=RuleDescription("r", TrueFilter(), SqlAction(action)))
    namespace.send("t", message("m", to="x", ttl_ms=60_000))
    seen = read(namespace.queue("t/subscriptions/s").acquire(1).payloads[0])
    assert seen.user["a"] == Timestamp(namespace.clock.wall_ms())
    assert seen.user["b"].value == seen.user["c"].value == 600_000_000
    assert isinstance(seen.user["d"], UUID)
    assert "to" not in seen.properties
    assert len(seen.properties["correlation_id"]) == 36
    assert seen.annotations["x-opt-partition-key"] == "k"
    assert datetime.fromtimestamp(seen.user["a"] / 1000, UTC).year == 2026


@pytest.mark.parametrize("kept", [True, False])
def test_a_failing_filter_dead_letters_if_asked(
    kept: bool, namespace: Any, engine: Any, message: Make, read: Any
) -> None:
    """Selection I1."""
    description = SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=kept)
    engine.create_subscription("t", "s", description, RuleDescription("r", SqlFilter("10 / n = 5")))
    namespace.send("t", message("2", user={"n": 2}), message("0", user={"n": 0}), message("1", user={"n": 1}))
    assert texts(namespace, read, "s") == ["2"]
    runtime = namespace.engine.runtime("t/subscriptions/s")
    assert runtime.dead_letter_message_count == (1 if kept else 0)
    if kept:
        dead = read(namespace.queue("t/subscriptions/s/$deadletterqueue").acquire(1).payloads[0])
        assert dead.properties["message_id"] == "0"
        assert dead.user["DeadLetterReason"]
        assert dead.annotations["x-opt-enqueue-sequence-number"] == 2


def test_a_changed_rule_keeps_the_time_it_was_made(namespace: Any, engine: Any) -> None:
    """That which its description said, though its row was made a millisecond later."""
    engine.create_subscription("t", "s")
    made_ms = namespace.clock.wall_ms()
    namespace.clock.advance(1)
    engine.create_rule("t", "s", RuleDescription("r", created_at_ms=made_ms))
    engine.update_rule("t", "s", RuleDescription("r", SqlFilter("a = 1")))
    assert engine.get_rule("t", "s", "r").created_at_ms == made_ms


def test_rules_change_what_is_selected_from_then_on(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    engine.create_subscription("t", "s")
    engine.delete_rule("t", "s", "$DEFAULT")
    namespace.send("t", message("1"))
    engine.create_rule("t", "s", RuleDescription("r", SqlFilter("sys.MessageId = '2'")))
    namespace.send("t", message("2"), message("3"))
    engine.update_rule("t", "s", RuleDescription("R", SqlFilter("sys.MessageId = '5'")))
    namespace.send("t", message("4"), message("5"))
    assert texts(namespace, read, "s") == ["2", "5"]
    assert [rule.name for rule in engine.list_rules("t", "s")] == ["R"]
    with pytest.raises(EntityNotFoundError):
        engine.delete_rule("t", "s", "gone")
    with pytest.raises(InvalidArgumentError, match="column"):
        engine.create_rule("t", "s", RuleDescription("bad", SqlFilter("a = ")))
    with pytest.raises(InvalidArgumentError):
        engine.create_rule("t", "s", RuleDescription("bad", TrueFilter(), SqlAction("SET = 1")))
    assert len(engine.list_rules("t", "s")) == 1


def test_the_shortest_life_counts(namespace: Any, message: Make, read: Any) -> None:
    namespace.engine.create_topic("t", TopicDescription(default_message_time_to_live_ms=60_000))
    namespace.engine.create_subscription("t", "s", SubscriptionDescription(default_message_time_to_live_ms=5_000))
    namespace.engine.create_subscription("t", "l")
    namespace.send("t", message("a"), message("b", ttl_ms=1_000))
    assert [read(one).header.ttl_ms for one in namespace.queue("t/subscriptions/s").peek(0, 9)] == [5_000, 1_000]
    assert [read(one).header.ttl_ms for one in namespace.queue("t/subscriptions/l").peek(0, 9)] == [60_000, 1_000]
    namespace.advance(7_000)
    assert namespace.engine.runtime("t/subscriptions/s").message_count == 0
    assert namespace.engine.runtime("t/subscriptions/l").message_count == 1


def test_topics_schedule_detect_and_refuse(namespace: Any, message: Make, read: Any) -> None:
    namespace.engine.create_topic("t", TopicDescription(requires_duplicate_detection=True))
    namespace.engine.create_subscription("t", "s")
    namespace.commit()
    topic = namespace.sender("t")
    now = namespace.clock.wall_ms()
    (number,) = topic.schedule([(message("later"), now + 1_000)])
    topic.accept([message("a"), message("a")])
    namespace.commit()
    assert number == 1
    assert len(topic.peek(0, 9)) == 1
    assert namespace.engine.runtime("t").scheduled_message_count == 1
    namespace.advance(1_000)
    assert texts(namespace, read, "s") == ["a", "later"]
    namespace.engine.update_topic(
        "t", TopicDescription(requires_duplicate_detection=True, status=EntityStatus.SEND_DISABLED)
    )
    with pytest.raises(EntityDisabledError):
        topic.accept([message("x")])


def test_a_copy_of_a_dead_letter_keeps_its_first_number(namespace: Any, engine: Any, message: Make, read: Any) -> None:
    engine.create_subscription("t", "s")
    namespace.send("t", message("x"))
    namespace.send("t", message("m"))
    queue = namespace.queue("t/subscriptions/s")
    queue.complete(queue.acquire(1).tags)
    queue.dead_letter(queue.acquire(1).tags, "r")
    namespace.commit()
    seen = read(namespace.queue("t/subscriptions/s/$DeadLetterQueue").acquire(1).payloads[0])
    assert seen.annotations["x-opt-enqueue-sequence-number"] == 2
    assert seen.annotations["x-opt-deadletter-source"] == "t/Subscriptions/s"


ODD = {
    "a time beyond the year 9999": codec.encode(Timestamp(253_402_300_800_000)),
    "the last time": codec.encode(Timestamp(2**63 - 1)),
    "the first time": codec.encode(Timestamp(-(2**63))),
    "a timespan that is text": codec.encode(Described(Symbol("com.microsoft:timespan"), "x")),
    "a timespan that is no number": codec.encode(Described(Symbol("com.microsoft:timespan"), float("nan"))),
    "a text that is none": b"\xa1\x01\xff",
    "a list": codec.encode([1, 2]),
}


@pytest.mark.parametrize("name", list(ODD))
def test_values_of_every_kind_pass_by_rules(namespace: Any, engine: Any, name: str) -> None:
    """What a rule cannot read concerns its subscription alone; the message is taken, and its other copies are made."""
    rule = RuleDescription("r", SqlFilter("p > @t OR p LIKE 'a%' OR p = 5"), SqlAction("SET q = p"))
    rule.filter.parameters["@t"] = DateTime(0)
    engine.create_subscription("t", "first")
    engine.create_subscription("t", "odd", None, rule)
    engine.create_subscription("t", "last")
    properties = b"\0St" + codec.encode_map([codec.encode("p"), ODD[name]])
    namespace.send("t", section.encode_properties({"message_id": "m"}) + properties + b"\0Su\xa0\x01x")
    counts = [namespace.queue(f"t/Subscriptions/{each}").active_count for each in ("first", "odd", "last")]
    assert counts == [1, int(name in ("a time beyond the year 9999", "the last time")), 1]


def test_a_property_s_name_that_is_no_text_fails_the_filter_alone(namespace: Any, engine: Any) -> None:
    engine.create_subscription("t", "first")
    engine.create_subscription("t", "odd", None, RuleDescription("r", SqlFilter("p = 1 OR \u00e9 = 1")))
    properties = b"\0St" + codec.encode_map([b"\xa1\x01\xff", b"\x41", codec.encode("p"), b"\x41"])
    namespace.send("t", section.encode_properties({"message_id": "m"}) + properties + b"\0Su\xa0\x01x")
    assert namespace.queue("t/Subscriptions/first").active_count == 1
    assert namespace.queue("t/Subscriptions/odd/$DeadLetterQueue").active_count == 1


def test_an_end_beyond_the_year_9999_is_the_last_moment(namespace: Any, message: Make) -> None:
    namespace.engine.create_topic("long", TopicDescription(default_message_time_to_live_ms=900_000_000_000_000))
    namespace.engine.create_subscription(
        "long", "s", None, RuleDescription("r", SqlFilter("sys.ExpiresAtUtc IS NOT NULL"))
    )
    namespace.send("long", message("a"))
    assert namespace.queue("long/Subscriptions/s").active_count == 1


def test_a_time_that_utc_cannot_say_is_none_to_set(namespace: Any, engine: Any, message: Make) -> None:
    action = SqlAction("SET sys.ScheduledEnqueueTimeUtc = p")
    engine.create_subscription("t", "s", None, RuleDescription("r", TrueFilter(), action))
    namespace.send("t", message("a", user={"p": "9999-12-31T23:59:59-14:00"}))
    assert namespace.queue("t/Subscriptions/s/$DeadLetterQueue").active_count == 1


def test_a_correlation_with_a_time_beyond_the_year_9999(namespace: Any, engine: Any, message: Make) -> None:
    far = 253_402_300_800_000
    engine.create_subscription("t", "s", None, RuleDescription("r", CorrelationFilter(properties={"p": DateTime(far)})))
    namespace.send("t", message("a", user={"p": Timestamp(far)}))
    assert namespace.queue("t/Subscriptions/s").active_count == 1


def test_a_pattern_that_comes_with_a_message_is_bounded(namespace: Any, engine: Any, message: Make) -> None:
    engine.create_subscription("t", "s", None, RuleDescription("r", SqlFilter("p LIKE q")))
    namespace.send("t", message("a", user={"p": "x" * 1024, "q": "_" * 1024}))
    namespace.send("t", message("b", user={"p": "x" * 1025, "q": "_" * 1025}))
    assert namespace.queue("t/Subscriptions/s").active_count == 1
    assert namespace.queue("t/Subscriptions/s/$DeadLetterQueue").active_count == 1


def test_a_rule_is_compiled_once_however_often_others_change(
    namespace: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    real = selection.compile_rule
    monkeypatch.setattr(selection, "compile_rule", lambda rule: compiled.append(rule.name) or real(rule))
    engine.create_subscription("t", "s")
    for number in range(50):
        engine.create_rule("t", "s", RuleDescription(f"r{number}", SqlFilter(f"p = {number}")))
    assert compiled == ["$Default", *(f"r{number}" for number in range(50))]
    engine.update_rule("t", "s", RuleDescription("r7", SqlFilter("p = 100")))
    engine.delete_rule("t", "s", "$Default")
    engine.update_subscription("t", "s", SubscriptionDescription(max_delivery_count=3))
    assert compiled[51:] == ["r7"]


def test_a_changed_rule_counts_to_its_new_kind(namespace: Any, message: Make) -> None:
    namespace.limits = Limits(max_sql_filters_per_topic=1)
    namespace.start()
    engine = namespace.engine
    engine.create_topic("t")
    engine.create_subscription("t", "s", None, RuleDescription("sql", SqlFilter("p = 1")))
    engine.create_rule("t", "s", RuleDescription("other", CorrelationFilter(label="x")))
    with pytest.raises(QuotaExceededError):
        engine.update_rule("t", "s", RuleDescription("other", SqlFilter("p = 2")))
    engine.update_rule("t", "s", RuleDescription("sql", SqlFilter("p = 3")))


@pytest.mark.parametrize("key", [5, UUID(int=5), b"\5", ["k"]])
def test_a_partition_key_of_another_type_is_text_or_none(
    namespace: Any, engine: Any, message: Make, read: Any, key: object
) -> None:
    """Of a filter and its contrary one selects the message, as of one with a key that is text."""
    for name, expression in (
        ("same", "sys.PartitionKey = 'x'"),
        ("other", "sys.PartitionKey IS NULL OR NOT sys.PartitionKey = 'x'"),
    ):
        engine.create_subscription("t", name, default_rule=RuleDescription("r", SqlFilter(expression)))
    namespace.send("t", message("m", annotations={"x-opt-partition-key": key}))
    assert (texts(namespace, read, "same"), texts(namespace, read, "other")) == ([], ["m"])
