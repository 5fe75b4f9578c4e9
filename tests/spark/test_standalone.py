"""`isthmus run --master spark://…`: a master and a worker of Spark's own as processes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from isthmus.replication.java import find_java
from isthmus.testing.federation import FederationProcess

# Three Java virtual machines more than other tests: too slow for the default run.
pytestmark = [pytest.mark.spark, pytest.mark.soak]

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CORES = 5  # one query, two routes, two to spare
MESSAGES = 200
LONG_SECONDS = 300.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A daemon of Spark's; its log."""
    spark_home = Path(pyspark.__file__).parent
    log = folder / f"{name.rpartition('.')[2]}.log"
    command = [str(spark_home / "bin" / "spark-class"), name, "--host", "127.0.0.1", *arguments]
    environment = {
        **os.environ,
        **find_java().environment,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def wait_for(log: Path, text: str) -> None:
    limit = time.monotonic() + LONG_SECONDS
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < limit, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


@pytest.fixture(name="master")
def _master(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    folder = tmp_path / "cluster"
    folder.mkdir()
    with daemon(folder, MASTER, "--port", str(port), "--webui-port", "0") as log:
        wait_for(log, "I have been elected leader")
        worker = ["--port", "0", "--webui-port", "0", "--cores", str(CORES), "--memory", "2g"]
        with daemon(folder, WORKER, *worker, "--work-dir", str(folder / "work"), url) as worker_log:
            wait_for(worker_log, "Successfully registered with master")
            yield url


def test_a_run_on_a_standalone_cluster_moves_its_messages(master: str, tmp_path: Path) -> None:
    with FederationProcess(tmp_path / "federation") as federation:
        with federation.file.open("a") as file:
            file.write(
                f"spark: {{settings: {{spark.pyspark.python: {sys.executable}, spark.executor.memory: 512m}}}}\n"
            )
        for alias in federation.namespaces:
            federation.publish(alias, MESSAGES)
        run = federation.run("--master", master, "--available-now", "--json")
        assert run.wait(LONG_SECONDS) == 0, run.log()[-3000:]
        result = federation.verify().to_dict()
        assert result["clean"]
        assert (result["entered"], result["arrived"]) == (2 * MESSAGES, 2 * MESSAGES)
