"""Limits: the table that files are read by, and what connections and links are held to."""

import asyncio
from dataclasses import fields, replace
from pathlib import Path

import pytest

from isthmus.amqp import Role, section
from isthmus.amqp.performative import Flow, Source, Target
from isthmus.amqp.types import Symbol
from isthmus.broker.config.limit import LIMITS, ConnectionLimits, make_limits
from isthmus.broker.config.namespace_file import read_config
from isthmus.entities import EntityStatus, Limits, QueueDescription, TopicDescription
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
def test_faults_of_limits_are_told(text, message):
    with pytest.raises(ConfigError, match=message):
        read_config(text, "f")


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
async def test_status_is_judged_when_a_link_attaches_and_while_it_stands_i5(broker, status, sends, receives):
    client = broker.client()
    standing = client.sender("orders"), client.receiver("orders")
    broker.engine.update_queue("orders", QueueDescription(status=status))
    fresh = client.sender("orders", "s2"), client.receiver("orders", name="r2")
    tick(broker, client)
    for links in (standing, fresh):
        assert [client.attached(link) for link in links] == [sends, receives]
        for link, passes in zip(links, (sends, receives), strict=True):
            assert client.detached(link) == ("" if passes else "com.microsoft:entity-disabled")


async def test_a_disabled_topic_and_subscription_refuse_their_links_i5(broker):
    client = broker.client()
    sender, receiver = client.sender("flights"), client.receiver("flights/Subscriptions/all")
    broker.engine.update_topic("flights", TopicDescription(status=EntityStatus.DISABLED))
    tick(broker, client)
    assert client.detached(sender) == "com.microsoft:entity-disabled"
    assert client.attached(receiver)


async def test_a_dead_letter_queue_is_open_while_its_queue_only_receives_no_more_i5(broker):
    client = broker.client()
    assert client.attached(client.receiver("closed/$DeadLetterQueue"))


async def test_an_idle_link_is_detached_by_force_i5(broker, message):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
    tick(broker, client)
    for _ in range(9):
        tick(broker, client, 60_000)
    assert client.attached(sender)
    assert client.attached(receiver)
    tick(broker, client, 60_000)
    assert client.detached(sender) == client.detached(receiver) == "amqp:link:detach-forced"
    again = client.sender("orders", "again")
    again.send(message("x"), b"1")
    await client.settle()
    assert client.attached(again)


@pytest.mark.parametrize("moves", ["send", "grant", "settle"])
async def test_what_moves_keeps_its_link_i5(broker, message, moves):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=1)
    for number in range(12):
        sender.send(message(str(number)), number.to_bytes(4, "big"))
    receiver.grant(12)
    await client.settle()
    for number in range(12):
        if moves == "send":
            sender.send(message("more"), number.to_bytes(4, "big"))
        elif moves == "grant":
            receiver.grant(1)
        else:
            receiver.dispose(number, number, settled=False)
        await client.settle()
        tick(broker, client, 60_000)
    moved, other = (sender, receiver) if moves == "send" else (receiver, sender)
    assert client.attached(moved)
    assert client.detached(other) == "amqp:link:detach-forced"


async def test_a_large_message_that_comes_slowly_keeps_its_link_i5(broker, message):
    client = broker.client()
    link, other = client.sender("orders"), client.sender("orders", "other")
    frames = link._writer.split(message(b"x" * 150_000), b"1", 0, 0, False, 10_000)
    for frame in frames:
        link.amqp_session.write_transfers(link, [frame])
        client.pump()
        tick(broker, client, 60_000)
    await client.settle()
    assert broker.engine.runtime("orders").message_count == 1
    assert client.attached(link)
    assert client.detached(other) == "amqp:link:detach-forced"


async def test_a_large_message_that_is_taken_slowly_keeps_its_link_i5(broker, message):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=102_400))
    client = broker.client()
    client.sender("big").send(message(b"x" * (10 << 20)), b"1")
    await client.settle()
    link = client.receiver("big", credit=1, snd_settle_mode=1)
    await asyncio.sleep(0)  # it is being taken from the queue
    client.is_writable = False
    await client.settle()
    assert not client.payloads(link)
    [sender_link] = [handler for handler in client.peer._links.handlers.values() if handler.link.role is Role.SENDER]
    for _ in range(100):
        client.is_writable = True
        sender_link.resume()
        client.is_writable = False
        await client.settle()
        tick(broker, client, 60_000)
        if client.payloads(link):
            break
    assert [len(payload) for payload in client.bodies(link)] == [10 << 20]
    assert client.attached(link)


