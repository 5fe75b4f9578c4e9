"""Limits: the table that files are read by, and what they enforce on connections and links."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.amqp.performative import Flow, Source, Target
from isthmus.broker.config.limit import LIMITS, ConnectionLimits, make_limits
from isthmus.broker.config.namespace_file import read_config
from isthmus.entities import Limits
from isthmus.errors import ConfigError
from isthmus.topology.file.setting import Kind

HEARTBEAT = b"\0\0\0\x08\2\0\0\0"
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "namespace-file.md"


def limited(broker, **changes):
    broker.namespace.limits = replace(broker.namespace.limits, **changes)


def tick(broker, client, milliseconds=0):
    broker.clock.advance(milliseconds)
    client.peer.receive(HEARTBEAT)
    client.peer.tick()
    client.pump()


def test_every_limit_has_a_line_and_every_line_a_limit_i1():
    names = {f.name for kind in (Limits, ConnectionLimits) for f in fields(kind)} - {"tier"}
    assert {name + ("_ms" if line.kind is Kind.DURATION else "") for name, line in LIMITS.items()} == names


def test_defaults_are_within_their_bounds_and_documented():
    page = PAGE.read_text(encoding="utf-8")
    both = (Limits(), ConnectionLimits())
    for name, line in LIMITS.items():
        field = name + ("_ms" if line.kind is Kind.DURATION else "")
        default = next(getattr(each, field) for each in both if hasattr(each, field))
        assert line.parse(line.show(default)) == default
        assert f"| `{name}` | `{line.show(default)}` |" in page


def test_a_file_sets_limits_of_both_kinds():
    config = read_config(
        "limits: {max_entities: 3, min_lock_duration: 100ms, link_idle_timeout: off, max_connections: 7}\n"
        "queues: {q: {lock_duration: 1s}}",
        "f",
    )
    assert config.limits == Limits(max_entities=3, min_lock_duration_ms=100)
    assert config.connection_limits == ConnectionLimits(link_idle_timeout_ms=0, max_connections=7)
    assert config.queues["q"].lock_duration_ms == 1000
    assert make_limits({}) == (Limits(), ConnectionLimits())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: {max_entitys: 3}", "limits has no setting 'max_entitys'"),
        ("limits: {max_entities: 0}", "max_entities is below its least value"),
        ("limits: [1]", "limits is not a mapping"),
        ("queues: {q: {lock_duration: 4s}}", "lock_duration is below its least value"),
        ("limits: {max_lock_duration: 10s}\nqueues: {q: {lock_duration: 11s}}", "lock_duration is above"),
        ("limits: {max_entity_size_megabytes: 5}\nqueues: {q: {max_size_in_megabytes: 6}}", "is above"),
    ],
)
def test_faults_of_limits_are_reported(text, message):
    with pytest.raises(ConfigError, match=message):
        read_config(text, "f")


async def test_one_connection_too_many_is_closed(broker):
    limited(broker, max_connections=2)
    first, second, third = broker.client(), broker.client(), broker.client()
    assert third.closed_with() == "amqp:resource-limit-exceeded"
    assert first.attached(first.sender("orders"))
    second.peer.close()
    assert not broker.client().closed


async def test_one_receiver_too_many_is_refused(broker):
    limited(broker, max_receivers_per_entity=2)
    client = broker.client()
    links = [client.receiver("orders", name=f"r{number}") for number in range(3)]
    assert [client.detached(link) for link in links] == ["", "", "amqp:resource-limit-exceeded"]
    links[0].detach()
    client.pump()
    assert client.attached(client.receiver("orders", name="r3"))


async def test_sessions_before_a_token_are_counted_i3(broker):
    client, shown = broker.client(None), broker.client()
    for each in (client, shown):
        for _ in range(20):
            each.connection.begin()
            each.pump()
    assert client.closed_with() == "amqp:resource-limit-exceeded"
    assert not shown.closed


async def test_links_before_a_token_are_counted_i3(broker):
    client, shown = broker.client(None), broker.client()
    for each in (client, shown):
        for number in range(40):
            each.session.attach_sender(f"l{number}", Target(address="$cbs"), source=Source(address="$cbs"))
            each.pump()
    assert client.closed_with() == "amqp:resource-limit-exceeded"
    assert not shown.closed


async def test_a_request_to_cbs_is_of_a_token_s_size_i3(broker):
    client = broker.client(None)
    link = client.sender("$cbs")
    link.send(b"x" * (80 << 10), b"1")
    client.pump()
    assert client.detached(link) == "amqp:link:message-size-exceeded"
    assert not client.closed


async def test_answers_that_are_not_taken_are_not_kept_without_end_i3(broker):
    client = broker.client()
    requests = client.sender("$cbs")
    client.receiver("$cbs")  # no credit: the answers wait
    payload = section.encode_message(
        broker.token(), application_properties={"operation": "put-token", "name": "sb://host/orders"}, value_body=True
    )
    for number in range(3000):
        if client.detached(requests) or requests.credit == 0:
            break
        requests.send(payload, number.to_bytes(4, "big"))
        client.pump()
    assert client.detached(requests) == "amqp:resource-limit-exceeded"
    assert sum(replies.waiting_bytes for replies in client.peer.replies()) < 65 << 10


async def test_a_client_that_reads_no_answer_before_its_token_is_given_up_i3(broker):
    client = broker.client(None)
    client.is_writable = False
    client.connection.begin()
    client.pump()
    assert client.closed_with() == "com.microsoft:server-busy"


async def test_a_client_that_reads_no_answers_at_all_is_closed_i4(broker):
    """Each flow that asks for an echo costs it 40 bytes, and would cost the namespace as many that are never read."""
    client = broker.client()
    link = client.sender("orders")
    client.unsent_bytes = 200 << 20
    link.amqp_session.write_flow(Flow(echo=True))
    client.pump()
    assert not client.closed
    client.unsent_bytes = 300 << 20
    link.amqp_session.write_flow(Flow(echo=True))
    client.pump()
    assert client.closed
    assert client.closed_with() == "com.microsoft:server-busy"
