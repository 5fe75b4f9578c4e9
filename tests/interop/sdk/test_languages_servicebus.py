"""@azure/service-bus for JavaScript and azservicebus for Go, unmodified, against a served namespace.

What they do is looked at with azure-servicebus too, which reads what they send and sends what they read.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage

from harness.client.sdk_client import DELETE, bodies, receive
from harness.client.sdk_program import Remote, SdkError, finished
from isthmus.testing.namespace import namespace

ENTITIES = """
limits: {min_lock_duration: 1s}
queues:
  sent: {}
  read: {}
  many: {}
  settled: {lock_duration: 30s}
  deferred: {}
  buried: {}
  peeked: {}
  scheduled: {}
  short: {lock_duration: 3s}
  processed: {lock_duration: 4s}
  shared: {}
  large: {max_message_size_in_kilobytes: 24576}
  small: {}
  recovered: {}
  routed: {}
  listed: {requires_session: true}
  sessions: {requires_session: true, lock_duration: 30s}
  turns: {requires_session: true}
  brief: {requires_session: true, lock_duration: 2s}
topics:
  flights:
    subscriptions:
      all: {}
      heavy: {rules: {heavy: {filter: "weight > 10", action: "SET checked = 'yes'"}}}
      ewr: {rules: {origin: {correlation: {label: EWR}}}}
      sessions: {requires_session: true}
  ruled:
    subscriptions:
      by_hand: {}
"""

PATIENT = 100  # retries, a fifth of a second apart
CODES = {
    # What a client makes of each refusal, in the SDK's own terms.
    "javascript": {
        "lock lost": "MessageLockLost",
        "session locked": "SessionCannotBeLocked",
        "session lock lost": "SessionLockLost",
        "too large": "MessageSizeExceeded",
        "unauthorized": "UnauthorizedAccess",
        "exists": "MessageEntityAlreadyExistsError",
    },
    "go": {
        "lock lost": "locklost",
        "session locked": "com.microsoft:session-cannot-be-locked",
        "session lock lost": "locklost",
        "too large": "ErrMessageTooLarge",
        "unauthorized": "unauthorized",
        "exists": "409",
    },
}


@pytest.fixture(scope="module")
def served(language):
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture(scope="module")
def other(program, served):
    """The program's client, over TCP."""
    with program.open("connect", connection=served.connection_string, transport="tcp") as client:
        yield client


@pytest.fixture
def raises(language):
    """Expects the SDK's code for a refusal."""

    class Raises:
        def __init__(self, what):
            self.wanted = CODES[language][what]

        def __enter__(self):
            return self

        def __exit__(self, kind, error, traceback):
            assert isinstance(error, SdkError), error
            assert error.code == self.wanted, error
            return True

    return Raises


@pytest.fixture
def whole(language):
    """The type of a whole number."""
    return {"javascript": "number", "go": "int32"}[language]


def texts(reported):
    return [message["body"] for message in reported]


def messages(*bodies, **properties):
    return [{"body": body, **properties} for body in bodies]


def take(receiver, count, wait_ms=20_000):
    return receiver.receive(count=count, wait_ms=wait_ms)


def is_empty(receiver):
    return receiver.peek(count=1) == []


def drained(client, queue, count, **options):
    """What azure-servicebus receives and deletes."""
    with client.get_queue_receiver(queue, receive_mode=DELETE, **options) as receiver:
        return receive(receiver, count)


@pytest.fixture(scope="module")
def put(other):
    """Sends by the program, with a sender for each entity."""
    senders = {}

    def put(entity, *bodies, **properties):
        if entity not in senders:
            senders[entity] = other.open("sender", entity=entity)
        senders[entity].send(messages=messages(*bodies, **properties), how="batch")

    yield put
    for sender in senders.values():
        sender.close()


@pytest.fixture
def session(other, program):
    """Opens a session, the next available one unless it is named."""

    def opened(entity="sessions", **which):
        reported = other.session(entity=entity, **which)
        receiver = Remote(program, reported["handle"])
        receiver.session_id, receiver.locked_until_ms = reported["session_id"], reported["locked_until_ms"]
        return receiver

    return opened