@pytest.mark.parametrize("renews", [True, False])
async def test_a_session_whose_lock_is_renewed_is_not_idle_i5(broker, renews):
    broker.engine.create_queue("sessions", QueueDescription(requires_session=True, lock_duration_ms=300_000))
    await broker.namespace.commits.wait_idle()
    client = broker.client()
    link = client.session.attach_receiver(
        "r",
        Source(address="sessions", filter={Symbol("com.microsoft:session-filter"): "s"}),
        target=Target(address="me"),
    )
    client.pump()
    assert client.attached(link)
    [sender_link] = [handler for handler in client.peer._links.handlers.values() if handler.path == "sessions"]
    for _ in range(12):
        tick(broker, client, 60_000)
        if renews:
            sender_link.hold.renew()
    assert client.detached(link) == ("" if renews else "amqp:link:detach-forced")


async def test_no_link_is_idle_where_the_timeout_is_off(broker):
    limited(broker, link_idle_timeout_ms=0)
    client = broker.client()
    sender = client.sender("orders")
    tick(broker, client, 86_400_000)
    tick(broker, client, 86_400_000)
    assert client.attached(sender)
    assert not client.closed


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


async def test_sessions_before_a_token_are_counted_i4(broker):
    client, shown = broker.client(None), broker.client()
    for each in (client, shown):
        for _ in range(20):
            each.connection.begin()
            each.pump()
    assert client.closed_with() == "amqp:resource-limit-exceeded"
    assert not shown.closed


async def test_links_before_a_token_are_counted_i4(broker):
    client, shown = broker.client(None), broker.client()
    for each in (client, shown):
        for number in range(40):
            each.session.attach_sender(f"l{number}", Target(address="$cbs"), source=Source(address="$cbs"))
            each.pump()
    assert client.closed_with() == "amqp:resource-limit-exceeded"
    assert not shown.closed


async def test_a_request_to_cbs_is_of_a_token_s_size_i4(broker):
    client = broker.client(None)
    link = client.sender("$cbs")
    link.send(b"x" * (80 << 10), b"1")
    client.pump()
    assert client.detached(link) == "amqp:link:message-size-exceeded"
    assert not client.closed


async def test_answers_that_nobody_takes_are_not_kept_without_end_i4(broker):
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


async def test_a_client_that_reads_no_answer_before_its_token_is_given_up_i4(broker):
    client = broker.client(None)
    client.is_writable = False
    client.connection.begin()
    client.pump()
    assert client.closed_with() == "com.microsoft:server-busy"


async def test_messages_that_are_not_whole_are_bounded_over_all_connections_i4(broker, message):
    limited(broker, max_partial_bytes=1 << 20)
    client = broker.client()
    payload = message(b"x" * 700_000)
    halves = []
    for number in range(2):
        link = client.sender("orders", f"s{number}")
        frames = link._writer.split(payload, b"1", number, 0, False, 60_000)
        halves.append(frames)
        link.amqp_session.write_transfers(link, frames[:-1])
        client.pump()
    assert client.closed_with() == "com.microsoft:server-busy"
    assert broker.namespace.partial_bytes == 0
    other = broker.client()
    other.sender("orders").send(payload, b"1")
    await other.settle()
    assert broker.engine.runtime("orders").message_count == 1
    assert broker.namespace.partial_bytes == 0


@pytest.mark.parametrize("end", ["whole", "lost", "detached", "session", "too large"])
async def test_what_is_partial_is_counted_to_its_end(broker, message, end):
    client = broker.client()
    link = client.sender("orders")
    payload = message(b"x" * (20 << 20 if end == "too large" else 300_000))
    frames = link._writer.split(payload, b"1", 0, 0, False, 60_000)
    link.amqp_session.write_transfers(link, frames[:3])
    client.pump()
    assert 0 < broker.namespace.partial_bytes == client.peer._connection.partial_bytes < len(payload)
    if end in ("whole", "too large"):
        link.amqp_session.write_transfers(link, frames[3:])
    elif end == "detached":
        link.detach()
    elif end == "session":
        client.session.end()
    else:
        client.peer.lost()
    client.pump()
    await client.settle()
    assert broker.namespace.partial_bytes == 0


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("end", ["closed", "fault", "given up"])
async def test_what_is_partial_is_counted_no_more_though_the_connection_ends_in_the_same_read(
    broker, message, before, end
):
    client = broker.client(None if end == "given up" else "root")
    link = client.sender("$cbs" if end == "given up" else "orders")
    frames = link._writer.split(message(b"x" * 50_000), b"1", 0, 0, False, 10_000)
    link.amqp_session.write_transfers(link, frames[:before])
    client.pump()
    assert (broker.namespace.partial_bytes > 0) is (before > 0)
    link.amqp_session.write_transfers(link, frames[before:4])
    if end == "closed":
        client.connection.close()
    elif end == "fault":
        client.connection.write(b"\0\0\0\1")
        client.connection.write(b"\0\0\0\0")
    else:
        for _ in range(9):
            client.connection.begin()
    client.pump()
    assert client.closed
    assert broker.namespace.partial_bytes == 0


async def test_a_client_that_reads_no_answers_at_all_is_closed_i6(broker):
    """Each flow that asks for an echo costs it 40 bytes, and would cost the namespace as many that nobody takes."""
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
