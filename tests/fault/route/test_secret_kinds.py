"""A planted secret of each kind of system is found in no plan, log, error, status, checkpoint or file of Spark's.

With all tests the systems cannot be reached, which is when errors are long. With `--soak` real ones are: they take the secret and refuse
another one, and `isthmus run` moves messages to and from them. `test_secret` has Service Bus, Event Hubs, Event Grid and a hook in a run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from azure.storage.queue import QueueClient

from harness.check.secret_search import Search
from harness.client.rabbitmq_client import RabbitClient
from harness.server.artemis_broker import artemis
from harness.server.azurite_server import ACCOUNT, azurite
from harness.server.kafka_broker import PASSWORD as KAFKA_PASSWORD
from harness.server.kafka_broker import USER as KAFKA_USER
from harness.server.kafka_broker import broker
from harness.server.rabbitmq_server import PASSWORD as RABBIT_PASSWORD
from harness.server.rabbitmq_server import USER as RABBIT_USER
from harness.server.rabbitmq_server import rabbit_server
from isthmus.amqp.performative import Target
from isthmus.amqp.types import Symbol
from isthmus.cli.app import main
from isthmus.connectors.queuestorage.mapping import to_text
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.bridge.message import message
from isthmus.testing.namespace import namespace
from isthmus.transport import LinkTerms, Sender

PLANTED = "hunter2/planted+of~every?kind=="
WRONG = "hunter2/wrong+of~every?kind=="
ARTEMIS_PASSWORD = "hunter2-of-artemis"
MESSAGES = 20
SECONDS = 240.0
TO = "{pattern: copy, source: ewr, topic: flights, target: far}"
SB = "SharedAccessKeyName=root;SharedAccessKey={key}"
# By kind: how it is declared, its secret as it is in the environment, and a task with it.
AWAY: Mapping[str, tuple[str, str, str]] = {
    "servicebus": ("connection: env:FAR", f"Endpoint=sb://127.0.0.1:1/;{SB};UseDevelopmentEmulator=true", TO),
    "eventhubs": (
        "kind: eventhubs, connection: env:FAR, checkpoints: checkpoints",
        f"Endpoint=sb://127.0.0.1:1/;{SB};UseDevelopmentEmulator=true",
        TO,
    ),
    "iothub": (
        "kind: iothub, connection: env:FAR, checkpoints: checkpoints",
        f"HostName=127.0.0.1:1;{SB};UseDevelopmentEmulator=true",
        "{pattern: stream-to-queue, source: far, stream: messages/events, target: ewr, queue: events}",
    ),
    "kafka": (
        "kind: kafka, bootstrap: '127.0.0.1:1', security: sasl_plaintext, mechanism: PLAIN, username: isthmus, password: env:FAR",
        "{key}",
        TO,
    ),
    "rabbitmq": (
        "kind: rabbitmq, host: '127.0.0.1:1', username: isthmus, password: env:FAR, management: 'http://127.0.0.1:1'",
        "{key}",
        TO,
    ),
    "rabbitmq-streams": (
        "kind: rabbitmq-streams, host: '127.0.0.1:1', username: isthmus, password: env:FAR, checkpoints: checkpoints",
        "{key}",
        "{pattern: stream-to-queue, source: far, stream: events, target: ewr, queue: events}",
    ),
    "amqp": ("kind: amqp, url: 'amqp://127.0.0.1:1', username: isthmus, password: env:FAR", "{key}", TO),
    "queuestorage": (
        "kind: queuestorage, connection: env:FAR, timeout_seconds: 1",
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={{key}};QueueEndpoint=http://127.0.0.1:1/{ACCOUNT}",
        "{pattern: move, source: ewr, queue: orders, target: far}",
    ),
    "eventgrid": ("kind: eventgrid, endpoint: 'http://127.0.0.1:1', key: env:FAR", "{key}", TO),
    "http": (
        "kind: http, url: 'http://127.0.0.1:1', auth: bearer, secret: env:FAR",
        "{key}",
        "{pattern: move, source: ewr, queue: orders, target: far}",
    ),
}
# What is wrong with a connection string must not repeat it either.
MALFORMED = ("{key}", "{key};{key}", "Endpoint={key}", "AccountKey={key}", "HostName=x;SharedAccessKey={key};{key}")

Inside = Callable[..., int]


@pytest.fixture
def inside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Inside:
    """Runs a verb in this process, and searches its output and logs."""

    def run(*arguments: str, **variables: str) -> int:
        search = Search([PLANTED])
        monkeypatch.chdir(tmp_path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended, caplog.at_level("DEBUG"):
            main(list(arguments))
        said = capfd.readouterr()
        assert said.out + said.err
        search.text("standard output", said.out)
        search.text("standard error", said.err)
        search.text("log", caplog.text)
        search.files(tmp_path)
        return int(ended.value.code or 0)

    return run


def federation(folder: Path, kind: str) -> None:
    settings, _, task = AWAY[kind]
    (folder / "isthmus.yaml").write_text(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:EWR}\n"
        f"  far: {{{settings}}}\ntasks:\n  t: {task}\n"
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["doctor", "plan"])
@pytest.mark.parametrize("kind", AWAY)
def test_a_system_that_is_unavailable_is_reported_without_its_secret(
    inside: Inside, tmp_path: Path, kind: str, verb: str
) -> None:
    federation(tmp_path, kind)
    ewr = AWAY["servicebus"][1].replace(":1/", ":2/").format(key=PLANTED)
    assert inside(verb, "--json", EWR=ewr, FAR=AWAY[kind][1].format(key=PLANTED)) != 0


@pytest.mark.parametrize("form", MALFORMED)
@pytest.mark.parametrize("kind", ["servicebus", "eventhubs", "iothub", "queuestorage"])
def test_a_connection_string_that_cannot_be_read_is_not_reported(
    inside: Inside, tmp_path: Path, kind: str, form: str
) -> None:
    federation(tmp_path, kind)
    ewr = AWAY["servicebus"][1].replace(":1/", ":2/").format(key=PLANTED)
    assert inside("doctor", "--json", EWR=ewr, FAR=form.format(key=PLANTED)) != 0


# ---- real systems


class Systems:
    """A namespace, and a broker or an account of each other kind that has a secret, with entities to write to and to read."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder / "work"
        for name in ("work", "kafka", "artemis", "azurite"):
            (folder / name).mkdir(parents=True)
        self.ewr = stack.enter_context(namespace(folder / "ewr", config="topics: {flights: {}}"))
        self.kafka = stack.enter_context(broker(folder / "kafka", is_secure=True))
        self.rabbit = stack.enter_context(rabbit_server(folder))
        self.artemis = stack.enter_context(artemis(folder / "artemis"))
        self.azurite = stack.enter_context(azurite(folder / "azurite"))
        self.rabbit.queue("back")
        self.artemis.create_queue("flights")
        self.artemis.create_queue("back")
        self.queues = {
            name: stack.enter_context(QueueClient.from_connection_string(self.azurite.connection_string, name))
            for name in ("flights", "back")
        }
        for queue in self.queues.values():
            queue.create_queue()
        key = self.azurite.connection_string.partition("AccountKey=")[2].partition(";")[0]
        self.search = Search([KAFKA_PASSWORD, RABBIT_PASSWORD, ARTEMIS_PASSWORD, key, WRONG])
        (self.folder / "isthmus.yaml").write_text(
            f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:EWR, ca_file: {self.ewr.ca_file}}}\n"
            f"  jfk: {{kind: kafka, bootstrap: '{self.kafka.secure['sasl_plaintext']}', security: sasl_plaintext, "
            f"mechanism: SCRAM-SHA-256, username: {KAFKA_USER}, password: env:KAFKA}}\n"
            f"  lga: {{kind: rabbitmq, host: '127.0.0.1:{self.rabbit.port}', username: {RABBIT_USER}, password: env:RABBIT, "
            f"management: 'http://127.0.0.1:{self.rabbit.management_port}'}}\n"
            f"  art: {{kind: amqp, url: 'amqp://127.0.0.1:{self.artemis.port}', username: isthmus, password: env:ARTEMIS}}\n"
            "  stq: {kind: queuestorage, connection: env:STORAGE, poll_seconds: 0.2}\n"
            "tasks:\n"
            "  t1: {pattern: copy, source: ewr, topic: flights, target: jfk}\n"
            "  t2: {pattern: copy, source: ewr, topic: flights, target: lga, target_queue: flights}\n"
            "  t3: {pattern: copy, source: ewr, topic: flights, target: art, target_queue: flights}\n"
            "  t4: {pattern: copy, source: ewr, topic: flights, target: stq, target_queue: flights}\n"
            "  b1: {pattern: stream-to-queue, source: jfk, stream: flights, target: ewr, queue: from-jfk}\n"
            "  b2: {pattern: move, queue: back, source: lga, target: ewr, target_queue: from-lga}\n"
            "  b3: {pattern: move, queue: back, source: art, target: ewr, target_queue: from-art}\n"
            "  b4: {pattern: move, queue: back, source: stq, target: ewr, target_queue: from-stq}\n"
        )

    def environment(self, secret: str = "") -> dict[str, str]:
        """With the right secrets, or all with this one."""
        storage = self.azurite.connection_string
        key = storage.partition("AccountKey=")[2].partition(";")[0]
        return {
            **os.environ,
            "EWR": self.ewr.connection_string,
            "KAFKA": secret or KAFKA_PASSWORD,
            "RABBIT": secret or RABBIT_PASSWORD,
            "ARTEMIS": secret or ARTEMIS_PASSWORD,
            "STORAGE": storage.replace(key, "d3Jvbmcgb2YgZXZlcnkga2luZA==") if secret else storage,
        }

    def isthmus(self, *arguments: str, secret: str = "") -> int:
        """Runs a verb, and searches its output; its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "isthmus", *arguments],
            cwd=self.folder,
            env=self.environment(secret),
            capture_output=True,
            timeout=120,
            check=False,
        )
        self.search.text(f"isthmus {' '.join(arguments)}", done.stdout + done.stderr)
        assert done.stdout + done.stderr
        return done.returncode

    def publish(self) -> None:
        """Messages to the topic, and to the queue that each other system's route empties."""
        keys = [f"k/{number}" for number in range(MESSAGES)]
        endpoint = endpoint_of_string(ConnectionString.parse(self.ewr.connection_string))
        with open_client(endpoint, "flights", "publisher") as client:
            Sender(client, "flights").wait_ready().send_all([message(key) for key in keys])
        with RabbitClient(self.rabbit.port) as rabbit:
            rabbit.publish([to_record(message(key))._replace(routing_key="back") for key in keys])
        with self.artemis.client() as client:
            terms = LinkTerms(target=Target("back", capabilities=[Symbol("queue")]))
            Sender(client, "back", terms=terms).wait_ready().send_all([message(key) for key in keys])
        for key in keys:
            self.queues["back"].send_message(to_text(message(key), "envelope", "base64"), time_to_live=-1)

    def arrived(self) -> dict[str, int]:
        """How many messages are at each target, by the queue."""
        found = {
            "lga": self.rabbit.messages("flights"),
            "art": self.artemis.count("flights"),
            "stq": int(self.queues["flights"].get_queue_properties().approximate_message_count or 0),
        }
        with ServiceBusAdministrationClient.from_connection_string(
            self.ewr.admin_connection_string, connection_verify=str(self.ewr.ca_file)
        ) as admin:
            for name in ("from-jfk", "from-lga", "from-art", "from-stq"):
                found[name] = int(admin.get_queue_runtime_properties(name).active_message_count or 0)
        return found


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systems]:
    with ExitStack() as stack:
        yield Systems(tmp_path_factory.mktemp("systems"), stack)


