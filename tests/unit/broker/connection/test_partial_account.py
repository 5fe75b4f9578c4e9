"""isthmus.broker.connection.partial_account."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from isthmus.broker.connection.partial_account import PartialAccount
from isthmus.errors import ServerBusyError


def test_the_client_that_makes_it_too_much_is_reported_i1() -> None:
    together = SimpleNamespace(partial_bytes=0)
    one, other = PartialAccount(together, 100), PartialAccount(together, 100)
    assert one.update(60) is None
    assert isinstance(other.update(60), ServerBusyError)
    assert one.update(50) is None, "who holds less is not at fault"
    assert together.partial_bytes == 110


def test_what_a_client_held_is_taken_off_once_i2() -> None:
    together = SimpleNamespace(partial_bytes=7)
    account = PartialAccount(together, 100)
    account.update(60)
    account.release()
    account.release()
    assert (account.nbytes, together.partial_bytes) == (0, 7)


def limited(broker, **changes):
    broker.namespace.limits = replace(broker.namespace.limits, **changes)


async def test_messages_that_are_not_whole_are_bounded_over_all_connections_i1(broker, message):
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
