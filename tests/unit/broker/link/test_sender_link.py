"""Receiving links: credit, drain, both settlement modes, and what a detached link leaves behind."""

import asyncio
import gc
import threading
import time
import uuid
from dataclasses import replace

import pytest

from harness.check.until import passes, until_async
from isthmus.amqp import CreditChanged, Transfers, section
from isthmus.amqp.performative import Accepted, Source, Target
from isthmus.amqp.types import Symbol
from isthmus.entities import EntityStatus, QueueDescription, RuleDescription, SqlAction, SqlFilter, TopicDescription
from isthmus.errors import StoreError, UnauthorizedError
from isthmus.store import BlobFolder

FILTER = Symbol("com.microsoft:session-filter")


async def fill(client, message, *texts):
    link = client.sender("orders", f"s{uuid.uuid4()}")
    for start in range(0, len(texts), 1000):
        part = texts[start : start + 1000]
        link.send_many([message(text) for text in part], [n.to_bytes(4, "big") for n in range(len(part))])
        await client.settle()


async def detached(client, link):
    """Waits until the broker has ended the link."""
    limit = time.monotonic() + 60
    while not client.detached(link):
        assert time.monotonic() < limit
        await client.settle()
        await passes(1)


async def test_no_more_is_sent_than_the_credit(broker, message):
    client = broker.client()
    await fill(client, message, *map(str, range(10)))
    link = client.receiver("orders", credit=3)
    await client.settle()
    assert client.bodies(link) == [b"0", b"1", b"2"]
    link.grant(2)
    await client.settle()
    assert client.bodies(link) == [b"0", b"1", b"2", b"3", b"4"]


async def test_messages_come_as_they_arrive(broker, message):
    client = broker.client()
    link = client.receiver("orders", credit=100)
    await fill(client, message, "a", "b")
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    [first, *_] = client.seen(Transfers)
    assert len(first.tags[0]) == 16
    assert not first.settled