@pytest.mark.soak
def test_verbs_show_no_secret_of_a_real_system(systems: Systems) -> None:
    for arguments in (["lint"], ["plan"], ["apply", "--yes"], ["doctor"], ["plan", "--json"], ["status", "--json"]):
        systems.isthmus(*arguments)
    for arguments in (["plan"], ["doctor", "--json"], ["doctor"], ["verify", "--json"]):
        assert systems.isthmus(*arguments, secret=WRONG) != 0


@pytest.mark.soak
@pytest.mark.spark
def test_a_run_with_every_kind_leaves_no_secret_behind(systems: Systems, tmp_path: Path) -> None:
    systems.isthmus("apply")
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen(
            [sys.executable, "-m", "isthmus", "run", "--json", "--lease", "5"],
            cwd=systems.folder,
            env=systems.environment(),
            stdout=said,
            stderr=said,
        )
    try:
        systems.publish()
        limit = time.monotonic() + SECONDS
        while min((found := systems.arrived()).values()) < MESSAGES:
            text = (tmp_path / "said").read_text(errors="replace")
            assert running.poll() is None, text[-3000:]
            assert time.monotonic() < limit, f"{found}\n{text[-3000:]}"
            time.sleep(0.5)
        assert systems.search.files(systems.folder) > 0  # while all is under way
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    assert any(systems.folder.rglob("offsets")), "no checkpoint was written"
    systems.search.files(systems.folder)
    systems.search.files(tmp_path)


@pytest.mark.soak
@pytest.mark.spark
def test_a_run_with_wrong_secrets_shows_none(systems: Systems, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", "run", "--json", "--state", str(tmp_path / "state")],
        cwd=systems.folder,
        env=systems.environment(WRONG),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    systems.search.text("run", done.stdout + done.stderr)
    systems.search.files(tmp_path)
