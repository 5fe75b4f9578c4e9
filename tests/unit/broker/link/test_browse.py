"""Browsers: receivers that ask for copies are served as peeks."""

import pytest

from isthmus.amqp import CreditChanged, SentSettled, Transfers, codec
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source, Target
from isthmus.amqp.types import Symbol
from isthmus.entities import EntityStatus, QueueDescription


async def fill(client, message, *texts, queue="orders"):
    link = client.sender(queue, f"s{len(client.events)}")
    link.send_many([message(text) for text in texts], [n.to_bytes(4, "big") for n in range(len(texts))])
    await client.settle()


def browse(client, address="orders", credit=100, name="browser", **attach):
    source = Source(address=address, distribution_mode=Symbol("copy"))
    link = client.session.attach_receiver(name, source, target=Target(address="me"), **attach)
    client.pump()
    if credit:
        link.grant(credit)
        client.pump()
    return link


async def test_a_browser_sees_all_and_takes_nothing_i1(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b", "c")
    holder = client.receiver("orders", credit=1)
    await client.settle()
    link = browse(client)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b", b"c"]
    assert link.source.distribution_mode == "copy"
    holder.dispose(0, 0, Released())
    await client.settle()
    assert [one.locked_message_count for one in [broker.engine.runtime("orders")]] == [0]
    link = client.receiver("orders", credit=3, name="after")
    await client.settle()
    assert client.bodies(link) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("state", [Accepted(), Rejected(), Modified(True, True), Released()])
async def test_what_a_browser_answers_changes_nothing_i1(broker, message, state):
    client = broker.client()
    await fill(client, message, "a", "b")
    link = browse(client, rcv_settle_mode=0, snd_settle_mode=0)
    await client.settle()
    event, *_ = [event for event in client.seen(Transfers) if event.link is link]
    link.dispose(event.first_delivery_id, event.first_delivery_id + 1, state, settled=False)
    await client.settle()
    assert [type(event.state) for event in client.seen(SentSettled)][-1:] == [type(state)]
    assert broker.engine.runtime("orders").active_message_count == 2
    assert broker.engine.runtime("orders").dead_letter_message_count == 0


async def test_a_drain_shows_the_end_i3(broker, message):
    client = broker.client()
    await fill(client, message, *map(str, range(150)))
    link = browse(client, credit=0)
    link.grant(1000, drain=True)
    await client.settle()
    await client.settle()
    assert client.bodies(link) == [str(n).encode() for n in range(150)]
    assert link.credit == 0
    assert [event for event in client.seen(CreditChanged) if event.link is link]


async def test_credit_is_kept_to_and_continued_from_i2(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b", "c")
    link = browse(client, credit=2)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    link.grant(10)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b", b"c"]


async def test_a_message_whose_annotations_cannot_be_read_stops_no_browser_i2_i3(broker, message):
    client = broker.client()
    unreadable = codec.encode_map([b"\xa3\1a", b"\xa1\2\xff\xff", b"\xa3\1b", b"\x40"])
    sender = client.sender("orders")
    sender.send_many([b"\0Sr" + unreadable + message("a"), message("b")], [b"1", b"2"])
    await client.settle()
    link = browse(client, credit=0)
    link.grant(10, drain=True)
    await client.settle()
    await client.settle()
    assert client.bodies(link) == [b"a", b"b"]
    assert link.credit == 0


async def test_what_gives_no_messages_is_not_browsed(broker):
    client = broker.client()
    assert client.detached(browse(client, "closed")) == "com.microsoft:entity-disabled"


async def test_an_entity_that_goes_takes_its_browsers_along(broker, message):
    client = broker.client()
    link = browse(client)
    broker.engine.delete_queue("orders")
    client.peer.tick()
    await client.settle()
    assert client.detached(link) == "amqp:not-found"


async def test_a_session_queue_is_browsed_without_a_session(broker, message):
    broker.engine.create_queue("sessions", QueueDescription(requires_session=True, status=EntityStatus.ACTIVE))
    client = broker.client()
    broker.engine.sender("sessions").accept([message("a", properties={"group_id": "x"})])
    await broker.namespace.commits.wait_durable()
    link = browse(client, "sessions")
    await client.settle()
    assert client.bodies(link) == [b"a"]
