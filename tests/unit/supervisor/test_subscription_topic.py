"""Durable subscriptions at AMQP brokers whose task reads another topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.supervisor.subscription_topic import check_topics, note_topics
from isthmus.topology import read
from isthmus.topology.model import Federation
from isthmus.topology.route import routes


def federation(topic: str, kind: str = "amqp") -> Federation:
    settings = {"amqp": "url: amqp://mq", "rabbitmq": "host: mq, username: u, password: env:P"}[kind]
    return read(
        f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:A}}\n  mq: {{kind: {kind}, {settings}}}\n"
        f"tasks:\n  t: {{pattern: copy, source: mq, target: ewr, topic: {topic}}}\n  q: {{pattern: move, source: mq, target: ewr, queue: a}}\n"
    )


def check(found: Federation, folder: Path) -> None:
    check_topics(routes(found), found.namespaces, folder)


def note(found: Federation, folder: Path) -> None:
    note_topics(routes(found), found.namespaces, folder)


def test_a_subscription_that_would_be_deleted_with_what_waits_there_is_refused(tmp_path: Path) -> None:
    check(federation("flights"), tmp_path)
    note(federation("flights"), tmp_path)
    check(federation("flights"), tmp_path)
    with pytest.raises(ConfigError) as reported:
        check(federation("gates"), tmp_path)
    (fault,) = reported.value.faults
    assert "the subscription isthmus.t.ewr at mq is of topic flights, and the task reads gates now" in fault.message
    assert f"remove mq/isthmus.t.ewr from {tmp_path / 'amqp-topics.json'}" in fault.hint
    check(federation("flights"), tmp_path)


def test_a_queue_that_is_bound_is_no_subscription_that_goes(tmp_path: Path) -> None:
    note(federation("flights", "rabbitmq"), tmp_path)
    check(federation("gates", "rabbitmq"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[", "[1]"])
def test_a_list_that_cannot_be_read_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "amqp-topics.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"amqp-topics\.json"):
        check(federation("flights"), tmp_path)


def test_a_list_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """A full disk, or another owner: `run` ended with a traceback."""
    (tmp_path / "amqp-topics.json.new").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"amqp-topics\.json.* cannot be written"):
        note(federation("flights"), tmp_path)
