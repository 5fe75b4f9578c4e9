"""Messages near the greatest size of the service's largest tier, over sockets and through the store."""

from __future__ import annotations

import os
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from fault_client import AnsweredReceiver, connected, make_message, read_message
from isthmus.testing.namespace import namespace
from isthmus.transport import Sender

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 102400}}"
BODY = os.urandom(1 << 20) * 99


def test_a_message_of_99_megabytes_comes_as_it_was_sent_after_a_kill(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            Sender(client, "big").wait_ready().send_all([make_message(BODY, "large")], timeout_seconds=60.0)
        ns.kill()
        ns.start()
        with connected(ns, "big") as client:
            receiver = AnsweredReceiver(client, "big")
            receiver.grant(1)
            client.wait_until(lambda: receiver.arrived, 60, "the message")
            (run,) = receiver.take()
            assert read_message(run.payloads[0]).body == BODY


def test_the_sdk_sends_and_receives_messages_over_a_megabyte(tmp_path: Path) -> None:
    body = BODY[: 5 << 20]
    with (
        namespace(tmp_path / "data", config=CONFIG) as ns,
        ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0) as client,
        client.get_queue_sender("big") as sender,
        client.get_queue_receiver("big") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(body))
        [message] = receiver.receive_messages(max_wait_time=20)
        assert b"".join(message.body) == body
        receiver.complete_message(message)
