"""A small federation for the length of a test: namespaces, a federation file, and runs of it, all real.

What it is: namespaces in processes of their own (`isthmus.testing.namespace`), all-active tasks between them that are
linted, planned and applied, `isthmus run` as a process that can be stopped or killed, publishing that counts
acknowledged messages, and the reconciliation. What it is not: a fake.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from isthmus.amqp import section
from isthmus.connectors.administration import Administrations
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.status import read_status
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.namespace import NamespaceProcess
from isthmus.testing.proxy import Proxy
from isthmus.topology import plan
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.file.source import load
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.route import routes
from isthmus.transport import Sender

__all__ = ["FederationProcess", "RunProcess", "WaitError"]

_COMMAND = "from isthmus.cli.app import main; main()"
# The terminal that a session leader opens first becomes its controlling terminal, whose end it receives as SIGHUP. The
# tests themselves may run under `nohup`.
_IN_TERMINAL = "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.open(os.ttyname(0), os.O_RDWR); "
TASK = TOPIC = "flights"
BATCH_MESSAGES = 100
POLL_SECONDS = 0.3


class WaitError(IsthmusError):
    """A condition that a test waited for did not occur; the text contains the end of the run's log."""

    code = "test-wait"


class RunProcess:
    """`isthmus run` in a process of its own.

    Args:
        arguments: what follows `run`.
        state: its state folder.
        log_file: for its output, where it runs in no terminal.
        terminal: descriptor of the terminal that it runs in, or None.
    """

    def __init__(self, arguments: Sequence[str], state: Path, log_file: Path, terminal: int | None = None) -> None:
        self.state = state
        self.log_file = log_file
        command = _COMMAND if terminal is None else _IN_TERMINAL + _COMMAND
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", command, "run", *arguments, "--state", str(state)],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=log if terminal is None else terminal,
                stderr=log if terminal is None else terminal,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def phases(self) -> dict[str, str]:
        """The routes' phases in its status; empty before its first status."""
        document = read_status(self.state)
        if document is None or document["process"] != self.pid:
            return {}
        return {route["name"]: route["phase"] for route in document["routes"]}

    def wait_phase(self, wanted: Sequence[str], timeout_seconds: float = 180.0) -> None:
        """Wait until every route is in one of the phases.

        Raises:
            WaitError: the time is over, or the run has ended.
        """
        limit = time.monotonic() + timeout_seconds
        while not (phases := self.phases()) or any(phase not in wanted for phase in phases.values()):
            if time.monotonic() > limit or not self.is_alive():
                raise WaitError(f"routes are {phases}, wanted {wanted}: {self.log()[-3000:]}")
            time.sleep(0.2)

    def ends(self, *, reads: bool) -> list[psutil.Process]:
        """The process ids of the workers that read from sources, or of those that send to targets, of all queries."""
        driver = psutil.Process(self.pid)
        control = {each.laddr.port for each in driver.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        found = []
        for pid in self.workers():
            try:
                process = psutil.Process(pid)
                made = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
            except psutil.Error:
                continue
            # Only readers are connected to the driver's control port.
            if made and any(each.raddr.port in control for each in made) is reads:
                found.append(process)
        return found

    def workers(self) -> list[int]:
        """Ids of the Python workers that move messages now."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                words = process.cmdline()
                parent = process.parent()
                if "pyspark.worker" in words and parent is not None and "pyspark.worker" in parent.cmdline():
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def end(self, number: signal.Signals = signal.SIGINT, timeout_seconds: float = 180.0) -> int:
        """Asks it to end, or kills it with SIGKILL; returns its exit code. No error if it has ended."""
        if self.is_alive():
            self._process.send_signal(number)
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float) -> int:
        """Waits for its end; returns its exit code.

        Raises:
            WaitError: the time is over; the process is killed.
        """
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise WaitError(f"the run did not end: {self.log()[-3000:]}") from None

    def log(self) -> str:
        """Its output."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")


