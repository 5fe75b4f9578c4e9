"""What pairing reads of a namespace: all descriptions once, and again only after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from isthmus.connectors.servicebus.administration.pair_member import PairMember
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import NamespaceRef
from isthmus.topology.file.reference import SecretReference

CONFIG = """
queues: {orders: {}}
topics: {flights: {subscriptions: {boards: {}}}}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path / "ewr", config=CONFIG) as made:
        yield made


@pytest.fixture
def member(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[PairMember]:
    monkeypatch.setenv("EWR", served.connection_string)
    with PairMember(NamespaceRef("ewr", SecretReference.parse("env:EWR"), ca_file=str(served.ca_file))) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each time that all descriptions were read from the namespace."""
    found: list[int] = []
    ask = PairMember._ask_descriptions

    def noted(self: PairMember) -> Any:
        found.append(1)
        return ask(self)

    monkeypatch.setattr(PairMember, "_ask_descriptions", noted)
    return found


def change_queue(client: ServiceBusAdministrationClient) -> None:
    queue = client.get_queue("orders")
    queue.max_delivery_count = 7
    client.update_queue(queue)


def change_rule(client: ServiceBusAdministrationClient) -> None:
    rule = client.get_rule("flights", "boards", "$Default")
    rule.filter = SqlRuleFilter("a = 1")
    client.update_rule("flights", "boards", rule)


CHANGES: dict[str, Callable[[ServiceBusAdministrationClient], object]] = {
    "a queue is made": lambda client: client.create_queue("new"),
    "a queue is changed": change_queue,
    "a queue is deleted": lambda client: client.delete_queue("orders"),
    "a rule is made": lambda client: client.create_rule("flights", "boards", "new", filter=SqlRuleFilter("a = 1")),
    "a rule is changed": change_rule,
    "a rule is deleted": lambda client: client.delete_rule("flights", "boards", "$Default"),
    "a subscription is made": lambda client: client.create_subscription("flights", "other"),
    "a subscription is deleted": lambda client: client.delete_subscription("flights", "boards"),
    "a topic is made": lambda client: client.create_topic("more"),
    "a topic is deleted": lambda client: client.delete_topic("flights"),
}


def test_i3_every_change_is_read_and_nothing_is_read_twice(
    served: NamespaceProcess, member: PairMember, asked: list[int]
) -> None:
    before = member.descriptions()
    assert member.tells_changes
    assert member.descriptions() == before
    assert len(asked) == 1
    with ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    ) as client:
        for number, (name, change) in enumerate(CHANGES.items()):
            change(client)
            after = member.descriptions()
            assert after != before, name
            assert len(asked) == number + 2, name
            before = after
    assert member.descriptions() == before
    assert len(asked) == len(CHANGES) + 1


def test_i3_what_changed_over_a_restart_is_read(served: NamespaceProcess, member: PairMember, asked: list[int]) -> None:
    """The version counts from each start; two starts never tell the same one."""
    before = member.descriptions()
    served.restart()
    assert member.descriptions() == before
    assert len(asked) == 2
