"""Event hubs on the wire: addresses, rights, sending, receiving, owner levels, properties; without sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from harness.check.until import passes
from isthmus.amqp import BATCH_FORMAT, Disposed, LinkDetached, Transfers, codec, section
from isthmus.amqp.performative import Rejected, Source
from isthmus.amqp.types import Described, Long, Symbol
from isthmus.broker.hub.address import HubAddress, parse_hub_address
from isthmus.broker.security.sas import make_token
from isthmus.broker.statistics import entity_rows
from isthmus.entities import AuthorizationRule, EntityStatus
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import StoreError

HUB = EventHubDescription(partition_count=2, consumer_groups=["audit"])
FIRST = "hub/ConsumerGroups/$Default/Partitions/0"
SELECTOR = Symbol("apache.org:selector-filter:string")


@pytest.fixture
async def hub(broker):
    broker.engine.hubs.create("hub", HUB)
    broker.engine.hubs.create("small", EventHubDescription(partition_count=1, max_message_size_in_kilobytes=2))
    await broker.namespace.commits.wait_idle()
    return broker.engine.hubs.find("hub")


def source(address, selector=None, descriptor=SELECTOR):
    if selector is None:
        return Source(address=address)
    return Source(address=address, filter={SELECTOR: Described(descriptor, selector)})


def receive(client, address=FIRST, credit=100, name="r", selector=None, epoch=None, **attach):
    properties = {Symbol("com.microsoft:receiver-name"): name}
    if epoch is not None:
        properties[Symbol("com.microsoft:epoch")] = Long(epoch)
    link = client.session.attach_receiver(name, source(address, selector), properties=properties, **attach)
    client.pump()
    if credit and not client.detached(link):
        link.grant(credit)
        client.pump()
    return link


async def send(client, address, *payloads, batch=False, name="s"):
    link = client.sender(address, name)
    if batch:
        payloads = (b"".join(b"\0Su\xb0" + len(each).to_bytes(4, "big") + each for each in payloads),)
    tags = [number.to_bytes(4, "big") for number in range(len(payloads))]
    link.send_many(list(payloads), tags, message_format=BATCH_FORMAT if batch else 0)
    await client.settle()
    return link


def outcomes(client):
    return client.seen(Disposed)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("hub", HubAddress("hub")),
        ("Hub/PARTITIONS/1", HubAddress("Hub", None, "1")),
        ("hub/consumergroups/$Default", HubAddress("hub", "$Default")),
        ("hub/ConsumerGroups/g/Partitions/1", HubAddress("hub", "g", "1")),
        ("hub/Partitions", None),
        ("hub/a/b", None),
        ("hub/ConsumerGroups/g/Parts/1", None),
        ("hub/ConsumerGroups/g/Partitions/1/2", None),
    ],
)
def test_addresses(path, wanted):
    assert parse_hub_address(path) == wanted


async def test_what_is_sent_is_received_by_every_group(broker, hub, message):
    client = broker.client()
    await send(client, "amqps://host:5671/HUB/Partitions/0", message("a"), message("b"))
    await send(client, "hub/Partitions/0", message("c"), message("d"), batch=True, name="t")
    for number, group in enumerate(("$default", "Audit")):
        link = receive(client, f"hub/consumergroups/{group}/partitions/0", name=f"r{number}")
        await client.settle()
        assert client.bodies(link) == [b"a", b"b", b"c", b"d"]
    assert all(event.settled for event in client.seen(Transfers))


async def test_events_come_live_and_in_slices(broker, hub, message):
    client = broker.client()
    link = receive(client, credit=1)
    sender = client.sender("hub/Partitions/0")
    for number in range(3):
        sender.send(message(f"{number}"), b"%d" % number)
        await client.settle()
    assert client.bodies(link) == [b"0"]
    link.grant(5)
    await client.settle()
    assert client.bodies(link) == [b"0", b"1", b"2"]
    sender.send(message("3"), b"3")
    await client.settle()
    assert client.bodies(link) == [b"0", b"1", b"2", b"3"]


async def test_i1_accepted_comes_after_the_sync_and_nothing_is_read_before(broker, hub, message):
    client = broker.client()
    link = receive(client)
    broker.store.gate.clear()
    client.sender("hub/Partitions/0").send(message("a"), b"1")
    await passes(5, client.pump)
    assert outcomes(client) == []
    assert client.bodies(link) == []
    broker.store.gate.set()
    await client.settle()
    await client.settle()
    assert len(outcomes(client)) == 1
    assert client.bodies(link) == [b"a"]


async def test_what_could_not_be_stored_is_rejected(broker, hub, message):
    client = broker.client()
    link = receive(client)
    broker.store.error = OSError("gone")
    client.sender("hub/Partitions/0").send(message("a"), b"1")
    await client.settle()
    [outcome] = outcomes(client)
    assert isinstance(outcome.state, Rejected)
    assert client.bodies(link) == []
    assert not client.detached(link)


async def test_too_large_ones_are_rejected_alone_and_batches_whole(broker, hub, message):
    client = broker.client()
    await send(client, "small", message("a"), message("x" * 3000), message("b"))
    states = [type(event.state).__name__ for event in outcomes(client) for _ in range(event.first, event.last + 1)]
    assert sorted(states) == ["Accepted", "Accepted", "Rejected"]
    await send(client, "small", *[message("y" * 900)] * 3, batch=True, name="t")
    assert outcomes(client)[-1].state.error.condition == "amqp:link:message-size-exceeded"
    link = receive(client, "small/ConsumerGroups/$Default/Partitions/0")
    await client.settle()
    assert sorted(client.bodies(link)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        (None, [b"a", b"b", b"c"]),
        ("amqp.annotation.x-opt-offset > '-1'", [b"a", b"b", b"c"]),
        ("amqp.annotation.x-opt-offset > '@latest'", []),
        ("amqp.annotation.x-opt-sequence-number > '0'", [b"b", b"c"]),
        ("amqp.annotation.x-opt-sequence-number >= '0'", [b"a", b"b", b"c"]),
        ("amqp.annotation.x-opt-enqueued-time > '1767225600000'", [b"c"]),
        ("amqp.annotation.x-opt-enqueued-time >= '1767225600000'", [b"a", b"b", b"c"]),
    ],
)
async def test_starting_positions(broker, hub, message, selector, wanted):
    client = broker.client()
    await send(client, "hub/Partitions/0", message("a"), message("b"))
    broker.clock.advance(1000)
    await send(client, "hub/Partitions/0", message("c"), name="t")
    link = receive(client, selector=selector)
    await client.settle()
    assert client.bodies(link) == wanted


async def test_refusals(broker, hub):
    client = broker.client()
    conditions = {
        "hub": "amqp:not-allowed",
        "hub/Partitions/0": "amqp:not-allowed",
        "hub/ConsumerGroups/$Default/Partitions/2": "com.microsoft:argument-out-of-range",
        "hub/ConsumerGroups/other/Partitions/0": "amqp:not-found",
        "other/ConsumerGroups/$Default/Partitions/0": "amqp:not-found",
        "hub/elsewhere": "amqp:not-found",
    }
    for number, (address, condition) in enumerate(conditions.items()):
        assert client.detached(receive(client, address, name=f"r{number}")) == condition
    assert client.detached(client.sender("hub/Partitions/7", "a")) == "com.microsoft:argument-out-of-range"
    assert client.detached(client.sender(FIRST, "b")) == "amqp:not-allowed"
    assert client.detached(receive(client, selector="nonsense", name="c")) == "com.microsoft:argument-error"
    late = "amqp.annotation.x-opt-sequence-number > '9'"
    assert client.detached(receive(client, selector=late, name="d")) == "com.microsoft:argument-error"
    broker.engine.hubs.update("hub", EventHubDescription(partition_count=2, status=EntityStatus.DISABLED))
    assert client.detached(receive(client, name="e")) == "com.microsoft:entity-disabled"


async def test_rights_are_checked(broker, hub):
    reader, writer = broker.client("reader"), broker.client("writer")
    assert reader.attached(receive(reader))
    assert reader.detached(reader.sender("hub")) == "amqp:unauthorized-access"
    assert writer.attached(writer.sender("hub"))
    assert writer.detached(receive(writer)) == "amqp:unauthorized-access"


async def test_a_hub_that_is_deleted_lets_its_links_go(broker, hub):
    client = broker.client()
    links = [receive(client), client.sender("hub")]
    broker.engine.hubs.delete("hub")
    client.peer.tick()
    client.pump()
    assert [client.detached(link) for link in links] == ["amqp:not-found"] * 2


async def test_drain_is_answered(broker, hub, message):
    client = broker.client()
    await send(client, "hub/Partitions/0", message("a"))
    link = receive(client, credit=0)
    link.grant(10, drain=True)
    await client.settle()
    assert client.bodies(link) == [b"a"]
    assert link.credit == 0


# ---- owner levels


async def test_a_higher_level_replaces_all_others(broker, hub, message):
    client, other = broker.client(), broker.client()
    plain = [receive(client, name=f"p{number}") for number in range(2)]
    elsewhere = receive(client, "hub/ConsumerGroups/audit/Partitions/0", name="x")
    first = receive(other, name="o1", epoch=1)
    await client.settle()
    assert [client.detached(link) for link in plain] == ["amqp:link:stolen"] * 2
    assert client.attached(elsewhere)
    second = receive(client, name="o2", epoch=2)
    await other.settle()
    assert other.detached(first) == "amqp:link:stolen"
    same = receive(other, name="o3", epoch=2)
    await client.settle()
    assert client.detached(second) == "amqp:link:stolen"
    await send(client, "hub/Partitions/0", message("a"))
    await other.settle()
    assert other.bodies(same) == [b"a"]
    assert client.bodies(second) == []


async def test_a_lower_level_or_none_is_refused_until_the_owner_goes(broker, hub):
    client = broker.client()
    owner = receive(client, name="o", epoch=2)
    assert client.detached(receive(client, name="a", epoch=1)) == "amqp:link:stolen"
    assert client.detached(receive(client, name="b")) == "amqp:link:stolen"
    owner.detach()
    client.pump()
    assert client.attached(receive(client, name="c"))


async def test_five_receivers_without_a_level(broker, hub):
    client = broker.client()
    links = [receive(client, name=f"r{number}") for number in range(6)]
    assert [client.attached(link) for link in links] == [True] * 5 + [False]
    assert client.detached(links[5]) == "amqp:resource-limit-exceeded"
    links[0].detach()
    client.pump()
    assert client.attached(receive(client, name="again"))
    assert broker.namespace.statistics()["event_receivers"] == 5


async def test_a_connection_that_ends_gives_its_places_back(broker, hub):
    client = broker.client()
    receive(client, epoch=5)
    client.peer.lost()
    assert broker.namespace.statistics()["event_receivers"] == 0
    other = broker.client()
    assert other.attached(receive(other))


# ---- what is at the end of the partition


async def test_runtime_metric(broker, hub, message):
    client = broker.client()
    own = section.encode_map_section(section.DELIVERY_ANNOTATIONS, {"x-own": 1})
    headed = section.encode_message(b"c", header=section.Header(durable=True))
    await send(client, "hub/Partitions/0", message("a"), own + message("b"), headed)
    reported = receive(client, desired_capabilities=["com.microsoft:enable-receiver-runtime-metric"], name="t")
    unreported = receive(client, name="u")
    await client.settle()
    state = hub.partitions[0].committed
    assert client.bodies(reported) == client.bodies(unreported) == [b"a", b"b", b"c"]
    for number, payload in enumerate(client.payloads(reported)):
        found = section.locate(payload)
        marks = section.decode_map(payload, found.delivery_annotations)
        assert marks.pop("x-own", None) == (1 if number == 1 else None)
        assert marks == {
            "last_enqueued_sequence_number": 2,
            "last_enqueued_offset": str(state.last_offset),
            "last_enqueued_time_utc": broker.clock.wall_ms(),
            "runtime_info_retrieval_time_utc": broker.clock.wall_ms(),
        }
    plain = [
        section.decode_map(each, section.locate(each).delivery_annotations) for each in client.payloads(unreported)
    ]
    assert plain == [{}, {"x-own": 1}, {}]


# ---- $management


def ask(client, properties, name="m"):
    sender = client.sender("$management", f"{name}-s")
    receiver = client.receiver("$management", credit=10, name=f"{name}-r")
    sender.send(
        section.encode_message(None, value_body=True, properties={"message_id": 7}, application_properties=properties),
        b"1",
    )
    client.pump()
    [payload] = client.payloads(receiver)
    found = section.locate(payload)
    reply = section.decode_map(payload, found.application_properties)
    return reply, codec.decode(payload, found.body[0] + 3)[0]


async def test_properties_of_a_hub(broker, hub):
    reply, reported = ask(broker.client(), {"operation": "READ", "type": "com.microsoft:eventhub", "name": "HUB"})
    assert reply["status-code"] == 200
    assert reported == {
        "name": "hub",
        "type": "com.microsoft:eventhub",
        "created_at": broker.clock.wall_ms(),
        "partition_count": 2,
        "partition_ids": ["0", "1"],
        "georeplication_factor": 1,
    }


async def test_properties_of_a_partition(broker, hub, message):
    client = broker.client()
    await send(client, "hub/Partitions/1", message("a"), message("b"))
    request = {"operation": "READ", "type": "com.microsoft:partition", "name": "hub"}
    _, empty = ask(client, {**request, "partition": "0"}, "m0")
    assert empty == {
        "name": "hub",
        "type": "com.microsoft:partition",
        "partition": "0",
        "begin_sequence_number": 0,
        "last_enqueued_sequence_number": -1,
        "last_enqueued_offset": "-1",
        "last_enqueued_time_utc": -62_135_596_800_000,
        "is_partition_empty": True,
    }
    _, full = ask(client, {**request, "partition": "1"}, "m1")
    assert full["last_enqueued_sequence_number"] == 1
    assert full["last_enqueued_offset"] == str(hub.partitions[1].committed.last_offset)
    assert full["last_enqueued_time_utc"] == broker.clock.wall_ms()
    assert full["is_partition_empty"] is False


async def test_management_refusals(broker, hub):
    client = broker.client()
    hub_request = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"}
    cases = [
        ({**hub_request, "name": "nothing"}, 404),
        ({**hub_request, "type": "com.microsoft:partition", "partition": "9"}, 404),
        ({**hub_request, "type": "com.microsoft:else"}, 400),
        ({**hub_request, "operation": "WRITE"}, 400),
    ]
    for number, (request, status) in enumerate(cases):
        reply, _ = ask(client, request, f"m{number}")
        assert reply["status-code"] == status
        assert reply["status-description"]


async def test_management_needs_a_right_of_the_connection_or_a_token(broker, hub):
    rule = AuthorizationRule("own", "hub-key", "", ["Listen"])
    broker.engine.hubs.update("hub", EventHubDescription(partition_count=2, authorization_rules=[rule]))
    client = broker.client(None)
    expires_ms = broker.clock.wall_ms() + 60_000
    client.peer._access.present_token(make_token("sb://host/hub", "own", "hub-key", expires_ms), "sb://host/hub")
    request = {"operation": "READ", "type": "com.microsoft:eventhub"}
    assert ask(client, {**request, "name": "hub"}, "m1")[0]["status-code"] == 200
    assert ask(client, {**request, "name": "small"}, "m2")[0]["status-code"] == 401
    token = make_token("sb://host/small", "reader", "key-1", expires_ms)
    assert ask(client, {**request, "name": "small", "security_token": token}, "m3")[0]["status-code"] == 200
    forged = make_token("sb://host/small", "reader", "key-9", expires_ms)
    assert ask(client, {**request, "name": "small", "security_token": forged}, "m4")[0]["status-code"] == 401


async def test_a_client_whose_only_token_is_in_its_requests(broker, hub):
    # The Java SDK has a connection for requests alone, which never shows a token to $cbs.
    client = broker.client(None)
    request = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"}
    assert ask(client, request, "m1")[0]["status-code"] == 401
    forged = make_token("sb://host/hub", "root", "no-key", broker.clock.wall_ms() + 60_000)
    assert ask(client, {**request, "security_token": forged}, "m2")[0]["status-code"] == 401
    broker.clock.advance(19_000)
    token = broker.token("sb://host/hub")
    reply, body = ask(client, {**request, "security_token": token}, "m3")
    assert (reply["status-code"], body["name"]) == (200, "hub")
    broker.clock.advance(2_000)
    client.peer.tick()
    client.pump()
    assert not client.closed
    assert client.detached(client.sender("hub", name="s2")) == "amqp:unauthorized-access"
    assert ask(client, request, "m4")[0]["status-code"] == 401


async def test_requests_with_forged_tokens_do_not_keep_a_connection(broker, hub):
    client = broker.client(None)
    forged = make_token("sb://host/hub", "root", "no-key", broker.clock.wall_ms() + 60_000)
    request = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub", "security_token": forged}
    assert ask(client, request, "m1")[0]["status-code"] == 401
    broker.clock.advance(20_100)
    client.peer.tick()
    client.pump()
    assert client.closed_with() == "amqp:unauthorized-access"


async def test_the_namespaces_numbers_have_a_row_for_each_hub(broker, hub, message):
    client = broker.client()
    await send(client, "hub", message("a"), message("b"))
    await send(client, "small", message("x" * 3000), name="t")
    receive(client)
    await client.settle()
    rows = {row.entity: row for row in entity_rows(broker.namespace) if row.kind == "event hub"}
    assert (rows["hub"].active, rows["hub"].in_total, rows["hub"].out_total) == (2, 2, 1)
    assert rows["hub"].size_bytes == sum(partition.committed.size_bytes for partition in hub.partitions)
    assert (rows["small"].active, rows["small"].refused_total) == (0, 1)


async def rest(broker, client, minutes):
    """Let time pass on a connection whose client sends heartbeats only."""
    for _ in range(minutes):
        broker.clock.advance(60_000)
        client.peer.receive(b"\0\0\0\x08\2\0\0\0")
        client.peer.tick()
        await client.settle()


async def test_idle_links_are_detached_after_half_an_hour_i1(broker, hub, message):
    client = broker.client()
    idle = client.sender("hub", "idle"), receive(client, name="idle-receiver")
    queue = client.sender("orders", "queue")
    nodes = client.sender("$management", "node"), client.receiver("$management", name="replies")
    await rest(broker, client, 29)
    assert client.detached(queue) == "amqp:link:detach-forced"
    assert [client.attached(link) for link in idle] == [True, True]
    await rest(broker, client, 2)
    assert [client.detached(link) for link in idle] == ["amqp:link:detach-forced"] * 2
    texts = [event.error.description for event in client.seen(LinkDetached) if event.link in idle]
    assert "publisher. Details: AmqpEventHubPublisher.IdleTimerExpired: Idle timeout: 00:30:00." in texts[0]
    assert "consumer. Details: AmqpEventHubConsumer.IdleTimerExpired: Idle timeout: 00:30:00." in texts[1]
    assert all(client.attached(node) for node in nodes)


@pytest.mark.parametrize("moves", ["send", "receive", "grant"])
async def test_what_moves_keeps_its_link_i1(broker, hub, message, moves):
    client = broker.client()
    sender, receiver = client.sender("hub/Partitions/0"), receive(client)
    for number in range(4):
        await rest(broker, client, 10)
        if moves == "grant":
            receiver.grant(100 + number)
        else:
            sender.send(message("x"), b"%d" % number)
        await client.settle()
    moved, other = (receiver, sender) if moves != "send" else (sender, None)
    assert client.attached(moved)
    if moves == "grant":
        assert client.detached(other) == "amqp:link:detach-forced"


async def test_no_event_hub_link_is_idle_where_the_timeout_is_off(broker, hub):
    broker.namespace.limits = replace(broker.namespace.limits, event_hub_link_idle_timeout_ms=0)
    client = broker.client()
    sender, queue = client.sender("hub"), client.sender("orders", "queue")
    await rest(broker, client, 120)
    assert client.attached(sender)
    assert client.detached(queue) == "amqp:link:detach-forced"


async def test_an_event_whose_delivery_annotations_are_broken_delays_none(broker, hub, message):
    """A producer must not make consumers that ask for the partition's end lose what comes with its event."""
    client = broker.client()
    broken = b"\0Sq\xa1\x01A" + message("b")
    await send(client, "hub/Partitions/0", message("a"), broken, message("c"))
    reported = receive(client, desired_capabilities=["com.microsoft:enable-receiver-runtime-metric"], name="t")
    await client.settle()
    assert client.bodies(reported) == [b"a", b"b", b"c"]


