"""The keys by which two deliveries are recognised as one message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.client.receive.message_key import Arrived, arrived, is_proven_copy, keys_of, was_enqueued_ms
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.message.copy_policy import CopyPolicy

NOW = 1_767_225_600_123


def encoded(body: bytes = b"body", message_id: str = "1", sequence: int = 7, **sections: object) -> bytes:
    annotations = {"x-opt-sequence-number": Long(sequence), "x-opt-enqueued-time": Timestamp(NOW)}
    properties = {"message_id": message_id} if message_id else {}
    return section.encode_message(body, properties=properties, annotations=annotations, **sections)  # type: ignore[arg-type]


def reported(payload: bytes) -> Arrived:
    return arrived(ServiceBusReceivedMessage.from_bytes(payload))


def copy_of(
    payload: bytes, sequence: int = 99, alias: str = "ewr", namespace: str = "NS-A", policy: CopyPolicy | None = None
) -> bytes:
    """As a route copies it, and as the target then delivers it."""
    rewriter = MessageRewriter(f"{alias}/orders", "jfk", origin_namespace=namespace, policy=policy)
    [copy], _ = rewriter.copy_all(payload, [0, len(payload)], NOW + 5)
    where = section.locate(copy)
    assert not where.message_annotations[0] or sequence
    return copy


def test_a_message_and_its_copy_share_a_key_whatever_the_file_calls_the_namespace() -> None:
    """I1."""
    original = encoded()
    for alias in ("ewr", "newark"):
        copy = reported(copy_of(original, alias=alias))
        assert is_proven_copy(copy)
        assert set(keys_of(reported(original), "NS-A", "orders")) & set(keys_of(copy, "NS-B", "orders"))
        assert was_enqueued_ms(copy, "ns-a", "Orders") == NOW


def test_names_of_entities_are_compared_as_the_service_does() -> None:
    original = encoded()
    copy = reported(copy_of(original))
    assert set(keys_of(reported(original), "ns-a", "ORDERS")) & set(keys_of(copy, "NS-B", "orders"))


def test_a_copy_of_a_copy_is_known_by_where_it_entered() -> None:
    original = encoded()
    first = copy_of(original)
    second = copy_of(first, namespace="NS-B")
    assert set(keys_of(reported(first), "NS-B", "orders")) == set(keys_of(reported(second), "NS-C", "orders"))


def test_one_message_sent_to_two_namespaces_shares_a_key() -> None:
    """I2."""
    one, two = reported(encoded(sequence=7)), reported(encoded(sequence=4000))
    assert set(keys_of(one, "NS-A", "orders")) & set(keys_of(two, "NS-B", "orders"))


def test_equal_ids_with_other_contents_or_another_origin_are_two_messages() -> None:
    """I3."""
    one = keys_of(reported(encoded(b"of one")), "NS-A", "orders")
    assert not set(one) & set(keys_of(reported(encoded(b"of another", sequence=8)), "NS-B", "orders"))
    copied = keys_of(reported(copy_of(encoded(b"of one"))), "NS-B", "orders")
    assert not set(copied) & set(keys_of(reported(encoded(b"of one")), "NS-B", "orders"))


def test_a_message_that_bears_a_copys_properties_is_a_new_one() -> None:
    copy = reported(copy_of(encoded()))
    published = Arrived(
        message_id="2", body=b"new", is_data=True, properties=copy.properties, sequence=1, enqueued_ms=NOW
    )
    assert not is_proven_copy(published)
    assert not set(keys_of(published, "NS-B", "orders")) & set(keys_of(copy, "NS-B", "orders"))


def test_a_message_without_id_is_known_by_its_place_and_its_copy_by_the_same() -> None:
    """I5."""
    original = encoded(message_id="")
    [key] = keys_of(reported(original), "NS-A", "orders")
    assert keys_of(reported(copy_of(original)), "NS-B", "orders") == (key,)
    assert keys_of(reported(encoded(message_id="", sequence=8)), "NS-A", "orders") != (key,)


def test_values_and_sequences_are_compared_by_their_contents() -> None:
    for kind in (b"\0Sw", b"\0Sv"):
        value = b"\xa1\x01a" if kind == b"\0Sw" else b"\xc0\x04\x01\xa1\x01a"
        payloads = [
            section.encode_message(b"", properties={"message_id": "1"}).partition(b"\0Su")[0] + kind + value
            for _ in range(2)
        ]
        one, two = (keys_of(reported(each), "NS-A", "orders") for each in payloads)
        assert one[-1] == two[-1]
        assert len(one) == 2


def test_what_was_handled_in_one_subscription_or_before_it_was_dead_lettered_is_another_message() -> None:
    """I4."""
    scopes = ("orders/subscriptions/a", "orders/subscriptions/b", "orders/subscriptions/a/deadletter", "orders", "")
    for payload in (encoded(), copy_of(encoded()), encoded(message_id="")):
        keys = [set(keys_of(reported(payload), "NS-A", "orders", scope)) for scope in scopes]
        assert len(set().union(*keys)) == sum(map(len, keys))


@pytest.mark.parametrize("is_emptied", [False, True])
@pytest.mark.parametrize("scope", ["orders/subscriptions/a", "orders"])
def test_each_copy_that_a_rule_with_an_action_made_is_a_message_of_its_own(scope: str, is_emptied: bool) -> None:
    """I6: in a subscription, or in a queue to which it forwards. Plain rules make one copy together, without a RuleName."""
    policy = CopyPolicy(dead_letters_returning=is_emptied)
    for message_id in ("1", ""):
        found = []
        for rule in ({}, {"RuleName": "heavy"}, {"RuleName": "all"}):
            delivered = encoded(message_id=message_id, application_properties=rule)
            keys = set(keys_of(reported(delivered), "NS-A", "orders", scope))
            if message_id:  # sent to both namespaces
                sent_twice = encoded(message_id=message_id, sequence=4000, application_properties=rule)
                assert keys & set(keys_of(reported(sent_twice), "NS-B", "orders", scope))
            before = delivered if is_emptied else encoded(message_id=message_id)
            other = reported(copy_of(before, policy=policy))
            other = replace(other, properties={**other.properties, **rule})  # by the same rule at the other namespace
            assert is_proven_copy(other)
            there = set(keys_of(other, "NS-B", "orders", scope))
            assert not rule or scope == "orders" or keys & there
            found.append(keys | there)
        assert len(set().union(*found)) == sum(map(len, found))


def test_messages_that_rules_made_of_one_and_forwarded_to_a_queue_are_messages_of_their_own() -> None:
    """I6. They have its number and time; and a route that empties the queue makes a copy of each, without its RuleName."""
    for message_id in ("1", ""):
        found = []
        for rule in ({}, {"RuleName": "heavy"}, {"RuleName": "all"}):
            original = encoded(message_id=message_id, application_properties=rule)
            copy = reported(copy_of(original, policy=CopyPolicy(dead_letters_returning=True)))
            assert "RuleName" not in copy.properties
            keys, there = set(keys_of(reported(original), "NS-A", "orders")), set(keys_of(copy, "NS-B", "orders"))
            assert keys & there
            found.append(keys | there)
        assert len(set().union(*found)) == sum(map(len, found))


def test_a_copy_shows_when_its_original_was_enqueued_in_an_entity() -> None:
    """Of several the last time, and of none nothing."""
    entered = encoded()
    passed = section.encode_message(
        b"body",
        properties={"message_id": "1"},
        annotations={"x-opt-sequence-number": Long(8), "x-opt-enqueued-time": Timestamp(NOW + 60_000)},
        application_properties=dict(reported(copy_of(entered, namespace="NS-X")).properties),
    )
    copy = reported(copy_of(passed, namespace="NS-A"))
    assert was_enqueued_ms(copy, "NS-X", "orders") == NOW
    assert was_enqueued_ms(copy, "NS-A", "orders") == NOW + 60_000
    assert was_enqueued_ms(copy, "", "orders") == NOW + 60_000
    assert was_enqueued_ms(copy, "NS-B", "orders") is None
    assert was_enqueued_ms(copy, "NS-A", "returns") is None
    assert was_enqueued_ms(reported(entered), "", "orders") is None
