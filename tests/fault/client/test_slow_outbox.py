"""An outbox over a network that needs longer for a batch than the namespace may take to answer one: it is delivered, and sent once."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from harness.client.fault_client import connected
from isthmus.client import DurableSender
from isthmus.testing.namespace import namespace
from isthmus.testing.proxy import Weather, proxy
from isthmus.transport import Management

BYTES_PER_SECOND = 64 << 10
BUFFER_BYTES = 16 << 10
SIZE_BYTES = 20_000
MESSAGES = 24
ATTEMPT_SECONDS = 2.0
WAIT_SECONDS = 60.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_backlog_crosses_a_network_that_is_slower_than_the_time_out_of_a_batch(tmp_path: Path) -> None:
    with namespace(tmp_path / "a", config="queues: {orders: {}}") as near:
        port = near.ports["amqp"]
        with proxy(port) as slow:
            # What is in the proxy's own buffers has arrived, as far as the sender can see.
            slow._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            slow.set_weather(Weather(bytes_per_second=BYTES_PER_SECOND, buffer_bytes=BUFFER_BYTES), Weather())
            connection = near.connection_string.replace(f":{port}", f":{slow.port}")
            outbox = tmp_path / "outbox"
            with DurableSender(connection, "orders", outbox, attempt_timeout=ATTEMPT_SECONDS, drain=False) as sender:
                for number in range(MESSAGES):
                    sender.send_messages(ServiceBusMessage(bytes(SIZE_BYTES), message_id=f"m{number}"))
            began = time.monotonic()
            with DurableSender(connection, "orders", outbox, attempt_timeout=ATTEMPT_SECONDS) as sender:
                is_delivered = sender.flush(WAIT_SECONDS)
                state = sender.statistics().drain
            print(f"{time.monotonic() - began:.1f} s, {slow.bytes_there} bytes, {state}")
            assert is_delivered, (state, slow.bytes_there)
            assert state.retries == 0
            assert slow.bytes_there < 1.5 * SIZE_BYTES * MESSAGES, "some were sent more than once"
            with connected(near, "orders") as client:
                assert len(Management(client, "orders").peek(1, 2 * MESSAGES)) == MESSAGES