async def test_drain_uses_up_the_credit(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b")
    link = client.receiver("orders", credit=0)
    link.grant(10, drain=True)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    assert link.credit == 0
    assert any(event.link is link for event in client.seen(CreditChanged))


@pytest.mark.parametrize("count", [0, 3])
async def test_a_drain_waits_for_a_wire_that_takes_no_more(broker, message, count):
    client = broker.client()
    await fill(client, message, *map(str, range(count)))
    link = client.receiver("orders")
    client.is_writable = False
    link.grant(10, drain=True)
    await client.settle()
    assert (client.payloads(link), link.credit) == ([], 10)  # not answered that there is nothing
    client.is_writable = True
    client.peer.writable()
    await client.settle()
    assert (len(client.payloads(link)), link.credit) == (count, 0)


async def test_a_drain_waits_for_the_session_s_window(broker, message):
    client = broker.client(incoming_window=2)
    await fill(client, message, *map(str, range(5)))
    link = client.receiver("orders")
    for drain in (False, True):
        link.grant(10, drain=drain)
        client.peer.receive(client.connection.take())
        for _ in range(5):
            await asyncio.sleep(0)
    await client.settle()  # only now the client reads
    assert (client.bodies(link), link.credit) == ([str(n).encode() for n in range(5)], 0)


@pytest.mark.parametrize("count", [0, 5])
async def test_drain_in_receive_and_delete_mode(broker, message, count):
    client = broker.client()
    await fill(client, message, *map(str, range(count)))
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(10, drain=True)
    await client.settle()
    assert client.bodies(link) == [str(n).encode() for n in range(count)]
    assert link.credit == 0


async def test_receive_and_delete_sends_only_what_was_removed_from_the_disk_i1(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b")
    broker.store.gate.clear()
    link = client.receiver("orders", credit=5, snd_settle_mode=1, rcv_settle_mode=0)
    for _ in range(3):
        client.pump()
    assert client.bodies(link) == []
    broker.store.gate.set()
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    assert all(event.settled for event in client.seen(Transfers))
    assert broker.engine.runtime("orders").message_count == 0


@pytest.mark.parametrize("drain", [False, True])
async def test_a_deletion_that_failed_leaves_the_receiver_its_credit(broker, message, monkeypatch, drain):
    """The message is there again, and a client that waits for it sends no other flow."""
    monkeypatch.setattr("isthmus.broker.peer._RETRY_SECONDS", 0.0)
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    broker.store.error = StoreError("no space left on device")
    link.grant(1, drain=drain)
    while not client.bodies(link):
        await passes(1)
        await client.settle()
    assert client.bodies(link) == [b"a"]
    assert link.credit == 0
    assert broker.engine.runtime("orders").message_count == 0


@pytest.mark.parametrize("failures", [1, 3])
async def test_what_the_store_has_deleted_although_it_failed_is_sent(broker, message, monkeypatch, failures):
    """On a disk that refuses a sync, or has no room left, what was written before remains: no other client has the messages."""
    monkeypatch.setattr("isthmus.broker.peer._RETRY_SECONDS", 0.0)
    monkeypatch.setattr(broker.store, "reopen", lambda: None)
    client = broker.client()
    await fill(client, message, "a", "b", "c")
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    broker.store.refusal = StoreError("no space left on device")  # also of what the passing of time stages
    link.grant(2)
    await client.settle()
    for _ in range(failures - 1):
        broker.engine.probe()
        await client.settle()
    assert client.bodies(link) == []  # the deletion is not known to be durable yet (I1)
    broker.store.refusal = None
    broker.engine.probe()
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    assert broker.engine.runtime("orders").message_count == 1
    link.grant(5)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("refused", ["sync", "write"])
async def test_what_the_store_has_deleted_although_it_failed_is_sent_before_the_namespace_stops(
    broker, message, monkeypatch, refused
):
    monkeypatch.setattr(broker.store, "reopen", lambda: None)
    monkeypatch.setattr("isthmus.broker.namespace._BODY_SECONDS", 0.2)
    client = broker.client()
    await fill(client, message, "a")
    broker.engine.tick()  # the next periodic clean-up is ten seconds away
    await client.settle()
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    if refused == "sync":
        broker.store.error = StoreError("no space left on device")
        link.grant(1)
    else:
        broker.store.gate.clear()
        link.grant(1)
        await passes(20, client.pump)  # the deletion is written, and not synced yet
        broker.engine.sender("orders").accept([message("b")])
        with monkeypatch.context() as full:
            full.setattr(broker.store, "write", raises(StoreError("no space left on device")))
            with pytest.raises(StoreError):
                broker.engine.receiver("orders").peek(0, 1)
        broker.store.gate.set()
    await client.settle()
    assert client.bodies(link) == []
    await broker.namespace.disconnect()
    client.pump()
    assert client.bodies(link) == [b"a"]


def raises(error):
    def call(*_):
        raise error

    return call


async def test_a_disabled_queue_gives_nothing(broker):
    client = broker.client()
    link = client.receiver("closed", credit=1)
    await client.settle()
    assert not client.attached(link) or client.bodies(link) == []


async def test_a_slow_client_is_not_sent_more(broker, message):
    client = broker.client()
    await fill(client, message, *map(str, range(600)))
    client.is_writable = False
    link = client.receiver("orders", credit=1000)
    await client.settle()
    assert client.bodies(link) == []
    client.is_writable = True
    client.peer.writable()
    await client.settle()
    assert len(client.bodies(link)) == 600


async def test_delivery_ids_wrap(broker, message):
    client = broker.client()
    await fill(client, message, *map(str, range(6)))
    link = client.receiver("orders")
    for session in client.peer._connection._by_remote.values():
        session.next_delivery_id = (1 << 32) - 3
    link.grant(6)
    await client.settle()
    first = client.seen(Transfers)[0].first_delivery_id
    assert first == (1 << 32) - 3
    link.dispose(first, 2, Accepted(), settled=False)
    await client.settle()
    assert broker.engine.runtime("orders").message_count == 0


def delivery_annotations(payload):
    found = section.locate(payload)
    assert found.delivery_annotations[1], "no delivery-annotations section"
    return section.decode_map(payload, found.delivery_annotations)


async def test_a_locked_message_names_its_lock_token(broker, message):
    client = broker.client()
    sender = client.sender("orders")
    sender.send(message("a"), b"1")
    own = section.encode_map_section(section.DELIVERY_ANNOTATIONS, {"own": 7, "x-opt-lock-token": uuid.uuid4()})
    payload = message("b", header=section.Header(durable=True))
    end = section.locate(payload).header[1]
    sender.send(payload[:end] + own + payload[end:], b"2")
    await client.settle()
    link = client.receiver("orders", credit=10)
    await client.settle()
    tags = [tag for event in client.seen(Transfers) for tag in event.tags]
    first, second = (delivery_annotations(payload) for payload in client.payloads(link))
    assert first == {"x-opt-lock-token": uuid.UUID(bytes_le=tags[0])}
    assert second == {"own": 7, "x-opt-lock-token": uuid.UUID(bytes_le=tags[1])}
    assert client.bodies(link) == [b"a", b"b"]


async def test_a_message_that_is_deleted_at_delivery_has_an_empty_section(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=10, snd_settle_mode=1, rcv_settle_mode=0)
    await client.settle()
    assert [delivery_annotations(payload) for payload in client.payloads(link)] == [{}]
    assert client.bodies(link) == [b"a"]


@pytest.mark.parametrize("cause", ["disabled", "disabled, noticed by the tick", "unauthorised"])
async def test_what_is_deleted_for_a_link_is_sent_before_the_link_is_ended_from_this_side_i3(broker, message, cause):
    client = broker.client()
    await fill(client, message, "a", "b")
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    broker.store.gate.clear()
    link.grant(1)
    for _ in range(5):
        client.pump()
        await asyncio.sleep(0)
    if cause == "unauthorised":
        [attached] = [each for each in client.peer._links.handlers if each.name == link.name]
        client.peer._links.drop(attached, UnauthorizedError("expired"))
    else:
        broker.engine.update_queue("orders", QueueDescription(status=EntityStatus.DISABLED))
        if cause == "disabled":
            link.grant(1)
            for _ in range(5):
                client.pump()
                await asyncio.sleep(0)
        client.peer.tick()
    broker.store.gate.set()
    await client.settle()
    assert client.detached(link)
    left = broker.engine.runtime("orders").active_message_count
    assert len(client.payloads(link)) + left == 2


@pytest.mark.parametrize("first", [b"L" * (3 << 19), b"a"], ids=["large", "small"])
async def test_a_large_message_that_was_deleted_for_a_link_is_sent_to_its_end_before_the_link_is_ended_i3(
    broker, message, first
):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=4096))
    await broker.namespace.commits.wait_idle()
    other = broker.client()
    other.sender("big", "big").send_many([message(first), message(b"M" * (3 << 19)), message("c")], [b"1", b"2", b"3"])
    await other.settle()
    client = broker.client(incoming_window=1, max_frame_size_bytes=1 << 16)
    link = client.receiver("big", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(2)
    await until_async(lambda: client.send_only() or broker.engine.runtime("big").active_message_count < 3)
    await passes(20, client.send_only)
    await broker.namespace.commits.wait_idle()
    left = broker.engine.runtime("big").active_message_count
    assert left < 3
    [attached] = [each for each in client.peer._links.handlers if each.name == link.name]
    client.peer._links.drop(attached, UnauthorizedError("expired"))
    await detached(client, link)
    assert len(client.payloads(link)) + broker.engine.runtime("big").active_message_count == 3
    assert broker.engine.runtime("big").active_message_count == left


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def reading(broker, message, monkeypatch, tmp_path):
    """A queue of large messages and others, whose bodies are read when the test lets them."""
    for module in ("stream", "body_check"):
        monkeypatch.setattr(f"isthmus.broker.large.{module}.RETRY_SECONDS", 0.0)
    broker.engine.blobs.files = files = BlobFolder(tmp_path)
    description = QueueDescription(max_message_size_in_kilobytes=4096, lock_duration_ms=5_000)
    broker.engine.create_queue("big", description)
    broker.engine.create_queue("sessions", replace(description, requires_session=True, max_delivery_count=2))
    await broker.namespace.commits.wait_idle()
    other = broker.client()
    texts = [b"L" * (3 << 19), "b", b"M" * (3 << 19), "d"]
    for path in ("big", "sessions"):
        payloads = [message(text, properties={"group_id": "a"}) for text in texts]
        other.sender(path, path).send_many(payloads, [b"1", b"2", b"3", b"4"])
        await until_async(lambda path=path: other.pump() or broker.engine.runtime(path).active_message_count == 4)
    made = Reading(files.open)
    monkeypatch.setattr(files, "open", made.open)
    yield made
    made.gate.set()


class Reading:
    """The reads of bodies: `gate` lets them go on, and so many `refusals` come first."""

    def __init__(self, opened):
        self.gate = threading.Event()
        self.refusals = 0
        self.opens = 0
        self._opened = opened

    def open(self, number):
        self.opens += 1
        assert self.gate.wait(10)
        self.refusals -= 1
        if self.refusals >= 0:
            raise StoreError("too many open files")
        return self._opened(number)


def sizes(client, link):
    return [len(payload) > 1 << 20 for payload in client.payloads(link)]


@pytest.mark.parametrize("refusals", [1, 1000])
@pytest.mark.parametrize("path", ["big", "sessions"])
async def test_a_body_that_cannot_be_read_costs_no_message_i4(broker, reading, no_collector, refusals, path):
    """Nor does the error keep its file for ever."""
    client = broker.client()
    reading.refusals = refusals
    source = Source(address=path, filter={FILTER: "a"} if path == "sessions" else None)
    link = client.session.attach_receiver(
        "r", source, target=Target(address="me"), snd_settle_mode=1, rcv_settle_mode=0
    )
    link.grant(4)
    await passes(20, client.pump)
    reading.gate.set()
    if refusals == 1:
        await until_async(lambda: client.pump() or len(client.payloads(link)) == 4)
        assert sizes(client, link) == [True, False, True, False]
        await client.settle()
        assert broker.engine.runtime(path).active_message_count == 0
    else:
        await detached(client, link)
        assert client.payloads(link) == []
        assert broker.engine.runtime(path).active_message_count == 4
    await until_async(lambda: not broker.engine.blobs.pinned)


async def test_the_others_come_where_a_body_cannot_be_read_i4(broker, reading):
    """As to a receiver with locks: the message is there again when its lock ends."""
    reading.refusals = 11
    reading.gate.set()
    client = broker.client()
    await detached(client, client.receiver("big", credit=4, snd_settle_mode=1, rcv_settle_mode=0))
    link = client.receiver("big", credit=4, name="again", snd_settle_mode=1, rcv_settle_mode=0)
    await until_async(lambda: client.pump() or len(client.payloads(link)) == 3)
    assert sizes(client, link) == [False, True, False]
    broker.clock.advance(5_000)
    broker.namespace.tick_engine()
    await until_async(lambda: client.pump() or len(client.payloads(link)) == 4)
    assert section.decode_header(client.payloads(link)[3], (0, 20)).delivery_count == 1


@pytest.mark.parametrize("mode", [0, 1], ids=["peek-lock", "receive-and-delete"])
async def test_a_body_that_cannot_be_read_does_not_block_its_session_for_ever(broker, reading, mode):
    """Session attach I5."""
    reading.gate.set()
    client = broker.client()
    for attempt in range(2):
        reading.refusals = 11 if mode else 1
        link = attach_session(client, f"r{attempt}", mode)
        link.grant(4)
        await detached(client, link)
        assert client.payloads(link) == []
        await client.settle()
    link = attach_session(client, "last", mode)
    link.grant(4)
    await until_async(lambda: client.pump() or len(client.payloads(link)) == 3)
    assert sizes(client, link) == [False, True, False]
    assert broker.engine.runtime("sessions").dead_letter_message_count == 1


def attach_session(client, name, mode):
    link = client.session.attach_receiver(
        name,
        Source(address="sessions", filter={FILTER: "a"}),
        target=Target(address="me"),
        snd_settle_mode=mode,
        rcv_settle_mode=0,
    )
    client.pump()
    return link


@pytest.mark.parametrize("mode", [0, 1], ids=["peek-lock", "receive-and-delete"])
async def test_a_message_with_a_body_in_a_file_comes_also_where_an_action_has_made_it_small(
    broker, message, tmp_path, mode
):
    broker.engine.blobs.files = BlobFolder(tmp_path)
    broker.engine.create_topic("news", TopicDescription(max_message_size_in_kilobytes=4096))
    rule = RuleDescription("short", SqlFilter("1 = 1"), SqlAction("REMOVE long"))
    broker.engine.create_subscription("news", "all", default_rule=rule)
    await broker.namespace.commits.wait_idle()
    client = broker.client()
    client.connection.peer_max_frame_size_bytes = 1 << 12  # it sends small frames
    text = b"L" * ((1 << 20) - 10_000)
    client.sender("news").send(message(text, application_properties={"long": "x" * 20_000}), b"1")
    path = "news/Subscriptions/all"
    await until_async(lambda: client.pump() or broker.engine.runtime(path).active_message_count == 1)
    assert broker.engine.receiver(path).has_large
    link = client.receiver(path, credit=1, snd_settle_mode=mode, rcv_settle_mode=0)
    await until_async(lambda: client.pump() or client.detached(link) or client.payloads(link))
    assert client.bodies(link) == [text]


@pytest.mark.parametrize("end", ["detach", "disconnect", "drop", "stop", "no credit"])
async def test_nothing_is_deleted_for_a_link_that_ends_while_a_body_is_read_i4(broker, reading, end):
    client, other = broker.client(), broker.client()
    link = client.receiver("big", credit=4, snd_settle_mode=1, rcv_settle_mode=0)
    await until_async(lambda: client.pump() or reading.opens)
    if end == "detach":
        link.detach()
    elif end == "disconnect":
        client.peer.lost()
    elif end == "drop":
        [attached] = [each for each in client.peer._links.handlers if each.name == link.name]
        client.peer._links.drop(attached, UnauthorizedError("expired"))
    elif end == "stop":
        client.peer.take_no_more()
    else:
        link.grant(0)
    client.pump()
    reading.gate.set()
    rival = other.receiver("big", credit=4, snd_settle_mode=1, rcv_settle_mode=0)
    await until_async(lambda: other.pump() or len(other.payloads(rival)) == 4)
    assert sizes(other, rival).count(True) == 2
    client.pump()
    assert client.payloads(link) == []
    assert all(
        section.decode_header(payload, section.locate(payload).header).delivery_count == 0
        for payload in other.payloads(rival)
    )


@pytest.mark.parametrize("path", ["big", "sessions"])
async def test_a_message_whose_body_is_being_read_comes_first_to_the_next_link_i2(broker, reading, path):
    client = broker.client()
    for name in ("first", "second"):
        source = Source(address=path, filter={FILTER: "a"} if path == "sessions" else None)
        link = client.session.attach_receiver(
            name, source, target=Target(address="me"), snd_settle_mode=1, rcv_settle_mode=0
        )
        link.grant(4)
        await until_async(lambda: client.pump() or reading.opens)
        await client.settle()
        if name == "first":
            link.detach()
            client.pump()
    reading.gate.set()
    await until_async(lambda: client.pump() or len(client.payloads(link)) == 4)
    assert sizes(client, link) == [True, False, True, False]


async def test_a_drain_waits_while_a_body_is_read(broker, reading):
    client = broker.client()
    link = client.receiver("big", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(1, drain=True)
    await until_async(lambda: client.pump() or reading.opens)
    await client.settle()
    assert link.credit == 1
    reading.gate.set()
    await until_async(lambda: client.pump() or client.payloads(link))
    assert (sizes(client, link), link.credit) == ([True], 0)


@pytest.mark.parametrize("ticks", [True, False])
async def test_a_lock_lasts_while_a_body_is_read(broker, reading, ticks):
    """Without ticks, as where the process was stalled, it ends; the message is read again, and comes once."""
    client = broker.client()
    link = client.receiver("big", credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    await until_async(lambda: client.pump() or reading.opens)
    for _ in range(4):
        broker.clock.advance(2_000)
        if ticks:
            client.peer.tick()
        broker.namespace.tick_engine()
        await client.settle()
    reading.gate.set()
    await until_async(lambda: client.pump() or client.payloads(link))
    await client.settle()
    assert sizes(client, link) == [True]
    assert broker.engine.runtime("big").active_message_count == 3
    payload = client.payloads(link)[0]
    assert section.decode_header(payload, section.locate(payload).header).delivery_count == (0 if ticks else 1)


@pytest.mark.parametrize("window", [1, 2, 7])
async def test_frames_that_wait_for_the_window_leave_before_the_link_is_ended_i3(broker, message, window):
    client = broker.client(incoming_window=window, max_frame_size_bytes=1 << 12)
    await fill(broker.client(), message, "M" * 40_000, "b")
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(1)
    await until_async(lambda: client.send_only() or broker.engine.runtime("orders").active_message_count < 2)
    await passes(20, client.send_only)
    await broker.namespace.commits.wait_idle()
    [attached] = [each for each in client.peer._links.handlers if each.name == link.name]
    client.peer._links.drop(attached, UnauthorizedError("expired"))
    await detached(client, link)
    assert client.bodies(link) == [b"M" * 40_000]
    assert broker.engine.runtime("orders").active_message_count == 1


async def test_nothing_overtakes_a_large_message_that_waits_for_the_window_i2(broker, message):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=4096))
    await broker.namespace.commits.wait_idle()
    other = broker.client()
    await fill(other, message, "x", "y")
    other.sender("big", "big").send_many([message(b"L" * (3 << 19)), message("b")], [b"1", b"2"])
    await other.settle()
    client = broker.client(incoming_window=2)
    link = client.receiver("big", snd_settle_mode=1, rcv_settle_mode=0)
    rival = client.receiver("orders", name="rival")

    async def say():
        """The client sends everything, and reads nothing."""
        client.peer.receive(client.connection.take())
        for _ in range(5):
            await asyncio.sleep(0)

    broker.store.gate.clear()
    for credit in (1, 2):  # both are taken one by one, and are being deleted
        link.grant(credit)
        await say()
    rival.grant(2)  # fills the window of the session
    await say()
    broker.store.gate.set()
    await broker.namespace.commits.wait_idle()
    limit = time.monotonic() + 60
    while len(client.payloads(link)) < 2 and time.monotonic() < limit:
        await client.settle()
        await passes(1)
    assert client.bodies(rival) == [b"x", b"y"]
    assert [len(payload) > 1 << 20 for payload in client.payloads(link)] == [True, False]
