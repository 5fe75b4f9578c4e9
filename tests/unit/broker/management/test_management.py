"""`$management` over an AMQP client in memory: every operation, its rights, its failures."""

import uuid

import pytest

from isthmus.amqp import Transfers, codec, section
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Array, Described, Int, Long, Timestamp, UInt, ULong

UUIDS, LONGS = 0x98, 0x81


class Node:
    """A client's pair of links to a node."""

    def __init__(self, client, entity):
        self.client = client
        node = f"{entity}/$management"
        name = uuid.uuid4().hex
        self.requests = client.session.attach_sender(name, Target(address=node), source=Source(address="me"))
        self.replies = client.session.attach_receiver(name + "r", Source(address=node), target=Target(address=name))
        client.pump()
        self.replies.grant(100)
        self.reply_to = name
        self.count = 0

    async def ask(self, operation, body=None, **properties):
        """(status, body, condition) of the reply."""
        before = len(self.client.payloads(self.replies))
        self.count += 1
        asked = uuid.uuid4()
        self.requests.send(
            section.encode_message(
                body or {},
                properties={"message_id": asked, "reply_to": self.reply_to},
                application_properties={"operation": f"com.microsoft:{operation}", **properties},
                value_body=True,
            ),
            self.count.to_bytes(4, "big"),
        )
        await self.client.settle()
        replies = self.client.payloads(self.replies)
        assert len(replies) == before + 1
        sections = section.locate(replies[-1])
        assert section.decode_properties(replies[-1], sections.properties)["correlation_id"] == asked
        reported = section.decode_map(replies[-1], sections.application_properties)
        assert isinstance(reported["statusDescription"], str)
        value, _ = codec.decode(replies[-1], sections.body[0] + 3)
        return reported["statusCode"], value, reported.get("errorCondition")


@pytest.fixture
def client(broker):
    return broker.client()


@pytest.fixture
def orders(client):
    return Node(client, "orders")


async def fill(client, message, *texts):
    link = client.sender("orders", f"s{uuid.uuid4()}")
    for number, text in enumerate(texts):
        link.send(message(text), number.to_bytes(4, "big"))
    await client.settle()


async def take(client, count):
    """Lock messages over a link, then detach it: (lock tokens, sequence numbers)."""
    link = client.receiver("orders", credit=count, name=f"r{uuid.uuid4()}")
    await client.settle()
    tags = [tag for event in client.seen(Transfers) if event.link is link for tag in event.tags]
    numbers = [annotation(payload, "x-opt-sequence-number") for payload in client.payloads(link)]
    link.detach()
    client.pump()
    return [uuid.UUID(bytes_le=tag) for tag in tags], numbers


def annotation(payload, name):
    return section.decode_map(payload, section.locate(payload).message_annotations)[name]


def annotated(message, due_ms):
    return message("later", annotations={"x-opt-scheduled-enqueue-time": Timestamp(due_ms)})


async def test_peek(client, orders, message, body):
    await fill(client, message, *"abc")
    status, reply, _ = await orders.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(2)})
    assert (status, [body(each["message"]) for each in reply["messages"]]) == (200, [b"a", b"b"])
    last = annotation(reply["messages"][-1]["message"], "x-opt-sequence-number")
    assert type(last) is Long
    status, reply, _ = await orders.ask("peek-message", {"from-sequence-number": last + 1, "message-count": Int(9)})
    assert [body(each["message"]) for each in reply["messages"]] == [b"c"]
    assert (await orders.ask("peek-message", {"from-sequence-number": last + 2, "message-count": Int(1)}))[0] == 204


async def test_schedule_and_cancel(broker, client, orders, message):
    due = broker.clock.wall_ms() + 60_000
    items = [{"message-id": str(n), "message": annotated(message, due)} for n in range(2)]
    status, reply, _ = await orders.ask("schedule-message", {"messages": items})
    assert status == 200
    numbers = reply["sequence-numbers"]
    assert isinstance(numbers, Array)
    assert len(set(numbers)) == 2
    assert broker.engine.runtime("orders").scheduled_message_count == 2
    asked = {"sequence-numbers": Array(LONGS, numbers[:1])}
    assert (await orders.ask("cancel-scheduled-message", asked))[0] == 200
    status, _, condition = await orders.ask("cancel-scheduled-message", asked)
    assert (status, condition) == (404, "com.microsoft:message-not-found")
    assert broker.engine.runtime("orders").scheduled_message_count == 1


async def test_scheduling_on_a_topic(broker, client, message):
    node = Node(client, "flights")
    items = [{"message-id": "a", "message": annotated(message, broker.clock.wall_ms() + 1000)}]
    assert (await node.ask("schedule-message", {"messages": items}))[0] == 200
    status, reply, _ = await node.ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(5)})
    assert (status, len(reply["messages"])) == (200, 1)


