"""Kills a namespace, or a client, while a message of many megabytes is in transit.

L1. A message that was not sent to its end is not there after a restart, and takes no room.
L2. A message that was not received to its end is whole, and comes again.
L3. What was acknowledged before a kill has its body after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.client.fault_client import (
    AnsweredReceiver,
    AnsweringClient,
    connected,
    endpoint_for,
    look,
    make_message,
    read_message,
)
from isthmus.broker.backup import back_up_stopped
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 102400, lock_duration: 5m}}"
MEGABYTE = 1 << 20
BODY = os.urandom(MEGABYTE) * 30


def body_files(ns: NamespaceProcess) -> list[Path]:
    return sorted((ns.data / "large").glob("*"))


def eventually(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def send_some(ns: NamespaceProcess, client: AnsweringClient) -> None:
    """Send a large message until a part of it has reached the disk."""
    sender = Sender(client, "big").wait_ready()
    sender.send([make_message(BODY)])
    limit = time.monotonic() + 20
    while not any(file.stat().st_size > 5 * MEGABYTE for file in body_files(ns)):
        assert time.monotonic() < limit
        client.service()
    assert not sender.settled


def test_a_kill_while_a_message_is_sent_leaves_nothing_of_it_l1(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with suppress(IsthmusError), connected(ns, "big") as client:
            send_some(ns, client)
            ns.kill()
            assert body_files(ns)
        ns.start()
        assert body_files(ns) == []
        with connected(ns, "big") as client:
            assert look(client, "big") == []


def test_a_client_that_goes_while_it_sends_leaves_nothing_l1(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        client = AnsweringClient(endpoint_for(ns)).open()
        client.authorize("big")
        send_some(ns, client)
        client.abandon()
        eventually(lambda: body_files(ns) == [])
        with connected(ns, "big") as other:
            assert look(other, "big") == []


def test_a_kill_while_a_message_is_received_leaves_it_whole_l2_l3(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            Sender(client, "big").wait_ready().send_all([make_message(BODY, "whole")], timeout_seconds=60)
        with suppress(IsthmusError), connected(ns, "big") as client:
            receiver = AnsweredReceiver(client, "big").wait_attached()
            receiver.grant(1)
            limit = time.monotonic() + 20
            while client.connection.partial_bytes < 5 * MEGABYTE:
                assert time.monotonic() < limit
                client.service()
            ns.kill()
        ns.start()
        with connected(ns, "big") as client:
            receiver = AnsweredReceiver(client, "big").wait_attached()
            receiver.grant(1)
            client.wait_until(lambda: bool(receiver.arrived), 60, "the message")
            (run,) = receiver.take()
            assert read_message(run.payloads[0]).body == BODY
            receiver.ask(run.first_id, run.first_id)
            client.wait_until(lambda: bool(receiver.answers), 20, "an answer")
        eventually(lambda: body_files(ns) == [])


def test_a_receiver_that_goes_leaves_the_message_to_others_l2(tmp_path: Path) -> None:
    """Deleted at delivery, so that only the connection that has it keeps the body, and no longer than that."""
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            Sender(client, "big").wait_ready().send_all([make_message(BODY)], timeout_seconds=60)
        client = AnsweringClient(endpoint_for(ns)).open()
        client.authorize("big")
        receiver = AnsweredReceiver(client, "big", settled=True).wait_attached()
        receiver.grant(1)
        limit = time.monotonic() + 20
        while client.connection.partial_bytes < MEGABYTE:
            assert time.monotonic() < limit
            client.service()
        time.sleep(1.5)  # the namespace looks for what nothing refers to; the rest has still to be there
        assert len(body_files(ns)) == 1
        client.wait_until(lambda: bool(receiver.arrived), 60, "the message")
        assert read_message(receiver.take()[0].payloads[0]).body == BODY
        client.abandon()
        eventually(lambda: body_files(ns) == [])


def test_a_back_up_has_the_bodies_l3(tmp_path: Path) -> None:
    body = BODY[: 5 * MEGABYTE]
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            Sender(client, "big").wait_ready().send_all([make_message(body)])
        ns.kill()
        back_up_stopped(ns.data, tmp_path / "copy")
    for file in body_files(ns):
        file.unlink()
    with namespace(tmp_path / "copy") as copy, connected(copy, "big") as client:
        receiver = AnsweredReceiver(client, "big", settled=True).wait_attached()
        receiver.grant(1)
        client.wait_until(lambda: bool(receiver.arrived), 20, "the message")
        assert read_message(receiver.take()[0].payloads[0]).body == body


def test_memory_does_not_grow_with_many_at_once(tmp_path: Path) -> None:
    """Ten senders and ten receivers with 30 MB each: buffers are bounded, bodies never in memory."""
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        clients = [AnsweringClient(endpoint_for(ns)).open() for _ in range(10)]
        message = make_message(BODY)
        senders = []
        for client in clients:
            client.authorize("big")
            senders.append(Sender(client, "big").wait_ready())
        before = resident_bytes(ns)
        peak = 0
        for sender in senders:
            sender.send([message])
        limit = time.monotonic() + 240  # 300 MB to the disk and back, beside whatever else the machine does
        while any(sender.settled < 1 for sender in senders):
            assert time.monotonic() < limit
            for client in clients:
                client.service()
            peak = max(peak, resident_bytes(ns))
        receivers = [AnsweredReceiver(client, "big", settled=True).wait_attached() for client in clients]
        for receiver in receivers:
            receiver.grant(1)
        while any(receiver.received < 1 for receiver in receivers):
            assert time.monotonic() < limit
            for client in clients:
                client.service()
            peak = max(peak, resident_bytes(ns))
        for client in clients:
            client.close()
        print(f"resident: {before >> 20} MiB before, {peak >> 20} MiB with ten messages of 30 MB each way")
        assert peak - before < 80 * MEGABYTE


def resident_bytes(ns: NamespaceProcess) -> int:
    fields = Path(f"/proc/{ns.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
