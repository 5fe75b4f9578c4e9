"""Kills a served namespace while messages are forwarded: each is at its source or at its target, never in both or neither."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from azure.servicebus.management import ServiceBusAdministrationClient

from harness.client.fault_client import connected, look, make_message
from harness.client.fault_stream import Stream, working
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

CONFIG = """
queues:
  end: {lock_duration: 5m}
  middle: {forward_to: end}
  start: {forward_to: middle}
"""
ROUNDS = 20
PILE = 20_000


def numbers(ns: NamespaceProcess, path: str) -> list[int]:
    with connected(ns, path) as client:
        return [int(seen.body) for seen in look(client, path)]


def test_forwarding_survives_every_kill(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    """Messages under way: what was acknowledged is at the end of the chain, once and in order."""
    stream = Stream("start", 5, "end")
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        for _ in range(long_count(ROUNDS)):
            with working([stream.send, stream.receive], ns):
                limit = time.monotonic() + 60
                while stream.unsettled < 100 or not stream.completed:
                    assert time.monotonic() < limit, "the load does not get under way"
                    time.sleep(0.02)
                time.sleep(chance.uniform(0.0, 1.0))
                ns.kill()
            ns.start()
            with connected(ns, "end") as client:
                faults = stream.check(look(client, "end"))
            assert not faults, faults[:20]
            for entity in ("start", "middle", "start/$DeadLetterQueue", "middle/$DeadLetterQueue"):
                assert numbers(ns, entity) == []
        assert stream.completed
        counted(
            f"{long_count(ROUNDS)} kills while messages are forwarded",
            f"{long_count(ROUNDS)} kills, {stream.next} messages sent, {len(stream.completed)} completed, seed {seed}",
        )
        assert "Traceback" not in ns.log()


def test_moving_what_waited_survives_kills(tmp_path: Path) -> None:
    """A backlog is moved in groups: killed in between, the start continues, and nothing is lost, doubled or out of order."""
    with namespace(tmp_path / "data") as ns:
        with ServiceBusAdministrationClient.from_connection_string(
            ns.connection_string, connection_verify=str(ns.ca_file)
        ) as admin:
            pile = admin.create_queue("pile")
            admin.create_queue("heap")
            with connected(ns, "pile") as client:
                sender = Sender(client, "pile").wait_ready()
                sender.send_all([make_message(b"%d" % number) for number in range(PILE)])
            pile.forward_to = "heap"
            admin.update_queue(pile)
        ns.kill()
        ns.start()
        for _ in range(3):
            time.sleep(random.uniform(0.0, 0.2))
            ns.kill()
            ns.start()
        limit = time.monotonic() + 60
        while numbers(ns, "pile"):
            assert time.monotonic() < limit, "the rest is not moved"
            time.sleep(0.1)
        assert numbers(ns, "heap") == list(range(PILE))
        assert "Traceback" not in ns.log()
