from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.broker.config.layout import SETTINGS
from isthmus.broker.config.namespace_file import load_config, read_config
from isthmus.entities.catalog.description import (
    CorrelationFilter,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import ConfigError

OWN = """
namespace: ewr
queues:
  orders: {lock_duration: 30s, max_delivery_count: 5, forward_to: all, status: SendDisabled}
  all:
topics:
  flights:
    default_message_time_to_live: 1h
    requires_duplicate_detection: true
    subscriptions:
      plain:
      chosen:
        requires_session: true
        rules:
          heavy: {filter: "weight > 10", action: "SET heavy = true"}
          $Default: {correlation: {label: red, properties: {color: red, n: 3, x: 1.5, b: true}}}
"""

EMULATOR: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": True,
                        },
                    },
                    {"Name": "queue.2"},
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"RequiresDuplicateDetection": True},
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 4, "ForwardTo": "queue.2"},
                                "Rules": [
                                    {
                                        "Name": "correlated",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/text",
                                                "ReplyToSessionId": "r",
                                                "Properties": {"prop1": "value1", "key": "not a secret"},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "sys.MessageId = '1' AND p = 'v'"},
                                            "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                                        },
                                    },
                                ],
                            },
                            {"Name": "subscription.2"},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def faults(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(ConfigError) as caught:
        read_config(text, "file")
    assert all(fault.file == "file" for fault in caught.value.faults)
    return [(fault.line, fault.column, fault.message) for fault in caught.value.faults]


def test_own_layout() -> None:
    config = read_config(OWN, "file")
    assert config.name == "ewr"
    assert config.queues == {
        "orders": QueueDescription(
            lock_duration_ms=30_000, max_delivery_count=5, forward_to="all", status=EntityStatus.SEND_DISABLED
        ),
        "all": QueueDescription(),
    }
    flights = config.topics["flights"]
    assert flights.description == TopicDescription(
        default_message_time_to_live_ms=3_600_000, requires_duplicate_detection=True
    )
    assert flights.subscriptions["plain"].rules == []
    chosen = flights.subscriptions["chosen"]
    assert chosen.description == SubscriptionDescription(requires_session=True)
    assert chosen.rules == [
        RuleDescription("heavy", SqlFilter("weight > 10"), SqlAction("SET heavy = true")),
        RuleDescription(
            "$Default", CorrelationFilter(label="red", properties={"color": "red", "n": 3, "x": 1.5, "b": True})
        ),
    ]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_emulator_layout(indent: int | str | None) -> None:
    config = read_config(json.dumps(EMULATOR, indent=indent), "file")
    assert config.name == "sbemulatorns"
    assert config.queues["queue.1"] == QueueDescription(
        default_message_time_to_live_ms=3_600_000,
        duplicate_detection_history_time_window_ms=20_000,
        max_delivery_count=3,
        requires_session=True,
    )
    assert config.queues["queue.2"] == QueueDescription()
    topic = config.topics["topic.1"]
    assert topic.description == TopicDescription(requires_duplicate_detection=True)
    first = topic.subscriptions["subscription.1"]
    assert first.description == SubscriptionDescription(max_delivery_count=4, forward_to="queue.2")
    assert first.rules == [
        RuleDescription(
            "correlated",
            CorrelationFilter(
                content_type="application/text",
                reply_to_session_id="r",
                properties={"prop1": "value1", "key": "not a secret"},
            ),
        ),
        RuleDescription("sql", SqlFilter("sys.MessageId = '1' AND p = 'v'"), SqlAction("SET sys.To = 'Entity'")),
    ]
    assert topic.subscriptions["subscription.2"].rules == []


def test_own_layout_with_lists_of_names() -> None:
    config = read_config("queues: [a, b]\ntopics: {t: {subscriptions: [x, y]}, u: }", "file")
    assert config.queues == {"a": QueueDescription(), "b": QueueDescription()}
    assert list(config.topics["t"].subscriptions) == ["x", "y"]
    assert config.topics["u"].subscriptions == {}
    assert faults("queues: [a, A, {b: 1}]") == [
        (1, 13, "A in queues is there already"),
        (1, 16, "queues takes one value"),
        (1, 16, "queues: the name is malformed: ''"),
    ]


def test_i1_every_fault_is_reported_at_once_with_its_place() -> None:
    assert faults(
        """queue: {}
queues:
  or ders: {lock_durations: 30s, max_delivery_count: five}
  all:
    lock_duration: 10m
    lock_duration: 5m
topics:
  ALL:
    subscriptions:
      some:
        rules:
          heavy: {filter: "weight >< 10", action: "SETT heavy = true"}
          red: {correlation: {labels: red}}
          none:
          two: {filter: "1=1", correlation: {label: x}}
"""
    ) == [
        (1, 1, "the file has no setting 'queue'"),
        (3, 3, "queues: the name is malformed: 'or ders'"),
        (3, 13, "queue or ders has no setting 'lock_durations'"),
        (3, 54, "max_delivery_count is not a whole number"),
        (5, 20, "lock_duration is above its greatest value"),
        (6, 5, "lock_duration appears twice in queue all"),
        (8, 3, "ALL in topics is there already"),
        (12, 27, "filter of rule heavy of subscription ALL/some: column 9: a value is expected here, not '<'"),
        (12, 51, "action of rule heavy of subscription ALL/some: column 1: SET or REMOVE is expected here, not 'SETT'"),
        (13, 30, "correlation of rule red of subscription ALL/some is empty"),
        (13, 31, "correlation of rule red of subscription ALL/some has no setting 'labels'"),
        (14, 11, "rule none of subscription ALL/some has 0 filters"),
        (15, 11, "rule two of subscription ALL/some has 2 filters"),
    ]


def test_i1_faults_of_the_emulator_layout() -> None:
    assert [message for _, _, message in faults(
        """{"UserConfig": {"Namespaces": [{"Name": "n", "Queue": [],
        "Queues": [{"Name": "q"}, {"Name": "Q"}, {"Properties": {}}, {"Name": "x", "Properties": {"lockDuration": "PT1M"}}],
        "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [
            {"Name": "a", "Properties": {"FilterType": "Regex"}},
            {"Name": "b", "Properties": {"FilterType": "Sql"}},
            {"Name": "c", "Properties": {"FilterType": "Sql", "SqlFilter": {}}},
            {"Name": "c", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"a": []}}}}
        ]}, {"Name": "s/t"}]}]}]}}"""
    )] == [
        "the namespace has no setting 'Queue'",
        "Q in Queues is there already",
        "an item of Queues has no Name",
        "queue x has no setting 'lockDuration'",
        "rule a of subscription t/s has no FilterType",
        "rule b of subscription t/s has no SqlFilter",
        "SqlFilter of rule c of subscription t/s has no SqlExpression",
        "c in Rules is there already",
        "a is not a text, number, true or false",
        "Subscriptions: the name is malformed: 's/t'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("queues: [", "neither YAML nor JSON"),
        ('{"UserConfig": }', "UserConfig is not a mapping"),
        ('{"UserConfig": ]', "neither YAML nor JSON"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("\x00", "neither YAML nor JSON"),
        ("just text", "the file is not a mapping"),
        ("- a", "the file is not a mapping"),
        ("queues: 5", "queues is not a mapping"),
        ("queues: {q: 5}", "queue q is not a mapping"),
        ("queues: {[a]: {}}", "a key of queues is not plain text"),
        ('{"UserConfig": {}}', "UserConfig has 0 namespaces"),
        ('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b"}]}}', "UserConfig has 2 namespaces"),
        ('{"UserConfig": {"Namespaces": {}}}', "Namespaces is not a list"),
        ('{"UserConfig": []}', "UserConfig is not a mapping"),
        ("topics: {t: {subscriptions: {s: {rules: {r: {filter: [1]}}}}}}", "takes one value"),
        ("queues: &a {q: *a}", "queue q has no setting 'q'"),
    ],
)
def test_whatever_the_text_there_is_a_fault_and_no_other_error(text: str, message: str) -> None:
    assert any(message in each for _, _, each in faults(text))


def test_event_hubs_in_both_layouts() -> None:
    own = read_config(
        "event_hubs:\n  a: {partition_count: 2, message_retention: 1h, consumer_groups: [g, $Default]}\n  b:\n", "file"
    )
    assert own.event_hubs == {
        "a": EventHubDescription(partition_count=2, message_retention_ms=3_600_000, consumer_groups=["g", "$Default"]),
        "b": EventHubDescription(),
    }
    entity = {"Name": "a", "PartitionCount": "2", "ConsumerGroups": [{"Name": "g"}]}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    emulator = {"UserConfig": {"NamespaceConfig": [namespace], "LoggingConfig": {"Type": "File"}}}
    config = read_config(json.dumps(emulator), "file")
    assert config.name == "emulatorNs1"
    assert config.event_hubs == {"a": EventHubDescription(partition_count=2, consumer_groups=["g"])}


@pytest.mark.parametrize(
    "wrong",
    [
        "queues: [a]\nevent_hubs: [A]",
        "event_hubs: {a: {partition_count: 0}}",
        "event_hubs: {a: {partition_count: 101}}",
        "event_hubs: {a: {consumer_groups: [g, G]}}",
        "event_hubs: {a: {lock_duration: 1m}}",
        "event_hubs: {a: {message_retention: 1y}}",
        '{"UserConfig": {"NamespaceConfig": []}}',
        '{"UserConfig": {"NamespaceConfig": [{"Type": "Queue", "Entities": []}]}}',
        '{"UserConfig": {"NamespaceConfig": [{"Entities": [{"PartitionCount": 2}]}]}}',
    ],
)
def test_faults_of_event_hubs(wrong: str) -> None:
    assert faults(wrong)


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "namespace-file.md").read_text(encoding="utf-8")
    assert {name for name in SETTINGS if f"| `{name}` |" not in page} == set()


def test_the_documented_example_reads() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "namespace-file.md").read_text(encoding="utf-8")
    config = read_config(page.partition("```yaml")[2].partition("```")[0], "page")
    assert [rule.name for rule in config.topics["flights"].subscriptions["delayed"].rules] == ["late", "united"]


def test_files_are_read_and_named(tmp_path: Path) -> None:
    file = tmp_path / "entities.yaml"
    with pytest.raises(ConfigError, match=r"entities\.yaml: the file cannot be read: No such file"):
        load_config(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(file)
    file.write_text("\ufeff" + OWN)
    assert list(load_config(file).queues) == ["orders", "all"]
