"""The usual copy loop with azure-servicebus, for comparison.

What it is: receive up to a batch, send it as one batch, complete each message; the plain synchronous client, as its own
samples use it. It runs as a process of its own (`python -m isthmus.bench.peer.sdk_loop QUEUE`), with the
connection strings in the environment, until its standard input closes.
"""

from __future__ import annotations

import logging
import os
import select
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

__all__ = ["BATCH_MESSAGES", "copy"]

BATCH_MESSAGES = 100
_PREFETCH = 1000


def copy(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    """A message like the received one, made from what the SDK shows of it."""
    return ServiceBusMessage(
        b"".join(message.body),
        application_properties=message.application_properties,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        message_id=message.message_id,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
    )


def _run(queue: str) -> None:
    with (
        ServiceBusClient.from_connection_string(os.environ["BENCH_SOURCE"]) as from_client,
        ServiceBusClient.from_connection_string(os.environ["BENCH_TARGET"]) as to_client,
        from_client.get_queue_receiver(queue, prefetch_count=_PREFETCH) as receiver,
        to_client.get_queue_sender(queue) as sender,
    ):
        while not select.select([sys.stdin], [], [], 0)[0]:
            messages = receiver.receive_messages(max_message_count=BATCH_MESSAGES, max_wait_time=1)
            if not messages:
                continue
            sender.send_messages([copy(message) for message in messages])
            for message in messages:
                receiver.complete_message(message)


if __name__ == "__main__":
    # Logs why the client used `$management` instead of its link, if it does: its exceptions describe only the `$management` call.
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("azure.servicebus._servicebus_receiver").setLevel(logging.INFO)
    _run(sys.argv[1])
