"""Stores of partitioned entities that fail under a served namespace, and kills of all of them at once.

P1. A store that cannot be opened takes only its fragments out, and comes back without a restart.
P2. After a kill what was acknowledged is there exactly once, an envelope as a whole or not at all, each key in order.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import suppress

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from harness.client.partition_client import LIMITS, client_of, complete_all, key_of
from isthmus.testing.namespace import namespace

pytestmark = pytest.mark.usefixtures("collected_each_time")

CONFIG = f"""
{LIMITS}
queues:
  spread: {{enable_partitioning: true}}
  plain: {{}}
"""


def ask(served, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{served.ports['http']}{path}", timeout=10) as reply:
        return reply.status, reply.read().decode()


def everything(served):
    """All messages of the queue, by sequence number."""
    with client_of(served) as client, client.get_queue_receiver("spread") as receiver:
        found = []
        while part := receiver.peek_messages(max_message_count=500):
            found += part
        return found


def test_a_broken_store_takes_only_its_fragments_out(tmp_path):
    with namespace(data=tmp_path, config=CONFIG) as served:
        with client_of(served) as client, client.get_queue_sender("spread") as sender:
            for store in range(3):
                sender.send_messages(ServiceBusMessage(f"first {store}", partition_key=key_of(store)))
        served.stop()
        folder, aside = tmp_path / "fragments" / "1", tmp_path / "aside"
        folder.rename(aside)
        folder.write_text("no folder")
        served.start()
        status, health = ask(served, "/health")
        assert (status, json.loads(health)) == (200, {"status": "healthy", "partition_stores_down": [1]})
        assert "isthmus_namespace_partition_stores_down 1\n" in ask(served, "/metrics")[1]
        assert "partition store 1 is down" in served.log()
        with client_of(served) as client, client.get_queue_sender("spread") as sender:
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("refused", partition_key=key_of(1)))
            for number in range(12):
                sender.send_messages(ServiceBusMessage(f"round {number}"))
            with client.get_queue_receiver("spread") as receiver:
                seen = complete_all(receiver, 14)
            assert sorted(seen) == sorted(["first 0", "first 2", *(f"round {number}" for number in range(12))])
            folder.unlink()
            aside.rename(folder)
            until = time.monotonic() + 20
            while '"partition_stores_down"' in ask(served, "/health")[1] and time.monotonic() < until:
                time.sleep(0.1)
            sender.send_messages(ServiceBusMessage("second 1", partition_key=key_of(1)))
        assert [str(message) for message in everything(served)] == ["first 1", "second 1"]
        assert "partition store 1 is up again" in served.log()


def _send(served, worker, seed, stop, acknowledged, begun):
    """Single messages with keys and envelopes without, until stopped or cut off."""
    dice = random.Random(seed)
    with suppress(ServiceBusError, OSError), client_of(served) as client, client.get_queue_sender("spread") as sender:
        number = 0
        while not stop.is_set():
            number += 1
            if dice.random() < 0.5:
                key = f"{worker}-{dice.randrange(4)}"
                names = [f"{worker}/{number}/0/1"]
                messages = ServiceBusMessage(names[0], partition_key=key)
            else:
                count = dice.randrange(2, 6)
                names = [f"{worker}/{number}/{index}/{count}" for index in range(count)]
                messages = [ServiceBusMessage(name) for name in names]
            begun.update(names)
            sender.send_messages(messages)
            acknowledged.update(names)


# azure-servicebus leaves the sockets of killed connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kill_over_all_stores(tmp_path, long_count, counted):
    acknowledged: set[str] = set()
    begun: set[str] = set()
    with namespace(data=tmp_path, config=CONFIG) as served:
        rounds = long_count(60)
        for iteration in range(rounds):
            stop = threading.Event()
            workers = [
                threading.Thread(
                    target=_send, args=(served, f"{iteration}.{each}", iteration * 7 + each, stop, acknowledged, begun)
                )
                for each in range(3)
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
        found = everything(served)
    bodies = Counter(str(message) for message in found)
    counted(f"{rounds} kills", f"{rounds} kills, {len(acknowledged)} messages acknowledged of {len(begun)} begun")
    assert not [name for name, count in bodies.items() if count > 1]
    assert acknowledged <= set(bodies) <= begun
    assert len(acknowledged) > 10
    envelopes = defaultdict(list)
    by_key = defaultdict(list)
    for message in sorted(found, key=lambda message: message.sequence_number):
        worker, number, place_in, count = str(message).split("/")
        envelopes[worker, number, count].append(int(place_in))
        if message.partition_key is not None:
            by_key[message.partition_key].append(int(number))
    assert all(indexes == list(range(int(key[2]))) for key, indexes in envelopes.items())
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
