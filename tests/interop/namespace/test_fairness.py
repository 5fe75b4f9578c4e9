"""Many receivers on one queue, and clients beside others that are slow or keep the disk busy."""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from harness.client.fault_client import connected, endpoint_for, make_message
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Client, Receiver, Sender

CONFIG = """
queues:
  shared: {lock_duration: 5m}
  slow: {lock_duration: 5m}
  timed: {}
  large: {max_message_size_in_kilobytes: 102400}
"""
LARGE_BYTES = 99 << 20
LINKS_OF_A_CONNECTION = 50
EACH = 100


@pytest.fixture(scope="module")
def ns() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        yield running


def test_receivers_with_a_credit_of_one_get_about_the_same(ns, long_count, counted):
    """1,000 receivers and 100,000 messages; scaled, as many messages for each."""
    count = long_count(1000)
    with ExitStack() as stack:
        sender_client = stack.enter_context(connected(ns, "shared"))
        sender = Sender(sender_client, "shared").wait_ready()
        for start in range(0, count * EACH, 5000):
            part = range(start, min(start + 5000, count * EACH))
            sender.send_all([make_message(b"%d" % number) for number in part], batch=100)
        clients = [
            stack.enter_context(connected(ns, "shared"))
            for _ in range((count + LINKS_OF_A_CONNECTION - 1) // LINKS_OF_A_CONNECTION)
        ]
        receivers = [(client, Receiver(client, "shared")) for client in clients for _ in range(LINKS_OF_A_CONNECTION)]
        receivers = receivers[:count]
        for _, receiver in receivers:
            receiver.wait_attached()
        for _, receiver in receivers:
            receiver.grant(1)
        poll = select.epoll()
        stack.callback(poll.close)
        by_file = {client.fileno(): client for client in clients}
        of_client = {client: [each for owner, each in receivers if owner is client] for client in clients}
        for client in clients:
            client.flush()
            poll.register(client.fileno(), select.EPOLLIN)
        limit = time.monotonic() + 30 + count * EACH / 1000
        while sum(receiver.received for _, receiver in receivers) < count * EACH:
            assert time.monotonic() < limit, "not all came"
            for file, _ in poll.poll(1.0):
                client = by_file[file]
                client.service()
                for receiver in of_client[client]:
                    for run in receiver.take():
                        receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
                        receiver.grant(1)
                client.flush()
        got = [receiver.received for _, receiver in receivers]
        counted(
            f"{count} receivers with a credit of 1 get {EACH} ± 20 each of {count * EACH} messages",
            f"{min(got)} to {max(got)} each",
        )
        assert sum(got) == count * EACH
        assert min(got) >= EACH - 20
        assert max(got) <= EACH + 20


def round_trips(ns: NamespaceProcess, seconds: float) -> list[float]:
    """Times from sending a message to having it, one after the other."""
    times = []
    with connected(ns, "timed") as client:
        sender = Sender(client, "timed").wait_ready()
        receiver = Receiver(client, "timed").wait_attached()
        receiver.grant(10)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            sender.send([make_message(b"x" * 1000)])
            client.wait_until(lambda: receiver.arrived and not sender.outstanding, 30, "a message")
            times.append(time.perf_counter() - began)
            for run in receiver.take():
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
            receiver.grant(10)
            time.sleep(0.001)
    return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextmanager
def slow_consumers(ns: NamespaceProcess) -> Iterator[None]:
    """Clients that grant credit for everything and read nothing."""
    with ExitStack() as stack:
        sender = Sender(stack.enter_context(connected(ns, "slow")), "slow").wait_ready()
        sender.send_all([make_message(b"x" * 100_000) for _ in range(400)])
        for _ in range(5):
            client = Client(endpoint_for(ns)).open()
            stack.callback(client.abandon)
            client.authorize("slow")
            Receiver(client, "slow").wait_attached().grant(1000)
            client.flush()
        yield


@contextmanager
def synced_writes(ns: NamespaceProcess) -> Iterator[None]:
    """A client for which the disk is synced all the time."""
    stop = threading.Event()

    def send() -> None:
        with connected(ns, "shared") as client:
            sender = Sender(client, "shared").wait_ready()
            while not stop.is_set():
                sender.send_all([make_message(b"x" * 1000) for _ in range(20)])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def large_messages(ns: NamespaceProcess) -> Iterator[None]:
    """A client that sends, receives and completes messages of 99 MB without a pause, in a process of its own."""
    before = bodies(ns)
    client = subprocess.Popen(
        [sys.executable, "-m", "isthmus.bench.large", str(LARGE_BYTES), "large"],
        env={**os.environ, "BENCH_LOAD": ns.connection_string},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        limit = time.monotonic() + 60  # it runs at the lowest priority
        while not bodies(ns) - before:
            assert time.monotonic() < limit, "no large message came"
            time.sleep(0.05)
        yield
    finally:
        reported, _ = client.communicate()
    assert int(reported) >= 1


def bodies(ns: NamespaceProcess) -> set[str]:
    """Files of large messages; none has a name that another one had."""
    return {path.name for path in (ns.data / "large").glob("*")}


# The noise of two shared processors in a round trip, in a single round.
NOISE_SECONDS = 0.02
# So many rounds, in turn without and with the load, have had the same noise.
ROUNDS_THAT_TELL = 10


@pytest.mark.soak  # compares times, which depend on what else runs
@pytest.mark.parametrize("load", [slow_consumers, synced_writes, large_messages])
def test_one_client_delays_no_other(ns, load, long_count, counted):
    """p99 of the others is at most three times what it is without: of all rounds together, and about so in each."""
    rounds = long_count(20)
    seen: list[tuple[float, float]] = []
    all_without: list[float] = []
    all_beside: list[float] = []
    round_trips(ns, 0.5)
    for _ in range(rounds):
        without = round_trips(ns, 2.0)
        with load(ns):
            beside = round_trips(ns, 2.0)
        all_without += without
        all_beside += beside
        seen.append((p99(without), p99(beside)))
    reported = ", ".join(f"{1000 * without:.1f} -> {1000 * beside:.1f}" for without, beside in seen)
    ratio = p99(all_beside) / p99(all_without)
    reported += f"; all together: {1000 * p99(all_without):.1f} -> {1000 * p99(all_beside):.1f}, {ratio:.2f} times"
    counted(f"{rounds} times p99 of others beside {load.__name__}, at most threefold", f"ms: {reported}")
    assert all(beside <= 3 * max(without, NOISE_SECONDS) for without, beside in seen), reported
    if rounds >= ROUNDS_THAT_TELL:
        assert ratio <= 3, reported
