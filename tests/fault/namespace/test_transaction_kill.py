"""Kills a served namespace while transactions run: each is there as a whole or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.client.fault_client import Raw, connected, look, make_message, read_message
from harness.client.transaction_client import attach_coordinator, declare, discharge, send_with_state, within
from isthmus.amqp import Transfers, codec
from isthmus.amqp.performative import Accepted, Source, Target
from isthmus.amqp.section import decode_map, encode_message, locate
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

CONFIG = """
queues:
  work: {lock_duration: 5m}
  next: {}
"""
ROUNDS = 20
SEEDS = 1000
DUE_MS = 4_000_000_000_000
VIA = {Symbol("com.microsoft:transfer-destination-address"): "next"}


@dataclass
class Unit:
    """One transaction: a message of `work` completed, two sent there, one sent via it, one scheduled, one cancelled."""

    seed: bytes
    cancelled: bytes = b""
    sent: list[bytes] = field(default_factory=list)
    state: str = "open"  # open, asked, done, undone


def run(ns: NamespaceProcess, units: list[Unit], name: str) -> None:
    """Transactions one after the other, every third rolled back, until the namespace is killed."""
    with Raw(ns).opened() as client:
        control = attach_coordinator(client.session)
        sender = client.session.attach_sender("s", Target("work"), source=Source("me"))
        via = client.session.attach_sender("v", Target("work"), source=Source("me"), properties=VIA)
        receiver = client.session.attach_receiver("r", Source("work"), target=Target("me"), rcv_settle_mode=1)
        asking = client.session.attach_sender("m", Target("work/$management"), source=Source("me"))
        reported = client.session.attach_receiver("mr", Source("work/$management"), target=Target("me"))
        reported.grant(1 << 20)
        client.wait_until(lambda: control.credit and sender.credit and via.credit and asking.credit)

        def ask(operation: str, body: dict[str, Any], txn_id: bytes | None) -> Any:
            """As the Java SDK asks: settled, with the transaction in the state of the request's transfer."""
            client.events.clear()
            request = encode_message(
                body,
                properties={"message_id": "asked", "reply_to": "me"},
                application_properties={"operation": f"com.microsoft:{operation}"},
                value_body=True,
            )
            send_with_state(asking, request, None if txn_id is None else within(txn_id), settled=True)
            (payload,) = client.wait_until(lambda: [e for e in client.of(Transfers) if e.link is reported])[0].payloads
            found = locate(payload)
            assert decode_map(payload, found.application_properties)["statusCode"] == 200
            return codec.decode(payload, found.body[0] + 3)[0]

        def later(body: bytes) -> dict[str, Any]:
            payload = make_message(body, annotations={"x-opt-scheduled-enqueue-time": Timestamp(DUE_MS)})
            return {"messages": [{"message-id": "m", "message": payload}]}

        try:
            for number in range(SEEDS):
                client.events.clear()
                receiver.grant(1)
                arrived: Any = client.wait_until(lambda: [e for e in client.of(Transfers) if e.link is receiver])[0]
                unit = Unit(read_message(arrived.payloads[0]).body, f"{name}-{number}-off".encode())
                cancelled = ask("schedule-message", later(unit.cancelled), None)["sequence-numbers"]
                units.append(unit)
                txn_id = client.outcome(declare(control)).txn_id
                for index, link in enumerate((sender, sender, via)):
                    body = f"{name}-{number}-{index}".encode()
                    unit.sent.append(body)
                    client.outcome(send_with_state(link, make_message(body), within(txn_id)))
                unit.sent.append(f"{name}-{number}-later".encode())
                ask("schedule-message", later(unit.sent[-1]), txn_id)
                ask("cancel-scheduled-message", {"sequence-numbers": cancelled}, txn_id)
                receiver.dispose(
                    arrived.first_delivery_id, arrived.first_delivery_id, within(txn_id, Accepted()), settled=False
                )
                fails = number % 3 == 2
                unit.state = "undone" if fails else "asked"
                assert isinstance(client.outcome(discharge(control, txn_id, fail=fails)), Accepted)
                if not fails:
                    unit.state = "done"
        except AssertionError:
            if not client.ended:
                raise


def kill_under_way(ns: NamespaceProcess, units: list[Unit], seconds: float) -> None:
    """Kill so long after the first transaction was carried out."""
    limit = time.monotonic() + 60
    while not any(unit.state == "done" for unit in list(units)) and time.monotonic() < limit:
        time.sleep(0.002)
    time.sleep(seconds)
    ns.kill()


def test_a_transaction_is_whole_or_nothing_after_every_kill(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    done = 0
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        for round_number in range(long_count(ROUNDS)):
            with connected(ns, "work") as client:
                seeds = [make_message(b"seed-%d-%d" % (round_number, number)) for number in range(SEEDS)]
                Sender(client, "work").wait_ready().send_all(seeds)
            units: list[Unit] = []
            killer = threading.Thread(target=kill_under_way, args=(ns, units, chance.uniform(0.0, 1.0)))
            killer.start()
            try:
                run(ns, units, f"t{round_number}")
            finally:
                killer.join()
            ns.start()
            with connected(ns, "work", "next") as client:
                found = [seen.body for path in ("work", "next") for seen in look(client, path)]
            here = set(found)
            assert len(found) == len(here), "doubled"
            for unit in units:
                states = {body in here for body in unit.sent} | {unit.seed not in here, unit.cancelled not in here}
                if unit.state == "done":
                    assert states == {True}, unit
                elif unit.state == "asked":
                    assert len(states) == 1, unit
                else:
                    assert states == {False}, unit
            done += sum(unit.state == "done" for unit in units)
        assert done > 0
        counted(
            f"{long_count(ROUNDS)} kills while transactions run",
            f"{long_count(ROUNDS)} kills, {done} transactions carried out, each whole or not at all, seed {seed}",
        )
        assert "Traceback" not in ns.log()
