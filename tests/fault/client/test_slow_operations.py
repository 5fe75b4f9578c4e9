"""The operations of an operator over a network that needs longer for one message than an idle entity is waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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

CONFIG = "queues: {big: {max_message_size_in_kilobytes: 10240}, small: {}}"
BYTES_PER_SECOND = 128 << 10
BUFFER_BYTES = 16 << 10
SIZE_BYTES = 450_000
MESSAGES = 3
LINES = 100


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
    done = receive(far, "big", 0, 1.0, taken.append)
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


@pytest.mark.parametrize("wanted", [1, 7])
def test_what_the_reader_of_the_output_did_not_read_is_not_removed(
    wanted: int, near: NamespaceProcess, tmp_path: Path
) -> None:
    """As in `isthmus receive … | head`: a pipe takes more than its reader does."""
    with connected(near, "small") as client:
        Sender(client, "small").wait_ready().send_all([make_message(b"%d" % number) for number in range(LINES)])
    verb = [
        sys.executable,
        "-c",
        "from isthmus.cli.app import main; main()",
        "receive",
        "small",
        "--max",
        "0",
        "--json",
    ]
    environment = {**os.environ, "ISTHMUS_CONNECTION": near.connection_string}
    with subprocess.Popen([*verb, "--wait", "1"], stdout=subprocess.PIPE, env=environment) as printing:
        found = subprocess.run(["head", "-n", str(wanted)], stdin=printing.stdout, capture_output=True, check=True)
        assert printing.stdout is not None
        printing.stdout.close()
    lines = found.stdout.splitlines()
    left = held(near, "small")
    with connected(near, "small") as client:
        remove(client, "small", take_census(client, "small", make_choice("")))
    assert len(lines) == wanted
    assert left == LINES - wanted, f"{LINES - wanted - left} messages were removed that nobody has seen"
