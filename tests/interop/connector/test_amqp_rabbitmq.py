"""The kind `amqp` at RabbitMQ 3 with its plugin for AMQP 1.0: what another broker than Artemis does differently."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carried, carry
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server
from isthmus.amqp import section
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.amqp.option import read_source, read_target
from isthmus.connectors.amqp.remote import open_client, receiver_terms, sender_terms
from isthmus.connectors.amqp.system import SYSTEM
from isthmus.errors import NotAllowedError, UnauthorizedError
from isthmus.testing.bridge.message import key_of, message
from isthmus.transport import Receiver, Sender

COUNT = 300
WAIT_SECONDS = 120.0
HEADER = section.encode_header(section.Header(durable=True))


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbit_server(tmp_path_factory.mktemp("rabbit"), ("rabbitmq_amqp1_0",)) as running:
        yield running


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", PASSWORD)


def clients(rabbit: RabbitServer) -> dict[str, str]:
    return {"url": f"amqp://127.0.0.1:{rabbit.port}", "username": USER, "password": "env:RABBIT_PASSWORD"}


def options_of(rabbit: RabbitServer, queue: str) -> dict[str, str]:
    return clients(rabbit) | {"entity": f"/amq/queue/{queue}"}


def keys(start: int, stop: int) -> list[str]:
    return [f"k/{number}" for number in range(start, stop)]


def publish(rabbit: RabbitServer, queue: str, names: list[str], body: bytes = b"") -> None:
    options = read_target(options_of(rabbit, queue))
    with open_client(options, "publisher") as client:
        sender = Sender(client, options.entity, terms=sender_terms(options.entity, "any")).wait_ready()
        sender.send_all([HEADER + message(name, body) for name in names])


def taken(rabbit: RabbitServer, queue: str, count: int) -> list[bytes]:
    """Takes so many messages out of a queue."""
    options = read_source(options_of(rabbit, queue))
    found: list[bytes] = []
    with open_client(options, "consumer") as client:
        receiver = Receiver(client, options.entity, terms=receiver_terms(options)).wait_attached()
        receiver.grant(count)
        client.wait_until(lambda: receiver.received >= count, WAIT_SECONDS, "no messages")
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
            found += run.payloads
        receiver.close()
    return found


def wait(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def spec(source: dict[str, str], target: dict[str, str], *, only_present: bool = False) -> RouteSpec:
    ends = End("amqp", "a", source), End("amqp", "b", target)
    return RouteSpec(name="a/b", source=ends[0], target=ends[1], only_present=only_present)


def test_what_is_there_moves_and_the_run_ends(rabbit: RabbitServer, tmp_path: Path) -> None:
    source, target = rabbit.queue("source"), rabbit.queue("target", "quorum")
    publish(rabbit, source, keys(0, COUNT))
    publish(rabbit, source, keys(COUNT, COUNT + 2), b"x" * 1_000_000)
    carry(tmp_path, spec(options_of(rabbit, source), options_of(rabbit, target), only_present=True))
    found = taken(rabbit, target, COUNT + 2)
    assert [key_of(each) for each in found] == keys(0, COUNT + 2)
    assert section.decode_header(found[0], section.locate(found[0]).header).durable
    assert rabbit.messages(source) == 0


def test_a_message_that_is_set_aside_goes_to_the_dead_letter_exchange(rabbit: RabbitServer, tmp_path: Path) -> None:
    dead = rabbit.queue("dead")
    source = rabbit.queue("refusing", dead_letter_exchange="", dead_letter_routing_key=dead)
    target = rabbit.queue("accepting")
    publish(rabbit, source, keys(0, 2))
    publish(rabbit, source, keys(2, 3), b"x" * 50_000)
    limited = options_of(rabbit, target) | {"max_message_bytes": "10000"}
    rejecting = options_of(rabbit, source) | {"rejects": "true"}
    carry(tmp_path, spec(rejecting, limited, only_present=True))
    assert [key_of(each) for each in taken(rabbit, dead, 1)] == keys(2, 3)
    assert [key_of(each) for each in taken(rabbit, target, 2)] == keys(0, 2)


def test_nothing_is_lost_when_the_broker_is_killed(rabbit: RabbitServer, tmp_path: Path) -> None:
    source, target = rabbit.queue("killed.source"), rabbit.queue("killed.target")
    publish(rabbit, source, keys(0, 3 * COUNT))
    with carried(tmp_path, [spec(options_of(rabbit, source), options_of(rabbit, target))]):
        wait(lambda: rabbit.messages(target) >= 20)
        rabbit.stop(signal.SIGKILL)
        rabbit.start()
        publish(rabbit, source, keys(3 * COUNT, 3 * COUNT + 5))
        wait(lambda: rabbit.messages(source) == 0)
        wait(lambda: rabbit.messages(target) >= 3 * COUNT + 5)
    found = [key_of(each) for each in taken(rabbit, target, rabbit.messages(target))]
    assert list(dict.fromkeys(found)) == keys(0, 3 * COUNT + 5), "what had no outcome may come twice"


def test_a_broker_that_does_not_browse_is_reported(rabbit: RabbitServer) -> None:
    """isthmus.connectors.amqp.browse, I1: it would have taken the messages."""
    queue = rabbit.queue("browsed")
    publish(rabbit, queue, keys(0, 3))
    with pytest.raises(NotAllowedError, match="does not allow browsing a queue"):
        SYSTEM.peek(clients(rabbit), f"/amq/queue/{queue}")
    wait(lambda: rabbit.messages(queue) == 3)


def test_a_wrong_password_is_reported_and_not_shown(
    rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("RABBIT_PASSWORD", "hunter2-and-wrong")
    with pytest.raises(UnauthorizedError) as refused:
        SYSTEM.check(clients(rabbit), "/queue/x", reads=True)
    assert str(rabbit.port) in str(refused.value)
    assert "hunter2" not in f"{refused.value} {caplog.text}"
