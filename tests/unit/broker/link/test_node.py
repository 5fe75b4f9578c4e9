"""Requests whose replies wait for each other."""

import asyncio
import gc

import pytest

from harness.check.until import passes, until_async
from isthmus.amqp import codec, section
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Array, Int, Long, Timestamp, UInt
from isthmus.broker.link.node import Requests
from isthmus.broker.link.request import Reply
from isthmus.entities import Large, QueueDescription
from isthmus.errors import QuotaExceededError, UnauthorizedError
from isthmus.store import BlobFolder

LONGS = 0x81
LARGE = 500_000
"""Bytes of a message: a reply with several of them is sent in parts."""
BODY = 2 << 20


class Asker:
    """A client's pair of links to a node."""

    def __init__(self, client, entity, credit=100):
        node = f"{entity}/$management"
        self.client = client
        self.requests = client.session.attach_sender("q", Target(address=node), source=Source(address="me"))
        self.replies = client.session.attach_receiver("a", Source(address=node), target=Target(address="me"))
        client.pump()
        if credit:
            self.replies.grant(credit)
            client.pump()
        self.count = 0

    def ask(self, operation, body):
        self.count += 1
        request = section.encode_message(
            body,
            properties={"message_id": str(self.count), "reply_to": "me"},
            application_properties={"operation": f"com.microsoft:{operation}"},
            value_body=True,
        )
        self.requests.send(request, b"%d" % self.count)

    def take(self, *numbers):
        """Receive and delete deferred messages."""
        self.ask(
            "receive-by-sequence-number", {"sequence-numbers": Array(LONGS, numbers), "receiver-settle-mode": UInt(0)}
        )

    async def answers(self, count):
        """The replies, once there are so many: status, and how many messages."""
        await until_async(lambda: self.client.pump() or len(self.client.payloads(self.replies)) >= count)
        return [self.read(each) for each in self.client.payloads(self.replies)]

    @staticmethod
    def read(reply):
        sections = section.locate(reply)
        status = section.decode_map(reply, sections.application_properties)["statusCode"]
        value, _ = codec.decode(reply, sections.body[0] + 3)
        return status, len(value.get("messages", ()))


async def defer(broker, message, count, size=LARGE):
    other = broker.client()
    for number in range(count):
        other.sender("orders", f"s{number}").send(message("M" * size), b"%d" % number)
    await other.settle()
    queue = broker.engine.receiver("orders")
    while (acquired := queue.acquire(count)) is not None:
        queue.defer(acquired.tags)
    await other.settle()
    other.peer.lost()


async def test_replies_with_credit_wait_for_a_large_one_before_them_i3(broker, message):
    await defer(broker, message, 4)
    asker = Asker(broker.client(), "orders")
    for _ in range(6):
        asker.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(4)})
    assert await asker.answers(6) == [(200, 4)] * 6
    assert not asker.client.detached(asker.requests)


async def test_messages_that_were_deleted_for_a_client_come_though_large_replies_are_before_them(broker, message):
    await defer(broker, message, 16)
    asker = Asker(broker.client(), "orders")
    for first in range(1, 17, 4):
        asker.take(*range(first, first + 4))
    assert await asker.answers(4) == [(200, 4)] * 4
    assert broker.engine.runtime("orders").message_count == 0


async def test_nothing_is_deleted_for_a_client_that_grants_no_credit_beyond_what_may_wait(broker, message):
    await defer(broker, message, 8)
    asker = Asker(broker.client(), "orders", credit=0)
    for first in (1, 5):
        asker.take(*range(first, first + 4))
        await asker.client.settle()
    assert asker.client.detached(asker.requests) == "amqp:resource-limit-exceeded"
    assert broker.engine.runtime("orders").message_count == 4
    asker.replies.grant(1)
    assert await asker.answers(1) == [(200, 4)]


async def test_no_request_is_carried_out_whose_reply_has_no_room_i3(broker, message):
    await defer(broker, message, 4)
    asker = Asker(broker.client(), "orders", credit=0)
    asker.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(4)})
    due = Timestamp(broker.clock.wall_ms() + 60_000)
    item = {"message": message("later", annotations={"x-opt-scheduled-enqueue-time": due})}
    for _ in range(2):
        asker.ask("schedule-message", {"messages": [item]})
    await asker.client.settle()
    assert asker.client.detached(asker.requests) == "amqp:resource-limit-exceeded"
    assert broker.engine.runtime("orders").scheduled_message_count == 0
    asker.replies.grant(9)
    assert await asker.answers(1) == [(200, 4)]


