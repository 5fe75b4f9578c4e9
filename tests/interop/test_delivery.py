"""A lease and an outlet between entities of a real namespace, written and read by azure-servicebus."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from isthmus.connectors.servicebus import outlet as outlet_module
from isthmus.connectors.servicebus.connect import endpoint_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.lease import Block, Finish, Lease, LeaseEnd, LeaseLimits
from isthmus.connectors.servicebus.outlet import Outlet
from isthmus.connectors.servicebus.splice import Splicer
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = """
queues:
  source: {lock_duration: 30s}
  sessions: {requires_session: true}
"""
COUNT = 60


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        yield running


def move(served: NamespaceProcess, target: str, channel_file: Path, idle_seconds: float, **more: Any) -> Outlet:
    """Runs one lease from `source` to `target`; what Spark does between is done here."""
    endpoint = endpoint_of_string(ConnectionString.parse(served.connection_string))
    splicer = Splicer("here/source")
    lease = Lease(
        endpoint, "source", LeaseLimits(60, 10**6, 1 << 30, idle_seconds), channel_file=channel_file, lock_seconds=30.0
    )
    outlet = Outlet(endpoint, target, channel_file=channel_file, **more).open()
    lease.start()
    rows = flushes = 0
    try:
        while not isinstance(item := lease.blocks.get(timeout=60), LeaseEnd):
            if isinstance(item, Block):
                rows += len(item.payloads)
                offsets = [0]
                for payload in item.payloads:
                    offsets.append(offsets[-1] + len(payload))
                copies, _ = splicer.copy_all(b"".join(item.payloads), offsets, 0)
                outlet.send(copies, item.sequences)
            flushes += 1
            lease.note_flush(flushes, rows)
            if isinstance(item, Finish):
                lease.note_finish(flushes)
            outlet.flush(flushes)
        assert item.error is None, item.error
        outlet.wait_source_end()
        outlet.finish()
    except BaseException as error:
        outlet.abort(error)
        raise
    finally:
        lease.join(10)
    return outlet


def test_a_message_that_its_target_never_takes_is_dead_lettered_and_the_others_cross(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity that requires sessions refuses a message without one as not allowed, whenever it comes."""
    monkeypatch.setattr(outlet_module, "SET_ASIDE_SECONDS", 0.5)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("source") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}", session_id=None if n == 7 else "s") for n in range(COUNT)])
        outlet = move(served, "sessions", tmp_path / "task.lease", 3.0)
        statistics = outlet.statistics()
        assert (statistics["completed"], statistics["dead_lettered"], statistics["blocked_by"]) == (COUNT - 1, 1, "")
        with client.get_queue_receiver("source", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = receiver.receive_messages(max_message_count=5, max_wait_time=5)
            assert (str(dead), dead.dead_letter_reason) == ("7", "RefusedByTarget")
            assert "amqp:not-allowed" in str(dead.dead_letter_error_description)
            assert "SessionId" in str(dead.dead_letter_error_description)
            receiver.complete_message(dead)
        with client.get_queue_receiver("sessions", session_id="s") as receiver:
            bodies: list[str] = []
            while len(bodies) < COUNT - 1:
                found = receiver.receive_messages(max_message_count=100, max_wait_time=5)
                assert found
                for message in found:
                    bodies.append(str(message))
                    receiver.complete_message(message)
        assert bodies == [str(n) for n in range(COUNT) if n != 7]


def test_where_the_target_takes_none_none_is_set_aside(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "SET_ASIDE_SECONDS", 0.2)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("source") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}") for n in range(COUNT)])
        failed = []

        def run() -> None:
            try:
                move(served, "sessions", tmp_path / "task.lease", 30.0, target_timeout_seconds=2.0)
            except BaseException as error:  # noqa: BLE001 - judged below
                failed.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        assert len(failed) == 1
        assert "SessionId" in failed[0]
        with client.get_queue_receiver("source", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert receiver.peek_messages(max_message_count=5) == []
        with client.get_queue_receiver("source") as receiver:
            left = receiver.receive_messages(max_message_count=COUNT, max_wait_time=5)
            assert [str(message) for message in left] == [str(n) for n in range(len(left))]
            assert {message.delivery_count for message in left} == {0}
