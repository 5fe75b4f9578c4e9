"""isthmus.connectors.amqp.option, isthmus.connectors.amqp.remote"""

from __future__ import annotations

import pytest

from isthmus.amqp.types import Symbol
from isthmus.connectors.amqp.option import read_source, read_target
from isthmus.connectors.amqp.position import Positions
from isthmus.connectors.amqp.remote import endpoint_of, receiver_terms, remote_of, sender_terms
from isthmus.errors import ConfigError, UnauthorizedError

OPTIONS = {"url": "amqps://mq.example.com", "entity": "orders"}
LOGIN = {"username": "me", "password": "env:MQ_PASSWORD"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "mq.example.com"}, "url is no address of a broker"),
        ({"url": "amqps://me:hunter2@mq"}, "url has user information"),
        ({"url": "amqps://mq:99999"}, "url is no address of a broker"),
        ({"url": "amqps://mq/path"}, "url has a path, which only WebSocket has"),
        ({"username": "me"}, "username and password go together"),
        ({"sasl": "plain"}, "SASL PLAIN needs username and password"),
        ({"sasl": "anonymous"} | LOGIN, "sasl anonymous uses no password"),
        ({"sasl": "external"}, "SASL EXTERNAL needs a client certificate"),
        ({"url": "amqp://mq", "ca_file": "ca.pem"}, "certificates need TLS"),
        ({"key_file": "key.pem"}, "key_file needs certificate_file"),
        ({"password": "hunter2", "username": "me"}, "password"),
        ({"entity": ""}, "entity"),
        ({"entity_type": "queue", "subscription": "s"}, "a queue has none"),
        ({"dead_letters": "orders"}, "dead_letters is the entity itself"),
        ({"window": "5"}, "no option 'window'"),
    ],
)
def test_each_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    """isthmus.connectors.amqp.option, I1"""
    with pytest.raises(ConfigError) as caught:
        read_source(OPTIONS | options)
    assert text in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_target_has_its_own_options() -> None:
    made = read_target(OPTIONS | {"duplicates": "origin", "origin": "ewr/orders", "durable": "false"})
    assert (made.duplicates, made.durable, made.hop_budget) == ("origin", False, 8)
    with pytest.raises(ConfigError, match="origin has no alias"):
        read_target(OPTIONS | {"origin": "orders"})


def test_a_password_is_shown_by_plain_and_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """isthmus.connectors.amqp.remote, I1"""
    monkeypatch.setenv("MQ_PASSWORD", "hunter2")
    options = read_source(OPTIONS | LOGIN)
    endpoint = endpoint_of(options)
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("mq.example.com", 5671, True)
    assert (endpoint.login.mechanism, endpoint.login.response) == ("PLAIN", b"\0me\0hunter2")
    assert "hunter2" not in f"{endpoint!r} {options!r} {remote_of(options)!r}"


def test_no_password_goes_in_the_clear_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """isthmus.connectors.amqp.remote, I2"""
    monkeypatch.setenv("MQ_PASSWORD", "hunter2")
    plain = read_source(OPTIONS | LOGIN | {"url": "amqp://mq.example.com"})
    with pytest.raises(UnauthorizedError, match="without TLS the password could be read"):
        endpoint_of(plain)
    monkeypatch.setenv("ISTHMUS_ALLOW_PLAIN_HOSTS", "mq.example.com")
    assert endpoint_of(plain).port == 5672
    assert endpoint_of(read_source(OPTIONS | LOGIN | {"url": "amqp://localhost"})).login.mechanism == "PLAIN"


@pytest.mark.parametrize(
    ("options", "mechanism"),
    [
        ({}, "ANONYMOUS"),
        ({"sasl": "none"}, ""),
        ({"certificate_file": "client.pem"}, "EXTERNAL"),
        ({"certificate_file": "client.pem", "sasl": "anonymous"}, "ANONYMOUS"),
    ],
)
def test_how_the_client_says_who_it_is(options: dict[str, str], mechanism: str) -> None:
    assert endpoint_of(read_source(OPTIONS | options)).login.mechanism == mechanism


def test_a_websocket_has_a_path() -> None:
    endpoint = endpoint_of(read_source(OPTIONS | {"url": "wss://mq.example.com/amqp"}))
    assert (endpoint.port, endpoint.websocket, endpoint.websocket_path) == (443, True, "/amqp")


def test_a_queue_is_asked_for_by_its_capability() -> None:
    source = receiver_terms(read_source(OPTIONS | {"entity_type": "queue"})).source
    assert source is not None
    assert (source.address, source.capabilities, int(source.durable)) == ("orders", [Symbol("queue")], 0)
    target = sender_terms("orders", "any").target
    assert target is not None
    assert target.capabilities is None


def test_a_durable_subscription_outlives_its_link() -> None:
    """OASIS AMQP 1.0, 3.5.3: durable, never expires; its link keeps its name, and its container too."""
    options = read_source(OPTIONS | {"entity_type": "topic", "subscription": "isthmus.t.ewr"})
    terms = receiver_terms(options)
    assert terms.source is not None
    assert (int(terms.source.durable), terms.source.expiry_policy) == (2, Symbol("never"))
    assert (terms.name, terms.closes) == ("isthmus.t.ewr", False)
    assert remote_of(options).connection_key != remote_of(read_source(OPTIONS)).connection_key


def test_positions_ascend_whatever_the_clock_does() -> None:
    """isthmus.connectors.amqp.position, I1"""
    times = iter([2e9, 2e9, 1e9, 2e9 + 1])
    positions = Positions(lambda: next(times))
    first, second, third, fourth = (positions.take(10) for _ in range(4))
    assert (second[0], third[0]) == (first[-1] + 1, second[-1] + 1)
    assert fourth[0] > third[-1]
    assert fourth[-1] < 1 << 48, "I2"
