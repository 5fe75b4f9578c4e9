"""isthmus.connectors.rabbitmq.option: options of a source and a target."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.option import read_broker, read_source, read_target
from isthmus.errors import ConfigError
from isthmus.topology.kind.rabbitmq import addresses_of

BROKER = {"host": "rabbit-1", "username": "isthmus", "password": "env:NAME"}


def faults(read: object, **options: str) -> str:
    assert callable(read)
    with pytest.raises(ConfigError) as caught:
        read({**BROKER, **options})
    return str(caught.value)


def test_addresses() -> None:
    assert addresses_of("a, b:1 ,[::1]:2,[::2]", False) == [("a", 5672), ("b", 1), ("::1", 2), ("::2", 5672)]
    assert addresses_of("a", True) == [("a", 5671)]


@pytest.mark.parametrize("host", ["a:b", ":1", "a:0", "a:99999", "a,,b"])
def test_what_is_no_address(host: str) -> None:
    assert "host" in faults(read_source, entity="q", host=host)


def test_what_a_route_says_is_taken() -> None:
    source = read_source({**BROKER, "entity": "orders", "entity_type": "topic", "subscription": "orders-lga"})
    assert source.queue == "orders-lga"
    assert read_source({**BROKER, "entity": "q", "entity_type": "queue"}).queue == "q"
    target = read_target({**BROKER, "entity": "orders", "entity_type": "topic", "duplicates": "allow", "origin": "a/b"})
    assert target.exchange == "orders"
    assert read_target({**BROKER, "entity": "q"}).exchange == ""
    assert read_broker(BROKER).queue_type == "quorum"


def test_everything_wrong_is_reported_at_once() -> None:
    """I1."""
    reported = faults(read_source, entity="q", dead_letters="q", wrong="x", prefetch="0")
    assert "'wrong'" in reported
    assert "prefetch" in reported
    reported = faults(read_source, entity="q", dead_letters="q", entity_type="topic", mechanism="EXTERNAL")
    for each in ("subscription", "certificate_file", "username needs PLAIN"):
        assert each in reported


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dead_letters": "q"}, "the queue itself"),
        ({"entity": "q" * 256}, "256 bytes"),
        ({"ca_file": "/ca.pem"}, "tls=true"),
        ({"password": "hunter2"}, "password"),
    ],
)
def test_faults_of_a_source(options: dict[str, str], expected: str) -> None:
    reported = faults(read_source, **{"entity": "q", **options})
    assert expected in reported
    assert "hunter2" not in reported


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"routing_key": "k"}, "needs an exchange"),
        ({"origin": "a"}, "alias/entity"),
        ({"policy": "{"}, "policy"),
        ({"management": "rabbit-1:15672"}, "no URL"),
        ({"management": "https://me:hunter2@rabbit-1:15672"}, "management has user information"),
        ({"host": "me:hunter2@rabbit-1"}, "host has user information"),
    ],
)
def test_faults_of_a_target(options: dict[str, str], expected: str) -> None:
    reported = faults(read_target, entity="q", **options)
    assert expected in reported
    assert "hunter2" not in reported