EVERYTHING = {
    "body": "body",
    "message_id": "m-1",
    "correlation_id": "c-1",
    "subject": "label",
    "content_type": "text/plain",
    "to": "t",
    "reply_to": "r",
    "reply_to_session_id": "rs",
    "partition_key": "p",
    "time_to_live_ms": 300_000,
}
ID = uuid.UUID(int=3)
MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)
PROPERTIES = {
    # As the program gets them, and as azure-servicebus then reads them.
    "javascript": {
        "text": ({"string": "tä"}, "tä".encode()),
        "flag": ({"boolean": True}, True),
        "whole": ({"number": 7}, 7),
        "negative": ({"number": -(2**31)}, -(2**31)),
        "large": ({"number": 2**52}, 2**52),
        "ratio": ({"number": 1.5}, 1.5),
        "moment": ({"date": MOMENT_MS}, MOMENT_MS),
        "nothing": ({"null": True}, None),
    },
    "go": {
        "text": ({"string": "tä"}, "tä".encode()),
        "flag": ({"bool": True}, True),
        "int8": ({"int8": -128}, -128),
        "int16": ({"int16": -(2**15)}, -(2**15)),
        "int32": ({"int32": -(2**31)}, -(2**31)),
        "int64": ({"int64": -(2**63)}, -(2**63)),
        "uint8": ({"uint8": 2**8 - 1}, 2**8 - 1),
        "uint16": ({"uint16": 2**16 - 1}, 2**16 - 1),
        "uint32": ({"uint32": 2**32 - 1}, 2**32 - 1),
        "uint64": ({"uint64": 2**64 - 1}, 2**64 - 1),
        "float32": ({"float32": 0.25}, 0.25),
        "float64": ({"float64": 1.1}, 1.1),
        "moment": ({"date": MOMENT_MS}, MOMENT_MS),
        "bytes": ({"bytes": "0001ff"}, b"\x00\x01\xff"),
        "id": ({"uuid": ID.hex}, ID),
        "nothing": ({"null": True}, None),
    },
}


def test_what_it_sends_is_read_by_another_language(language, other, client):
    properties = {name: given for name, (given, _) in PROPERTIES[language].items()}
    with other.open("sender", entity="sent") as sender:
        assert sender.send(messages=[{**EVERYTHING, "properties": properties}]) == 1
    [message] = drained(client, "sent", 1)
    assert b"".join(message.body) == b"body"
    assert (message.message_id, message.correlation_id, message.subject) == ("m-1", "c-1", "label")
    assert (message.content_type, message.to, message.reply_to) == ("text/plain", "t", "r")
    assert (message.reply_to_session_id, message.partition_key) == ("rs", "p")
    assert message.time_to_live == timedelta(minutes=5)
    assert message.application_properties == {name.encode(): read for name, (_, read) in PROPERTIES[language].items()}


def test_what_another_language_sends_is_read(language, other, client):
    sent = ServiceBusMessage(
        b"body",
        application_properties={
            "text": "tä", "flag": True, "number": 7, "ratio": 1.5, "id": ID, "moment": MOMENT
        },
        message_id="m-1", correlation_id="c-1", subject="label", content_type="text/plain", to="t", reply_to="r",
        reply_to_session_id="rs", partition_key="p", time_to_live=timedelta(minutes=5),
    )  # fmt: skip
    before = time.time() * 1000
    with client.get_queue_sender("read") as sender:
        sender.send_messages(sent)
    with other.open("receiver", entity="read") as receiver:
        [message] = take(receiver, 1)
        receiver.complete(message=message["handle"])
        assert is_empty(receiver)
    assert {name: message[name] for name in EVERYTHING} == EVERYTHING
    assert (message["delivery_count"], message["state"]) == (0, "active")
    assert message["number"] > 0
    assert abs(message["enqueued_ms"] - before) < 10_000
    assert 45_000 < message["locked_until_ms"] - message["enqueued_ms"] < 75_000
    as_read = {
        # A boolean that is written with a byte of its own, as here, is a number for this SDK's decoder.
        "javascript": {
            "flag": {"number": 1},
            "number": {"number": 7},
            "ratio": {"number": 1.5},
            "id": {"bytes": ID.hex},
        },
        "go": {"flag": {"bool": True}, "number": {"int32": 7}, "ratio": {"float64": 1.5}, "id": {"uuid": ID.hex}},
    }
    assert message["properties"] == {"text": {"string": "tä"}, "moment": {"date": MOMENT_MS}, **as_read[language]}


