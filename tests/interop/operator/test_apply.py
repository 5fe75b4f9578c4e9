"""plan and apply against served namespaces, through azure-servicebus's administration client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from typer.testing import CliRunner

from isthmus.cli.app import create_app
from isthmus.connectors.administration import Administrations, Applied
from isthmus.errors import ConfigError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.claim.claim import ClaimKeeper
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import Federation, Plan, plan, read, routes
from isthmus.topology.file.source import load
from isthmus.topology.pattern.part.mark import mark_filter

REPLICATION = "isthmus.flights.jfk"
MARKED = ", mark: replication"
RULE = ("isthmus", mark_filter("replication", is_number=True), "SET replication = 1")


@dataclass
class Pair:
    """Two served namespaces and the federation of both."""

    ewr: NamespaceProcess
    jfk: NamespaceProcess

    def federation(self, task: str = "", ewr: str = "", topic: str = "flights") -> Federation:
        return read(
            "isthmus: 1\nnamespaces:\n"
            f"  ewr: {{connection: env:EWR_CONNECTION, ca_file: {ewr or self.ewr.ca_file}}}\n"
            f"  jfk: {{connection: env:JFK_CONNECTION, ca_file: {self.jfk.ca_file}}}\n"
            f"tasks:\n  {topic}: {{pattern: all-active, topic: {topic}, members: [ewr, jfk]{task}}}\n"
        )

    def admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.ewr.connection_string, connection_verify=str(self.ewr.ca_file)
        )


@pytest.fixture(scope="module")
def served() -> Iterator[Pair]:
    with namespace() as ewr, namespace() as jfk:
        yield Pair(ewr, jfk)


@pytest.fixture
def pair(served: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("EWR_CONNECTION", served.ewr.connection_string)
    monkeypatch.setenv("JFK_CONNECTION", served.jfk.connection_string)
    yield served
    for each in (served.ewr, served.jfk):
        with ServiceBusAdministrationClient.from_connection_string(
            each.connection_string, connection_verify=str(each.ca_file)
        ) as admin:
            for topic in admin.list_topics():
                admin.delete_topic(topic.name)
            for queue in admin.list_queues():
                admin.delete_queue(queue.name)


def planned(federation: Federation) -> Plan:
    with Administrations(federation) as administrations:
        return plan(federation, administrations.observe())


def applied(federation: Federation) -> Applied:
    with Administrations(federation) as administrations:
        return administrations.apply(plan(federation, administrations.observe()))


def rules(admin: ServiceBusAdministrationClient, subscription: str) -> list[tuple[str, str, str | None]]:
    return [
        (rule.name, rule.filter.sql_expression, getattr(rule.action, "sql_expression", None))
        for rule in admin.list_rules("flights", subscription)
    ]


def test_apply_makes_all_and_then_nothing(pair: Pair) -> None:
    federation = pair.federation(
        f"{MARKED}, duplicates: message-id"
        ", subscriptions: {all: , ua: {filter: \"carrier = 'UA'\", action: SET a = 1}}"
    )
    made = planned(federation)
    outcome = applied(federation)
    assert outcome.failed is None
    assert outcome.done == made.changes
    again = planned(federation)
    assert again.changes == again.faults == ()
    with pair.admin() as admin:
        topic = admin.get_topic("flights")
        assert topic.requires_duplicate_detection
        assert topic.duplicate_detection_history_time_window == timedelta(minutes=10)
        subscription = admin.get_subscription("flights", REPLICATION)
        assert subscription.lock_duration == timedelta(seconds=30)
        assert subscription.max_delivery_count == 2000
        assert rules(admin, REPLICATION) == [RULE]
        assert rules(admin, "ua") == [("filter", "carrier = 'UA'", "SET a = 1")]
        assert rules(admin, "all") == [("$Default", "1=1", None)]


def test_what_a_replication_subscription_takes_in_is_marked(pair: Pair) -> None:
    applied(pair.federation(MARKED))
    with ServiceBusClient.from_connection_string(pair.ewr.connection_string) as client:
        with client.get_topic_sender("flights") as sender:
            sender.send_messages(
                [
                    ServiceBusMessage("sent here"),
                    ServiceBusMessage("to be copied", application_properties={"replication": 0}),
                    ServiceBusMessage("a copy", application_properties={"replication": 1}),
                ]
            )
        with client.get_subscription_receiver("flights", REPLICATION, max_wait_time=3) as receiver:
            found = {str(message): message.application_properties[b"replication"] for message in receiver}
    assert found == {"sent here": 1, "to be copied": 1}


def test_what_was_made_by_hand_is_mended(pair: Pair) -> None:
    with pair.admin() as admin:
        admin.create_topic("flights", requires_duplicate_detection=True)
        admin.create_subscription("flights", REPLICATION, auto_delete_on_idle="PT1H")
        admin.create_rule("flights", REPLICATION, "theirs", filter=SqlRuleFilter("a = 1"))
        federation = pair.federation(f"{MARKED}, duplicate_detection: 1h")
        details = [
            (change.action, change.path, change.details)
            for change in planned(federation).changes
            if change.alias == "ewr" and change.topic == "flights"
        ]
        path = f"flights/Subscriptions/{REPLICATION}"
        assert details[0] == ("update", "flights", ("DuplicateDetection 10m → 1h",))
        assert details[1][:2] == ("update", path)
        assert set(details[1][2]) == {
            "LockDuration 1m → 30s",
            "MaxDeliveryCount 10 → 2000",
            "AutoDeleteOnIdle 1h → infinite",
        }
        assert applied(federation).failed is None
        assert not planned(federation).changes
        assert rules(admin, REPLICATION) == [RULE]


def test_a_changed_filter_is_overwritten(pair: Pair) -> None:
    old = pair.federation()
    assert applied(old).failed is None
    federation = pair.federation(", filter: \"carrier = 'UA'\"")
    assert applied(federation).failed is None
    with pair.admin() as admin:
        ((name, text, _),) = rules(admin, REPLICATION)
        assert not admin.get_topic("flights").requires_duplicate_detection
    mark = routes(federation)[0].options.mark
    assert (name, text) == ("isthmus", f"([{mark}] IS NULL OR [{mark}] <> sys.MessageId) AND (carrier = 'UA')")


def test_conflicts_are_faults_and_nothing_is_made(pair: Pair) -> None:
    with pair.admin() as admin:
        admin.create_topic("flights")
        admin.create_queue("boards")
        for federation, message in (
            (pair.federation(", duplicates: message-id"), "without duplicate detection"),
            (pair.federation(topic="boards"), "there is a queue"),
        ):
            (fault,) = planned(federation).faults
            assert message in fault.message
            with pytest.raises(ConfigError, match=message):
                applied(federation)
        assert [topic.name for topic in admin.list_topics()] == ["flights"]


def test_all_namespaces_that_cannot_be_used_are_named_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_key = pair.ewr.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    monkeypatch.setenv("EWR_CONNECTION", wrong_key)
    monkeypatch.setenv("JFK_CONNECTION", "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=aGlkZGVu")
    with pytest.raises(ConfigError) as raised:
        planned(pair.federation())
    first, second = (str(fault) for fault in raised.value.faults)
    assert first.startswith("isthmus.yaml:3:3: namespace ewr: 127.0.0.1:")
    assert "refused the key or identity" in first
    assert second.startswith("isthmus.yaml:4:3: namespace jfk: 127.0.0.1:1: cannot be reached")
    key = pair.ewr.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
    assert key not in str(raised.value)
    assert "aGlkZGVu" not in str(raised.value)


def test_a_certificate_that_is_not_trusted_is_reported_with_what_to_write(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="an authority that is not trusted here; write ca_file"):
        planned(pair.federation(ewr=str(pair.jfk.ca_file)))
    with pytest.raises(ConfigError, match="there is no such file; write ca_file"):
        planned(pair.federation(ewr="/nowhere/ca.pem"))


def test_what_a_removed_member_left_is_counted_and_removed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "isthmus.yaml"
    task = "{pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [boards]}"
    head = (
        "isthmus: 1\nnamespaces:\n"
        f"  ewr: {{connection: env:EWR_CONNECTION, ca_file: {pair.ewr.ca_file}}}\n"
        f"  jfk: {{connection: env:JFK_CONNECTION, ca_file: {pair.jfk.ca_file}}}\ntasks:\n"
    )

    def call(verb: str, *arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(create_app(verb), [verb, *arguments, "--json"])
        assert result.exit_code == 0, result.output
        answer: dict[str, Any] = json.loads(result.output)
        return answer

    file.write_text(f"{head}  flights: {task}\n  gates: {task.replace('topic: flights', 'topic: gates')}\n")
    call("apply")
    with (
        ServiceBusClient.from_connection_string(pair.ewr.connection_string) as client,
        client.get_topic_sender("flights") as sender,
    ):
        sender.send_messages([ServiceBusMessage("waits"), ServiceBusMessage("waits too")])
    file.write_text(f"{head}  gates: {task.replace('topic: flights', 'topic: gates')}\n")
    assert call("apply", "--prune", "--yes")["unknown_tasks"] == ["flights"]
    listed = call("remove", "isthmus.yaml", "flights")
    counts = {(row["namespace"], row["path"]): row["messages"] for row in listed["orphans"]}
    assert counts == {
        ("ewr", "flights/Subscriptions/isthmus.flights.jfk"): 2,
        ("ewr", "isthmus.claims/Subscriptions/flights"): 0,
        ("jfk", "flights/Subscriptions/isthmus.flights.ewr"): 0,
        ("jfk", "isthmus.claims/Subscriptions/flights"): 0,
    }
    assert listed["removed"] is None
    run = ClaimKeeper([("flights", "ewr")], NamespaceClients(load(str(file))).open).start()
    try:
        while not run.decided():
            time.sleep(0.05)
        refused = CliRunner().invoke(create_app("remove"), ["remove", "isthmus.yaml", "flights", "--yes", "--json"])
        assert (refused.exit_code, json.loads(refused.output)["error"]["code"]) == (1, "task-claimed")
    finally:
        run.close()
    assert call("remove", "isthmus.yaml", "flights")["orphans"] == listed["orphans"]
    assert len(call("remove", "isthmus.yaml", "flights", "--yes")["removed"]["applied"]) == 4
    assert call("remove", "isthmus.yaml", "flights")["orphans"] == []
    with pair.admin() as admin:
        assert [each.name for each in admin.list_subscriptions("flights")] == ["boards"]
        assert [each.name for each in admin.list_subscriptions("isthmus.claims")] == ["gates"]
        assert admin.get_subscription_runtime_properties("flights", "boards").total_message_count == 2
