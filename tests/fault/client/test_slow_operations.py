"""The operations of an operator over a network that needs longer for one message than an idle entity is waited for."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.check.until import until
from harness.client.fault_client import connected, make_message
from isthmus.amqp.performative import Rejected
from isthmus.connectors.servicebus.connect import endpoint_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.operations.message import make_change, make_choice
from isthmus.operations.peek import take_census
from isthmus.operations.receive import receive
from isthmus.operations.removal.purge import remove
from isthmus.operations.resubmit import resubmit
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import Weather, proxy
from isthmus.transport import Client, Management, Receiver, Sender

CONFIG = """
queues:
  big: {max_message_size_in_kilobytes: 10240}
  small: {}
  brief: {lock_duration: 5s, max_delivery_count: 2}
"""
BYTES_PER_SECOND = 128 << 10
BUFFER_BYTES = 16 << 10
SIZE_BYTES = 450_000
MESSAGES = 3
LINES = 100
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module", name="near")
def _near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("a"), config=CONFIG) as made:
        yield made


@pytest.fixture(name="far")
def _far(near: NamespaceProcess) -> Iterator[Client]:
    """A connection over a slow network to a queue with large messages."""
    with connected(near, "big") as client:
        Sender(client, "big").wait_ready().send_all([make_message(os.urandom(SIZE_BYTES)) for _ in range(MESSAGES)])
    port = near.ports["amqp"]
    with proxy(port) as slow:
        # What is in the proxy's own buffers has arrived, as far as the sender can see.
        slow._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        slow.set_weather(Weather(bytes_per_second=BYTES_PER_SECOND, buffer_bytes=BUFFER_BYTES, delay_seconds=0.1))
        connection = near.connection_string.replace(f":{port}", f":{slow.port}")
        with Client(endpoint_of_string(ConnectionString.parse(connection))).open() as client:
            client.authorize("big")
            yield client


def held(near: NamespaceProcess, path: str) -> int:
    with connected(near, path) as client:
        return len(Management(client, path).peek(1, 1000))


def test_large_messages_are_received_and_removed(near: NamespaceProcess, far: Client) -> None:
    taken: list[bytes] = []
    done = receive(far, "big", 0, 1.0, lambda payload, _: taken.append(payload))
    assert (done.completed, done.left, len(taken)) == (MESSAGES, 0, MESSAGES)
    assert held(near, "big") == 0


def test_large_messages_are_purged(near: NamespaceProcess, far: Client) -> None:
    meant = take_census(far, "big", make_choice(""))
    assert meant.total == MESSAGES
    assert remove(far, "big", meant) == (MESSAGES, 0)
    assert held(near, "big") == 0


def test_large_dead_letters_are_sent_again_once(near: NamespaceProcess, far: Client) -> None:
    dead = "big/$DeadLetterQueue"
    with connected(near, "big") as client:
        receiver = Receiver(client, "big").wait_attached()
        receiver.grant(MESSAGES)
        client.wait_until(lambda: receiver.received == MESSAGES, 30, "messages")
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.payloads) - 1, Rejected())
        client.flush()
    until(lambda: held(near, dead) == MESSAGES)
    far.authorize(dead)
    meant = take_census(far, dead, make_choice("")).active
    done = resubmit(far, dead, "big", meant, make_change(""))
    assert (done.moved, done.left) == (MESSAGES, 0)
    assert (held(near, "big"), held(near, dead)) == (MESSAGES, 0)
    with connected(near, "big") as client:
        remove(client, "big", take_census(client, "big", make_choice("")))


def receiving(near: NamespaceProcess, queue: str) -> subprocess.Popen[bytes]:
    verb = [sys.executable, "-c", "from isthmus.cli.app import main; main()", "receive", queue]
    environment = {**os.environ, "ISTHMUS_CONNECTION": near.connection_string}
    return subprocess.Popen(
        [*verb, "--max", "0", "--json", "--wait", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


@pytest.mark.parametrize("wanted", [1, 7])
def test_what_the_reader_of_the_output_did_not_read_is_not_removed(
    wanted: int, near: NamespaceProcess, tmp_path: Path
) -> None:
    """As in `isthmus receive … | head`: a pipe takes more than its reader does."""
    with connected(near, "small") as client:
        Sender(client, "small").wait_ready().send_all([make_message(b"%d" % number) for number in range(LINES)])
    with receiving(near, "small") as printing:
        found = subprocess.run(["head", "-n", str(wanted)], stdin=printing.stdout, capture_output=True, check=True)
        assert printing.stdout is not None
        printing.stdout.close()
    lines = found.stdout.splitlines()
    left = held(near, "small")
    with connected(near, "small") as client:
        remove(client, "small", take_census(client, "small", make_choice("")))
    assert len(lines) == wanted
    assert left == LINES - wanted, f"{LINES - wanted - left} messages were removed that nobody has seen"


def test_what_a_reader_that_pauses_has_not_read_stays_as_it_is(near: NamespaceProcess) -> None:
    """As in `isthmus receive … | less`: locks that expire while a page is read would make dead letters of what is behind it."""
    with connected(near, "brief") as client:
        Sender(client, "brief").wait_ready().send_all([make_message(b"%d" % number) for number in range(LINES)])
    with receiving(near, "brief") as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        lines = [printing.stdout.readline() for _ in range(2)]
        time.sleep(12.0)  # longer than two locks last
        lines += printing.stdout.readlines()
        complaints = printing.stderr.read()
        assert (printing.wait(), complaints) == (0, b"")
    found = [json.loads(line) for line in lines]
    assert [each["body"] for each in found] == [str(number) for number in range(LINES)]
    assert {each["delivery_count"] for each in found} == {0}
    assert held(near, "brief") == held(near, "brief/$DeadLetterQueue") == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes started now get SIGINT, though a shell that starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_what_was_not_read_before_ctrl_c_is_not_removed(near: NamespaceProcess) -> None:
    """The reader of a pipe gets the same signal, and ends with what it has not read."""
    with connected(near, "small") as client:
        Sender(client, "small").wait_ready().send_all([make_message(b"%d" % number) for number in range(LINES)])
    with receiving(near, "small") as printing:
        assert printing.stdout is not None
        lines = [printing.stdout.readline()]
        until(lambda: bool(select.select([printing.stdout], [], [], 0.1)[0]))
        printing.send_signal(signal.SIGINT)
        code = printing.wait(WAIT_SECONDS)
        left = held(near, "small")
    with connected(near, "small") as client:
        remove(client, "small", take_census(client, "small", make_choice("")))
    assert (len(lines), code) == (1, 130)
    assert left == LINES - len(lines), f"{LINES - len(lines) - left} messages were removed that nobody has seen"
