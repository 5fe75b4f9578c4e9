"""Twenty-two routes of one run, carried by one Spark query: what fails on some of them does not touch the others, what is killed
comes back, and Ctrl-C ends all of them in good order.

All tests share one run. A task named after what fails holds the routes that it concerns; the others are healthy.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from isthmus.errors import IsthmusError
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import FederationProcess, RunProcess

pytestmark = pytest.mark.spark

PAIRS = 8
HEALTHY = {f"well-{number}": ("ewr", "jfk") for number in range(PAIRS)}
TASKS = HEALTHY | {"refused": ("ewr", "jfk"), "hung": ("ewr", "lga"), "gone": ("ewr", "bos")}
ROUTES = 2 * len(TASKS)
SETTINGS = ("lock_duration: 5s", "duplicate_detection: 1h")
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "600")
MESSAGES = 40
BODY_BYTES = 200
# Load while something is killed: all that is published has to be read again for the proof.
PAUSE_SECONDS, CHUNK = 1.0, 20
# Nothing is measured by it: what takes so long never comes.
LONG_SECONDS = 180.0


class Load:
    """What was published, by task and member, beside the federation's own count."""

    def __init__(self, federation: FederationProcess) -> None:
        self.federation = federation
        self.published: Counter[tuple[str, str]] = Counter()

    def publish(self, tasks: list[str], *, away: tuple[str, ...] = (), count: int = MESSAGES) -> None:
        """Publish to every member of the tasks that is not away."""
        for task in tasks:
            for alias in TASKS[task]:
                if alias not in away:
                    self.federation.publish(alias, count, BODY_BYTES, task)
                    self.published[task, alias] += count

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Publish to the healthy tasks until the block ends."""
        over = threading.Event()

        def publish() -> None:
            while not over.wait(PAUSE_SECONDS):
                self.publish([*HEALTHY], count=CHUNK)

        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(publish)
            try:
                yield
            finally:
                over.set()
            published.result()

    def check(self) -> None:
        """Wait until all is moved; nothing is lost, doubled, out of order or set aside then."""
        self.federation.wait_moved()
        for task in TASKS:
            result = self.federation.verify(task)
            assert result.clean, (task, result.to_dict())
            entered = {each.origin: each.entered for each in result.comparisons if each.origin == each.member}
            assert entered == {alias: self.published[task, alias] for alias in TASKS[task]}
            assert result.total("arrived") == sum(entered.values())
            assert result.total("dead_lettered") == result.total("expired") == result.total("waiting") == 0


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    folder = tmp_path_factory.mktemp("federation")
    with FederationProcess(folder, ("ewr", "jfk", "lga", "bos"), SETTINGS, TASKS) as opened:
        yield opened


@pytest.fixture(name="load", scope="module")
def _load(federation: FederationProcess) -> Load:
    return Load(federation)


@pytest.fixture(name="run", scope="module")
def _run(federation: FederationProcess) -> RunProcess:
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    assert len(run.phases()) == ROUTES
    return run


def status(run: RunProcess) -> dict[str, dict[str, object]]:
    """The routes, as the run's status shows them."""
    document = read_status(run.state)
    assert document is not None
    return {route["name"]: route for route in document["routes"]}


def moved(run: RunProcess) -> dict[str, int]:
    """Messages moved so far, by route."""
    return {name: int(str(route["moved"])) for name, route in status(run).items()}


def wait_for(run: RunProcess, condition: Callable[[], bool], reported: str) -> None:
    limit = time.monotonic() + LONG_SECONDS
    while not condition():
        assert run.is_alive(), run.log()[-3000:]
        assert time.monotonic() < limit, f"{reported}: {status(run)}"
        time.sleep(0.2)


def names(route: dict[str, object], alias: str) -> bool:
    """Whether its status shows which end fails; the route's own name holds both aliases."""
    texts = (str(route[key]).replace(str(route["name"]), "") for key in ("state", "last_error"))
    return any(alias in text for text in texts)


