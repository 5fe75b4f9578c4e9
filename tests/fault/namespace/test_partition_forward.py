"""Kills while messages are forwarded from one store to another, and a store that fails under a namespace that serves.

F1. What was acknowledged is at the end of its route exactly once, whatever was killed when; a key keeps its order.
F2. A store that refuses writes takes only its fragments out, and what was forwarded to them comes when it is back.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from harness.client.partition_client import LIMITS, client_of, complete_all, key_of
from isthmus.testing.namespace import namespace

pytestmark = pytest.mark.usefixtures("collected_each_time")

CONFIG = f"""
{LIMITS}
queues:
  out: {{}}
  over: {{enable_partitioning: true, forward_to: out}}
  in: {{forward_to: over}}
  end: {{enable_partitioning: true}}
  side: {{enable_partitioning: true, forward_to: end}}
"""
DISK_BYTES = 96 << 20
LEFT_BYTES = 3 << 20
ENDS = {"in": "out", "side": "end"}


def ask(served, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{served.ports['http']}{path}", timeout=10) as reply:
        return json.loads(reply.read())


def peek(served, queue):
    """All messages of a queue, by sequence number."""
    with client_of(served) as client, client.get_queue_receiver(queue) as receiver:
        found = []
        while part := receiver.peek_messages(max_message_count=500):
            found += part
        return found


def settled(served, wanted):
    """All messages at the ends once the wanted ones are there."""
    until = time.monotonic() + 60
    while True:
        found = {source: peek(served, end) for source, end in ENDS.items()}
        bodies = {str(message) for messages in found.values() for message in messages}
        if wanted <= bodies:
            return found
        assert time.monotonic() < until, f"{len(wanted - bodies)} acknowledged messages do not come"
        time.sleep(0.2)


def _send(served, queue, worker, stop, acknowledged, begun):
    dice = random.Random(worker)
    with suppress(ServiceBusError, OSError), client_of(served) as client, client.get_queue_sender(queue) as sender:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"{worker}-{dice.randrange(4)}" if dice.random() < 0.7 else None
            names = [f"{worker}/{number}/{place_in}" for place_in in range(dice.randrange(1, 5))]
            begun.update(names)
            sender.send_messages([ServiceBusMessage(name, partition_key=key) for name in names])
            acknowledged.update(names)


# azure-servicebus leaves the sockets of killed connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_forwarding_between_stores_survives_every_kill(tmp_path, long_count, counted):
    acknowledged: set[str] = set()
    begun: set[str] = set()
    rounds = long_count(60)
    with namespace(data=tmp_path, config=CONFIG) as served:
        for iteration in range(rounds):
            stop = threading.Event()
            workers = [
                threading.Thread(target=_send, args=(served, queue, f"{iteration}.{queue}", stop, acknowledged, begun))
                for queue in ENDS
            ]
            limit, wanted = time.monotonic() + 60, len(acknowledged) + 10
            for worker in workers:
                worker.start()
            while len(acknowledged) < wanted:
                assert time.monotonic() < limit, "the load does not get under way"
                time.sleep(0.01)
            time.sleep(random.Random(iteration).uniform(0.0, 0.6))
            served.kill()
            stop.set()
            for worker in workers:
                worker.join()
            served.start()
        found = settled(served, acknowledged)
        time.sleep(0.5)  # what came twice would come now
        found = settled(served, acknowledged)
        assert not any(peek(served, f"{queue}/$DeadLetterQueue") for queue in ("in", "over", "side"))
    bodies = Counter(str(message) for messages in found.values() for message in messages)
    counted(f"{rounds} kills", f"{rounds} kills, {len(acknowledged)} messages acknowledged of {len(begun)} begun")
    assert not [name for name, count in bodies.items() if count > 1]
    assert acknowledged <= set(bodies) <= begun
    assert len(acknowledged) > 10
    for messages in found.values():
        by_key = defaultdict(list)
        for message in messages:
            if message.partition_key is not None:
                worker, number, place_in = str(message).split("/")
                by_key[message.partition_key].append((int(number), int(place_in)))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


@contextmanager
def own_disk(folder):
    """A small file system for one store, and what fills it up."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a file system takes rights that this user lacks")

    def fill():
        balloon = folder / "balloon"
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        with balloon.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - LEFT_BYTES)
        return balloon

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_store_whose_disk_is_full_takes_only_its_fragments_out(tmp_path):
    config = "limits: {partitions_per_entity: 6, partition_stores: 3}\nqueues:\n  spread: {enable_partitioning: true}\n"
    with (
        own_disk(tmp_path / "data" / "fragments" / "1") as fill,
        namespace(data=tmp_path / "data", config=config + "  in: {forward_to: spread}\n") as served,
        client_of(served) as client,
        client.get_queue_sender("spread") as sender,
    ):
        balloon = fill()
        sent = []
        with suppress(ServiceBusError):
            for number in range(100):
                body = f"{number:04}" + "x" * 100_000
                sender.send_messages(ServiceBusMessage(body, partition_key=key_of(1)))
                sent.append(body)
        assert 5 <= len(sent) < 100
        assert ask(served, "/health") == {"status": "healthy", "partition_stores_down": [1]}
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("refused", partition_key=key_of(1)))
        for number in range(12):
            sender.send_messages(ServiceBusMessage(f"round {number}"))
        with client.get_queue_sender("in") as first:
            first.send_messages(ServiceBusMessage("later", partition_key=key_of(1)))
            first.send_messages(ServiceBusMessage("now", partition_key=key_of(2)))
        with client.get_queue_receiver("spread") as receiver:
            seen = complete_all(receiver, 13)
        assert sorted(seen) == sorted(["now", *(f"round {number}" for number in range(12))])
        assert "partition store 1 is down" in served.log()
        balloon.unlink()
        until = time.monotonic() + 30
        while len(bodies := [str(message) for message in peek(served, "spread")]) <= len(sent):
            assert time.monotonic() < until, "the store does not come back"
            time.sleep(0.1)
        assert "partition_stores_down" not in ask(served, "/health")
        assert [body for body in bodies if body in sent] == sent
        assert bodies[-1] == "later"
        # What was refused may be there all the same, but once at most.
        assert len(bodies) == len(set(bodies)) <= len(sent) + 2
        assert served.stop() == 0
