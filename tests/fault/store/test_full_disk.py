"""A disk that takes no more: sends are refused with an error, nothing acknowledged is lost, and the namespace continues to serve.

The limit on file sizes of the running process replaces the full disk: writes beyond it fail as on a full one.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from isthmus.operations.server.health import ask_health
from isthmus.testing.namespace import namespace

LIMIT_BYTES = 3 << 20
BODY = "x" * 100_000


def send_until_refused(sender: ServiceBusSender, numbers: range) -> tuple[list[int], str]:
    """Numbers that were acknowledged, and the text of the refusal."""
    sent = []
    for number in numbers:
        try:
            sender.send_messages(ServiceBusMessage(BODY, application_properties={"number": number}))
        except ServiceBusError as error:
            return sent, str(error)
        sent.append(number)
    return sent, ""


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "killed"])
def test_a_full_disk_refuses_sends_and_loses_nothing(tmp_path: Path, killed: bool) -> None:
    with namespace(tmp_path / "data", config="queues: {orders: {}}") as running:
        client = ServiceBusClient.from_connection_string(running.connection_string, retry_total=0)
        with client, client.get_queue_sender("orders") as sender:
            soft, hard = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
            sent, refusal = send_until_refused(sender, range(200))
            assert refusal, "the limit was never met"
            assert len(sent) >= 10
            health = ask_health(running.data, 60.0)
            assert health.status == "unhealthy", health.reason
            assert "The store refuses changes: " in health.reason
            assert str(tmp_path) not in health.reason
            again, refusal = send_until_refused(sender, range(200, 201))
            sent += again
            assert "commit failed" in running.log()
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (soft, hard))
            if not killed:
                sender.send_messages(ServiceBusMessage(BODY, application_properties={"number": 1000}))
                sent.append(1000)
                assert ask_health(running.data, 60.0).is_ready
        if killed:
            running.kill()
            running.start()
        client = ServiceBusClient.from_connection_string(running.connection_string)
        with (
            client,
            client.get_queue_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
        ):
            got: list[int] = []
            limit = time.monotonic() + 30
            while (messages := receiver.receive_messages(100, max_wait_time=2)) or len(got) < len(sent):
                assert messages or time.monotonic() < limit, f"only {got} of {sent} came"
                got += [int(message.application_properties[b"number"]) for message in messages]
        assert [number for number in got if number in sent] == sent
        # What was refused may be there all the same (the sync failed, not the write), but once at most.
        assert len(got) == len(set(got))
        assert running.stop() == 0
