"""Receivers of sessions: requests, locks and lost locks; and sessions over `$management`."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from tests.unit.broker.management.test_management import Node

from harness.check.until import passes
from isthmus.amqp import Transfers
from isthmus.amqp.performative import Accepted, Modified, Source, Target
from isthmus.amqp.types import Array, Described, Int, Long, Symbol, Timestamp, UInt, ULong
from isthmus.broker.link.session_attach import dotnet_ticks
from isthmus.entities import QueueDescription, SubscriptionDescription

FILTER = Symbol("com.microsoft:session-filter")
LOCK_MS = 30_000
STRINGS = 0xB1


@pytest.fixture
def client(broker):
    description = QueueDescription(requires_session=True, lock_duration_ms=LOCK_MS)
    broker.engine.create_queue("sessions", description)
    return broker.client()


@pytest.fixture
def send(broker, message):
    async def send(*names):
        queue = broker.engine.sender("sessions")
        queue.accept([message(name, properties={"message_id": name, "group_id": name[0]}) for name in names])
        await broker.namespace.commits.wait_durable()

    return send


def attach(client, wanted, name="r", credit=10, timeout_ms=None, address="sessions", **options):
    link = client.session.attach_receiver(
        name,
        Source(address=address, filter={FILTER: wanted}),
        target=Target(address="me"),
        rcv_settle_mode=1,
        properties=None if timeout_ms is None else {Symbol("com.microsoft:timeout"): UInt(timeout_ms)},
        **options,
    )
    client.pump()
    if credit:
        link.grant(credit)
        client.pump()
    return link


def granted(link):
    return link.source.filter[FILTER]


async def test_a_named_session_is_granted_and_echoed(broker, client, send):
    await send("a1", "b1", "a2")
    link = attach(client, "a")
    await client.settle()
    assert client.attached(link)
    assert granted(link) == "a"
    assert link.source.address == "sessions"
    until = link.properties["com.microsoft:locked-until-utc"]
    assert isinstance(until, int)
    assert until == dotnet_ticks(broker.clock.wall_ms() + LOCK_MS)
    assert client.bodies(link) == [b"a1", b"a2"]


def test_ticks_are_those_of_dotnet():
    assert dotnet_ticks(0) == 621355968000000000
    assert dotnet_ticks(1_704_067_200_000) == 638396640000000000  # 2024-01-01T00:00:00Z


@pytest.mark.parametrize("descriptor", [FILTER, ULong(0x137000000C)])
async def test_a_described_filter_comes_back_described(client, send, descriptor):
    await send("a1")
    assert granted(attach(client, Described(descriptor, None), "n")) == Described(descriptor, "a")
    assert granted(attach(client, Described(descriptor, "b"), "m")) == Described(descriptor, "b")


async def test_the_next_session_is_granted_bare(client, send):
    await send("a1")
    link = attach(client, None)
    await client.settle()
    assert granted(link) == "a"
    assert client.bodies(link) == [b"a1"]


async def test_a_filter_of_another_type_is_refused(client):
    assert client.detached(attach(client, 7)) == "com.microsoft:argument-error"


async def test_a_plain_receiver_on_a_session_queue_is_refused(client):
    assert client.detached(client.receiver("sessions")) == "amqp:not-allowed"


async def test_a_send_without_a_session_is_refused(client, message):
    link = client.sender("sessions")
    link.send(message("x"), b"tag1")
    await client.settle()
    [outcome] = [event.state for event in client.events if hasattr(event, "state") and event.state is not None]
    assert str(outcome.error.condition) == "amqp:not-allowed"
    assert "SessionId" in outcome.error.description


async def test_a_locked_session_is_refused_i1(broker, client, send):
    await send("a1")
    first = attach(client, "a")
    assert client.detached(attach(client, "a", "second")) == "com.microsoft:session-cannot-be-locked"
    other = broker.client()
    assert other.detached(attach(other, "a")) == "com.microsoft:session-cannot-be-locked"
    first.detach()
    client.pump()
    assert granted(attach(other, "a", "again")) == "a"


async def test_the_dead_letter_queue_has_no_sessions(client):
    path = "sessions/$DeadLetterQueue"
    assert client.attached(client.receiver(path))
    assert client.detached(attach(client, "a", "s", address=path)) == "amqp:not-allowed"


async def test_the_next_session_is_waited_for_i1(broker, client, send):
    link = attach(client, None, credit=0)
    await client.settle()
    assert not client.attached(link)
    assert not client.detached(link)
    await send("b1")
    await client.settle()
    assert granted(link) == "b"
    link.grant(1)
    await client.settle()
    assert client.bodies(link) == [b"b1"]


async def test_the_wait_ends_in_time_i1(client, send):
    link = attach(client, None, timeout_ms=20)
    await passes(25)
    await client.settle()
    assert client.detached(link) == "com.microsoft:timeout"
    assert link.source is None
    await send("a1")
    assert granted(attach(client, None, "later")) == "a"


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])
async def test_who_gives_up_while_waiting_gets_no_session(broker, client, send, end):
    link = attach(client, None, credit=0)
    if end == "detach":
        link.detach()
    elif end == "end":
        client.session.end()
    elif end == "close":
        client.connection.close()
    else:
        client.peer.lost()
    client.pump()
    await send("a1")
    other = broker.client()
    assert granted(attach(other, None)) == "a"


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])
async def test_the_links_end_gives_the_session_back_i2(broker, client, send, body, end):
    await send("a1", "a2")
    link = attach(client, "a")
    await client.settle()
    assert client.bodies(link) == [b"a1", b"a2"]
    if end == "detach":
        link.detach()
    elif end == "end":
        client.session.end()
    elif end == "close":
        client.connection.close()
    else:
        client.peer.lost()
    client.pump()
    other = broker.client()
    link = attach(other, None)
    await other.settle()
    assert other.bodies(link) == [b"a1", b"a2"]


async def test_a_lock_that_expires_detaches_the_link(broker, client, send):
    await send("a1")
    link = attach(client, "a")
    await client.settle()
    broker.clock.advance(LOCK_MS)
    broker.engine.tick()
    await client.settle()
    assert client.detached(link) == "com.microsoft:session-lock-lost"
    again = attach(client, "a", "again")
    await client.settle()
    assert client.bodies(again) == [b"a1"]


async def test_settling_in_a_session(broker, client, send):
    await send("a1", "a2", "a3")
    link = attach(client, "a", credit=2)
    await client.settle()
    link.dispose(0, 1, Accepted(), settled=False)
    link.grant(5)
    await client.settle()
    assert client.bodies(link) == [b"a1", b"a2", b"a3"]
    assert broker.engine.runtime("sessions").active_message_count == 1


async def test_a_deleted_entity_detaches_receivers_and_those_who_wait(broker, client, send):
    await send("a1")
    holder, waiter = attach(client, "a"), attach(client, None, "w")
    await client.settle()
    broker.engine.delete_queue("sessions")
    await client.settle()
    client.peer.tick()
    client.pump()
    assert client.detached(holder) == client.detached(waiter) == "amqp:not-found"


async def test_many_sessions_over_fewer_receivers(broker, client, message):
    """A thousand sessions of three messages, fifty receivers that take one after another."""
    queue = broker.engine.sender("sessions")
    sessions = 1000
    for part in range(3):
        queue.accept([message(f"{n}-{part}", properties={"group_id": f"s{n}"}) for n in range(sessions)])
    await broker.namespace.commits.wait_durable()
    receivers = [broker.client() for _ in range(50)]
    got = {}
    links = {number: attach(one, None, "r0") for number, one in enumerate(receivers)}
    for iteration in range(1, sessions // 50 + 1):
        await asyncio.sleep(0)
        for number, one in enumerate(receivers):
            link = links[number]
            one.pump()
            bodies = one.bodies(link)
            got.setdefault(granted(link), []).extend(bodies)
            link.dispose(*_ids(one, link), Accepted(), settled=True)
            link.detach()
            links[number] = attach(one, None, f"r{iteration}")
        await broker.namespace.commits.wait_idle()
    assert got == {f"s{n}": [f"{n}-{part}".encode() for part in range(3)] for n in range(sessions)}
    assert broker.engine.runtime("sessions").active_message_count == 0


def _ids(client, link):
    events = [event for event in client.seen(Transfers) if event.link is link]
    return events[0].first_delivery_id, events[-1].first_delivery_id + len(events[-1].payloads) - 1


# ---- $management


async def test_renewing_and_state(broker, client, send):
    await send("a1")
    node = Node(client, "sessions")
    assert await node.ask("renew-session-lock", {"session-id": "a"}) == (410, {}, "com.microsoft:session-lock-lost")
    attach(client, "a")
    broker.clock.advance(1000)
    status, reply, _ = await node.ask("renew-session-lock", {"session-id": "a"})
    assert (status, reply) == (200, {"expiration": broker.clock.wall_ms() + LOCK_MS})
    assert isinstance(reply["expiration"], Timestamp)
    assert await node.ask("get-session-state", {"session-id": "a"}) == (200, {"session-state": None}, None)
    assert (await node.ask("set-session-state", {"session-id": "a", "session-state": b"half"}))[0] == 200
    assert await node.ask("get-session-state", {"session-id": "a"}) == (200, {"session-state": b"half"}, None)
    assert (await node.ask("set-session-state", {"session-id": "a", "session-state": None}))[0] == 200
    assert await node.ask("get-session-state", {"session-id": "a"}) == (200, {"session-state": None}, None)


@pytest.mark.parametrize("operation", ["renew-session-lock", "get-session-state", "set-session-state"])
async def test_only_the_holder_speaks_for_a_session(broker, client, send, operation):
    """management.session I1."""
    attach(client, "a")
    other = Node(broker.client(), "sessions")
    body = {"session-id": "a", "session-state": b"x"}
    assert (await other.ask(operation, body))[::2] == (410, "com.microsoft:session-lock-lost")
    own = Node(client, "sessions")
    assert (await own.ask(operation, {}))[::2] == (400, "com.microsoft:argument-error")
    assert (await own.ask(operation, body))[0] == 200
    broker.clock.advance(LOCK_MS)
    broker.engine.tick()
    assert (await own.ask(operation, body))[::2] == (410, "com.microsoft:session-lock-lost")


async def test_a_session_is_known_by_the_link_that_has_it(client, send, broker):
    """The Go SDK receives deferred messages so."""
    await send("a1", "b1")
    first, second = attach(client, "a", "first"), attach(client, "b", "second")
    await client.settle()
    for link in (first, second):
        [event] = [event for event in client.seen(Transfers) if event.link is link]
        link.dispose(event.first_delivery_id, event.first_delivery_id, Modified(undeliverable_here=True))
    await client.settle()
    node = Node(client, "sessions")
    wanted = {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(1)}
    named = {"associated-link-name": "first"}
    assert (await node.ask("receive-by-sequence-number", wanted))[::2] == (400, "com.microsoft:argument-error")
    status, body, _ = await node.ask("receive-by-sequence-number", wanted, **named)
    assert status == 200
    [found] = body["messages"]
    status, _, condition = await node.ask("receive-by-sequence-number", wanted, **{"associated-link-name": "second"})
    assert (status, condition) == (404, "com.microsoft:message-not-found")
    settled = {"disposition-status": "completed", "lock-tokens": Array(0x98, [found["lock-token"]])}
    assert (await node.ask("update-disposition", settled, **named))[0] == 200
    first.detach()
    client.pump()
    lost = (410, "com.microsoft:session-lock-lost")
    assert (await node.ask("receive-by-sequence-number", wanted, **named))[::2] == lost
    other = Node(broker.client(), "sessions")
    assert (await other.ask("receive-by-sequence-number", wanted, **{"associated-link-name": "second"}))[::2] == lost


async def test_a_peek_for_a_link_shows_the_session_that_it_has(client, send):
    await send("a1", "b1", "a2")
    attach(client, "a", "first", credit=0)
    node = Node(client, "sessions")
    asked = {"from-sequence-number": Long(0), "message-count": Int(10)}
    counts = {}
    for name in ("first", "other", ""):
        _, body, _ = await node.ask("peek-message", asked, **{"associated-link-name": name})
        counts[name] = len(body["messages"])
    assert counts == {"first": 2, "other": 3, "": 3}


async def test_an_empty_state_is_none(broker, client):
    attach(client, "a")
    node = Node(client, "sessions")
    for state in (b"kept", b""):
        assert (await node.ask("set-session-state", {"session-id": "a", "session-state": state}))[0] == 200
    assert (await node.ask("get-session-state", {"session-id": "a"}))[1] == {"session-state": None}


async def test_a_state_that_is_too_large(broker, client):
    attach(client, "a")
    node = Node(client, "sessions")
    body = {"session-id": "a", "session-state": bytes((1 << 20) + 1)}
    assert (await node.ask("set-session-state", body))[::2] == (400, "amqp:link:message-size-exceeded")


async def test_sessions_are_listed(broker, client, send):
    await send("a1", "c1", "b1")
    node = Node(client, "sessions")
    asked = {"last-updated-time": Timestamp(253402300800000), "skip": Int(1), "top": Int(2)}
    status, reply, _ = await node.ask("get-message-sessions", asked)
    assert (status, reply["skip"], list(reply["sessions-ids"])) == (200, 1, ["b", "c"])
    assert isinstance(reply["sessions-ids"], Array)
    assert reply["sessions-ids"].code in (STRINGS, 0xA1)
    asked = {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(9)}
    status, _, condition = await node.ask("get-message-sessions", asked)
    assert (status, condition) == (204, "com.microsoft:session-not-found")


async def test_deferred_messages_and_settling_by_token(client, send):
    await send("a1", "a2")
    link = attach(client, "a")
    await client.settle()
    tokens = [uuid.UUID(bytes_le=tag) for event in client.events for tag in getattr(event, "tags", [])]
    node = Node(client, "sessions")
    one = {"lock-tokens": Array(0x98, tokens[:1]), "disposition-status": "defered"}
    assert (await node.ask("update-disposition", one))[::2] == (400, "com.microsoft:argument-error")
    assert (await node.ask("update-disposition", {**one, "session-id": "b"}))[::2] == (
        410, "com.microsoft:session-lock-lost",
    )  # fmt: skip
    assert (await node.ask("update-disposition", {**one, "session-id": "a"}))[0] == 200
    assert (await node.ask("update-disposition", {**one, "session-id": "a"}))[::2] == (
        410, "com.microsoft:message-lock-lost",
    )  # fmt: skip
    asked = {"sequence-numbers": Array(0x81, [Long(1)]), "receiver-settle-mode": UInt(1)}
    assert (await node.ask("receive-by-sequence-number", asked))[::2] == (400, "com.microsoft:argument-error")
    status, reply, _ = await node.ask("receive-by-sequence-number", {**asked, "session-id": "a"})
    assert (status, len(reply["messages"])) == (200, 1)
    assert (await node.ask("renew-lock", {"lock-tokens": Array(0x98, tokens)}))[::2] == (400, "amqp:not-allowed")
    peeked = {"from-sequence-number": Long(0), "message-count": Int(9)}
    assert len((await node.ask("peek-message", peeked))[1]["messages"]) == 2
    assert (await node.ask("peek-message", {**peeked, "session-id": "b"}))[0] == 204
    assert client.attached(link)


async def test_batch_delete_in_a_session(client, send):
    await send("a1", "b1")
    node = Node(client, "sessions")
    asked = {"message-count": Int(5), "session-id": "a"}
    assert (await node.ask("batch-delete-messages", asked))[::2] == (410, "com.microsoft:session-lock-lost")
    attach(client, "a", credit=0)
    assert (await node.ask("batch-delete-messages", asked))[1] == {"message-count": 1}
    assert (await node.ask("batch-delete-messages", {"message-count": Int(5)}))[1] == {"message-count": 1}


async def test_a_subscription_with_sessions(broker, client, message):
    broker.engine.create_subscription("flights", "s", SubscriptionDescription(requires_session=True))
    broker.engine.sender("flights").accept([message("x", properties={"group_id": "g"})])
    await broker.namespace.commits.wait_durable()
    link = attach(client, None, address="flights/Subscriptions/s")
    await client.settle()
    assert granted(link) == "g"
    assert client.bodies(link) == [b"x"]


async def test_receivers_of_an_entity_are_limited(broker, client):
    broker.namespace.limits = replace(broker.namespace.limits, max_receivers_per_entity=2)
    client = broker.client()
    holder, waiter = attach(client, "a"), attach(client, None, "w")
    for number, wanted in enumerate(("b", None)):
        assert client.detached(attach(client, wanted, f"x{number}")) == "amqp:resource-limit-exceeded"
    assert client.attached(holder)
    waiter.detach()
    client.pump()
    assert client.attached(attach(client, "b", "y"))


@pytest.mark.parametrize("end", ["detach", "connection", "granted"])
async def test_a_wait_that_is_over_leaves_no_timer(broker, client, send, end):
    """A client may ask for weeks, again and again: each timer kept its connection in memory."""
    loop = asyncio.get_running_loop()
    before = len(loop._scheduled)
    links = [attach(client, None, name=f"r{number}", timeout_ms=2**32 - 1) for number in range(3)]
    await client.settle()
    assert len(loop._scheduled) >= before + 3
    if end == "detach":
        for link in links:
            link.detach()
        client.pump()
    elif end == "connection":
        client.peer.lost()
    else:
        await send("a1", "b1", "c1")
    await client.settle()
    waiting = [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() > loop.time() + 1e6]
    assert waiting == []


@pytest.mark.parametrize("end", ["detach", "end"])
async def test_who_gives_up_beside_the_holder_gets_no_session_i3(broker, client, send, end):
    """A session processor's shutdown on a shared connection: the holder and the one that waits close in one read."""
    await send("a1")
    holder = attach(client, "a")
    if end == "end":
        session, client.session = client.session, client.connection.begin()
        client.pump()
    waiter = attach(client, None, "waiter", credit=0)
    holder.detach()
    if end == "end":
        client.session.end()
        client.session = session
    else:
        waiter.detach()
    await client.settle()
    assert not client.closed
    other = broker.client()
    assert granted(attach(other, None)) == "a"


