"""isthmus.connectors.servicebus.administration.pair.step, and the counts that it needs (`count`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ServiceRequestError

from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.servicebus.administration.client import OpenClient
from isthmus.connectors.servicebus.administration.pair.count import PairCounts
from isthmus.connectors.servicebus.administration.pair.holds_messages import HoldsMessagesError
from isthmus.connectors.servicebus.administration.pair.step import PairSteps
from isthmus.topology.pair.description import Description
from isthmus.topology.pair.difference import Step

ORDERS = Description(kind="queue", names=("orders",)).with_settings(status="Active")
BOARDS = Description(kind="subscription", names=("flights", "boards")).with_settings(status="Active")


class Client:
    """A namespace with one queue; a fault is raised where one is set."""

    def __init__(self) -> None:
        self.statuses: list[str] = ["Active"]
        self.messages = 0
        self.count_fault: Exception | None = None
        self.delete_fault: Exception | None = None
        self.is_deleted = False
        self.born_with: list[Any] = []

    def create_queue(self, name: str, **settings: Any) -> None:
        raise ResourceExistsError("it exists")

    def get_queue(self, name: str) -> Any:
        return SimpleNamespace(name=name, status=self.statuses[-1])

    def update_queue(self, queue: Any) -> None:
        self.statuses.append(queue.status)

    def get_queue_runtime_properties(self, name: str) -> Any:
        if self.count_fault is not None:
            raise self.count_fault
        return SimpleNamespace(total_message_count=self.messages)

    def delete_queue(self, name: str) -> None:
        if self.delete_fault is not None:
            raise self.delete_fault
        self.is_deleted = True

    def create_subscription(self, *names: str, **settings: Any) -> None:
        pass

    def delete_rule(self, *names: str) -> None:
        pass

    @contextmanager
    def given(self, rule: Any) -> Iterator[None]:
        self.born_with.append(rule)
        yield


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def steps(client: Client) -> PairSteps:
    opened = OpenClient(client, SimpleNamespace(default_rule=client), "ewr")  # type: ignore[arg-type]
    clients: Any = SimpleNamespace(endpoint="ewr", alias="ewr", open=lambda: opened)
    return PairSteps(clients, PairCounts(clients))


def test_i1_what_was_created_already_is_no_error(steps: PairSteps) -> None:
    steps.make(Step(action="create", after=ORDERS))


def test_i2_an_entity_that_holds_messages_is_not_deleted(steps: PairSteps, client: Client) -> None:
    client.messages = 3
    with pytest.raises(HoldsMessagesError):
        steps.make(Step(action="delete", before=ORDERS))
    assert client.statuses == ["Active", "SendDisabled", "Active"], "it takes none while they are counted"
    assert not client.is_deleted
    steps.make(Step(action="delete", before=ORDERS), with_messages=True)
    assert client.is_deleted


@pytest.mark.parametrize("fault", ["count_fault", "delete_fault"])
def test_an_entity_that_is_not_deleted_gets_its_status_back(steps: PairSteps, client: Client, fault: str) -> None:
    error = ServiceRequestError("gone") if fault == "count_fault" else HttpResponseError("refused")
    setattr(client, fault, error)
    with pytest.raises(AdministrationError):
        steps.make(Step(action="delete", before=ORDERS))
    assert client.statuses[-1] == "Active"


def test_i3_a_subscription_without_rules_is_created_with_one_that_selects_nothing(
    steps: PairSteps, client: Client
) -> None:
    steps.make(Step(action="create", after=BOARDS))
    [rule] = client.born_with
    assert rule.filter == "1=0"
