"""The Spark session that routes run in.

What it is: one way to start Spark, set up for leases. Unless the options say otherwise it runs on this machine, with a task slot per
route and some to spare, workers that run this very interpreter, nothing listening beyond loopback, no web page, quiet. It knows no
route.

Invariants:
    I1. There are more task slots than leases: a running lease holds one (docs/explanation/lease.md), and a query that waits for
        a slot would not move at all.
    I2. Speculation is refused: a second copy of a running task would read, and settle, the same queue.
    I3. Whatever looks like a key in a setting or a plan is replaced before Spark shows or logs it.
    I4. The variables that make Spark find its Java and its Python are set only while the session starts.
    I5. Executors elsewhere are told no path of this machine, but for the interpreter, which has the same path on all.
    I6. Queries that start together do not disturb each other (`worker_environment`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_BYTES, ARROW_BATCH_SETTING
from isthmus.errors import InvalidArgumentError
from isthmus.replication.spark.class_archive import archive_of, link_spark_home
from isthmus.replication.spark.data_source_lookup import DataSourceLookup
from isthmus.replication.spark.java import Java, find_java
from isthmus.replication.spark.numpy_converter import spare_numpy
from isthmus.replication.spark.worker_environment import make_shareable

__all__ = ["LOG_FILE", "STDERR_FILE", "create_spark_session"]

# One for a route's lease, and one for that which is next while leases change.
SLOTS_PER_ROUTE = 2
# One for the driver's small jobs, one so that a restarting route need not wait.
SPARE_SLOTS = 2
# With few cores and a small heap the serial collector costs a fifth less CPU per message than the default one.
_COLLECTOR = "-XX:+UseSerialGC"
# Most of what Spark does for a route happens once a lease: compiled quickly, it is done sooner than compiled well. What is
# done for each message is copying, which no compiler makes faster: 8.7 and 8.9 us of the virtual machine's CPU, measured.
_COMPILER = "-XX:TieredStopAtLevel=1"
# Of what Spark allocates nearly all is garbage at once: a small young generation is collected as cheaply as a large one, whose
# pages stay in memory all the same. The default takes 1/64 of the machine's memory at the start, and collects everything each time
# that the loading of classes has filled 21 MiB, then 35, and so on; Spark loads 110.
_HEAP = "-Xms256m -Xmn32m -XX:MetaspaceSize=160m"
# Java's and Arrow's own memory comes from so many arenas of the C library; by default eight for each processor, each of which keeps
# what it had at its peak.
_MALLOC_ARENAS = "2"
# Spark's default starts a process for each file that it writes to a local disk, and writes a checksum beside each: a third
# of the time that a lease change takes. This one renames in the process.
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# In the work directory: what Spark says of its errors.
LOG_FILE = "spark.log"
# Beside it: what its Java process and the Python workers write to their standard error, tracebacks of those that were cut off.
STDERR_FILE = "spark-stderr.log"
PYTHON_SETTING = "spark.pyspark.python"
_LOG_CONFIGURATION = Path(__file__).parent / "log4j2.properties"
_SECRET_NAMES = r"(?i)secret|password|token|credential|access[.]?key|shared[.]?access|connection"
_SECRET_TEXTS = r"(?i)(SharedAccessKey|SharedAccessSignature|sig|AccountKey|password)=[^;&\s\"']+"


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
) -> SparkSession:
    """Start Spark in this process, or return the session that runs already.

    Args:
        name: the application's name.
        routes: how many routes will run at once, each in queries of its own.
        slots: task slots; 0: enough for those routes.
        work_directory: where Spark keeps its temporary files and its logs; made if absent. The caller removes it.
        driver_memory_mib: heap of the Java virtual machine.
        options: further settings of Spark; they win over those set here, but that options of the Java virtual machine are added to
            those that isthmus needs.
        java: the Java to use; by default the one that `find_java` finds.
        archive_file: write an archive of the classes that Spark loads to this file when the virtual machine ends; by default use the
            one that `isthmus prepare` has made, if there is one.

    Raises:
        InvalidArgumentError: if the options turn on speculation, or name a Python that this machine does not have.
        JavaNotFoundError: if there is no Java.
    """
    settings = dict(options or {})
    if settings.get("spark.speculation", "false").strip().lower() == "true":
        raise InvalidArgumentError(
            "spark.speculation must stay off: a second copy of a running task would settle messages of the first"
        )
    python = _python(settings.pop(PYTHON_SETTING, ""))
    machine = java or find_java()
    temporary = work_directory.absolute() / "spark"
    temporary.mkdir(parents=True, exist_ok=True)
    classes = archive_of(machine)
    if archive_file is not None:
        spark_home, class_options = link_spark_home(classes.spark_home), classes.writing(archive_file)
    elif classes.is_present:
        spark_home, class_options = classes.spark_home, classes.options
    else:
        spark_home, class_options = link_spark_home(temporary / "home"), ()
    jvm_options = " ".join(
        (
            *machine.options,
            *class_options,
            _COLLECTOR,
            _COMPILER,
            _HEAP,
            f"-Djava.io.tmpdir={temporary}",
            f"-Dderby.system.home={temporary}",
            f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}",
            f"-Disthmus.spark.log={work_directory.absolute() / LOG_FILE}",
        )
    )
    defaults = {
        "spark.master": f"local[{slots or routes * SLOTS_PER_ROUTE + SPARE_SLOTS}]",
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{driver_memory_mib}m",
        "spark.driver.extraJavaOptions": jvm_options,
        "spark.eventLog.enabled": "false",
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        ARROW_BATCH_SETTING: str(ARROW_BATCH_BYTES),
        "spark.sql.shuffle.partitions": str(max(1, os.cpu_count() or 1)),
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.python.daemon.module": "isthmus.replication.spark.worker_daemon",
        "spark.redaction.regex": _SECRET_NAMES,
        "spark.redaction.string.regex": _SECRET_TEXTS,
        "spark.sql.redaction.options.regex": _SECRET_NAMES,
        "spark.sql.redaction.string.regex": _SECRET_TEXTS,
    }
    if added := settings.pop("spark.driver.extraJavaOptions", ""):
        defaults["spark.driver.extraJavaOptions"] += f" {added}"
    spare_numpy()
    builder = SparkSession.builder
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    # A virtual machine that runs already has looked.
    lookup = None if SparkContext._gateway else DataSourceLookup(python)
    try:
        with _environment(machine, spark_home, python):
            session = builder.getOrCreate()
    except BaseException:
        if lookup is not None:
            lookup.close()
        raise
    if lookup is not None:
        lookup.tell(session)
    _redirect_stderr(session, work_directory / STDERR_FILE)
    is_remote = not str(session.sparkContext.master).startswith("local")
    for data_source in ("servicebus", "isthmus", "isthmus_spool"):
        make_shareable(session, data_source, is_remote=is_remote)
    return session


def _python(setting: str) -> str:
    """The interpreter of workers. Spark starts data sources under one path, at the driver and in executors."""
    if not setting:
        return sys.executable
    if shutil.which(setting) is None:
        raise InvalidArgumentError(
            f"{PYTHON_SETTING} is {setting}, which this machine cannot run: Spark starts the interpreter by the same path on this machine "
            "and on those of executors; install isthmus under that path on all of them, or make a link to it here"
        )
    return setting


def _redirect_stderr(session: SparkSession, file: Path) -> None:
    """Takes the standard error of Java, and of the workers that it starts from now on, off the terminal."""
    virtual_machine = session._jvm
    assert virtual_machine is not None
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    stream = virtual_machine.java.io.FileOutputStream(str(file.absolute()), True)
    virtual_machine.System.setErr(virtual_machine.java.io.PrintStream(stream, True))


@contextmanager
def _environment(java: Java, spark_home: Path, python: str) -> Iterator[None]:
    """Set what Spark's scripts and workers read from the environment while the virtual machine starts."""
    wanted = {
        **java.environment,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", _MALLOC_ARENAS),
    }
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
