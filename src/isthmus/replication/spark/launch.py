"""The settings for launching Spark's virtual machine: its Java, its Spark home, its settings and its environment.

What it is: all inputs of the launch. It imports nothing of PySpark, so that a run can launch the virtual machine first and
import PySpark meanwhile. What it is not: the launch (`isthmus.replication.spark.early_java`, `isthmus.replication.spark_session`).

Invariants:
    I1. Speculation is refused: a second copy of a running task would consume from the same queue.
    I2. Any text like a key in a setting or a plan is replaced before Spark shows or logs it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_BYTES, ARROW_BATCH_SETTING
from isthmus.errors import InvalidArgumentError
from isthmus.replication.spark.class_archive import archive_of, link_spark_home
from isthmus.replication.spark.java import Java, find_java

__all__ = ["LOG_FILE", "Launch", "plan_launch"]

# With few cores and a small heap the serial collector costs a fifth less CPU per message than the default one.
_COLLECTOR = "-XX:+UseSerialGC"
# Most of Spark's work for a route occurs once per lease: fast compilation finishes it sooner than optimised code. The work
# per message is copying, which optimisation does not speed up: 8.7 and 8.9 us of the virtual machine's CPU, measured.
_COMPILER = "-XX:TieredStopAtLevel=1"
# Nearly all of Spark's allocations are short-lived: a small young generation is collected as cheaply as a large one, whose
# pages stay in memory. The default takes 1/64 of the machine's memory at the start, and runs a full collection each time
# that class loading has filled 21 MiB, then 35, and so on; Spark loads 110.
_HEAP = "-Xms256m -Xmn32m -XX:MetaspaceSize=160m"
# Number of arenas of the C library for Java's and Arrow's own memory; default: eight for each processor, each of which keeps
# its peak size.
_MALLOC_ARENAS = "2"
# Spark's default starts a process for each file that it writes to a local disk, and writes a checksum file for each: a third
# of the time of a lease change. This one renames within the process.
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# In the work directory: Spark's log of its errors.
LOG_FILE = "spark.log"
PYTHON_SETTING = "spark.pyspark.python"
_LOG_CONFIGURATION = Path(__file__).parents[1] / "log4j2.properties"
_SECRET_NAMES = r"(?i)secret|password|token|credential|access[.]?key|shared[.]?access|connection"
_SECRET_TEXTS = r"(?i)(SharedAccessKey|SharedAccessSignature|sig|AccountKey|password)=[^;&\s\"']+"


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings of a launch.

    Attributes:
        java: the Java that runs Spark.
        spark_home: the folder with Spark's scripts and JAR files.
        python: the interpreter of workers.
        settings: settings of Spark.
    """

    java: Java
    spark_home: Path
    python: str
    settings: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Spark's scripts and workers while the virtual machine starts."""
        return {
            **self.java.environment,
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", _MALLOC_ARENAS),
        }


def plan_launch(
    name: str,
    *,
    slots: int,
    work_directory: Path,
    driver_memory_mib: int = 1024,
    options: Mapping[str, str] | None = None,
    java: Java | None = None,
    archive_file: Path | None = None,
) -> Launch:
    """The settings of the launch; arguments and errors are those of `create_spark_session`. Creates the work directory if absent."""
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
        "spark.master": f"local[{slots}]",
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
    return Launch(machine, spark_home, python, {**defaults, **settings})


def _python(setting: str) -> str:
    """The interpreter of workers. Spark starts data sources under one path, at the driver and in executors."""
    if not setting:
        return sys.executable
    if shutil.which(setting) is None:
        raise InvalidArgumentError(
            f"{PYTHON_SETTING} is {setting}, which this machine cannot run: Spark starts the interpreter by the same path on this machine "
            "and on those of executors; install isthmus under that path on all of them, or create a link to it here"
        )
    return setting