def test_batches_and_single_messages_keep_their_order(other):
    with other.open("sender", entity="many") as sender, other.open("receiver", entity="many", delete=True) as receiver:
        assert sender.send(messages=messages(*map(str, range(300))), how="batch") == 300
        assert sender.send(messages=messages(*map(str, range(300, 310)))) == 10
        reported = take(receiver, 310)
        assert is_empty(receiver)
    assert texts(reported) == [str(number) for number in range(310)]
    numbers = [message["number"] for message in reported]
    assert numbers == sorted(set(numbers))


def test_a_batch_takes_as_much_as_the_namespace_says(other):
    with other.open("sender", entity="many") as sender, other.open("receiver", entity="many", delete=True) as receiver:
        assert sender.send(messages=[{"body": "x", "size": 100_000}] * 12, how="batch") == 10
        assert [message["size"] for message in take(receiver, 10)] == [100_000] * 10
        assert is_empty(receiver)


def test_twenty_receivers_share_a_queue(other, put):
    for start in range(0, 2000, 500):
        put("shared", *map(str, range(start, start + 500)))
    receivers = [other.open("receiver", entity="shared", delete=True) for _ in range(20)]
    taken = [receiver.begin("receive", count=100, wait_ms=5000) for receiver in receivers]
    parts = [[int(body) for body in texts(finished(each))] for each in taken]
    for receiver in receivers:
        receiver.close()
    with other.open("receiver", entity="shared", delete=True) as receiver:
        rest = [int(body) for body in texts(take(receiver, 2000 - sum(map(len, parts))))]
        assert is_empty(receiver)
    assert sorted(sum(parts, rest)) == list(range(2000))
    assert all(part == sorted(part) for part in parts)
    assert sum(1 for part in parts if part) > 10