async def test_renew(broker, client, orders, message):
    await fill(client, message, "a")
    tokens, _ = await take(client, 1)
    broker.clock.advance(30_000)
    status, reply, _ = await orders.ask("renew-lock", {"lock-tokens": Array(UUIDS, tokens)})
    assert (status, list(reply["expirations"])) == (200, [broker.clock.wall_ms() + 60_000])
    assert all(isinstance(each, Timestamp) for each in reply["expirations"])
    broker.clock.advance(61_000)
    broker.engine.tick()
    status, _, condition = await orders.ask("renew-lock", {"lock-tokens": Array(UUIDS, tokens)})
    assert (status, condition) == (410, "com.microsoft:message-lock-lost")


@pytest.mark.parametrize(
    ("status", "left"),
    [("completed", (0, 0)), ("abandoned", (1, 0)), ("defered", (0, 0)), ("suspended", (0, 1))],
    ids=["completed", "abandoned", "defered", "suspended"],
)
async def test_settling_by_lock_token_after_the_link_was_closed(broker, client, orders, message, status, left):
    await fill(client, message, "a")
    tokens, _ = await take(client, 1)
    request = {"disposition-status": status, "lock-tokens": Array(UUIDS, tokens), "deadletter-reason": "r"}
    assert (await orders.ask("update-disposition", request))[0] == 200
    runtime = broker.engine.runtime("orders")
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == left
    assert (await orders.ask("update-disposition", request))[0] == 410


async def test_deferred_messages(client, orders, message, body):
    await fill(client, message, "a", "b")
    tokens, numbers = await take(client, 2)
    request = {"disposition-status": "defered", "lock-tokens": Array(UUIDS, tokens)}
    assert (await orders.ask("update-disposition", request))[0] == 200
    for number, mode, text in zip(numbers, (1, 0), (b"a", b"b"), strict=True):
        asked = {"sequence-numbers": Array(LONGS, [number]), "receiver-settle-mode": UInt(mode)}
        status, reply, _ = await orders.ask("receive-by-sequence-number", asked)
        assert status == 200
        [found] = reply["messages"]
        assert body(found["message"]) == text
        assert isinstance(found["lock-token"], uuid.UUID)
        inside = section.decode_map(found["message"], section.locate(found["message"]).delivery_annotations)
        assert inside.get("x-opt-lock-token") == (found["lock-token"] if mode else None)
        assert (await orders.ask("receive-by-sequence-number", asked))[0] == 404


async def test_batch_delete(broker, client, orders, message):
    await fill(client, message, *"abc")
    tokens, _ = await take(client, 1)
    assert tokens
    broker.clock.advance(1000)
    asked = {"message-count": Int(10), "enqueued-time-utc": Timestamp(broker.clock.wall_ms())}
    status, reply, _ = await orders.ask("batch-delete-messages", asked)
    assert (status, reply["message-count"]) == (200, 2)
    status, _, condition = await orders.ask("batch-delete-messages", asked)
    assert (status, condition) == (204, "com.microsoft:message-not-found")


async def test_rules(client):
    node = Node(client, "flights/Subscriptions/all")
    sql = {"sql-filter": {"expression": "weight > 10"}, "sql-rule-action": {"expression": "SET seen = 1"}}
    correlation = {"correlation-filter": {"label": "EWR", "properties": {"n": Int(3)}}}
    assert (await node.ask("add-rule", {"rule-name": "heavy", "rule-description": sql}))[0] == 200
    assert (await node.ask("add-rule", {"rule-name": "ewr", "rule-description": correlation}))[0] == 200
    status, _, condition = await node.ask("add-rule", {"rule-name": "heavy", "rule-description": sql})
    assert (status, condition) == (409, "com.microsoft:entity-already-exists")
    bad = {"sql-filter": {"expression": "weight >"}}
    assert (await node.ask("add-rule", {"rule-name": "bad", "rule-description": bad}))[0] == 400
    status, reply, _ = await node.ask("enumerate-rules", {"top": Int(100), "skip": Int(0)})
    assert status == 200
    rules = {each["rule-description"].value[2]: each["rule-description"] for each in reply["rules"]}
    assert set(rules) == {"$Default", "heavy", "ewr"}
    assert all(rule.descriptor == 0x13700000004 for rule in rules.values())
    heavy, ewr, default = (rules[name].value for name in ("heavy", "ewr", "$Default"))
    assert heavy[0] == Described(0x1370000006, ["weight > 10", 20])
    assert heavy[1] == Described(0x13700000006, ["SET seen = 1", 20])
    assert ewr[0].descriptor == 0x1370000009
    assert ewr[0].value[4] == "EWR"
    assert default[0].descriptor == 0x1370000007
    assert default[1] == Described(0x13700000005, [])
    assert (await node.ask("remove-rule", {"rule-name": "heavy"}))[0] == 200
    assert (await node.ask("remove-rule", {"rule-name": "heavy"}))[0] == 404
    status, reply, _ = await node.ask("enumerate-rules", {"top": Int(1), "skip": Int(1)})
    assert len(reply["rules"]) == 1


