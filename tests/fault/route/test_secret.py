"""A planted key is found only where it was put: not in plans, logs, errors, pages, checkpoints or event logs.

One key is a namespace's own, one is planted in its key file, one is a hook's token and one that of Event Grid; all go to isthmus by
environment variables, as an operator's would. The kinds whose servers take longer to start are looked at by `test_secret_kinds`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.check.secret_search import Search
from harness.server.eventgrid_server import KEY, EventGridServer, eventgrid_server
from harness.server.http_server import HttpReceiver, http_receiver
from isthmus.cli.app import main
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace

TOKEN = "hunter2-bearer-token-of-the-hook"
PLANTED = base64.b64encode(b"planted/key+that?nobody>may~see!").decode()
MESSAGES = 50
# `isthmus` with Spark's event log turned on, which the command itself never does.
WITH_EVENT_LOG = """
import sys
import isthmus.supervisor.run as run
from isthmus.cli.app import main
start = run.create_spark_session
log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": sys.argv.pop(1), "spark.eventLog.compress": "false"}
run.create_spark_session = lambda *a, **k: start(*a, **{**k, "options": {**(k.get("options") or {}), **log}})
main()
"""


@dataclass
class Stage:
    """Two namespaces, a hook and Event Grid, a federation of them, and the search for their keys."""

    folder: Path
    ewr: NamespaceProcess
    jfk: NamespaceProcess
    web: HttpReceiver
    grid: EventGridServer
    search: Search
    said: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "COLUMNS": "250",
            "EWR_CONNECTION": self.ewr.connection_string,
            "JFK_CONNECTION": self.jfk.connection_string,
            "WEB_TOKEN": TOKEN,
            "GRID_KEY": KEY,
        }

    def isthmus(self, *arguments: str, **variables: str) -> int:
        """Runs a verb, searches its output; its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "isthmus", *arguments],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            timeout=120,
            check=False,
        )
        self.search.text(f"isthmus {' '.join(arguments)}: standard output", done.stdout)
        self.search.text(f"isthmus {' '.join(arguments)}: standard error", done.stderr)
        assert done.stdout + done.stderr
        self.said = (done.stdout + done.stderr).decode(errors="replace")
        return done.returncode


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("secret")
    config = "topics: {flights: {requires_duplicate_detection: true, subscriptions: {audit: {}}}}"
    for name in ("web", "grid"):
        (root / name).mkdir()
    with (
        namespace(root / "ewr", config=config) as ewr,
        namespace(root / "jfk", config=config) as jfk,
        http_receiver(root / "web") as web,
        eventgrid_server(root / "grid") as grid,
    ):
        grid.ask("PUT", "/flights", {})
        own = ConnectionString.parse(ewr.connection_string).key
        keys = jfk.data / "keys.json"
        planted = json.loads(keys.read_text())
        planted["rules"][0]["primary_key"] = PLANTED
        keys.write_text(json.dumps(planted))
        jfk.restart()
        assert PLANTED in jfk.connection_string
        assert own is not None
        work = root / "work"
        work.mkdir()
        (work / "isthmus.yaml").write_text(
            "isthmus: 1\nnamespaces:\n"
            f"  ewr: {{connection: env:EWR_CONNECTION, ca_file: {ewr.ca_file}}}\n"
            f"  jfk: {{connection: env:JFK_CONNECTION, ca_file: {jfk.ca_file}}}\n"
            f"  hub: {{kind: eventhubs, connection: env:JFK_CONNECTION, ca_file: {jfk.ca_file}, checkpoints: checkpoints}}\n"
            f"  web: {{kind: http, url: {web.url}, auth: bearer, secret: env:WEB_TOKEN}}\n"
            f"  grid: {{kind: eventgrid, endpoint: 'http://127.0.0.1:{grid.port}', key: env:GRID_KEY}}\n"
            "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}\n"
            "  there: {pattern: copy, source: ewr, topic: flights, target: hub, target_topic: events}\n"
            "  back: {pattern: stream-to-queue, source: hub, stream: events, target: jfk, queue: taken}\n"
            "  hook: {pattern: copy, source: ewr, topic: flights, target: web, target_queue: hook}\n"
            "  event: {pattern: copy, source: ewr, topic: flights, target: grid}\n"
        )
        yield Stage(work, ewr, jfk, web, grid, Search([PLANTED, own.reveal(), TOKEN, KEY]))


Inside = Callable[..., int]