def test_every_settlement(other, put, client):
    put("settled", "complete", "abandon", "defer", "bury")
    with other.open("receiver", entity="settled") as receiver:
        complete, abandon, defer, bury = take(receiver, 4)
        receiver.complete(message=complete["handle"])
        receiver.abandon(message=abandon["handle"], properties={"tries": {"string": "one"}})
        receiver.defer(message=defer["handle"])
        receiver.dead_letter(message=bury["handle"], reason="r", description="d")
        [again] = take(receiver, 1)
        assert (again["body"], again["delivery_count"]) == ("abandon", 1)
        assert again["properties"] == {"tries": {"string": "one"}}
        receiver.complete(message=again["handle"])
        assert [(each["body"], each["state"]) for each in receiver.peek(count=5)] == [("defer", "deferred")]
        [deferred] = receiver.deferred(numbers=[defer["number"]])
        receiver.complete(message=deferred["handle"])
        assert is_empty(receiver)
    [buried] = drained(client, "settled", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (bodies([buried]), buried.dead_letter_reason, buried.dead_letter_error_description) == (["bury"], "r", "d")


def test_dead_letters(other, put):
    put("buried", "bad", properties={"kept": {"string": "yes"}})
    with other.open("receiver", entity="buried") as receiver:
        [message] = take(receiver, 1)
        seen = {"seen": {"string": "by me"}}
        receiver.dead_letter(message=message["handle"], reason="unreadable", description="no body", properties=seen)
    with other.open("receiver", entity="buried", dead_letter=True) as receiver:
        [buried] = take(receiver, 1)
        assert (buried["dead_letter_reason"], buried["dead_letter_description"]) == ("unreadable", "no body")
        assert buried["properties"]["kept"] == {"string": "yes"}
        assert buried["properties"]["seen"] == {"string": "by me"}
        receiver.complete(message=buried["handle"])
        assert is_empty(receiver)


def test_deferred_messages_come_by_sequence_number_only(other, put):
    put("deferred", "a", "b", "c")
    with other.open("receiver", entity="deferred") as receiver:
        received = take(receiver, 3)
        for message in received:
            receiver.defer(message=message["handle"])
        assert take(receiver, 1, 300) == []
        found = receiver.deferred(numbers=[received[2]["number"], received[0]["number"]])
        assert sorted(texts(found)) == ["a", "c"]
        by_body = {message["body"]: message["handle"] for message in found}
        receiver.complete(message=by_body["a"])
        receiver.dead_letter(message=by_body["c"], reason="late", description="")
        [b] = receiver.deferred(numbers=[received[1]["number"]])
        receiver.complete(message=b["handle"])
        assert is_empty(receiver)
    with other.open("receiver", entity="deferred", dead_letter=True, delete=True) as receiver:
        [dead] = take(receiver, 1)
    assert (dead["body"], dead["dead_letter_reason"]) == ("c", "late")


def test_peeking_locks_nothing(other, put):
    put("peeked", *"01234")
    with other.open("sender", entity="peeked") as sender:
        sender.schedule(messages=messages("later"), at_ms=in_an_hour())
    with other.open("receiver", entity="peeked") as receiver:
        seen = receiver.peek(count=3) + receiver.peek(count=9)
        assert texts(seen) == [*"01234", "later"]
        assert [message["state"] for message in seen] == ["active"] * 5 + ["scheduled"]
        assert texts(receiver.peek(count=2, **{"from": seen[2]["number"]})) == ["2", "3"]
        assert texts(take(receiver, 5)) == [*"01234"]


def in_an_hour():
    return int(time.time() * 1000) + 3_600_000


def test_scheduling_and_cancelling(other):
    due = int(time.time() * 1000) + 4000
    with other.open("sender", entity="scheduled") as sender, other.open("receiver", entity="scheduled") as receiver:
        kept, dropped = sender.schedule(messages=messages("kept", "dropped"), at_ms=due)
        sender.cancel(numbers=[dropped])
        [waiting] = receiver.peek(count=5)
        assert (waiting["number"], waiting["state"]) == (kept, "scheduled")
        [message] = take(receiver, 1)
        assert message["body"] == "kept"
        assert message["enqueued_ms"] >= due - 50
        assert time.time() * 1000 >= due - 50
        receiver.complete(message=message["handle"])
        assert is_empty(receiver)


def test_locks_are_renewed_and_lost(other, put, raises):
    put("short", "renewed", "lost")
    # The JavaScript client renews on its own unless this is turned off.
    with other.open("receiver", entity="short", renew_ms=0) as receiver:
        renewed, lost = take(receiver, 2)
        until = 0
        while time.time() * 1000 < lost["locked_until_ms"] + 200:
            time.sleep(0.25)
            until = receiver.renew(message=renewed["handle"])
        assert until > lost["locked_until_ms"] + 1500
        receiver.complete(message=renewed["handle"])
        with raises("lock lost"):
            receiver.complete(message=lost["handle"])
        [again] = take(receiver, 1)
        assert (again["body"], again["delivery_count"]) == ("lost", 1)
        receiver.complete(message=again["handle"])
        assert is_empty(receiver)


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_a_processor_completes_abandons_and_renews(other, put):
    work = [str(number) for number in range(6)]
    put("processed", "fail", *work)
    with other.open("receiver", entity="processed", renew_ms=20_000) as receiver:
        # Busy until halfway between two renewals, which come after half a lock: one under way at the end would be refused.
        with receiver.open("subscribe", concurrent=3, busy_ms=3000) as processor:
            seen = processor.processed(count=7, wait_ms=30_000)
        assert sorted(seen["processed"]) == [*work, "fail"]
        assert (seen["failed"], seen["most"]) == (["fail"], 3)
        assert seen["errors"] == ["processMessageCallback: failed at fail"]
        assert is_empty(receiver)


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_bodies_that_are_no_bytes(other, client):
    """This SDK writes them as JSON."""
    given = [{"a": [1, "b", None]}, [1, 2.5], "text", 7, True]
    with other.open("sender", entity="sent") as sender:
        sender.send(messages=[{"json": body} for body in given])
    with client.get_queue_sender("sent") as sender:
        sender.send_messages(AmqpAnnotatedMessage(value_body="value"))
    with other.open("receiver", entity="sent", json=True, delete=True) as receiver:
        assert [message["value"] for message in take(receiver, 6)] == [*given, "value"]


def test_a_session_comes_in_order_and_alone(put, session, raises):
    for number in range(6):
        put("sessions", str(number), session_id="ab"[number % 2])
    with session(session_id="a") as receiver:
        assert receiver.session_id == "a"
        assert 15_000 < receiver.locked_until_ms - time.time() * 1000 < 31_000
        with raises("session locked"):
            session(session_id="a")
        reported = take(receiver, 3)
        assert texts(reported) == ["0", "2", "4"]
        assert {message["session_id"] for message in reported} == {"a"}
        assert receiver.renew_session() >= receiver.locked_until_ms
        for message in reported:
            receiver.complete(message=message["handle"])
        assert is_empty(receiver)
    with session(session_id="b", delete=True) as receiver:
        assert texts(take(receiver, 3)) == ["1", "3", "5"]


def test_every_settlement_in_a_session(other, put, session):
    put("sessions", "complete", "abandon", "defer", "bury", session_id="settled")
    with session(session_id="settled") as receiver:
        complete, abandon, defer, bury = take(receiver, 4)
        receiver.complete(message=complete["handle"])
        receiver.abandon(message=abandon["handle"])
        receiver.defer(message=defer["handle"])
        receiver.dead_letter(message=bury["handle"], reason="r", description="d")
        [again] = take(receiver, 1)
        assert (again["body"], again["delivery_count"]) == ("abandon", 1)
        receiver.complete(message=again["handle"])
        assert texts(receiver.peek(count=5)) == ["defer"]
        [deferred] = receiver.deferred(numbers=[defer["number"]])
        receiver.complete(message=deferred["handle"])
        assert is_empty(receiver)
    with other.open("receiver", entity="sessions", dead_letter=True, delete=True) as receiver:
        [buried] = take(receiver, 1)
    assert (buried["body"], buried["dead_letter_reason"], buried["session_id"]) == ("bury", "r", "settled")


def test_the_next_available_session_in_turn(put, session):
    for name in "xy":
        put("turns", f"{name}1", f"{name}2", session_id=name)
    got = {}
    for _ in range(2):
        with session("turns", wait_ms=20_000) as receiver:
            reported = take(receiver, 2)
            got[receiver.session_id] = texts(reported)
            for message in reported:
                receiver.complete(message=message["handle"])
    assert got == {"x": ["x1", "x2"], "y": ["y1", "y2"]}


def test_the_state_of_a_session(session, client):
    with session(session_id="kept") as receiver:
        assert receiver.state() is None
        receiver.set_state(state="half way")
    with client.get_queue_receiver("sessions", session_id="kept") as receiver:
        assert receiver.session.get_state() == b"half way"
        receiver.session.set_state(b"further")
    with session(session_id="kept") as receiver:
        assert receiver.state() == "further"
        receiver.set_state()
        assert receiver.state() is None


@pytest.mark.parametrize("language", ["go"], indirect=True)
def test_sessions_are_listed(other, put, session):
    """Those with messages and those with a state, in pages of a hundred."""
    for number in range(110):
        put("listed", "m", session_id=f"{number:03}")
    with session("listed", session_id="state alone") as receiver:
        receiver.set_state(state="x")
    assert sorted(other.sessions(entity="listed")) == [*(f"{number:03}" for number in range(110)), "state alone"]


def test_a_session_lock_that_expires_is_reported(put, session, raises):
    put("brief", "m", session_id="lost")
    with session("brief", session_id="lost") as receiver:
        take(receiver, 1)
        time.sleep(2.5)
        with raises("session lock lost"):
            receiver.renew_session()
    with session("brief", session_id="lost") as receiver:
        [again] = take(receiver, 1)
        assert again["delivery_count"] == 1
        receiver.complete(message=again["handle"])


def test_a_subscription_with_sessions(other, put, session):
    put("flights", "1", "2", session_id="f")
    with session("flights", subscription="sessions", wait_ms=20_000) as receiver:
        assert receiver.session_id == "f"
        reported = take(receiver, 2)
        assert texts(reported) == ["1", "2"]
        for message in reported:
            receiver.complete(message=message["handle"])
    with other.open("receiver", entity="flights", subscription="all", delete=True) as receiver:
        assert texts(take(receiver, 2)) == ["1", "2"]


def test_a_topic_copies_to_the_subscriptions_whose_rules_select(whole, other, put):
    put("flights", "light", subject="JFK", session_id="s", properties={"weight": {whole: 5}})
    put("flights", "heavy", subject="EWR", session_id="s", properties={"weight": {whole: 11}})
    wanted = {"all": ["light", "heavy"], "heavy": ["heavy"], "ewr": ["heavy"]}
    for name, expected in wanted.items():
        with other.open("receiver", entity="flights", subscription=name, delete=True) as receiver:
            got = take(receiver, len(expected))
            assert texts(got) == expected
            assert got[-1].get("properties", {}).get("checked") == ({"string": "yes"} if name == "heavy" else None)
            assert is_empty(receiver)


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_the_manager_of_a_subscription_s_rules(other, put):
    manager = other.open("rule_manager", entity="ruled", subscription="by_hand")
    assert manager.rules() == [{"name": "$Default", "filter": {"sqlExpression": "1=1"}, "action": {}}]
    manager.remove_rule(name="$Default")
    manager.add_rule(name="sql", sql="colour = 'red'", action="SET painted = 1")
    blue = {"subject": "blue", "applicationProperties": {"size": 2, "new": True}}
    manager.add_rule(name="correlation", correlation=blue)
    rules = {rule.pop("name"): rule for rule in manager.rules()}
    assert set(rules) == {"sql", "correlation"}
    assert rules["sql"]["filter"] == {"sqlExpression": "colour = 'red'"}
    assert rules["sql"]["action"] == {"sqlExpression": "SET painted = 1"}
    assert rules["correlation"]["filter"] == blue
    new = {"new": {"boolean": True}}
    put("ruled", "red", properties={"colour": {"string": "red"}})
    put("ruled", "blue", subject="blue", properties={"size": {"number": 2}, **new})
    put("ruled", "small", subject="blue", properties={"size": {"number": 1}, **new})
    put("ruled", "plain")
    with other.open("receiver", entity="ruled", subscription="by_hand", delete=True) as receiver:
        red, blue = take(receiver, 2)
        assert (red["body"], blue["body"]) == ("red", "blue")
        assert red["properties"]["painted"] == {"number": 1}
        assert is_empty(receiver)


def test_queues_are_administered(program, served, put, other, raises):
    admin = program.open("administer", connection=served.connection_string)
    assert admin.namespace() == "Premium"
    settings = {"lock_duration": "PT45S", "max_delivery_count": 3, "requires_session": True, "user_metadata": "<mine>"}
    wanted = {**settings, "status": "Active"}
    assert admin.create_queue(name="made", **settings) == wanted
    assert admin.queue(name="made") == wanted
    with raises("exists"):
        admin.create_queue(name="made")
    changed = {"lock_duration": "PT10S", "max_delivery_count": 7}
    assert admin.update_queue(name="made", **changed) == {**wanted, **changed}
    assert admin.queue(name="made") == {**wanted, **changed}
    assert "made" in admin.queues()
    with other.open("sender", entity="made") as sender:
        sender.send(messages=messages("a", "b", session_id="s"))
        sender.schedule(messages=messages("c", session_id="s"), at_ms=in_an_hour())
    assert admin.queue_counts(name="made") == {"active": 2, "dead": 0, "scheduled": 1}
    admin.delete_queue(name="made")
    assert admin.queue_exists(name="made") is False
    assert admin.queue_exists(name="settled") is True
    assert "made" not in admin.queues()


def test_topics_subscriptions_and_rules_are_administered(whole, program, served, other, client):
    admin = program.open("administer", connection=served.connection_string)
    assert admin.create_topic(name="news") == "news"
    assert admin.create_subscription(entity="news", name="one", max_delivery_count=4)["max_delivery_count"] == 4
    admin.create_subscription(entity="news", name="two")
    assert sorted(admin.subscriptions(entity="news")) == ["one", "two"]
    assert admin.subscription_count(name="news") == 2
    assert "news" in admin.topics()
    rule = {"entity": "news", "subscription": "one"}
    assert admin.rule(**rule, name="$Default") == {"sql": "1=1"}
    admin.delete_rule(**rule, name="$Default")
    sql = {"sql": "colour = @colour", "parameters": {"@colour": "red"}, "action": "SET painted = 1"}
    admin.create_rule(**rule, name="sql", **sql)
    correlation = {"correlationId": "c-1", "applicationProperties": {"size": 2}}
    admin.create_rule(**rule, name="correlation", correlation=correlation)
    assert sorted(admin.rule_names(**rule)) == ["correlation", "sql"]
    assert admin.rule(**rule, name="sql") == sql
    reported = admin.rule(**rule, name="correlation")["correlation"]
    assert {name: value for name, value in reported.items() if value != ""} == correlation
    with other.open("sender", entity="news") as sender:
        sender.send(messages=messages("red", properties={"colour": {"string": "red"}}))
        sender.send(messages=messages("second", correlation_id="c-1", properties={"size": {whole: 2}}))
        sender.send(messages=messages("third", correlation_id="c-1", properties={"size": {whole: 3}}))
    with client.get_subscription_receiver("news", "one", receive_mode=DELETE) as receiver:
        red, second = receive(receiver, 2)
        assert bodies([red, second]) == ["red", "second"]
        assert red.application_properties[b"painted"] == 1
        assert receiver.peek_messages() == []
    admin.delete_subscription(entity="news", name="two")
    assert admin.subscriptions(entity="news") == ["one"]
    admin.delete_topic(name="news")
    assert "news" not in admin.topics()


def test_twenty_megabytes(other):
    size = 20 << 20
    with other.open("sender", entity="large") as sender, other.open("receiver", entity="large") as receiver:
        sender.send(messages=[{"body": "x", "size": size}])
        [message] = take(receiver, 1)
        receiver.complete(message=message["handle"])
        assert is_empty(receiver)
    assert (message["size"], message["sha256"]) == (size, hashlib.sha256(b"x" * size).hexdigest())


def test_refusals(other, program, served, raises):
    with other.open("sender", entity="small") as sender, raises("too large"):
        sender.send(messages=[{"body": "x", "size": 2 << 20}])
    with other.open("sender", entity="nowhere") as sender, pytest.raises(SdkError, match="nowhere"):
        sender.send(messages=messages("x"))
    with other.open("receiver", entity="sessions") as receiver, pytest.raises(SdkError, match="session"):
        take(receiver, 1)
    wrong = served.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    with (
        program.open("connect", connection=wrong, transport="tcp") as distrusted,
        distrusted.open("sender", entity="small") as sender,
        raises("unauthorized"),
    ):
        sender.send(messages=messages("x"))
    assert "AAAA" not in served.log()


@pytest.mark.parametrize("transport", ["tls", "websocket"])
def test_over_tls_and_websockets(transport, program, served):
    with program.open("connect", connection=served.connection_string, transport=transport) as secure:
        with secure.open("sender", entity="routed") as sender, secure.open("receiver", entity="routed") as receiver:
            assert sender.send(messages=messages(*map(str, range(200))), how="batch") == 200
            [scheduled] = sender.schedule(messages=messages("late"), at_ms=in_an_hour())
            reported = take(receiver, 200)
            assert texts(reported) == [str(number) for number in range(200)]
            for message in reported:
                receiver.complete(message=message["handle"])
            sender.cancel(numbers=[scheduled])
            assert is_empty(receiver)
        with secure.open("sender", entity="sessions") as sender:
            sender.send(messages=messages("in a session", session_id=transport))
        with Remote(program, secure.session(entity="sessions", session_id=transport)["handle"]) as receiver:
            [message] = take(receiver, 1)
            receiver.set_state(state="seen")
            receiver.complete(message=message["handle"])
            assert receiver.state() == "seen"


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_a_client_continues_after_a_restart(transport, program, served):
    with (
        program.open("connect", connection=served.connection_string, transport=transport, retries=PATIENT) as patient,
        patient.open("sender", entity="recovered") as sender,
        patient.open("receiver", entity="recovered") as receiver,
    ):
        sender.send(messages=messages("before", "during"))
        [first] = take(receiver, 1)
        receiver.complete(message=first["handle"])
        served.restart()
        sender.send(messages=messages("after"))
        rest = take(receiver, 2)
        assert texts(rest) == ["during", "after"]
        for message in rest:
            receiver.complete(message=message["handle"])
        assert is_empty(receiver)
