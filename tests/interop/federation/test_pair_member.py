"""What pairing reads of a namespace: all descriptions once, and again only after a change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from isthmus.connectors.servicebus.administration.pair.member import PairMember
from isthmus.connectors.servicebus.administration.transport import AdministrationTransport
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


def test_i1_every_change_is_read_and_nothing_is_read_twice(
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


def test_i1_what_changed_over_a_restart_is_read(served: NamespaceProcess, member: PairMember, asked: list[int]) -> None:
    """The version counts from each start; two starts never report the same one."""
    before = member.descriptions()
    served.restart()
    assert member.descriptions() == before
    assert len(asked) == 2


@pytest.mark.parametrize("kind", ["queues", "topics", "subscriptions", "rules"])
def test_what_stays_is_read_although_others_are_deleted_between_two_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The keeper would delete at the other member what it does not read at this one."""
    names = [f"n{number:03}" for number in range(130)]
    configs = {
        "queues": {"queues": {name: {} for name in names}},
        "topics": {"topics": {name: {} for name in names}},
        "subscriptions": {"topics": {"t": {"subscriptions": {name: {} for name in names}}}},
        "rules": {"topics": {"t": {"subscriptions": {"s": {"rules": {name: {"filter": "1=1"} for name in names}}}}}},
    }
    send = AdministrationTransport.send
    with namespace(tmp_path / "ewr", config=json.dumps(configs[kind])) as served:
        client = ServiceBusAdministrationClient.from_connection_string(
            served.admin_connection_string, connection_verify=str(served.ca_file)
        )
        delete = {
            "queues": client.delete_queue,
            "topics": client.delete_topic,
            "subscriptions": lambda name: client.delete_subscription("t", name),
            "rules": lambda name: client.delete_rule("t", "s", name),
        }[kind]
        unread = names[:3]

        def sent(self: AdministrationTransport, request: Any, **options: Any) -> Any:
            answer = send(self, request, **options)
            if f"/{kind}".lower() in urlsplit(request.url).path.lower() and unread:
                monkeypatch.setattr(AdministrationTransport, "send", send)
                while unread:
                    delete(unread.pop())
            return answer

        monkeypatch.setenv("EWR", served.connection_string)
        with (
            client,
            PairMember(NamespaceRef("ewr", SecretReference.parse("env:EWR"), ca_file=str(served.ca_file))) as member,
        ):
            monkeypatch.setattr(AdministrationTransport, "send", sent)
            found = {each.names[-1] for each in member.descriptions()}
    assert not unread
    assert set(names[3:]) <= found