@pytest.fixture
def inside(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Inside:
    """Runs a verb in this process, since a start costs a second or two; searches its output and logs."""

    def run(*arguments: str, **variables: str) -> int:
        monkeypatch.chdir(stage.folder)
        for name, value in {**stage.environment, **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended, caplog.at_level("DEBUG"):
            main(list(arguments))
        said = capfd.readouterr()
        assert said.out + said.err
        stage.search.text("standard output", said.out)
        stage.search.text("standard error", said.err)
        stage.search.text("log", "\n".join(line for line in caplog.text.splitlines() if "azure.core" not in line))
        return int(ended.value.code or 0)

    return run


def test_the_search_finds_keys() -> None:
    search = Search([PLANTED])
    for form, wanted in search.forms():
        with pytest.raises(AssertionError, match=form):
            search.text("text", b"before " + wanted + b" after")
    with pytest.raises(AssertionError, match="signature"):
        search.text("text", "SharedAccessSignature sr=x&sig=" + "aB%2f" * 10)
    search.text("text", "sig=***&se=1")


def test_verbs_show_no_key(stage: Stage) -> None:
    for arguments in (["lint"], ["plan"], ["plan", "--json"], ["apply"], ["status", "--json"], ["verify", "--json"]):
        stage.isthmus(*arguments)


@pytest.mark.parametrize(
    "connection",
    [
        "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=root;SharedAccessKey={key};UseDevelopmentEmulator=true",
        "Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=other;SharedAccessKey={key};UseDevelopmentEmulator=true",
        "Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=root;SharedAccessKey={key};SharedAccessKey={key}",
        "Endpoint=sb://127.0.0.1:{port}/;SharedAccessKey={key}",
        "SharedAccessKey={key}",
        "{key}",
        "amqps://root:{key}@127.0.0.1:{port}",
    ],
)
@pytest.mark.parametrize("verb", ["plan", "verify"])
def test_a_connection_that_fails_shows_no_key(inside: Inside, stage: Stage, connection: str, verb: str) -> None:
    text = connection.format(key=PLANTED, port=stage.ewr.ports["amqp"])
    assert inside(verb, "--json", JFK_CONNECTION=text) != 0


@pytest.mark.parametrize("verb", ["lint", "plan", "apply", "run", "status", "verify"])
def test_a_key_in_the_file_is_refused_and_not_reported(inside: Inside, stage: Stage, verb: str) -> None:
    (stage.folder / "literal.yaml").write_text(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:EWR_CONNECTION}\n"
        f'  jfk: {{connection: "{stage.jfk.connection_string}"}}\n'
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}\n"
    )
    assert inside(verb, "literal.yaml", "--json") == 2
    (stage.folder / "literal.yaml").unlink()


def test_no_page_and_no_log_of_a_namespace_shows_a_key(stage: Stage) -> None:
    for ns in (stage.ewr, stage.jfk):
        parsed = ConnectionString.parse(ns.connection_string)
        assert parsed.key is not None
        for method, path, headers in (
            ("GET", "/health", {}),
            ("GET", "/", {}),
            ("GET", "/$Resources/queues?api-version=2021-05", {}),
            ("GET", "/nothing", {"Authorization": f"SharedAccessSignature sr=x&sig={quote(PLANTED)}&se=1&skn=root"}),
            ("GET", f"/{quote(PLANTED, safe='')}", {}),
            ("PATCH", "/flights", {"Authorization": parsed.key.reveal()}),
        ):
            client = http.client.HTTPConnection("127.0.0.1", ns.ports["http"], timeout=10)
            client.request(method, path, headers=headers)
            page = client.getresponse().read()
            client.close()
            if PLANTED not in path and quote(PLANTED, safe="") not in path:
                stage.search.text(f"{method} {path}", page)
        assert_log(stage, ns)


def assert_log(stage: Stage, ns: NamespaceProcess) -> None:
    lines = [line for line in ns.log().splitlines() if quote(PLANTED, safe="") not in line or "/planted" in line]
    stage.search.text(f"log of {ns.data}", "\n".join(lines))


def search_command_lines(stage: Stage, running: subprocess.Popen[bytes]) -> int:
    """Search the command lines of a run's processes; how many. Workers end meanwhile, as they do all the time."""
    count = 0
    for process in psutil.Process(running.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            arguments = process.cmdline()
            stage.search.text("a command line", " ".join(arguments))
            count += 1
    return count


@pytest.mark.spark
def test_a_run_leaves_no_key_behind(stage: Stage, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    assert stage.isthmus("apply") == 0, stage.said
    command = [sys.executable, "-c", WITH_EVENT_LOG, events.as_uri(), "run", "--json", "--lease", "5"]
    said = tmp_path / "said"
    said.mkdir()
    with (said / "output").open("wb") as output, (said / "errors").open("wb") as errors:
        running = subprocess.Popen(command, cwd=stage.folder, env=stage.environment, stdout=output, stderr=errors)
    try:
        send(stage.ewr)
        wait_for_copies(stage.jfk, running)
        wait_until(lambda: len(stage.web.requests("/hook")) >= MESSAGES, running, "requests to the hook")
        wait_until(
            lambda: len(stage.grid.ask("GET", "/flights?0")["events"]) >= MESSAGES, running, "events of Event Grid"
        )
        assert search_command_lines(stage, running) > 1  # the JVM, and workers
        assert stage.search.files(stage.folder) > 0  # checkpoints, status, Spark's own files, while all is under way
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    assert any(stage.folder.rglob("offsets")), "no checkpoint was written"
    assert stage.search.files(events) > 0
    assert sum(path.stat().st_size for path in events.rglob("*") if path.is_file()) > 10_000
    stage.search.files(stage.folder)
    assert (said / "output").stat().st_size > 0
    stage.search.files(said)
    stage.isthmus("status")
    stage.isthmus("verify")
    assert_log(stage, stage.ewr)
    assert_log(stage, stage.jfk)


def send(ns: NamespaceProcess) -> None:
    client = ServiceBusClient.from_connection_string(ns.connection_string)
    with client, client.get_topic_sender("flights") as sender:
        sender.send_messages([ServiceBusMessage(f"flight {number}") for number in range(MESSAGES)])


def wait_for_copies(ns: NamespaceProcess, running: subprocess.Popen[bytes]) -> None:
    limit, found = time.monotonic() + 240, 0
    client = ServiceBusClient.from_connection_string(ns.connection_string)
    with client, client.get_subscription_receiver("flights", "audit") as receiver:
        while found < MESSAGES:
            assert running.poll() is None, "isthmus run ended by itself"
            assert time.monotonic() < limit, f"{found} copies came"
            messages = receiver.receive_messages(MESSAGES, max_wait_time=1)
            for message in messages:
                receiver.complete_message(message)
            found += len(messages)


def wait_until(condition: Callable[[], bool], running: subprocess.Popen[bytes], what: str) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert running.poll() is None, "isthmus run ended by itself"
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.2)