def test_three_failing_ends_leave_seventeen_routes_alone(
    federation: FederationProcess, run: RunProcess, load: Load
) -> None:
    load.publish(list(TASKS))
    wait_for(run, lambda: all(count >= MESSAGES for count in moved(run).values()), "the first messages")
    jfk = federation.namespaces["jfk"]
    admin = ServiceBusAdministrationClient.from_connection_string(
        jfk.admin_connection_string, connection_verify=str(jfk.ca_file)
    )
    hung = federation.namespaces["lga"].pid
    with admin:
        admin.update_topic(admin.get_topic("refused"), status=EntityStatus.SEND_DISABLED)
        os.kill(hung, signal.SIGSTOP)
        try:
            federation.namespaces["bos"].kill()
            load.publish(["hung", "gone"], away=("lga", "bos"))
            federation.publish("ewr", MESSAGES, BODY_BYTES, "refused")  # its topic at jfk takes none
            load.published["refused", "ewr"] += MESSAGES
            expected = {
                "refused.ewr.jfk": "jfk", "hung.ewr.lga": "lga", "hung.lga.ewr": "lga",
                "gone.ewr.bos": "bos", "gone.bos.ewr": "bos",
            }  # fmt: skip
            for _ in range(2):  # before and after the failures have been noticed
                before = moved(run)
                load.publish([*HEALTHY])
                wait_for(
                    run,
                    lambda before=before: all(
                        count >= before[name] + MESSAGES
                        for name, count in moved(run).items()
                        if name.startswith("well-")
                    ),
                    "the healthy routes stand still",
                )
                wait_for(
                    run,
                    lambda: all(names(status(run)[name], alias) for name, alias in expected.items()),
                    "status does not name the end that fails",
                )
            found = status(run)
            assert not [name for name, route in found.items() if name.startswith("well-") and route["last_error"]], (
                found
            )
            assert not any(route["restarts"] for name, route in found.items() if name.startswith("well-"))
        finally:
            os.kill(hung, signal.SIGCONT)
        federation.namespaces["bos"].start()
        admin.update_topic(admin.get_topic("refused"), status=EntityStatus.ACTIVE)
    load.publish(["hung", "gone", "refused"])
    load.check()
    run.wait_phase(("waiting", "moving"))


def is_reader(process: psutil.Process, control_ports: set[int]) -> bool:
    """The reader is the one that is connected to the driver's control port."""
    return any(each.raddr and each.raddr.port in control_ports for each in process.net_connections("tcp"))


def kill_worker(run: RunProcess, *, reader: bool) -> None:
    driver = psutil.Process(run.pid)

    def kill() -> bool:
        ports = {each.laddr.port for each in driver.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        for pid in run.workers():
            try:
                process = psutil.Process(pid)
                is_one = is_reader(process, ports)
                # The sink's worker is connected to the namespaces that it sends to, an idle one only to Spark.
                if is_one is reader and (is_one or holds_socket(process)):
                    process.kill()
                    return True
            except psutil.NoSuchProcess:
                continue
        return False

    wait_for(run, kill, f"no {'reader' if reader else 'sink'} to kill")


def holds_socket(process: psutil.Process) -> bool:
    return any(each.status == psutil.CONN_ESTABLISHED and each.raddr for each in process.net_connections("tcp"))


@pytest.mark.parametrize("reader", [False, True], ids=["sink", "reader"])
def test_a_killed_worker_takes_no_route_with_it(run: RunProcess, load: Load, reader: bool) -> None:
    with load.going_on():
        before = moved(run)
        wait_for(run, lambda: sum(moved(run).values()) > sum(before.values()), "nothing moves")
        kill_worker(run, reader=reader)
        wait_for(run, lambda: "a worker of query" in run.log() or "was killed" in run.log(), "the kill is not reported")
        wait_for(run, lambda: set(run.phases().values()) <= {"waiting", "moving"}, "routes are not back")
        again = moved(run)
        wait_for(
            run,
            lambda: all(count > again[name] for name, count in moved(run).items() if name.startswith("well-")),
            "a route does not go on",
        )
    load.publish(["hung", "gone", "refused"])
    load.check()


def locked(federation: FederationProcess) -> list[str]:
    """Entities with locked messages, as the namespaces' metrics show."""
    found = []
    for each in federation.namespaces.values():
        text = urllib.request.urlopen(f"http://127.0.0.1:{each.ports['http']}/metrics", timeout=60).read().decode()
        lines = [line for line in text.splitlines() if line.startswith("isthmus_entity_locked_messages{")]
        assert lines
        found += [line for line in lines if float(line.split()[-1])]
    return found


def test_ctrl_c_drains_every_route(federation: FederationProcess, run: RunProcess, load: Load) -> None:
    with load.going_on():
        before = sum(moved(run).values())
        wait_for(run, lambda: sum(moved(run).values()) > before, "nothing moves")
        wait_for(run, lambda: bool(locked(federation)), "nothing is under way")
        assert run.end() == 0, run.log()[-3000:]
        assert not locked(federation)
    for task in TASKS:
        try:
            result = federation.verify(task)
        except IsthmusError as error:
            raise AssertionError(task) from error
        assert not result.total("lost"), result.to_dict()
        assert not result.total("duplicated"), result.to_dict()
        assert not result.total("out_of_order"), result.to_dict()
        assert not result.total("dead_lettered"), result.to_dict()
