from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.admin.description import AnyDescription, read_description, write_description
from isthmus.broker.admin.document import Node, read
from isthmus.entities.catalog.description import (
    INFINITE_MS,
    AuthorizationRule,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.runtime import Runtime
from isthmus.errors import InvalidArgumentError

NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
RUNTIME = Runtime(
    active_message_count=1,
    dead_letter_message_count=2,
    scheduled_message_count=3,
    transfer_message_count=4,
    transfer_dead_letter_message_count=5,
    message_count=9,
    size_bytes=1000,
    created_at_ms=1_767_225_600_123,
    updated_at_ms=1_767_225_700_000,
    subscription_count=7,
    sql_filter_count=8,
    correlation_filter_count=6,
)


def write(description: AnyDescription, api_version: str = "2024-05") -> str:
    return write_description(
        description, RUNTIME, host="h:1", api_version=api_version, message_size_limit_bytes=1_048_576
    )


def parse(text: str, kind: Any, **options: Any) -> Any:
    return read_description(read(text.encode()), kind, **{"api_version": "2024-05", "now_ms": 5, **options})


def children(text: str) -> dict[str, Node]:
    node = read(text.encode())
    assert node.namespace == NAMESPACE
    return {child.name: child for child in node.children}


durations = st.one_of(st.just(INFINITE_MS), st.integers(1, 10**12))
names = st.from_regex(r"[a-z][a-z0-9._/-]{0,10}[a-z0-9]", fullmatch=True)
texts = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)
common = {
    "status": st.sampled_from(EntityStatus),
    "user_metadata": st.none() | texts,
    "auto_delete_on_idle_ms": durations,
    "default_message_time_to_live_ms": durations,
}
receiving = {
    "lock_duration_ms": durations,
    "requires_session": st.booleans(),
    "max_delivery_count": st.integers(1, 2000),
    "dead_lettering_on_message_expiration": st.booleans(),
    "forward_to": st.none() | names,
    "forward_dead_lettered_messages_to": st.none() | names,
}
sending = {
    "max_size_in_megabytes": st.integers(1, 5120),
    "requires_duplicate_detection": st.booleans(),
    "duplicate_detection_history_time_window_ms": durations,
    "enable_partitioning": st.booleans(),
    "enable_express": st.booleans(),
    "max_message_size_in_kilobytes": st.integers(1024, 102_400),
    "authorization_rules": st.lists(
        st.builds(
            AuthorizationRule,
            key_name=texts,
            primary_key=texts,
            secondary_key=texts,
            rights=st.sampled_from([["Send"], ["Listen"], ["Send", "Listen"], ["Manage", "Send", "Listen"]]),
            created_at_ms=st.just(5),
            modified_at_ms=st.just(5),
        ),
        max_size=3,
        unique_by=lambda rule: rule.key_name,
    ),
}
descriptions = st.one_of(
    st.builds(QueueDescription, **common, **receiving, **sending),
    st.builds(TopicDescription, **common, **sending),
    st.builds(SubscriptionDescription, **common, **receiving),
)


@given(descriptions)
def test_i1_what_is_written_reads_back_equal(description: AnyDescription) -> None:
    assert parse(write(description), type(description)) == description


def test_an_empty_description_has_the_service_s_defaults() -> None:
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription):
        assert parse(f'<{kind.__name__} xmlns="{NAMESPACE}"/>', kind) == kind()


def test_i2_queue_elements() -> None:
    found = children(write(QueueDescription()))
    assert (
        list(found)
        == (
            "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
            "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations "
            "SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt AccessedAt "
            "SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress "
            "MaxMessageSizeInKilobytes"
        ).split()
    )
    values = {name: found[name].text for name in found}
    assert values["LockDuration"] == "PT1M"
    assert values["DefaultMessageTimeToLive"] == "P10675199DT2H48M5.4775807S"
    assert values["DuplicateDetectionHistoryTimeWindow"] == "PT10M"
    assert values["RequiresSession"] == "false"
    assert values["MaxMessageSizeInKilobytes"] == "1024"
    assert values["SizeInBytes"] == "1000"
    assert values["CreatedAt"] == "2026-01-01T00:00:00.123Z"
    assert values["AccessedAt"] == "0001-01-01T00:00:00"


def test_i2_topic_elements() -> None:
    found = children(write(TopicDescription()))
    assert (
        list(found)
        == (
            "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow "
            "EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible "
            "AuthorizationRules Status CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount "
            "SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus "
            "EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes"
        ).split()
    )
    assert (found["SqlFilterCount"].text, found["CorrelationFilterCount"].text) == ("8", "6")


def test_i2_subscription_elements() -> None:
    assert (
        list(children(write(SubscriptionDescription())))
        == (
            "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
            "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status "
            "CreatedAt UpdatedAt AccessedAt CountDetails AutoDeleteOnIdle EntityAvailabilityStatus"
        ).split()
    )