async def test_what_was_deleted_together_for_a_client_without_credit_is_sent_when_it_grants_some(broker, message):
    await defer(broker, message, 8)
    asker = Asker(broker.client(), "orders", credit=0)
    for first in (1, 5):
        asker.take(*range(first, first + 4))
    await asker.client.settle()
    asker.replies.grant(2)
    assert await asker.answers(2) == [(200, 4)] * 2


@pytest.mark.parametrize("waits_for", ["the disk", "the window", "credit"])
async def test_replies_with_deleted_messages_are_sent_before_this_side_ends_their_link_i4(broker, message, waits_for):
    """As where a token expires."""
    await defer(broker, message, 4)
    client = broker.client(incoming_window=1 if waits_for == "the window" else 5000, max_frame_size_bytes=1 << 12)
    asker = Asker(client, "orders", credit=0 if waits_for == "credit" else 100)
    if waits_for == "the disk":
        broker.store.gate.clear()
    asker.take(1, 2, 3, 4)
    await until_async(lambda: client.send_only() or broker.engine.runtime("orders").message_count == 0)
    if waits_for != "the disk":
        await broker.namespace.commits.wait_idle()
        await passes(20, client.send_only)
    links = client.peer._links
    for link in list(links.handlers):
        links.drop(link, UnauthorizedError("expired"))
    broker.store.gate.set()
    if waits_for == "credit":
        await client.settle()
        asker.replies.grant(1)
    assert await asker.answers(1) == [(200, 4)]
    await until_async(lambda: client.pump() or client.detached(asker.replies))
    assert links.handlers == {}


@pytest.mark.parametrize("cause", ["an expired token", "a connection that is given up"])
async def test_requests_that_were_taken_are_answered_before_this_side_ends_their_links_i5(broker, message, cause):
    """Without the reply the client schedules the message twice. What it asks for from then on is not done."""
    due = Timestamp(broker.clock.wall_ms() + 60_000)
    item = {"message": message("later", annotations={"x-opt-scheduled-enqueue-time": due})}
    client = broker.client()
    asker = Asker(client, "orders")
    broker.store.gate.clear()
    asker.ask("schedule-message", {"messages": [item]})
    await passes(5, client.pump)
    links = client.peer._links
    if cause == "an expired token":
        for link in list(links.handlers):
            links.drop(link, UnauthorizedError("expired"))
    else:
        client.peer._give_up(QuotaExceededError("too much"))
    asker.ask("schedule-message", {"messages": [item]})
    await passes(5, client.pump)
    broker.store.gate.set()
    await until_async(lambda: client.pump() or client.detached(asker.requests) or client.closed_with())
    assert [asker.read(each) for each in client.payloads(asker.replies)] == [(200, 0)]
    assert links.handlers == {}
    assert broker.engine.runtime("orders").scheduled_message_count == 1


async def test_a_request_that_fails_twice_has_one_reply_and_does_not_keep_its_links_i5(broker):
    """As one that schedules messages in two partitions, of which one refuses and then the store of the other fails."""
    asker = Asker(broker.client(), "orders")
    links = asker.client.peer._links
    [requests] = [each for each in links.handlers.values() if isinstance(each, Requests)]
    requests._answer = lambda request, respond: [respond(Reply(500, "one")), respond(Reply(500, "two"))]
    asker.ask("schedule-message", {})
    asker.client.pump()
    for link in list(links.handlers):
        links.drop(link, UnauthorizedError("expired"))
    assert links.handlers == {}
    assert await asker.answers(1) == [(500, 0)]


async def test_the_reply_to_a_change_is_sent_though_a_large_one_is_before_it_as_their_link_is_ended_i5(broker, message):
    await defer(broker, message, 4)
    client = broker.client(incoming_window=1, max_frame_size_bytes=1 << 12)
    asker = Asker(client, "orders")
    asker.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(4)})
    due = Timestamp(broker.clock.wall_ms() + 60_000)
    item = {"message": message("later", annotations={"x-opt-scheduled-enqueue-time": due})}
    asker.ask("schedule-message", {"messages": [item]})
    await until_async(lambda: client.send_only() or broker.engine.runtime("orders").scheduled_message_count)
    await broker.namespace.commits.wait_idle()
    for link in list(client.peer._links.handlers):
        client.peer._links.drop(link, UnauthorizedError("expired"))
    await until_async(lambda: client.pump() or client.detached(asker.replies))
    assert [asker.read(each) for each in client.payloads(asker.replies)] == [(200, 4), (200, 0)]


async def test_a_large_reply_that_is_not_read_does_not_keep_its_link_i5(broker, message):
    await defer(broker, message, 4)
    client = broker.client(incoming_window=1, max_frame_size_bytes=1 << 12)
    asker = Asker(client, "orders")
    asker.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(4)})
    await passes(20, client.send_only)
    for link in list(client.peer._links.handlers):
        client.peer._links.drop(link, UnauthorizedError("expired"))
    assert client.peer._links.handlers == {}


