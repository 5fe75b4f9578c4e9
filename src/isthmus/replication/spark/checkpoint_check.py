"""The check, before any route starts, that the checkpoints of a run can be written at the federation file's URI.

What it is: creating the folder at the URI of `spark: {checkpoints: …}` by Hadoop's file systems, as Spark does, and one sentence for a fault
that only the operator can correct. What it is not: a guarantee; later or transient failures are reported by the queries that they fail.

The texts are those of Hadoop 3: `FileSystem.getFileSystemClass`, `FileSystem.mkdirs`, `AccessControlException`.

Invariants:
    I1. A URI that cannot be used ends the run before a route has started, with one sentence.
    I2. A file system that does not answer ends nothing: its queries are restarted repeatedly. The check waits LIMIT_SECONDS at most.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

from isthmus.connectors.secret import scrub
from isthmus.errors import ConfigError, Fault
from isthmus.replication.spark.gone import SparkGoneError, calling_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_checkpoints", "checkpoint_fault"]

log = logging.getLogger(__name__)

LIMIT_SECONDS = 30.0
_STEP_SECONDS = 0.1
# Artifacts of Hadoop that are not part of PySpark, by scheme.
_ARTIFACTS = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
_NO_CLASS = re.compile(r"No FileSystem for scheme|ClassNotFoundException: (?:Class )?\S+|NoClassDefFoundError: \S+")
_NO_HOST = re.compile(r"java\.net\.UnknownHostException: (?P<host>[^\s]+)")
_DENIED = re.compile(r"(?:AccessControlException|AccessDeniedException): (?P<why>[^\n]+)")
_NO_FOLDER = re.compile(
    r"(?:ParentNotDirectoryException|FileAlreadyExistsException|NotDirectoryException|mkdirs? failed)"
)


def checkpoint_fault(uri: str, text: str, hadoop: str) -> Fault | None:
    """The fault of a checkpoint URI; None if the failure may be transient.

    Args:
        uri: the URI in the federation file.
        text: the Java error.
        hadoop: version of Spark's Hadoop.
    """
    scheme = uri.partition("://")[0]
    if _NO_CLASS.search(text):
        artifact = _ARTIFACTS.get(scheme)
        how = (
            f"add org.apache.hadoop:{artifact}:{hadoop} to spark: {{settings: {{spark.jars.packages: …}}}}"
            if artifact
            else "write a scheme that it has, such as hdfs:// or file://, or add its jars by spark: {settings: {spark.jars: …}}"
        )
        return Fault(f"checkpoints {uri}: Spark has no file system for {scheme}://", how)
    if match := _NO_HOST.search(text):
        return Fault(f"checkpoints {uri}: there is no host {match['host']}", "check the name")
    if match := _DENIED.search(text):
        return Fault(
            f"checkpoints {uri} cannot be written: {match['why'].strip()}",
            "give the user of this process the right to write there, or name another folder",
        )
    if _NO_FOLDER.search(text):
        return Fault(
            f"checkpoints {uri} is no folder and cannot be created", "name a folder that can be created, or exists"
        )
    return None


def check_checkpoints(spark: SparkSession, uri: str, stop: threading.Event) -> None:
    """Create the folder of the checkpoints; blocks for LIMIT_SECONDS at most.

    Args:
        spark: the session.
        uri: URI of the folder.
        stop: set when the run has to end.

    Raises:
        ConfigError: no query can write there.
        SparkGoneError: Spark has ended.
    """
    failed: list[Exception] = []

    def make() -> None:
        try:
            with calling_spark():
                _make(spark, uri)
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=make, name="check-checkpoints", daemon=True)
    thread.start()
    waited = 0.0
    while thread.is_alive() and waited < LIMIT_SECONDS and not stop.wait(_STEP_SECONDS):
        waited += _STEP_SECONDS
    if not failed:
        return
    if isinstance(failed[0], SparkGoneError):
        raise failed[0]
    text = scrub(str(failed[0]))
    virtual_machine = spark._jvm
    assert virtual_machine is not None
    found = checkpoint_fault(uri, text, str(virtual_machine.org.apache.hadoop.util.VersionInfo.getVersion()))
    if found is not None:
        raise ConfigError([found])
    log.warning("checkpoints %s cannot be written now: %s; routes are started again until they can", uri, _line(text))


def _make(spark: SparkSession, uri: str) -> None:
    virtual_machine = spark._jvm
    assert virtual_machine is not None
    path = virtual_machine.org.apache.hadoop.fs.Path(uri)
    if not path.getFileSystem(spark._jsc.hadoopConfiguration()).mkdirs(path):
        raise OSError("mkdirs failed")


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Exception: " in line]
    return (lines[-1] if lines else text)[:300]