def test_i3_count_details_declare_their_prefix() -> None:
    text = write(QueueDescription())
    assert f'<CountDetails xmlns:d2p1="{COUNTS}"><d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>' in text
    details = children(text)["CountDetails"]
    assert details.attributes == {}
    assert {(node.namespace, node.name): node.text for node in details.children} == {
        (COUNTS, "ActiveMessageCount"): "1",
        (COUNTS, "DeadLetterMessageCount"): "2",
        (COUNTS, "ScheduledMessageCount"): "3",
        (COUNTS, "TransferMessageCount"): "4",
        (COUNTS, "TransferDeadLetterMessageCount"): "5",
    }


def test_forwarding_targets_travel_as_absolute_urls() -> None:
    assert children(write(QueueDescription(forward_to="a/b")))["ForwardTo"].text == "sb://h:1/a/b"
    for text in ("sb://other:5671/a/b", "https://h/a%2Fb/", "a/b", "/a/b"):
        body = f'<QueueDescription xmlns="{NAMESPACE}"><ForwardTo>{text}</ForwardTo></QueueDescription>'
        assert parse(body, QueueDescription).forward_to == "a/b"
    assert (
        parse(f'<QueueDescription xmlns="{NAMESPACE}"><ForwardTo/></QueueDescription>', QueueDescription).forward_to
        is None
    )


@pytest.mark.parametrize("text", ["://a", "1://a", "sb://h/1://a", "a b://c", "sb://h/" + "a" * 2048])
def test_a_forwarding_target_that_is_neither_path_nor_url_is_refused(text: str) -> None:
    body = f'<QueueDescription xmlns="{NAMESPACE}"><ForwardTo>{text}</ForwardTo></QueueDescription>'
    with pytest.raises(InvalidArgumentError, match="ForwardTo"):
        parse(body, QueueDescription)


def test_elements_that_an_api_version_does_not_know_are_left_out_and_kept() -> None:
    topic = TopicDescription(max_message_size_in_kilobytes=2048)
    old = children(write(topic, "2017-04"))
    assert {"MaxMessageSizeInKilobytes", "SqlFilterCount", "CorrelationFilterCount"}.isdisjoint(old)
    assert "MaxMessageSizeInKilobytes" in children(write(topic, "2021-05"))
    assert "SqlFilterCount" not in children(write(topic, "2021-05"))
    empty = f'<TopicDescription xmlns="{NAMESPACE}"/>'
    assert parse(empty, TopicDescription, current=topic, api_version="2017-04") == topic
    assert parse(empty, TopicDescription, current=topic, api_version="2021-05") == TopicDescription()


def test_updated_rules_keep_their_creation_time_and_keys() -> None:
    before = AuthorizationRule("a", "p", "s", ["Send"], created_at_ms=1, modified_at_ms=2)
    body = (
        f'<QueueDescription xmlns="{NAMESPACE}"><AuthorizationRules><AuthorizationRule><Rights><AccessRights>%s'
        "</AccessRights></Rights><KeyName>a</KeyName></AuthorizationRule></AuthorizationRules></QueueDescription>"
    )
    current = QueueDescription(authorization_rules=[before])
    (same,) = parse(body % "Send", QueueDescription, current=current).authorization_rules
    assert same == before
    (changed,) = parse(body % "Listen", QueueDescription, current=current).authorization_rules
    assert changed == AuthorizationRule("a", "p", "s", ["Listen"], created_at_ms=1, modified_at_ms=5)
    (fresh,) = parse(body % "Send", QueueDescription).authorization_rules
    assert len(fresh.primary_key) == 44
    assert fresh.primary_key != fresh.secondary_key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LockDuration", "1m"),
        ("LockDuration", ""),
        ("MaxDeliveryCount", "ten"),
        ("MaxDeliveryCount", "1" * 30),
        ("MaxDeliveryCount", "\u0661"),
        ("RequiresSession", "yes"),
        ("RequiresSession", ""),
        ("Status", "Sleeping"),
    ],
)
def test_malformed_values_are_named(name: str, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"of {name} is not valid"):
        parse(f'<QueueDescription xmlns="{NAMESPACE}"><{name}>{value}</{name}></QueueDescription>', QueueDescription)


def test_unknown_elements_and_any_order_are_taken() -> None:
    body = (
        f'<QueueDescription xmlns="{NAMESPACE}"><MaxDeliveryCount>3</MaxDeliveryCount><Novelty>1</Novelty>'
        "<SizeInBytes>5</SizeInBytes><LockDuration>PT5S</LockDuration></QueueDescription>"
    )
    assert parse(body, QueueDescription) == QueueDescription(lock_duration_ms=5000, max_delivery_count=3)


def test_a_setting_that_came_later_is_refused_by_an_old_api_version() -> None:
    text = write(QueueDescription(max_message_size_in_kilobytes=512))
    assert parse(text, QueueDescription, api_version="2021-05").max_message_size_in_kilobytes == 512
    with pytest.raises(InvalidArgumentError, match="MaxMessageSizeInKilobytes is a setting of api-version 2021-05"):
        parse(text, QueueDescription, api_version="2017-04")