async def test_a_partition_that_is_a_long_number_is_refused(broker, hub):
    client = broker.client()
    link = client.sender("hub/Partitions/" + "9" * 5000)
    assert client.detached(link) == "com.microsoft:argument-out-of-range"
    assert not client.closed


async def test_requests_before_a_token_are_of_a_token_s_size(broker, hub):
    """They are read before it is known whether their client has any right."""
    client = broker.client(None)
    link = client.sender("$management")
    link.send(b"x" * (80 << 10), b"1")
    client.pump()
    assert client.detached(link) == "amqp:link:message-size-exceeded"
    assert not client.closed


async def test_a_read_that_the_disk_refuses_ends_the_link_and_not_in_silence(broker, hub, message, monkeypatch):
    client = broker.client()
    await send(client, "hub/Partitions/0", message("a"))

    def refuses(*args, **kind):
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(broker.store, "scan", refuses)
        link = receive(client)
        await client.settle()
    assert client.detached(link) == "amqp:internal-error"
    again = receive(client, name="again")
    await client.settle()
    assert client.bodies(again) == [b"a"]


async def test_a_drain_waits_for_the_session_s_window(broker, hub, message, body):
    sender = broker.client()
    await send(sender, "hub/Partitions/0", *(message(str(number)) for number in range(5)))
    client = broker.client(incoming_window=2)
    link = receive(client, credit=0)
    for drain in (False, True):
        link.grant(10, drain=drain)
        client.peer.receive(client.connection.take())
        for _ in range(5):
            await asyncio.sleep(0)
    await client.settle()  # only now the client reads
    assert (client.bodies(link), link.credit) == ([str(n).encode() for n in range(5)], 0)
