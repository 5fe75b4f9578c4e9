"""Copies with duplicate keys: compared by these alone, durably, in every kind of entity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.fixture.partitioned_fixture import Stores
from isthmus.amqp import section
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.entities import Copy, QueueDescription, SubscriptionDescription, TopicDescription
from isthmus.entities.catalog.description import RuleDescription, SqlAction, SqlFilter
from isthmus.message import digest
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.name import DIGEST, HOP_PROPERTIES

NOW_MS = 1_800_000_000_000
DETECTING = QueueDescription(requires_duplicate_detection=True)


def copy(number: int, message_id: str = "same", *, plain: bool = False, **fields: Any) -> bytes:
    hop = ("ewr/flights", "A", str(number), str(number), "2026-01-01T00:00:00.000Z")
    been = dict(zip(HOP_PROPERTIES, hop, strict=True)) | {DIGEST: digest(message_id.encode(), b"x")}
    message = section.encode_message(
        b"x",
        annotations=fields.pop("annotations", None),
        properties={"message_id": message_id, **fields},
        application_properties={"n": number, **been},
    )
    return message if plain else Copy(message)


@pytest.mark.parametrize("description", [QueueDescription(), DETECTING])
def test_equal_message_ids_are_kept_and_equal_keys_are_not(namespace: Any, description: QueueDescription) -> None:
    namespace.engine.create_queue("q", description)
    namespace.send("q", copy(1), copy(2), copy(1))
    namespace.send("q", copy(2))
    assert namespace.queue("q").active_count == 2


def test_a_message_of_any_other_link_has_no_key(namespace: Any) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", copy(1), copy(1, plain=True))
    namespace.send("q", copy(1, plain=True), copy(1))
    assert namespace.queue("q").active_count == 3


def test_ids_and_keys_are_distinguished_in_one_unit(namespace: Any) -> None:
    namespace.engine.create_queue("q", DETECTING)
    namespace.send("q", copy(1), copy(9, plain=True), copy(1), copy(9, plain=True), copy(2))
    assert [n for n, _, _ in namespace.queue("q").peek_records(0, 9)] == [1, 2, 3]


def test_keys_outlive_a_crash_and_end_with_their_window(namespace: Any) -> None:
    namespace.engine.create_queue("q")
    namespace.commit()
    namespace.sender("q").accept([copy(1)])
    namespace.crash()
    namespace.send("q", copy(1))
    namespace.crash()
    namespace.send("q", copy(1))
    assert namespace.queue("q").active_count == 1
    namespace.clock.advance(namespace.limits.duplicate_key_window_ms + 1)
    namespace.send("q", copy(1))
    assert namespace.queue("q").active_count == 2


def test_an_entity_that_goes_takes_its_keys_along(namespace: Any) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", copy(1))
    namespace.engine.delete_queue("q")
    namespace.commit()
    assert not [key for key, _ in namespace.journal.scan(b"\x30", b"\x35")]


def test_messages_that_rules_made_of_one_are_all_taken_from_the_route_that_empties_their_subscription(
    namespace: Any,
) -> None:
    namespace.engine.create_topic("t")
    namespace.engine.create_subscription("t", "s", default_rule=RuleDescription("plain", SqlFilter("n > 0")))
    for name in ("heavy", "all"):
        rule = RuleDescription(name, SqlFilter("n > 0"), SqlAction(f"SET by = '{name}'"))
        namespace.engine.create_rule("t", "s", rule)
    namespace.send("t", section.encode_message(b"x", properties={"message_id": "1"}, application_properties={"n": 1}))
    delivered = [bytes(each) for each in namespace.queue("t/subscriptions/s").acquire(9).payloads]
    rewriter = MessageRewriter("ewr/t", origin_namespace="A", policy=CopyPolicy(dead_letters_returning=True))
    copies = [rewriter.copy(each, NOW_MS) for each in delivered]
    namespace.engine.create_queue("q")
    namespace.send("q", *(Copy(each) for each in copies))
    namespace.send("q", *(Copy(each) for each in copies))
    assert (len(copies), namespace.queue("q").active_count) == (3, 3)


def test_a_topic_compares_once_however_many_rules_select(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_topic("t", TopicDescription())
    engine.create_subscription("t", "s", SubscriptionDescription())
    for name in ("a", "b"):
        action = SqlAction(f"SET rule = '{name}'")
        engine.create_rule("t", "s", RuleDescription(name=name, filter=SqlFilter("n > 0"), action=action))
    engine.delete_rule("t", "s", "$Default")
    namespace.commit()
    namespace.send("t", copy(1), copy(2))
    namespace.send("t", copy(2), copy(3))
    assert namespace.queue("t/Subscriptions/s").active_count == 6


def test_in_a_session_and_in_forwarding(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("s", QueueDescription(requires_session=True))
    engine.create_queue("to")
    engine.create_queue("via", QueueDescription(forward_to="to"))
    namespace.commit()
    for _ in range(2):
        namespace.send("s", copy(1, group_id="a"), copy(2, group_id="b"))
        namespace.send("via", copy(1), copy(2))
    assert engine.runtime("s").active_message_count == 2
    assert namespace.queue("to").active_count == 2


def test_in_a_transaction_and_for_later(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("q")
    namespace.commit()
    for ending in ("rollback", "commit", "commit"):
        transaction = engine.transaction()
        transaction.send(namespace.sender("q"), [copy(1)])
        getattr(transaction, ending)()
        namespace.commit()
    assert namespace.queue("q").active_count == 1
    due = {"x-opt-scheduled-enqueue-time": section.Timestamp(namespace.clock.wall_ms() + 1000)}
    for _ in range(2):
        namespace.send("q", copy(2, annotations=due))
    namespace.advance(2000)
    namespace.send("q", copy(2))
    assert namespace.queue("q").active_count == 2


@pytest.mark.parametrize("groups", [(None,), ("a",), ("a", "b", None)])
def test_in_a_partitioned_entity_an_equal_meets_its_equal(groups: tuple[str | None, ...]) -> None:
    harness = Stores()
    harness.engine.create_queue("q", QueueDescription(enable_partitioning=True))
    harness.commit()
    ended: list[object] = []

    def copies(numbers: range) -> list[bytes]:
        keys = [groups[number % len(groups)] for number in numbers]
        named = [{"annotations": {"x-opt-partition-key": key}} if key else {} for key in keys]
        return [copy(number, **fields) for number, fields in zip(numbers, named, strict=True)]

    # In units of different sizes, as they are after a crash; with a restart in between.
    for sizes in ((1, 30), (31, 40), (7, 17)):
        harness.engine.sender("q").accept(copies(range(*sizes)), lambda: ended.append(None), ended.append)
        harness.commit()
        harness.crash()
    assert ended == [None] * 3
    assert harness.engine.runtime("q").active_message_count == 38


@pytest.mark.parametrize("window_ms", [1_800_000, 3_601_000, 86_400_000])
def test_keys_outlive_a_change_of_their_window(namespace: Any, window_ms: int) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", copy(1), copy(2), copy(9))
    namespace.send("q", copy(5))  # not in order: a row of its own
    namespace.limits = replace(namespace.limits, duplicate_key_window_ms=window_ms)
    for elapsed_ms in (1_000_000, window_ms - 1_000_001):
        namespace.crash()
        namespace.clock.advance(elapsed_ms)
        namespace.send("q", copy(5), copy(1), copy(2), copy(9), copy(10))
        assert namespace.queue("q").active_count == 5
    namespace.clock.advance(1)
    namespace.send("q", copy(5), copy(1), copy(10))
    assert namespace.queue("q").active_count == 7
