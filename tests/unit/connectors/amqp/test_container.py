"""isthmus.connectors.amqp.container"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from harness.check.until import until
from isthmus.connectors.amqp.connector import AmqpSources
from isthmus.connectors.amqp.container import SLACK_SECONDS, Containers
from isthmus.connectors.servicebus.port.end import Step
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.testing.peer import Peer


class Dialed:
    """The clients that were made, and the ids that they had."""

    def __init__(self) -> None:
        self.now = 100.0
        self.names: list[str] = []
        self.clients: list[Any] = []
        self.fault: IsthmusError | None = None
        self.containers = Containers(lambda: self.now)

    def dial(self, name: str) -> Any:
        self.names.append(name)
        if self.fault is not None:
            raise self.fault
        self.clients.append(SimpleNamespace(error=None, noticed_seconds=60.0))
        return self.clients[-1]

    def open(self, key: str = "broker") -> None:
        self.containers.open(key, "isthmus", self.dial)

    def lose(self, *numbers: int) -> None:
        for number in numbers:
            self.clients[number].error = ConnectionLostError("gone")


def test_i1_connections_at_the_same_time_have_different_ids() -> None:
    world = Dialed()
    world.open()
    world.open()
    world.open("another")
    Containers().open("broker", "isthmus", world.dial)
    assert len(set(world.names)) == 4


def test_i1_nor_has_one_that_is_being_made_the_id_of_another() -> None:
    world = Dialed()

    def dial(name: str) -> Any:
        world.open()
        return world.dial(name)

    world.containers.open("broker", "isthmus", dial)
    assert len(set(world.names)) == 2


def test_i2_a_connection_has_the_id_of_the_one_that_it_replaces() -> None:
    """The broker refuses it as long as it has the other: what it delivered over that one comes first then."""
    world = Dialed()
    world.open()
    world.open()
    world.lose(0, 1)
    world.open()
    world.open()
    assert world.names[2:] == world.names[:2]


@pytest.mark.parametrize("was_open", [True, False])
def test_i2_a_broker_that_never_notices_a_loss_is_read_again_all_the_same(was_open: bool) -> None:
    world = Dialed()
    if was_open:
        world.open()
        world.lose(0)
    world.fault = ConnectionLostError("it has a connection of this container")
    for now in (100.0, 130.0, 161.0, 159.0 + SLACK_SECONDS):
        world.now = now
        with pytest.raises(ConnectionLostError):
            world.open()
    world.now, world.fault = 160.0 + SLACK_SECONDS, None
    world.open()
    assert len(set(world.names[:-1])) == 1
    assert world.names[-1] != world.names[0]


def test_i2_the_time_begins_with_each_loss() -> None:
    world = Dialed()
    world.open()
    for number in range(3):
        world.now += 50.0
        world.lose(number)
        world.open()
    assert len(set(world.names)) == 1


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_ordered_source_asks_to_be_the_only_connection_of_its_container(is_ordered: bool) -> None:
    """And has the same one when it is opened again."""
    names: list[str] = []
    with Peer("q") as peer:
        pool = AmqpSources()
        options = {"url": f"amqp://127.0.0.1:{peer.endpoint.port}", "entity": "q"}
        source: Any = pool.source(1, options, ordered=is_ordered)

        def is_at(step: Step) -> bool:
            now = time.monotonic()
            pool.service(dict.fromkeys((fd for fd, _ in pool.descriptors()), 1), now)
            source.poll(now)
            return source.step is step

        for _ in range(2):
            source.open()
            until(lambda: is_at(Step.ATTACHED))
            connection = source.client.connection
            names.append(connection.container_id)
            assert connection.desired_capabilities == (["sole-connection-for-container"] if is_ordered else None)
            peer.drop_connections()
            until(lambda: is_at(Step.CLOSED))
        pool.close()
    assert names[0] == names[1]
