"""The private names of azure-servicebus that `isthmus.client.sdk` uses exist and behave as required."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage

from isthmus.amqp import section
from isthmus.client import sdk
from isthmus.client.send.parcel import Parcel

STRING = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"


def test_a_batch_of_encoded_messages_is_the_batch_that_the_sdk_makes() -> None:
    messages = [ServiceBusMessage(b"1", message_id="a", session_id="s"), ServiceBusMessage(b"2", message_id="b")]
    theirs: Any = ServiceBusMessageBatch(10_000)
    for message in messages:
        theirs.add_message(message)

    class Sender:
        def create_message_batch(self) -> Any:
            return ServiceBusMessageBatch(10_000)

    parcel = Parcel.of(messages)
    ours: Any = sdk.batch_of(Sender(), parcel.payloads, "a", parcel.session_id, parcel.partition_key)
    assert len(ours) == len(theirs) == 2
    assert ours._message[:5] == theirs._message[:5]
    assert len(ours._message[5]) == 2


def test_the_messages_of_a_batch_are_found_again() -> None:
    batch = ServiceBusMessageBatch(10_000)
    batch.add_message(ServiceBusMessage(b"1", message_id="a"))
    assert Parcel.of(batch).message_ids == ("a",)


def test_a_sender_has_what_is_looked_for() -> None:
    sender: Any = ServiceBusClient.from_connection_string(STRING).get_queue_sender("q")
    assert sdk.limits(sender) == (0, 0)
    assert callable(sender._create_handler)
    assert hasattr(sender._config, "try_timeout")
    assert sdk.socket_of(None) is None


def test_a_severed_socket_ends_a_read() -> None:
    one, other = socket.socketpair()
    with one, other:
        sdk.sever(one)
        assert one.recv(1) == b""
    sdk.sever(None)
    sdk.release(one)


def test_a_scheduled_message_has_one_annotation() -> None:
    assert len(sdk.schedule_annotations(datetime(2040, 1, 1, tzinfo=UTC))) == 1


def test_a_receiver_without_a_thread_has_what_is_listened_on() -> None:
    with ServiceBusClient.from_connection_string(STRING) as client:
        receiver: Any = client.get_queue_receiver("orders", prefetch_count=20, **sdk.WITHOUT_THREAD)
        receiver._create_handler(None)
        handler = receiver._handler
        assert handler._keep_alive_interval == 0
        assert handler._socket_timeout is not None
        sdk.listen(receiver)  # not open: there is nothing to listen on

        class Connection:
            def listen(self, **arguments: Any) -> None:
                received.append(arguments)

        class Link:
            current_link_credit = 21

        received: list[dict[str, Any]] = []
        handler._connection, handler._link = Connection(), Link()
        sdk.listen(receiver)
        assert received == [{"wait": handler._socket_timeout, "batch": 21}]
        handler._connection = handler._link = None


def test_a_lock_is_renewed_in_time_whatever_this_machines_clock() -> None:
    lock = timedelta(seconds=30)
    for ahead, expected in ((0, 15), (3600, 15), (-20, 5), (-3600, 5)):  # of the namespace's clock
        now = datetime.now(UTC) + timedelta(seconds=ahead)
        assert abs(sdk.renew_seconds(now + lock, now) - expected) < 1
        assert abs(sdk.renew_seconds(now + lock, now - timedelta(days=1)) - expected) < 1 or ahead == 3600
        assert sdk.renew_seconds(now + lock, None) <= 15
    assert sdk.renew_seconds(datetime.now(UTC) + timedelta(milliseconds=1), None) == 0.3


def test_a_session_is_used_as_long_as_its_namespace_lets_it() -> None:
    receiver: Any = ServiceBusClient.from_connection_string(STRING).get_queue_receiver("q", session_id="one")
    receiver.session._locked_until_utc = datetime.now(UTC) - timedelta(hours=1)
    assert receiver.session._lock_expired
    sdk.without_session_clock(receiver)
    receiver._check_live()
    sdk.without_session_clock(ServiceBusClient.from_connection_string(STRING).get_queue_receiver("q"))


def test_a_message_can_be_settled_by_its_lock_token() -> None:
    """As the SDK does with deferred ones."""
    message: Any = ServiceBusReceivedMessage.from_bytes(section.encode_message(b"1"))
    assert message._is_deferred_message is False
    calls: list[str] = []
    receiver: Any = ServiceBusClient.from_connection_string(STRING).get_queue_receiver("q")
    receiver._settle_message_via_mgmt_link = lambda settlement, *_, **__: calls.append(settlement)
    with sdk.confirmed(object(), message):
        receiver._settle_message(message, "defer")
    assert calls == ["defered"]
