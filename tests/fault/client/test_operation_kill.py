"""Kills import, resubmit and purge at random instants, and the namespace below them: nothing is lost.

O1. After any number of kills and repetitions of an import every message of the file is there.
O2. A dead letter is in the dead-letter queue or its copy at the target, or both; never nowhere.
O3. A purge removes nothing that its filter does not mean, and ends.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.client.fault_client import connected, look, make_message, read_message
from isthmus.amqp import Error
from isthmus.amqp.performative import Modified, Rejected
from isthmus.amqp.section import encode_message
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.errors import IsthmusError
from isthmus.operations.server.statistics import ask_statistics
from isthmus.operations.server.target import find_target
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Receiver, Sender

COMMAND = [sys.executable, "-c", "from isthmus.cli.app import main; main()", "namespace"]
CONFIG = """
limits: {min_lock_duration: 1s}
queues:
  source: {lock_duration: 1s, max_delivery_count: 100000}
  target: {}
  sessions: {requires_session: true, lock_duration: 5s, max_delivery_count: 100000}
"""
MESSAGES = 3000
ROUNDS = 40
SESSIONS = 20
ACTIVE, DEFERRED, SCHEDULED = range(3)
DUE_MS = 4_000_000_000_000


@pytest.fixture
def ns(monkeypatch: pytest.MonkeyPatch) -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        monkeypatch.setenv("ISTHMUS_CONNECTION", running.connection_string)
        yield running


def fill(ns: NamespaceProcess) -> list[bytes]:
    bodies = [b"%d" % number for number in range(MESSAGES)]
    messages = [make_message(body, application_properties={"number": int(body)}) for body in bodies]
    with connected(ns, "source") as client:
        Sender(client, "source").wait_ready().send_all(messages, batch=100)
    return bodies


def bury(ns: NamespaceProcess) -> None:
    """Dead-letter all; what was not settled within its lock of a second comes again."""
    dead = Rejected(Error(Symbol("com.microsoft:dead-letter"), "bad", {"DeadLetterReason": "bad"}))
    limit = time.monotonic() + 60
    with connected(ns, "source") as client:
        receiver = Receiver(client, "source").wait_attached()
        while left := MESSAGES - counted("dead_letter", "source"):
            assert time.monotonic() < limit, f"{left} are not dead-lettered"
            receiver.grant(min(left, 300))  # locked at once
            client.wait(0.1)
            for run in receiver.take():
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1, dead)
            client.flush()


def bodies(ns: NamespaceProcess, *paths: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for path in paths:
        with connected(ns, path) as client:
            found.update(seen.body for seen in look(client, path))
    return found


def counted(counter: str, queue: str) -> int:
    rows = ask_statistics(find_target("env:ISTHMUS_CONNECTION"))["entities"]
    return int(next(row[counter] for row in rows if row["entity"] == queue))


def interrupt(
    ns: NamespaceProcess, arguments: list[str], how_far: Callable[[], int], choose: random.Random, *, broker: bool
) -> dict[str, Any] | None:
    """Run a verb and kill it, or the namespace, once it has made some progress; its answer if it was quicker."""
    start = how_far()
    goal = start + choose.randrange(1, MESSAGES // 2)
    process = subprocess.Popen([*COMMAND, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 180
    while process.poll() is None and how_far() < goal:
        assert time.monotonic() < limit, "it does not go on"
        time.sleep(0.002)
    if broker:
        ns.kill()
        ns.start()
    elif process.poll() is None:
        process.kill()
    output, _ = process.communicate(timeout=90)
    with suppress(ValueError):
        found: dict[str, Any] = json.loads(output.splitlines()[-1] if output else b"")
        return found
    return None


def finish(arguments: list[str]) -> dict[str, Any]:
    """Run a verb until it says that nothing is left."""
    for _ in range(20):
        done = subprocess.run([*COMMAND, *arguments, "--json"], capture_output=True, timeout=120, check=False)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
        time.sleep(1.1)  # locks of those that were killed
    raise AssertionError(done.stderr.decode() + done.stdout.decode())


@pytest.fixture
def choose(long_count: Callable[[int], int], counted: Callable[[str, str], None]) -> Iterator[random.Random]:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    yield random.Random(seed)
    rounds = long_count(ROUNDS)
    counted(f"{rounds} kills of the verb or of the namespace", f"{rounds} rounds with {MESSAGES} messages, seed {seed}")


def test_import_o1(
    ns: NamespaceProcess, tmp_path: Path, long_count: Callable[[int], int], choose: random.Random
) -> None:
    all_bodies = fill(ns)
    file = tmp_path / "file"
    progress = file.with_name("file.progress")
    finish(["export", "source", str(file)])
    begun = 1
    for iteration in range(long_count(ROUNDS)):
        was_under_way, before, broker = progress.exists(), counted("in_total", "target"), iteration % 2 == 1
        answer = interrupt(
            ns, ["import", str(file), "target"], lambda: counted("in_total", "target"), choose, broker=broker
        )
        # One that went through to its end is followed by another. It may have been killed before its last output.
        has_ended = answer is not None and "error" not in answer
        if not progress.exists() and not has_ended:
            has_ended = was_under_way or (not broker and counted("in_total", "target") - before >= MESSAGES)
        begun += has_ended
    finish(["import", str(file), "target"])
    found = bodies(ns, "target")
    assert set(found) == set(all_bodies)
    assert min(found.values()) >= begun
    # Each interruption sends one group again at most.
    assert sum(found.values()) <= MESSAGES * begun + 500 * long_count(ROUNDS)
    assert not progress.exists()


def test_resubmit_o2(ns: NamespaceProcess, long_count: Callable[[int], int], choose: random.Random) -> None:
    all_bodies = fill(ns)
    bury(ns)
    arguments = ["resubmit", "source", "--to", "target", "--yes"]
    for iteration in range(long_count(ROUNDS)):
        interrupt(ns, arguments, lambda: counted("in_total", "target"), choose, broker=iteration % 2 == 1)
        assert set(bodies(ns, "source/$DeadLetterQueue", "target")) == set(all_bodies)
    finish(arguments)
    assert set(bodies(ns, "target")) == set(all_bodies)
    assert not bodies(ns, "source/$DeadLetterQueue")


def test_purge_o3(ns: NamespaceProcess, long_count: Callable[[int], int], choose: random.Random) -> None:
    all_bodies = fill(ns)
    kept = {body for body in all_bodies if int(body) % 3 == 0}
    arguments = ["purge", "source", "--filter", "number % 3 <> 0", "--yes"]
    for iteration in range(long_count(ROUNDS)):
        with suppress(IsthmusError):
            interrupt(ns, arguments, lambda: counted("settled_total", "source"), choose, broker=iteration % 2 == 1)
        found = bodies(ns, "source")
        assert kept <= set(found)
        assert max(found.values()) == 1
    finish(arguments)
    assert bodies(ns, "source") == Counter(kept)


def fill_sessions(ns: NamespaceProcess) -> dict[bytes, int]:
    """Messages in sessions, of all states; the state of each."""
    states = {b"%d" % n: {1: DEFERRED, 2: SCHEDULED}.get(n // SESSIONS % 5, ACTIVE) for n in range(MESSAGES)}
    messages = []
    for body, state in states.items():
        number = int(body)
        messages.append(
            encode_message(
                body,
                properties={"message_id": str(number), "group_id": f"s{number % SESSIONS}"},
                annotations={"x-opt-scheduled-enqueue-time": Timestamp(DUE_MS)} if state == SCHEDULED else None,
                application_properties={"number": number},
            )
        )
    with connected(ns, "sessions") as client:
        Sender(client, "sessions").wait_ready().send_all(messages, batch=100)
        for number in range(SESSIONS):
            receiver = Receiver(client, "sessions", in_session=True, session_id=f"s{number}").wait_attached()
            count = sum(state != SCHEDULED and int(body) % SESSIONS == number for body, state in states.items())
            receiver.grant(count)
            while count:
                client.wait_until(lambda receiver=receiver: receiver.arrived, 20, "messages")
                for run in receiver.take():
                    for index, payload in enumerate(run.payloads):
                        if states[read_message(payload).body] == DEFERRED:
                            receiver.dispose(
                                run.first_id + index, run.first_id + index, Modified(undeliverable_here=True)
                            )
                    count -= len(run.payloads)
            receiver.close()
        client.wait_until(
            lambda: counted("deferred", "sessions") == list(states.values()).count(DEFERRED), 20, "all set aside"
        )
    return states


def states_of(ns: NamespaceProcess) -> dict[bytes, int]:
    """Of what is in the sessions."""
    with connected(ns, "sessions") as client:
        found = [(seen.body, seen.state) for seen in look(client, "sessions")]
    assert len(dict(found)) == len(found), "doubled"
    return dict(found)


def test_purge_of_sessions_o3(ns: NamespaceProcess, long_count: Callable[[int], int], choose: random.Random) -> None:
    states = fill_sessions(ns)
    assert states_of(ns) == states
    kept = {body: state for body, state in states.items() if int(body) % 3 == 0}
    arguments = ["purge", "sessions", "--filter", "number % 3 <> 0", "--yes"]

    def removed() -> int:
        return MESSAGES - sum(counted(kind, "sessions") for kind in ("active", "deferred", "scheduled"))

    for iteration in range(long_count(ROUNDS)):
        with suppress(IsthmusError):
            interrupt(ns, arguments, removed, choose, broker=iteration % 2 == 1)
        found = states_of(ns)
        assert kept.items() <= found.items()
        assert found.items() <= states.items()
    finish(arguments)
    assert states_of(ns) == kept
    # No session is locked any more, and each gives what was left in it.
    with connected(ns, "sessions") as client:
        for number in range(SESSIONS):
            receiver = Receiver(client, "sessions", in_session=True, session_id=f"s{number}").wait_attached()
            wanted = {body for body, state in kept.items() if state == ACTIVE and int(body) % SESSIONS == number}
            receiver.grant(len(wanted))
            here: set[bytes] = set()
            while here != wanted:
                client.wait_until(lambda receiver=receiver: receiver.arrived, 20, "what was left")
                here |= {read_message(payload).body for run in receiver.take() for payload in run.payloads}
            receiver.close()