async def test_nothing_is_deleted_for_a_client_without_a_link_for_the_reply(broker, message):
    await defer(broker, message, 1, 10)
    asker = Asker(broker.client(), "orders")
    asker.replies.detach()
    asker.client.pump()
    asker.take(1)
    await asker.client.settle()
    assert broker.engine.runtime("orders").deferred_message_count == 1


@pytest.fixture
async def bodies(broker, tmp_path):
    """Two deferred messages whose bodies are in files."""
    broker.engine.blobs.files = files = BlobFolder(tmp_path)
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=4096))
    await broker.namespace.commits.wait_idle()
    queue = broker.engine.receiver("big")
    for number in (1, 2):
        assert broker.engine.blobs.reserve() == number
        writer = files.create(number)
        writer.write([b"\0Su\xb0" + (BODY - 8).to_bytes(4, "big") + bytes(BODY - 8)])
        writer.sync()
        writer.close()
        front = section.encode_message(b"", properties={"message_id": str(number)})
        front = front[: section.locate(front).body[0]]
        queue.accept([Large(front, broker.engine.blobs.whole(number, BODY))])
    await broker.namespace.commits.wait_idle()
    queue.defer(queue.acquire(2).tags)
    await broker.namespace.commits.wait_idle()
    return files


@pytest.mark.parametrize("mode", [0, 1], ids=["receive-and-delete", "peek-lock"])
async def test_an_error_keeps_no_body_until_garbage_is_collected(broker, bodies, mode):
    gc.collect()
    gc.disable()
    try:
        asker = Asker(broker.client(), "big")
        bodies.path_of(2).rename(bodies.path_of(9))
        wanted = {"sequence-numbers": Array(LONGS, [1, 2]), "receiver-settle-mode": UInt(mode)}
        asker.ask("receive-by-sequence-number", wanted)
        assert await asker.answers(1) == [(500, 0)]
        await until_async(lambda: not broker.engine.blobs.pinned)
    finally:
        gc.enable()


async def test_a_deferred_message_whose_body_cannot_be_read_is_not_deleted(broker, bodies):
    asker = Asker(broker.client(), "big")
    bodies.path_of(2).rename(bodies.path_of(9))
    asker.take(1, 2)
    [(status, _)] = await asker.answers(1)
    assert status >= 500
    await asker.client.settle()
    assert broker.engine.runtime("big").deferred_message_count == 2
    bodies.path_of(9).rename(bodies.path_of(2))
    asker.take(1, 2)
    assert (await asker.answers(2))[-1] == (200, 2)
    await asker.client.settle()
    assert broker.engine.runtime("big").deferred_message_count == 0


@pytest.mark.parametrize("operation", ["peek-message", "receive-by-sequence-number"])
async def test_a_body_that_cannot_be_read_fails_its_request_and_no_other(broker, bodies, operation):
    """Message I2: those behind it are of messages that were deleted, or of changes that the client would repeat."""
    asker = Asker(broker.client(), "big")
    bodies.path_of(2).rename(bodies.path_of(9))
    if operation == "peek-message":
        asker.ask(operation, {"from-sequence-number": Long(0), "message-count": Int(2)})
    else:
        asker.ask(operation, {"sequence-numbers": Array(LONGS, [2]), "receiver-settle-mode": UInt(1)})
    asker.take(1)
    await until_async(
        lambda: (
            asker.client.pump()
            or asker.client.detached(asker.replies)
            or len(asker.client.payloads(asker.replies)) == 2
        )
    )
    assert not asker.client.detached(asker.replies)
    assert sorted(await asker.answers(2)) == [(200, 1), (500, 0)]
    bodies.path_of(9).rename(bodies.path_of(2))
    asker.take(2)
    assert (await asker.answers(3))[-1] == (200, 1)


async def test_a_client_that_goes_while_bodies_are_read_leaves_its_messages(broker, bodies):
    asker = Asker(broker.client(), "big")
    asker.take(1, 2)
    asker.client.send_only()
    asker.client.peer.lost()
    await passes(50)
    await asyncio.sleep(0.1)
    await broker.namespace.commits.wait_idle()
    queue = broker.engine.receiver("big")
    assert broker.engine.runtime("big").deferred_message_count == 2
    assert len(queue.receive_deferred([1, 2]).tags) == 2


async def test_a_stop_while_bodies_are_read_leaves_the_messages(broker, bodies):
    asker = Asker(broker.client(), "big")
    asker.take(1, 2)
    asker.client.send_only()
    asker.client.peer.take_no_more()  # as a stop does
    [(status, _)] = await asker.answers(1)
    assert status >= 400
    await asker.client.settle()
    assert broker.engine.runtime("big").deferred_message_count == 2