class FederationProcess:
    """Namespaces and all-active tasks between them.

    Args:
        folder: for all files.
        aliases: the namespaces.
        settings: further settings of every task, as lines of YAML.
        tasks: members by task, which has a topic of its name; one between all namespaces if none is named.
        written: the tasks as lines of YAML, of any patterns, instead of `tasks` and `settings`.
        proxied: whether runs reach the namespaces through a proxy each. The test's own connections do not use them.
        others: further namespaces, of any kind, as lines of YAML; they must exist.

    Attributes:
        namespaces: by alias.
        proxies: by alias, where runs are proxied.
        file: the federation file, as runs read it.
        published: by alias, how many messages its namespace has acknowledged, on all topics.
    """

    def __init__(
        self,
        folder: Path,
        aliases: Sequence[str] = ("ewr", "jfk"),
        settings: Sequence[str] = (),
        tasks: Mapping[str, Sequence[str]] | None = None,
        written: str = "",
        *,
        proxied: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._others = tuple(others)
        self.proxies: dict[str, Proxy] = {}
        self.namespaces = {alias: NamespaceProcess(folder / alias) for alias in aliases}
        self.file = folder / "isthmus.yaml"
        self.state = folder / "state"
        self.published = dict.fromkeys(aliases, 0)
        self._settings = tuple(settings)
        self._tasks = {} if written else tasks or {TASK: aliases}
        self._written = written
        self._proxied = proxied
        self._runs: list[RunProcess] = []
        self._federation: Federation | None = None

    @property
    def federation(self) -> Federation:
        """The federation, as read from the file."""
        assert self._federation is not None
        return self._federation

    def open(self) -> Self:
        """Start the namespaces and apply the file.

        Raises:
            IsthmusError: something did not start.
        """
        with ThreadPoolExecutor(len(self.namespaces)) as pool:
            list(pool.map(NamespaceProcess.start, self.namespaces.values()))
        if self._proxied:
            self.proxies = {alias: Proxy(each.ports["amqp"]) for alias, each in self.namespaces.items()}
        self._write()
        self._federation = self._without_proxies(load(self.file))
        with Administrations(self.federation) as administrations:
            applied = administrations.apply(plan(self.federation, administrations.observe()))
        if applied.error is not None:
            raise applied.error
        return self

    def _write(self) -> None:
        """The federation file, and the connections that it refers to; through the proxies, where there are any."""
        lines = ["isthmus: 1", "namespaces:"]
        for alias, namespace in self.namespaces.items():
            text = namespace.connection_string
            if alias in self.proxies:
                text = text.replace(f":{namespace.ports['amqp']}", f":{self.proxies[alias].port}", 1)
            connection = self._connection(alias, text)
            authority = namespace.ca_file.relative_to(self.folder)
            lines.append(f'  {alias}: {{connection: "file:{connection.name}#connection", ca_file: {authority}}}')
        lines += [*(f"  {line}" for line in self._others), "tasks:", *self._written.splitlines()]
        for task, members in self._tasks.items():
            lines += [f"  {task}:", "    pattern: all-active", f"    topic: {task}"]
            lines += [f"    members: [{', '.join(members)}]", "    subscriptions: [audit]"]
            lines += [f"    {line}" for line in self._settings]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _connection(self, name: str, text: str) -> Path:
        file = self.folder / f"{name}.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"connection": text}), encoding="utf-8")
        return file

    def _without_proxies(self, federation: Federation) -> Federation:
        """The same tasks, whose marks are made of the references in the file, with connections that do not use the proxies."""
        opened = dict(federation.namespaces)
        for alias in self.proxies:
            file = self._connection(f"{alias}-direct", self.namespaces[alias].connection_string)
            opened[alias] = replace(opened[alias], connection=SecretReference("file", str(file), "connection"))
        return replace(federation, namespaces=opened)

    def close(self) -> None:
        """Kills the processes that still run."""
        for run in self._runs:
            run.end(signal.SIGKILL)
        for proxy in self.proxies.values():
            proxy.close()
        for namespace in self.namespaces.values():
            namespace.kill()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *arguments: str, terminal: int | None = None) -> RunProcess:
        """Start `isthmus run` on the file, in a terminal if one is named by its descriptor."""
        log = self.folder / f"run-{len(self._runs)}.log"
        run = RunProcess([str(self.file), *arguments], self.state, log, terminal)
        self._runs.append(run)
        return run

    def publish(self, alias: str, count: int, body_bytes: int = 1000, topic: str = TOPIC) -> None:
        """Publish numbered messages to a task's member; returns once all are acknowledged.

        Raises:
            IsthmusError: the namespace refused, or cannot be reached.
        """
        first = self.published[alias] + 1
        messages = [
            section.encode_message(
                b"x" * body_bytes,
                properties={"message_id": f"{alias}-{number}"},
                application_properties={"publisher": alias, "number": number},
            )
            for number in range(first, first + count)
        ]
        with NamespaceClients(self.federation) as clients, clients.open(Endpoint(alias, topic)) as client:
            sender = Sender(client, topic).wait_ready()
            for start in range(0, count, BATCH_MESSAGES):
                chunk = messages[start : start + BATCH_MESSAGES]
                sender.send_all(chunk, batch=BATCH_MESSAGES)
                self.published[alias] += len(chunk)

    def backlog(self, *, source: str = "") -> int:
        """How many messages wait for the routes, including those in flight; of one source only, if it is named."""
        with NamespaceClients(self.federation) as clients:
            return self._waiting(clients, source)

    def _waiting(self, clients: NamespaceClients, source: str = "") -> int:
        return sum(
            BacklogMeter()(clients.peek(route.source)).waiting
            for route in routes(self.federation)
            if not source or route.source.alias == source
        )

    def wait_moved(self, timeout_seconds: float = 300.0) -> None:
        """Waits until no message waits for any route.

        Raises:
            WaitError: the time is over.
        """
        limit = time.monotonic() + timeout_seconds
        left = -1
        with NamespaceClients(self.federation) as clients:  # one connection for all polls, as long as none fails
            while left:
                try:
                    left = self._waiting(clients)
                except IsthmusError:
                    left = -1
                    clients.close()
                if left and time.monotonic() > limit:
                    log = self._runs[-1].log()[-3000:] if self._runs else ""
                    raise WaitError(f"{left} messages still wait: {log}")
                time.sleep(POLL_SECONDS if left else 0.0)

    def verify(self, task: str = TASK, *, by_hour: bool = False) -> Reconciliation:
        """The reconciliation of a task.

        Raises:
            IsthmusError: a namespace cannot be read.
        """
        (result,) = verify(self.federation, task=task, state_folder=self.state, by_hour=by_hour)
        return result
