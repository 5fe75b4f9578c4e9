"""The Spark session that routes run in.

What it is: the start of Spark, configured for leases. By default it runs on this machine, with a task slot per route and some spare ones,
with workers on this interpreter, listening on loopback only, without a web page, and with little output. It does not depend on
routes.

Invariants:
    I1. There are more task slots than leases: a running lease occupies one (docs/explanation/lease.md), and a query that waits for
        a slot would move no messages.
    I2. The variables that make Spark find its Java and its Python are set only while the session starts.
    I3. Executors on other machines get no path of this machine, except that of the interpreter, which is the same on all.
    I4. Queries that start concurrently do not disturb each other (`worker_environment`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from isthmus.replication.spark.data_source_lookup import DataSourceLookup
from isthmus.replication.spark.early_java import EarlyJava
from isthmus.replication.spark.java import Java
from isthmus.replication.spark.launch import plan_launch
from isthmus.replication.spark.numpy_converter import spare_numpy
from isthmus.replication.spark.worker_environment import make_shareable

__all__ = ["STDERR_FILE", "create_spark_session"]

# One for a route's lease, and one for the next lease while leases change.
SLOTS_PER_ROUTE = 2
# One for the driver's small jobs, one so that a restarting route does not wait.
SPARE_SLOTS = 2
# In the work directory: standard error of Spark's Java process and the Python workers, e.g. tracebacks of interrupted ones.
STDERR_FILE = "spark-stderr.log"


def create_spark_session(
    name: str,
    *,
    routes: int,
    slots: int = 0,
    work_directory: Path,
    driver_memory_mib: int = 1024,
    options: Mapping[str, str] | None = None,
    java: Java | None = None,
    archive_file: Path | None = None,
    early: EarlyJava | None = None,
) -> SparkSession:
    """Start Spark in this process, or return the running session.

    Args:
        name: the application's name.
        routes: number of routes that run concurrently, each in its own queries.
        slots: task slots; 0: enough for those routes.
        work_directory: folder for Spark's temporary files and logs; created if absent. The caller removes it.
        driver_memory_mib: heap of the Java virtual machine.
        options: further settings of Spark; they override those set here, except that options of the Java virtual machine are added to those of
            isthmus.
        java: the Java to use; default: the one that `find_java` finds.
        archive_file: write an archive of Spark's classes to this file when the virtual machine ends; default: use the
            one that `isthmus prepare` has written, if there is one.
        early: the virtual machine that was launched early.

    Raises:
        InvalidArgumentError: if the options turn on speculation, or name a Python that this machine does not have.
        JavaNotFoundError: if there is no Java.
    """
    launch = plan_launch(
        name,
        slots=slots or routes * SLOTS_PER_ROUTE + SPARE_SLOTS,
        work_directory=work_directory,
        driver_memory_mib=driver_memory_mib,
        options=options,
        java=java,
        archive_file=archive_file,
    )
    spare_numpy()
    builder = SparkSession.builder
    for key, value in launch.settings.items():
        builder = builder.config(key, value)
    # A running virtual machine has done its lookup.
    lookup = None if SparkContext._gateway else DataSourceLookup(launch.python)
    try:
        with _environment(launch.environment):
            if early is not None:
                early.attach()
            session = builder.getOrCreate()
    except BaseException:
        if lookup is not None:
            lookup.close()
        raise
    if lookup is not None:
        lookup.pass_on(session)
    _redirect_stderr(session, work_directory / STDERR_FILE)
    is_remote = not str(session.sparkContext.master).startswith("local")
    for data_source in ("servicebus", "isthmus", "isthmus_kafka", "isthmus_spool"):
        make_shareable(session, data_source, is_remote=is_remote)
    return session


def _redirect_stderr(session: SparkSession, file: Path) -> None:
    """Redirects the standard error of Java, and of the workers that it starts from now on, to a file."""
    virtual_machine = session._jvm
    assert virtual_machine is not None
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    stream = virtual_machine.java.io.FileOutputStream(str(file.absolute()), True)
    virtual_machine.System.setErr(virtual_machine.java.io.PrintStream(stream, True))


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables within the context."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
