"""A run on a Spark standalone cluster whose nodes are users of their own: nothing passes by files, and nothing is lost to kills.

The short run kills one Python worker and one node; `make soak` does the counts of ROUNDS.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.check.federation_check import check_moved
from harness.server.spark_cluster import BARE, Cluster, Node, missing, wait_until
from isthmus.testing.federation import FederationProcess, RunProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing()), reason=f"a cluster of users needs {missing()}"),
]

MESSAGES = 300
ROUNDS = 20
COMPARED_ROUNDS = 5
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5")
MOVING = ("waiting", "moving")
LONG_SECONDS = 300.0


class Place:
    """A federation on this machine, whose runs use a cluster."""

    def __init__(self, federation: FederationProcess, cluster: Cluster) -> None:
        self.federation = federation
        self.cluster = cluster

    def run(self, *arguments: str) -> RunProcess:
        """Start a run once all nodes are there, and wait until its routes are open."""
        for node in self.cluster.nodes:
            self.cluster.wait_registered(node)
        run = self.federation.run(*RUN, "--master", self.cluster.url, *arguments)
        run.wait_phase(MOVING, LONG_SECONDS)
        return run

    def publish(self, count: int = MESSAGES) -> None:
        """To every member."""
        for alias in self.federation.namespaces:
            self.federation.publish(alias, count, 200)

    def busy(self) -> list[Node]:
        """The nodes that have readers now."""
        return [node for node in self.cluster.nodes if node.python_workers()]

    def wait_busy(self, nodes: Sequence[Node] = ()) -> Node:
        """The first of the nodes, all by default, that has readers."""
        wanted = nodes or self.cluster.nodes
        wait_until(lambda: any(node in wanted for node in self.busy()), self.text)
        return next(node for node in self.busy() if node in wanted)

    def kill_worker(self, chance: random.Random) -> None:
        """Kill a Python worker of any node. One may end between a look and its kill: then another one."""

        def killed() -> bool:
            found = [process for node in self.cluster.nodes for process in node.python_workers()]
            with suppress(psutil.NoSuchProcess):
                if found:
                    chance.choice(found).kill()
                    return True
            return False

        wait_until(killed, self.text)

    @contextmanager
    def traffic(self, count: int = 5 * MESSAGES) -> Iterator[None]:
        """Messages are published while the block runs."""
        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(self.publish, count)
            yield
        published.result()

    def text(self) -> str:
        """For the message of a failure."""
        logs = sorted(self.federation.folder.glob("run-*.log"))
        return "\n".join([logs[-1].read_text()[-3000:], *(node.text()[-3000:] for node in self.cluster.nodes)])


@contextmanager
def placed(folder: Path, *settings: str) -> Iterator[Place]:
    """A federation whose secrets are in the environment of every machine, as those of its workers."""
    assert folder.stat().st_mode & 0o077 == 0, "no other user may enter the driver's folder"
    with ExitStack() as stack:
        federation = stack.enter_context(FederationProcess(folder, settings=("lock_duration: 5s", *settings)))
        environment = {
            f"{alias.upper()}_CONNECTION": namespace.connection_string
            for alias, namespace in federation.namespaces.items()
        }
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment.items():
            patch.setenv(name, value)
        cluster = stack.enter_context(Cluster(environment))
        written = federation.file.read_text()
        for alias, namespace in federation.namespaces.items():
            authority = cluster.folder / f"{alias}.pem"  # as an administrator installs it on every machine
            authority.write_bytes(namespace.ca_file.read_bytes())
            written = written.replace(f'"file:{alias}.json#connection"', f"env:{alias.upper()}_CONNECTION")
            written = written.replace(f"ca_file: {namespace.ca_file.relative_to(folder)}", f"ca_file: {authority}")
        values = ", ".join(f"{name}: {value}" for name, value in cluster.settings().items())
        checkpoints = (folder / "kept").as_uri()
        spark = f"spark: {{slots: 2, checkpoints: {checkpoints!r}, settings: {{{values}}}}}\n"
        federation.file.write_text(written + spark)
        yield Place(federation, cluster)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("driver")) as opened:
        yield opened


class Count:
    """A long count: its random numbers, and what it has seen so far."""

    def __init__(self) -> None:
        self.seed = secrets.randbits(32)
        self.chance = random.Random(self.seed)
        self.rounds = 0
        self.figures = "not compared"

    def survived(self, federation: FederationProcess) -> None:
        """A round is over. Now and then all is compared, so that a fault is found near to its cause."""
        self.rounds += 1
        if self.rounds % COMPARED_ROUNDS == 0:
            self.figures = check_moved(federation)


@pytest.fixture
def count(counted: Callable[[str, str], None]) -> Iterator[Count]:
    count = Count()
    print(f"seed {count.seed}")
    yield count
    counted(f"{ROUNDS} rounds", f"{count.rounds} rounds, {count.figures}, seed {count.seed}")


def shares_nothing(node: Node, folder: Path) -> None:
    """No process of a node knows or holds a path of the driver's."""
    for process in node.processes():
        try:
            reported = [*process.cmdline(), *process.environ().values(), *(each.path for each in process.open_files())]
        except psutil.Error:
            continue
        found = [text for text in reported if str(folder) in text]
        assert not found, f"{process.cmdline()[:3]}: {found}"


