"""RabbitMQ Shovel for comparison: two nodes of this machine's rabbitmq-server and a shovel between them.

What it is: two single nodes on free ports with their own data folders and their own Erlang port mapper, durable classic
queues, persistent messages, acknowledgement mode on-confirm, prefetch 1,000. It leaves nothing behind: the nodes and the
port mapper are children of this process and end with the block. It does not touch a RabbitMQ that already runs here.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from isthmus.bench.peer.amqp091 import Channel091
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError

__all__ = ["INSTALL_HINT", "Shovel", "is_installed", "rabbitmq_version", "run_shovel"]

INSTALL_HINT = "apt-get install --no-install-recommends rabbitmq-server"
PREFETCH = 1000
SOURCE_QUEUE, TARGET_QUEUE = "bench-source", "bench-target"
# Where Debian keeps the scripts that /usr/sbin's wrappers run as the user rabbitmq; called directly they run as anyone.
_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_START_TIMEOUT_SECONDS = 90
_STOP_TIMEOUT_SECONDS = 30


def is_installed() -> bool:
    """Whether this machine has Debian's rabbitmq-server."""
    return (_SCRIPTS / "rabbitmq-server").exists() and shutil.which("erl") is not None


def rabbitmq_version() -> str:
    """The version of the rabbitmq-server that is installed, from the name of its folder."""
    folder = (_SCRIPTS / "rabbitmq-server").resolve().parents[1].name
    return folder.removeprefix("rabbitmq_server-")


@dataclass(frozen=True, slots=True)
class Node:
    """A running RabbitMQ node."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl` against this node.

        Raises:
            IsthmusError: with its output, if it fails.
        """
        answer = subprocess.run(
            [str(_SCRIPTS / "rabbitmqctl"), "--node", self.name, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_SECONDS,
            check=False,
        )
        if answer.returncode:
            raise IsthmusError(f"rabbitmqctl {arguments[0]} failed: {answer.stderr.strip() or answer.stdout.strip()}")


@dataclass(frozen=True, slots=True)
class Shovel:
    """Two nodes with a queue each; `start` moves messages from the first to the second."""

    source: Node
    target: Node

    def start(self) -> None:
        """Declare the shovel on the source's node."""
        definition = {
            "src-protocol": "amqp091",
            "src-uri": "amqp://",
            "src-queue": SOURCE_QUEUE,
            "src-prefetch-count": PREFETCH,
            "dest-protocol": "amqp091",
            "dest-uri": f"amqp://guest:guest@127.0.0.1:{self.target.port}",
            "dest-queue": TARGET_QUEUE,
            "ack-mode": "on-confirm",
        }
        self.source.control("set_parameter", "shovel", "bench", json.dumps(definition))

    def stop(self) -> None:
        """Remove the shovel again."""
        self.source.control("clear_parameter", "shovel", "bench")

    @property
    def process_ids(self) -> dict[str, int]:
        """The nodes' processes, for the measurement of CPU time; the shovel runs inside the source's node."""
        return {"source": self.source.process.pid, "target": self.target.process.pid}


@contextmanager
def run_shovel(folder: Path) -> Iterator[Shovel]:
    """Start both nodes, make the queues, and end everything when the block ends.

    Args:
        folder: where the nodes keep their data; must be on a real disk for the numbers to mean anything.

    Raises:
        OperationTimeoutError: if a node does not come up.
    """
    with ExitStack() as stack:
        mapper_port = _free_port()
        mapper = subprocess.Popen(
            ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, mapper)
        source, target = (_start_node(stack, folder, name, mapper_port) for name in ("source", "target"))
        for node, queue in ((source, SOURCE_QUEUE), (target, TARGET_QUEUE)):
            channel = _wait_for(node)
            channel.declare(queue)
            channel.close()
        yield Shovel(source, target)


def _start_node(stack: ExitStack, folder: Path, role: str, mapper_port: int) -> Node:
    home = folder / role
    home.mkdir(parents=True)
    port, distribution_port = _free_port(), _free_port()
    name = f"isthmus_bench_{role}_{os.getpid()}@localhost"
    cookie = home / ".erlang.cookie"
    cookie.write_text("isthmusbench")
    cookie.chmod(0o600)
    (home / "plugins").write_text("[rabbitmq_shovel].\n")
    (home / "empty.conf").write_text("")
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_CONF_ENV_FILE": str(home / "empty.conf"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced"),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        # Makes the script exec the virtual machine, so that the process we started is the node.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    process = subprocess.Popen(
        [str(_SCRIPTS / "rabbitmq-server")],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(_end, process)
    return Node(name, port, process, environment)


def _wait_for(node: Node) -> Channel091:
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and node.process.poll() is None:
        try:
            return Channel091(node.port)
        except (ConnectionLostError, OSError):
            time.sleep(0.25)
    raise OperationTimeoutError(f"RabbitMQ node {node.name} did not start within {_START_TIMEOUT_SECONDS} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
