"""azure-servicebus, synchronous and unmodified, against a served namespace."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from harness.client.sdk_client import DELETE, bodies, outlast, receive
from isthmus.testing.namespace import namespace


def send(client, queue, *bodies, **properties):
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])


def test_a_message_comes_as_it_was_sent(client):
    sent = ServiceBusMessage(
        b"\x00\x01body",
        application_properties={"text": "t", "number": 7, "ratio": 1.5, "flag": True, "id": uuid.UUID(int=3)},
        message_id="m-1",
        subject="label",
        correlation_id="c-1",
        content_type="text/plain",
        reply_to="r",
        to="t",
        reply_to_session_id="rs",
        time_to_live=timedelta(minutes=5),
    )
    before = datetime.now(UTC)
    with client.get_queue_sender("plain") as sender:
        sender.send_messages(sent)
    with client.get_queue_receiver("plain") as receiver:
        [message] = receive(receiver, 1)
        assert timedelta(seconds=15) < message.locked_until_utc - before < timedelta(seconds=45)
        assert isinstance(message.lock_token, uuid.UUID)
        receiver.complete_message(message)
    assert b"".join(message.body) == b"\x00\x01body"
    assert message.application_properties == {
        b"text": b"t", b"number": 7, b"ratio": 1.5, b"flag": True, b"id": uuid.UUID(int=3),
    }  # fmt: skip
    assert (message.message_id, message.subject, message.correlation_id) == ("m-1", "label", "c-1")
    assert (message.content_type, message.reply_to, message.to) == ("text/plain", "r", "t")
    assert message.reply_to_session_id == "rs"
    assert message.time_to_live == timedelta(minutes=5)
    assert message.sequence_number > 0
    assert message.delivery_count == 0
    assert abs(message.enqueued_time_utc - before) < timedelta(seconds=10)


def test_order_and_sequence_numbers_ascend_over_batches_and_single_sends(client):
    with client.get_queue_sender("modes") as sender:
        batch = sender.create_message_batch()
        for number in range(50):
            batch.add_message(ServiceBusMessage(f"{number}"))
        sender.send_messages(batch)
        for number in range(50, 60):
            sender.send_messages(ServiceBusMessage(f"{number}"))
    with client.get_queue_receiver("modes", receive_mode=DELETE) as receiver:
        messages = receive(receiver, 60)
    assert bodies(messages) == [f"{number}" for number in range(60)]
    numbers = [message.sequence_number for message in messages]
    assert numbers == sorted(set(numbers))
    with client.get_queue_receiver("modes") as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []


def test_abandoned_messages_return_in_place_with_their_delivery_count_raised(client):
    send(client, "settled", "a", "b", "c")
    with client.get_queue_receiver("settled") as receiver:
        first = receive(receiver, 2)
        receiver.abandon_message(first[0])
        again = receive(receiver, 2)
        assert bodies(again) == ["a", "c"]
        assert [message.delivery_count for message in again] == [1, 0]
        for message in [first[1], *again]:
            receiver.complete_message(message)
        with pytest.raises((MessageLockLostError, ServiceBusError, ValueError)):
            receiver.complete_message(first[0])


def test_max_delivery_count_dead_letters(client):
    send(client, "plain", "poison")
    with client.get_queue_receiver("plain") as receiver:
        for _ in range(3):
            [message] = receive(receiver, 1)
            receiver.abandon_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []
    with client.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [message] = receive(receiver, 1)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
        receiver.complete_message(message)


def test_dead_lettered_messages_carry_reason_and_description(client):
    send(client, "buried", "bad", application_properties={"kept": "yes"})
    with client.get_queue_receiver("buried") as receiver:
        [message] = receive(receiver, 1)
        receiver.dead_letter_message(message, reason="unreadable", error_description="no body")
    with client.get_queue_receiver("buried", sub_queue="deadletter", receive_mode=DELETE) as receiver:
        [message] = receive(receiver, 1)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("unreadable", "no body")
    assert message.dead_letter_source.lower() == "buried"
    assert message.application_properties[b"kept"] == b"yes"


def test_deferred_messages_come_by_sequence_number_only(client):
    send(client, "deferred", "later", "now")
    with client.get_queue_receiver("deferred") as receiver:
        later, now = receive(receiver, 2)
        receiver.defer_message(later)
        receiver.complete_message(now)
        assert receiver.receive_messages(max_wait_time=1) == []
        [found] = receiver.receive_deferred_messages(later.sequence_number)
        assert bodies([found]) == ["later"]
        receiver.complete_message(found)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(later.sequence_number)


def test_locks_expire_and_are_renewed(client):
    send(client, "short", "once")
    with client.get_queue_receiver("short") as receiver:
        [message] = receive(receiver, 1)
        until = message.locked_until_utc
        assert receiver.renew_message_lock(message) > until
        outlast(until, lambda: receiver.renew_message_lock(message))
        [again] = receive(receiver, 1)  # nothing is renewed any more
        assert again.delivery_count == 1
        receiver.complete_message(again)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)


def test_expired_messages_are_dead_lettered(client):
    with client.get_queue_sender("expiring") as sender:
        sender.send_messages(ServiceBusMessage("old", time_to_live=timedelta(milliseconds=300)))
    time.sleep(0.8)
    with client.get_queue_receiver("expiring") as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []
    with client.get_queue_receiver("expiring", sub_queue="deadletter", receive_mode=DELETE) as receiver:
        [message] = receive(receiver, 1)
    assert message.dead_letter_reason == "TTLExpiredException"


def test_scheduled_messages_come_when_due_unless_cancelled(client):
    due = datetime.now(UTC) + timedelta(seconds=4)
    with client.get_queue_sender("scheduled") as sender:
        kept, dropped = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("dropped")], due)
        assert kept != dropped
        sender.cancel_scheduled_messages(dropped)
        sender.send_messages(ServiceBusMessage("annotated", scheduled_enqueue_time_utc=due))
        with pytest.raises(ServiceBusError):
            sender.cancel_scheduled_messages(dropped)
    with client.get_queue_receiver("scheduled", receive_mode=DELETE) as receiver:
        assert receiver.receive_messages(max_wait_time=0.5) == []
        messages = receive(receiver, 2)
    assert sorted(bodies(messages)) == ["annotated", "kept"]
    assert all(message.enqueued_time_utc >= due - timedelta(milliseconds=50) for message in messages)


def test_one_receiver_has_more_requests_than_its_link_for_replies_has_credit(client, monkeypatch):
    """The SDK grants that link 10,000 credits once, here 1,000, and no more."""
    monkeypatch.setattr("azure.servicebus._pyamqp.link.DEFAULT_LINK_CREDIT", 1000)
    send(client, "peeked-often", "first")
    with client.get_queue_receiver("peeked-often") as receiver:
        for _ in range(1010):
            [seen] = receiver.peek_messages(sequence_number=1, timeout=60)
    assert str(seen) == "first"


def test_peek_shows_messages_without_locking_them(client):
    send(client, "peeked", *map(str, range(5)))
    with client.get_queue_receiver("peeked") as receiver:
        first = receiver.peek_messages(max_message_count=2)
        rest = receiver.peek_messages(max_message_count=10)
        assert bodies(first + rest) == ["0", "1", "2", "3", "4"]
        assert receiver.peek_messages(max_message_count=1) == []
        again = receiver.peek_messages(max_message_count=10, sequence_number=first[0].sequence_number)
        assert len(again) == 5
        assert len(receive(receiver, 5)) == 5


def test_what_a_closing_receiver_had_buffered_is_released(client):
    send(client, "drained", *map(str, range(20)))
    with client.get_queue_receiver("drained", prefetch_count=10) as receiver:
        [message] = receive(receiver, 1)
        receiver.complete_message(message)
    with client.get_queue_receiver("drained", receive_mode=DELETE) as receiver:
        rest = receive(receiver, 19)
    assert bodies(rest) == [str(number) for number in range(1, 20)]
    assert {message.delivery_count for message in rest} == {0}


def test_a_second_message_of_the_same_id_is_dropped(client):
    with client.get_queue_sender("detecting") as sender:
        for body, name in (("one", "a"), ("two", "a"), ("three", "b")):
            sender.send_messages(ServiceBusMessage(body, message_id=name))
    with client.get_queue_receiver("detecting", receive_mode=DELETE) as receiver:
        assert bodies(receive(receiver, 2)) == ["one", "three"]
        assert receiver.receive_messages(max_wait_time=1) == []


def test_a_topics_rules_choose_and_change_copies(client):
    with client.get_topic_sender("flights") as sender:
        sender.send_messages([
            ServiceBusMessage("light", subject="EWR", application_properties={"weight": 5}),
            ServiceBusMessage("heavy", subject="JFK", application_properties={"weight": 50}),
        ])  # fmt: skip
    got = {}
    for name, count in (("all", 2), ("heavy", 1), ("ewr", 1)):
        with client.get_subscription_receiver("flights", name, receive_mode=DELETE) as receiver:
            got[name] = receive(receiver, count)
            assert receiver.receive_messages(max_wait_time=1) == []
    assert {name: bodies(messages) for name, messages in got.items()} == {
        "all": ["light", "heavy"], "heavy": ["heavy"], "ewr": ["light"],
    }  # fmt: skip
    [heavy] = got["heavy"]
    assert heavy.application_properties[b"checked"] == b"yes"
    assert heavy.application_properties[b"RuleName"] == b"heavy"
    assert b"checked" not in got["all"][1].application_properties


def test_large_messages_pass_and_too_large_ones_are_refused(client):
    body = bytes(range(256)) * 3000
    with client.get_queue_sender("large") as sender:
        sender.send_messages(ServiceBusMessage(body))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * (2 << 20)))
    with client.get_queue_receiver("large", receive_mode=DELETE) as receiver:
        [message] = receive(receiver, 1)
    assert b"".join(message.body) == body


def test_settling_many_messages_out_of_order(client):
    send(client, "many", *map(str, range(300)))
    with client.get_queue_receiver("many", prefetch_count=300) as receiver:
        messages = receive(receiver, 300)
        for message in messages[::2] + messages[1::2]:
            receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=1) == []


@pytest.mark.parametrize("kind", ["sender", "receiver"])
def test_an_unknown_entity_is_reported(client, kind):
    # The service answers the token for it with 404, which this SDK takes for a failed authentication.
    handler = client.get_queue_sender("nowhere") if kind == "sender" else client.get_queue_receiver("nowhere")
    with pytest.raises(ServiceBusAuthenticationError), handler:
        pass


def test_a_disabled_entity_is_reported(client):
    with pytest.raises(MessagingEntityDisabledError):
        send(client, "closed", "x")


def test_a_wrong_key_is_refused(served):
    wrong = served.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    refused = pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError))
    with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client, refused:
        send(client, "plain", "x")
    assert "AAAA" not in served.log()


def test_over_tls_with_a_certificate_that_is_checked():
    # Without the emulator's flag this SDK dials port 5671 only, so the namespace gets an address of its own.
    host = f"127.{random.randint(1, 254)}.{random.randint(0, 254)}.{random.randint(2, 254)}"
    with namespace(config="queues: {tls: {}}", arguments=["--host", host, "--tls-port", "5671"]) as served:
        secure = served.connection_string.replace(";UseDevelopmentEmulator=true", "")
        with ServiceBusClient.from_connection_string(
            secure, retry_total=0, connection_verify=str(served.ca_file)
        ) as client:
            send(client, "tls", "secret")
            with client.get_queue_receiver("tls", receive_mode=DELETE) as receiver:
                assert bodies(receive(receiver, 1)) == ["secret"]
        distrustful = ServiceBusClient.from_connection_string(secure, retry_total=0)
        with distrustful, pytest.raises(ServiceBusError):
            send(distrustful, "tls", "not trusted")


def test_what_was_acknowledged_survives_a_kill(served):
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        send(client, "settled", "kept", "done")
        with client.get_queue_receiver("settled") as receiver:
            messages = receive(receiver, 2)
            receiver.complete_message(messages[1])
    served.kill()
    served.start()
    client = ServiceBusClient.from_connection_string(served.connection_string)
    with client, client.get_queue_receiver("settled", receive_mode=DELETE) as receiver:
        assert bodies(receive(receiver, 1)) == ["kept"]
        assert receiver.receive_messages(max_wait_time=1) == []


def test_administration_over_the_same_connection_string(served):
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=str(served.ca_file)
    ) as admin:
        admin.create_queue("made")
        admin.create_rule("flights", "ruled", "extra", filter=SqlRuleFilter("weight > 99"))
        assert [rule.name for rule in admin.list_rules("flights", "ruled")] == ["$Default", "extra"]
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        send(client, "made", "x", "y")
    with ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    ) as admin:
        assert admin.get_queue_runtime_properties("made").active_message_count == 2
        admin.delete_queue("made")
