"""Settings and paths of entities in an operator's notation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from isthmus.connectors.servicebus.entity import EntityPath
from isthmus.connectors.servicebus.entity_setting import SETTINGS, parse_settings, shown
from isthmus.errors import InvalidArgumentError


def test_each_kind_of_value() -> None:
    found = parse_settings(
        "queue",
        [
            "lock_duration=1m",
            "max-delivery-count = 5",
            "requires_session=yes",
            "status=sendDisabled",
            "forward_to=",
            "user_metadata=a=b",
            "default_message_time_to_live=infinite",
        ],
    )
    assert found == {
        "lock_duration": timedelta(minutes=1),
        "max_delivery_count": 5,
        "requires_session": True,
        "status": "SendDisabled",
        "forward_to": None,
        "user_metadata": "a=b",
        "default_message_time_to_live": "P10675199DT2H48M5.4775807S",
    }


@pytest.mark.parametrize(
    ("kind", "written", "reported"),
    [
        ("queue", "lock_duraton=1m", "a queue has no setting 'lock_duraton'; write lock_duration"),
        ("topic", "lock_duration=1m", "a topic has no setting 'lock_duration'"),
        (
            "queue",
            "lock_duration=soon",
            "lock_duration is a duration, e.g. 30s, 10m, 1h30m, infinite; 'soon' is not one",
        ),
        ("queue", "max_delivery_count=-1", "max_delivery_count is a number; '-1' is not"),
        ("queue", "max_delivery_count=\N{SUPERSCRIPT TWO}", "max_delivery_count is a number"),
        ("queue", "max_delivery_count=" + "1" * 5000, "max_delivery_count is a number"),
        ("queue", "requires_session=maybe", "requires_session is true or false; 'maybe' is neither"),
        ("queue", "status=Off", "status is Active, Disabled, SendDisabled, ReceiveDisabled; 'Off' is none of them"),
        ("queue", "lock_duration", "'lock_duration' is not a setting; write NAME=VALUE, e.g. max_delivery_count=5"),
    ],
)
def test_i1_what_is_not_known_is_refused_with_what_to_write(kind: str, written: str, reported: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_settings(kind, [written])
    assert reported in str(refused.value)


def test_a_setting_appears_once() -> None:
    with pytest.raises(InvalidArgumentError, match="setting max_delivery_count appears twice; write it once"):
        parse_settings("queue", ["max_delivery_count=1", "max_delivery_count=2"])


def test_values_are_shown_as_they_are_written() -> None:
    assert [shown(each) for each in (timedelta(seconds=90), True, 5, "x")] == ["1m30s", "true", "5", "x"]
    assert shown(timedelta(days=200_000)) == "infinite"


def test_every_setting_is_a_property_of_the_administration_client() -> None:
    from azure.servicebus.management import QueueProperties, SubscriptionProperties, TopicProperties

    for kind, properties in (
        ("queue", QueueProperties),
        ("topic", TopicProperties),
        ("subscription", SubscriptionProperties),
    ):
        code = properties.__init__.__code__
        assert set(SETTINGS[kind]) <= set(code.co_names + code.co_varnames), kind


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("orders", EntityPath("orders")),
        ("/a/b/", EntityPath("a/b")),
        ("flights/subscriptions/board", EntityPath("flights", "board")),
        ("flights/Subscriptions/board/rules/$Default", EntityPath("flights", "board", "$Default")),
    ],
)
def test_paths(text: str, path: EntityPath) -> None:
    assert EntityPath.parse(text) == path
    assert EntityPath.parse(str(path)) == path


@pytest.mark.parametrize(
    "text",
    ["", "/", "flights/Subscriptions/", "/Subscriptions/board", "t/Subscriptions/s/Rules/", "t/Subscriptions/a/b"],
)
def test_paths_that_are_none(text: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match="is not an entity's path; write QUEUE, TOPIC, TOPIC/Subscriptions/NAME"
    ):
        EntityPath.parse(text)