async def test_a_grant_that_fails_gives_the_session_back_i3(broker, client, send, monkeypatch):
    await send("a1")
    waiter = attach(client, None, "waiter", credit=0)
    await client.settle()
    assert granted(waiter) == "a"  # the first is free
    await send("b1")
    monkeypatch.setattr("isthmus.broker.connection.attachment.SessionSenderLink", lambda *_: 1 // 0)
    broken = broker.client()
    attach(broken, None, "broken", credit=0)
    monkeypatch.undo()
    assert broken.closed_with() == "amqp:internal-error"
    assert granted(attach(client, None, "next", credit=0)) == "b"


async def test_every_attach_is_answered_when_many_tokens_have_expired_i1(broker, client, send):
    receiver = attach(client, "a", "holder", credit=0)
    waiting = [attach(client, None, f"w{n}", credit=0) for n in range(240)]
    other = broker.client()
    last = attach(other, None, "last", credit=0)
    client.peer._access.drop_expired = lambda: False
    client.peer._access.permits = lambda *_: False
    await send("a1")
    receiver.detach()
    await client.settle()
    await other.settle()
    assert {client.detached(link) for link in waiting} == {"amqp:unauthorized-access"}
    assert granted(last) == "a"
    assert not client.closed


async def test_a_wait_as_long_as_the_lock_ends_quietly_i4(broker, client, send):
    """In receive-and-delete: the client waits for the next message from its last one on, the lock lasts from its first."""
    await send("a1")
    link = attach(client, "a", snd_settle_mode=1)
    link.rcv_settle_mode = 0
    await client.settle()
    assert client.bodies(link) == [b"a1"]
    broker.clock.advance(LOCK_MS - 1000)
    await send("a2")
    await client.settle()
    assert client.bodies(link) == [b"a1", b"a2"]
    broker.clock.advance(LOCK_MS + 1000)
    broker.engine.tick()
    await client.settle()
    assert not client.detached(link)
    broker.clock.advance(4000)
    broker.engine.tick()
    await client.settle()
    assert client.detached(link) == "com.microsoft:session-lock-lost"
