"""Passwords that go to another machine without TLS."""

from __future__ import annotations

import pytest

from isthmus.topology.linter import warnings

KAFKA = "kind: kafka, username: u, password: env:P, bootstrap: "
RABBIT = "kind: rabbitmq, username: u, password: env:P, host: "


def reported(namespace: str) -> list[str]:
    text = f"isthmus: 1\nnamespaces:\n  there: {{{namespace}}}\n  ewr: {{connection: env:A}}\n  jfk: {{connection: env:B}}\ntasks: {{}}\n"
    text = text.replace("tasks: {}", "tasks:\n  t: {pattern: move, source: ewr, queue: q, target: jfk}")
    return [str(each) for each in warnings(text) if "its password goes to" in str(each)]


@pytest.mark.parametrize(
    ("namespace", "hosts", "instead"),
    [
        (f"{KAFKA}'k-1:9092,localhost:1,k-2:9092', security: sasl_plaintext", "k-1, k-2", "security: sasl_ssl"),
        (f"{KAFKA}'[2001:db8::1]:9092', security: sasl_plaintext", "2001:db8::1", "security: sasl_ssl"),
        (f"{RABBIT}rabbit-1", "rabbit-1", "tls: true"),
        (f"{RABBIT}rabbit-1, management: 'http://rabbit-1'", "rabbit-1", "tls: true, management: https://..."),
        (f"{RABBIT}'rabbit-1:5671', tls: true, management: 'http://m:15672'", "m", "management: https://..."),
    ],
)
def test_a_password_that_is_shown_is_reported(namespace: str, hosts: str, instead: str) -> None:
    (warned,) = reported(namespace)
    assert f"goes to {hosts} without TLS" in warned
    assert f"write {instead}" in warned


@pytest.mark.parametrize(
    "namespace",
    [
        f"{KAFKA}'k-1:9092', security: sasl_ssl",
        f"{KAFKA}'k-1:9092', security: sasl_plaintext, mechanism: SCRAM-SHA-512",
        f"{KAFKA}'127.0.0.1:9092', security: sasl_plaintext",
        "kind: kafka, bootstrap: 'k-1:9092'",
        f"{RABBIT}rabbit-1, tls: true, management: 'https://m:15671'",
        f"{RABBIT}'[::1],localhost:5672'",
        "kind: amqp, url: 'amqp://mq', username: u, password: env:P",
    ],
)
def test_a_password_that_cannot_be_read_is_not(namespace: str) -> None:
    assert reported(namespace) == []