async def test_only_subscriptions_have_rules(orders):
    assert (await orders.ask("enumerate-rules", {"top": Int(1), "skip": Int(0)}))[0] == 400


async def test_sessions_of_a_plain_queue(orders):
    asked = {"last-updated-time": Timestamp(253402300800000), "skip": Int(0), "top": Int(10)}
    status, _, condition = await orders.ask("get-message-sessions", asked)
    assert (status, condition) == (204, "com.microsoft:session-not-found")
    for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
        status, _, condition = await orders.ask(operation, {"session-id": "s"})
        assert (status, condition) == (400, "amqp:not-allowed")


@pytest.mark.parametrize(
    ("operation", "body"),
    [("peek-message", {}), ("peek-message", {"from-sequence-number": "x", "message-count": Int(1)}),
     ("peek-message", {"from-sequence-number": Long(0), "message-count": Int(0)}),
     ("renew-lock", {"lock-tokens": []}), ("renew-lock", {"lock-tokens": ["x"]}),
     ("schedule-message", {"messages": []}), ("schedule-message", {"messages": [{"message": b"bad"}]}),
     ("schedule-message", {"messages": ["x"]}), ("update-disposition", {"lock-tokens": [uuid.UUID(int=1)]}),
     ("cancel-scheduled-message", {"sequence-numbers": [True]}), ("unheard-of", {})],
    ids=str,
)  # fmt: skip
async def test_bad_requests_are_answered_400(orders, operation, body):
    status, _, condition = await orders.ask(operation, body)
    assert status == 400
    assert condition


@pytest.mark.parametrize(
    ("name", "operation", "allowed"),
    [("reader", "peek-message", True), ("writer", "peek-message", False), ("reader", "schedule-message", False),
     ("writer", "schedule-message", True)],
)  # fmt: skip
async def test_operations_need_their_right_i2(broker, message, name, operation, allowed):
    node = Node(broker.client(name), "orders")
    body = {"from-sequence-number": Long(0), "message-count": Int(1)}
    body["messages"] = [{"message": annotated(message, broker.clock.wall_ms() + 1000)}]
    status, _, condition = await node.ask(operation, body)
    assert (status < 300) is allowed
    assert allowed or (status, condition) == (401, "amqp:unauthorized-access")


async def test_a_reply_of_a_change_waits_for_the_disk_i3(broker, client, message):
    node = Node(client, "flights/Subscriptions/all")
    orders = Node(client, "orders")
    broker.store.gate.clear()
    rule = {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}}
    item = {"message": annotated(message, broker.clock.wall_ms() + 1000)}
    for target, operation, body in ((node, "add-rule", rule), (orders, "schedule-message", {"messages": [item]})):
        target.requests.send(
            section.encode_message(
                body,
                properties={"message_id": operation, "reply_to": target.reply_to},
                application_properties={"operation": operation},
                value_body=True,
            ),
            b"tag1",
        )
    for _ in range(3):
        client.pump()
    assert client.payloads(node.replies) == client.payloads(orders.replies) == []
    broker.store.gate.set()
    await client.settle()
    assert len(client.payloads(node.replies)) == len(client.payloads(orders.replies)) == 1


async def test_a_deferred_message_whose_delivery_annotations_are_broken(client, orders, message, body):
    sender = client.sender("orders", "raw")
    sender.send(b"\0Sq\xa1\x01A" + message("a"), b"1")
    await client.settle()
    [token], [number] = await take(client, 1)
    request = {"disposition-status": "defered", "lock-tokens": Array(UUIDS, [token])}
    assert (await orders.ask("update-disposition", request))[0] == 200
    asked = {"sequence-numbers": Array(LONGS, [number]), "receiver-settle-mode": UInt(1)}
    status, reply, _ = await orders.ask("receive-by-sequence-number", asked)
    assert status == 200
    assert reply["messages"][0]["message"].endswith(message("a")[-4:])
    settled = {"disposition-status": "completed", "lock-tokens": Array(UUIDS, [reply["messages"][0]["lock-token"]])}
    assert (await orders.ask("update-disposition", settled))[0] == 200


async def test_a_filter_accepts_numbers_that_it_can_report_again(client):
    """Kept as a plain number, a greater one could not be returned in a list of the rules."""
    node = Node(client, "flights/Subscriptions/all")
    for number, status in ((ULong(2**63), 400), (ULong(2**63 - 1), 200)):
        rule = {"correlation-filter": {"properties": {"n": number}}}
        assert (await node.ask("add-rule", {"rule-name": "r", "rule-description": rule}))[0] == status