def test_a_run_moves_its_messages_over_the_death_of_a_worker_and_of_a_node_and_drains(place: Place) -> None:
    federation = place.federation
    run = place.run()
    place.publish()
    wait_until(lambda: len(place.busy()) == 2, place.text)
    for node in place.cluster.nodes:
        shares_nothing(node, federation.folder)
    place.kill_worker(random.Random(1))
    place.publish()
    federation.wait_moved()
    victim = place.wait_busy()
    victim.kill()
    place.publish()
    federation.wait_moved()
    assert victim not in place.busy()
    assert run.end() == 0, run.log()[-3000:]
    place.cluster.start(victim)
    assert list((federation.folder / "kept" / "routes" / "commits").iterdir())
    assert not list(place.cluster.folder.rglob("commits")), "no checkpoint lies on a node"
    check_moved(federation)


@pytest.mark.soak
def test_workers_are_killed(place: Place, count: Count, long_count: Callable[[int], int]) -> None:
    run = place.run()
    for _ in range(long_count(ROUNDS)):
        with place.traffic():
            time.sleep(count.chance.uniform(0, 0.6))
            place.kill_worker(count.chance)
        place.federation.wait_moved()
        run.wait_phase(MOVING, LONG_SECONDS)
        count.survived(place.federation)
    assert run.end() == 0, run.log()[-3000:]
    count.figures = check_moved(place.federation)


@pytest.mark.soak
def test_nodes_are_killed(place: Place, count: Count, long_count: Callable[[int], int]) -> None:
    run = place.run()
    for _ in range(long_count(ROUNDS)):
        with place.traffic():
            time.sleep(count.chance.uniform(0, 0.6))
            victim = place.wait_busy()
            victim.kill()
            place.wait_busy([node for node in place.cluster.nodes if node is not victim])
        place.federation.wait_moved()
        place.cluster.start(victim)
        place.cluster.wait_registered(victim)
        run.wait_phase(MOVING, LONG_SECONDS)
        count.survived(place.federation)
    assert run.end() == 0, run.log()[-3000:]
    count.figures = check_moved(place.federation)


@pytest.mark.soak
def test_runs_drain_under_traffic(place: Place, count: Count, long_count: Callable[[int], int]) -> None:
    for _ in range(long_count(ROUNDS)):
        run = place.run()
        with place.traffic():
            time.sleep(count.chance.uniform(0, 0.6))
            assert run.end() == 0, run.log()[-3000:]
        count.rounds += 1
    run = place.run()
    place.federation.wait_moved()
    assert run.end() == 0, run.log()[-3000:]
    count.figures = check_moved(place.federation)


@pytest.mark.soak
def test_unordered_routes_are_carried_by_the_readers_of_both_nodes(
    tmp_path: Path, count: Count, long_count: Callable[[int], int]
) -> None:
    with placed(tmp_path, "ordering: none") as place:
        run = place.run()
        wait_until(lambda: len(place.busy()) == 2, place.text)
        for _ in range(long_count(ROUNDS)):
            with place.traffic():
                time.sleep(count.chance.uniform(0, 0.6))
                place.kill_worker(count.chance)
            place.federation.wait_moved()
            run.wait_phase(MOVING, LONG_SECONDS)
            count.survived(place.federation)
        assert run.end() == 0, run.log()[-3000:]
        count.figures = check_moved(place.federation)


@pytest.mark.soak
def test_a_control_port_that_executors_do_not_reach_is_reported_before_a_route_starts(place: Place) -> None:
    written = place.federation.file.read_text()
    control = "control: {host: 127.0.0.1, advertised: 127.0.0.2}"
    blocked = written.replace("spark: {", f"spark: {{{control}, ").replace(
        "settings: {", "settings: {spark.driver.host: 127.0.0.1, "
    )
    place.federation.file.write_text(blocked)
    try:
        run = place.federation.run(*RUN, "--master", place.cluster.url)
        assert run.wait(LONG_SECONDS) == 2
    finally:
        place.federation.file.write_text(written)
    assert "cannot reach the driver at 127.0.0.2:" in run.log()
    assert "open the port" in run.log()
    assert "Traceback" not in run.log()


@pytest.mark.soak
def test_an_executor_without_isthmus_is_reported_before_a_route_starts(place: Place) -> None:
    with Cluster(place.cluster.environment | {BARE: "1"}, nodes=1) as bare:
        written = place.federation.file.read_text()
        place.federation.file.write_text(written.replace(str(place.cluster.python), str(bare.python)))
        try:
            run = place.federation.run(*RUN, "--master", bare.url)
            assert run.wait(LONG_SECONDS) == 2
        finally:
            place.federation.file.write_text(written)
    assert f"has no isthmus in its Python {bare.python}: install isthmus" in run.log()
    assert "Traceback" not in run.log()
