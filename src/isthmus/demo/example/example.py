"""An example, from set-up to verification: the driver of `examples/*/run`.

What it is: it starts one namespace for each alias of the folder's `federation.yaml`, applies the file, publishes real data as the
file's `x-example` says (`isthmus.demo.example.script`), runs the routes through Spark until nothing waits, and compares published messages
with those at the targets, by `isthmus verify` and by the publishers' own numbers. All files are in a temporary folder.
What it is not: a test kit; an operator could use the file with other connections.

A folder may hold a module `example.py` with any of these functions, for what `x-example` cannot say:
    connect(alias, folder, stack) -> NamespaceRef    opens a namespace of another kind; `stack` is a contextlib.ExitStack
    before(example)                                  after `apply`, before anything is published
    during(example)                                  while routes run and half is published
    after(example) -> dict                           after everything was moved; goes into the report
    arrived(endpoint) -> Peek | None                 what an application received at a target that cannot be browsed

Invariants:
    I1. Only the report remains of an example after its end: its processes have ended, and the folder is removed.
    I2. Every message that is not at its target counts as lost.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from isthmus.connectors.administration import Administrations
from isthmus.demo.consumer import stamp
from isthmus.demo.example.application import Worker, publish
from isthmus.demo.example.script import Publication, Script, messages_of, read_script
from isthmus.demo.example.stamped import Stamped
from isthmus.errors import ConfigError, Fault, IsthmusError, OperationTimeoutError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.run import RunOptions, run_federation
from isthmus.supervisor.supervisor import Settings
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology import plan
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.file.source import load, load_text
from isthmus.topology.model import Federation, Flow, NamespaceRef
from isthmus.topology.pattern.archive import ArchiveTask
from isthmus.topology.route import flows as declared_flows
from isthmus.topology.route import routes

__all__ = ["Example", "main"]

FILE, HOOK = "federation.yaml", "example.py"
MESSAGES = 3000
START_SECONDS = 240.0
# Without any progress for so long, missing messages are taken as lost.
STILL_SECONDS = 30.0
LOOK_SECONDS = 0.5
UNDELIVERED = ("waiting", "expired", "dead_lettered", "lost")


class Example:
    """One run of an example.

    Args:
        source: the example's folder.
        folder: where namespaces, checkpoints and logs go.
        messages: of each table, how many rows.
        say: called with what happens.

    Attributes:
        federation: as read from the file, with connections to the namespaces that were started.
        namespaces: by alias, those that were started.
        sent: how many messages were acknowledged.
    """

    def __init__(self, source: Path, folder: Path, messages: int, say: Any = lambda text: None) -> None:
        self.source = source.absolute()
        self.folder = folder
        self.messages = messages
        self.namespaces: dict[str, NamespaceProcess] = {}
        self.sent = 0
        file = self.source / FILE
        self.script: Script = read_script(load_text(file), str(file))
        self.federation: Federation = _with_tables_in(load(file), self.source, folder)
        self._say = say
        self._hook = _load_hook(self.source / HOOK)
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._document: dict[str, Any] = {}
        flows = [flow for task in self.federation.tasks.values() for flow in declared_flows(task)]
        self.flows: tuple[Flow, ...] = tuple(flows)
        logs = [alias for alias, each in self.federation.namespaces.items() if each.is_log]
        self._stamped = Stamped(flows, [work.at for work in self.script.work], logs)

    def play(self) -> dict[str, Any]:
        """Run it; the report.

        Raises:
            IsthmusError: something did not start, or ended too early.
        """
        began = time.monotonic()
        with self._stack:
            self._stack.callback(self._end)
            self._say(f"{len(self.federation.namespaces)} namespaces start")
            self._open()
            self._apply()
            self._call("before")
            self._say("routes start in Spark")
            self._run()
            for work in self.script.work:
                worker = Worker(self.federation, work).start()
                self._stack.callback(worker.close)
            self._publish()
            self._say("everything is published; routes move the rest")
            results, stamped = self._wait_moved()
            added = self._call("after") or {}
            self._end()
        return self._report(results, stamped) | added | {"seconds": round(time.monotonic() - began, 1)}

    # ---- set-up

    def _open(self) -> None:
        for alias, reference in self.federation.namespaces.items():
            if reference.kind == "servicebus":
                self.namespaces[alias] = self._namespace(alias)
        for namespace in self.namespaces.values():
            self._stack.callback(namespace.stop)
        with ThreadPoolExecutor(max(1, len(self.namespaces))) as pool:
            list(pool.map(NamespaceProcess.start, self.namespaces.values()))
        opened = {alias: self._reference(alias) for alias in self.federation.namespaces}
        self.federation = replace(self.federation, namespaces=opened)

    def _namespace(self, alias: str) -> NamespaceProcess:
        config = None
        if entities := self.script.entities.get(alias):
            config = self.folder / f"{alias}.yaml"
            config.write_text(yaml.safe_dump(entities, sort_keys=False), encoding="utf-8")
        return NamespaceProcess(self.folder / alias, config=config)

    def _reference(self, alias: str) -> NamespaceRef:
        """The connection of a namespace that was started, in place of the one in the file."""
        declared = self.federation.namespaces[alias]
        if alias not in self.namespaces:
            if self._hook is None or not hasattr(self._hook, "connect"):
                raise ConfigError(
                    [Fault(f"namespace {alias} is of the kind {declared.kind}", f"write connect() in {HOOK}")]
                )
            connected: NamespaceRef = self._hook.connect(alias, self.folder, self._stack)
            return connected
        namespace = self.namespaces[alias]
        connection = self.folder / f"{alias}.json"
        connection.touch(mode=0o600)
        connection.write_text(json.dumps({"connection": namespace.connection_string}), encoding="utf-8")
        reference = SecretReference("file", str(connection), "connection")
        return replace(declared, connection=reference, host="", identity="", ca_file=str(namespace.ca_file))

    def _apply(self) -> None:
        with Administrations(self.federation) as administrations:
            made = plan(self.federation, administrations.observe())
            if made.faults:
                raise ConfigError(made.faults)
            applied = administrations.apply(made)
        if applied.error is not None:
            raise applied.error
        self._say(f"{len(applied.done)} changes applied")

    # ---- the routes

    def _run(self) -> None:
        if not routes(self.federation):
            return
        self._thread = threading.Thread(target=self._move, name="isthmus-run", daemon=True)
        self._thread.start()
        limit = time.monotonic() + START_SECONDS
        while not (phases := self._phases()) or any(phase not in ("waiting", "moving") for phase in phases.values()):
            self.check()
            if time.monotonic() > limit:
                raise OperationTimeoutError(f"the routes did not start within {START_SECONDS:.0f} s: {phases}")
            time.sleep(0.1)

    def _move(self) -> None:
        options = RunOptions(self.folder / "run", settings=Settings(retry_first_seconds=1.0))
        try:
            run_federation(self.federation, options, self._stop, on_status=self._note)
        except Exception as error:  # noqa: BLE001 - `check` raises it in the example's own thread
            self._failure = error

    def _note(self, document: dict[str, Any]) -> None:
        self._document = document

    def _phases(self) -> dict[str, str]:
        return {route["name"]: route["phase"] for route in self._document.get("routes", ())}

    def check(self) -> None:
        """Check that the routes run.

        Raises:
            IsthmusError: they have.
        """
        if self._failure is not None:
            raise self._failure
        if self._thread is not None and not self._thread.is_alive() and not self._stop.is_set():
            raise OperationTimeoutError("the routes ended by themselves")

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(90.0)
            self._thread = None

    # ---- the applications

    def _publish(self) -> None:
        self._began = time.monotonic()
        sources = [(each, messages_of(each, self.messages)) for each in self.script.publish]
        counts = [sum(1 for _ in messages_of(each, self.messages)) for each in self.script.publish]
        self._say(f"{sum(counts):,} messages are published")
        for (publication, source), count in zip(sources, counts, strict=True):
            self._send(publication, islice(source, count // 2))
        self._call("during")
        away = self.script.outage
        if away is not None:
            self._say(f"{away.namespace} is killed, for {away.seconds:g} s")
            self.namespaces[away.namespace].kill()
            killed = time.monotonic()
            for publication, source in sources:
                if publication.to.alias != away.namespace:
                    self._send(publication, source)
            time.sleep(max(0.0, killed + away.seconds - time.monotonic()))
            self.namespaces[away.namespace].start()
        for publication, source in sources:
            self._send(publication, source)

    def _send(self, publication: Publication, messages: Iterator[bytes]) -> None:
        for message in publish(self.federation, publication.to, messages):
            self.sent += 1
            _, number, _ = stamp(message)
            self._stamped.publish(publication.to, publication.publisher, number, message)
        self.check()

    # ---- verification

    def _wait_moved(self) -> tuple[list[Reconciliation], dict[str, int]]:
        """Waits until nothing waits and everything has arrived, or nothing has changed for a while; returns the last state."""
        seen: Any = None
        changed = time.monotonic()
        while True:
            self.check()
            found = self._backlog()
            results, stamped = ([], {}) if found else self._judge()
            missing = sum(result.total(kind) for result in results for kind in UNDELIVERED) + stamped.get("lost", 0)
            if not found and not missing:
                return results, stamped
            if seen != (found, missing):
                seen, changed = (found, missing), time.monotonic()
            if time.monotonic() - changed > STILL_SECONDS:
                return self._judge()
            time.sleep(LOOK_SECONDS)

    def _backlog(self) -> int:
        """How many messages wait for the routes, at the sources that can be browsed."""
        found = 0
        with NamespaceClients(self.federation, "example") as clients:
            for route in routes(self.federation):
                with suppress(IsthmusError):
                    backlog = BacklogMeter().measure(clients, route)
                    found += backlog.waiting if backlog is not None else 0
        return found

    def _judge(self) -> tuple[list[Reconciliation], dict[str, int]]:
        # Without routes no copy has provenance, and only the publishers' numbers identify it.
        results = list(verify(self.federation)) if routes(self.federation) else []
        with NamespaceClients(self.federation, "example") as clients:
            elapsed_ms = int((time.monotonic() - self._began) * 1000)
            judged = list(
                self._stamped.judge(lambda at: self._call_with("arrived", at) or clients.peek(at), elapsed_ms)
            )
        kinds = ("arrived", "lost", "duplicated", "out_of_order")
        return results, {kind: sum(each.counts[kind] for each in judged) for kind in kinds} if judged else {}

    def _report(self, results: Sequence[Reconciliation], stamped: dict[str, int]) -> dict[str, Any]:
        def total(*kinds: str) -> int:
            return sum(result.total(kind) for result in results for kind in kinds)

        return {
            "pattern": ", ".join(dict.fromkeys(task.pattern for task in self.federation.tasks.values())),
            "sent": self.sent,
            "arrived": max(total("arrived"), stamped.get("arrived", 0)),
            "lost": max(total(*UNDELIVERED), stamped.get("lost", 0)),
            "duplicated": max(total("duplicated"), stamped.get("duplicated", 0)),
            "out_of_order": max(total("out_of_order"), stamped.get("out_of_order", 0)),
            "verdict": max((result.verdict for result in results), default=Verdict.CLEAN).name.lower(),
        }

    def _call(self, name: str) -> Any:
        return self._call_with(name, self)

    def _call_with(self, name: str, argument: object) -> Any:
        function = getattr(self._hook, name, None)
        return function(argument) if function is not None else None


def _with_tables_in(federation: Federation, source: Path, folder: Path) -> Federation:
    """The same with the tables and spools that are in one folder in another one."""

    def moved(path: str) -> str:
        return str(folder.absolute() / Path(path).relative_to(source)) if Path(path).is_relative_to(source) else path

    tasks = {
        name: replace(task, table=moved(task.table), spool=moved(task.spool)) if isinstance(task, ArchiveTask) else task
        for name, task in federation.tasks.items()
    }
    return replace(federation, tasks=tasks)


def _load_hook(file: Path) -> ModuleType | None:
    if not file.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"isthmus_example_{file.parent.name.replace('-', '_')}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(source: Path | str, arguments: Sequence[str] | None = None) -> int:
    """Runs the example of a folder with the arguments of `run`; returns the exit code.

    Args:
        source: the folder.
        arguments: of the command line; None for the process's own.
    """
    source = Path(source)
    parser = argparse.ArgumentParser(prog=f"{source.name}/run", description=f"The example {source.name}, with a proof.")
    parser.add_argument(
        "--messages", type=int, default=MESSAGES, help=f"rows of each table to publish, by default {MESSAGES:,}"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object in the last line")
    parser.add_argument("--calm", action="store_true", help="without the outage, which takes half a minute")
    parser.add_argument("--keep", type=Path, help="leave namespaces and logs in this folder")
    asked = parser.parse_args(arguments)
    folder = asked.keep.absolute() if asked.keep else Path(tempfile.mkdtemp(prefix=f"isthmus-{source.name}-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        example = Example(source, folder, asked.messages, _say)
        if asked.calm:
            example.script = replace(example.script, outage=None)
        report = example.play()
    except IsthmusError as error:
        _say(f"{source.name}: {error}")
        return 2
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.items())
    sys.stdout.write((json.dumps(report) if asked.json else text) + "\n")
    return 1 if is_faulty(report, example.script) else 0


def is_faulty(report: Mapping[str, Any], script: Script) -> bool:
    """Whether an example's report shows a result that its federation does not allow."""
    may_double = script.outage is not None and script.outage.may_double
    if may_double and report["duplicated"]:  # which alone makes the verdict a bad one
        return bool(report["lost"] or report["out_of_order"])
    return bool(report["lost"] or report["duplicated"] or report["verdict"] == "faulty")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
