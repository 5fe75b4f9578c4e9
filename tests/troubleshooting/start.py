"""Cases of the page's section Installation and start."""

from __future__ import annotations

import importlib.util
import threading
from types import SimpleNamespace
from typing import Any, cast

from isthmus.bridge.host.control.client import dial_control
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.extra import require
from isthmus.operations.address import CONNECTION_VARIABLE, find_address
from isthmus.replication.shuffle.place import SpoolMaker, SpoolPlace
from isthmus.replication.spark import executor_check, java
from isthmus.replication.spark.checkpoint_check import checkpoint_fault
from isthmus.replication.spark.class_archive import archive_of
from isthmus.replication.spark.class_training import write_archive
from isthmus.supervisor.claim.folder_lock import locked_folder
from isthmus.topology.file.source import load
from troubleshooting.case import Stage, elsewhere, shows

CLOSED = "127.0.0.1:1"


@shows("… needs …, which is not installed: pip install …")
def _extra(stage: Stage) -> None:
    find = importlib.util.find_spec
    stage.patch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    require("spark", "isthmus run")


@shows("Spark needs Java … or newer")
def _java(stage: Stage) -> None:
    stage.patch.setattr(java, "_packaged", lambda: None)
    java.find_java({"PATH": str(stage.folder)})


@shows("… cannot be written: …; Spark starts without it, only slower")
def _archive(stage: Stage) -> None:
    (stage.folder / "var").touch()
    stage.patch.setattr("sys.prefix", str(stage.folder))
    write_archive(archive_of(java.find_java()))


@shows("… is written by another process; one task writes a spool, in one run")
def _spool(stage: Stage) -> None:
    first = SpoolWriter(stage.folder, 1 << 20).open()
    try:
        SpoolWriter(stage.folder, 1 << 20).open()
    finally:
        first.close()


@shows("… is missing; is its file system not mounted?")
def _missing_spool(stage: Stage) -> None:
    place = SpoolPlace(str(stage.folder / "spool"))
    SpoolMaker(stage.folder).make([place])
    (stage.folder / "spool").rename(stage.folder / "away")
    SpoolMaker(stage.folder).make([place])


@shows("another run keeps its checkpoints and its status in …")
def _state_folder(stage: Stage) -> None:
    with locked_folder(stage.folder), locked_folder(stage.folder):
        pass


elsewhere(
    "task … is run by …",
    "tests/unit/cli/supervision/test_supervision_verbs.py::test_a_second_run_is_refused_with_who_holds_the_task",
)


@shows("there is no such file")
def _file(stage: Stage) -> None:
    load(stage.folder / "isthmus.yaml")


@shows("no namespace is named; write --connection env:NAME")
def _no_namespace(stage: Stage) -> None:
    stage.patch.delenv(CONNECTION_VARIABLE, raising=False)
    find_address()


@shows("has started no task for")
def _no_cores(stage: Stage) -> str:
    """A cluster whose job does not begin before it is cancelled."""
    cancelled = threading.Event()

    def collect() -> list[str]:
        assert cancelled.wait(60)
        return []

    rows = SimpleNamespace(mapPartitions=lambda _: SimpleNamespace(collect=collect))
    context = SimpleNamespace(
        master="spark://m:7077",
        setJobGroup=lambda *_, **__: None,
        parallelize=lambda *_: rows,
        cancelJobGroup=lambda _: cancelled.set(),
    )
    waits = iter([False, True])
    stop = SimpleNamespace(wait=lambda _: next(waits))
    stage.patch.setattr(executor_check, "WARN_SECONDS", 0.0)
    executor_check.check_executors(
        cast("Any", SimpleNamespace(sparkContext=context)), CLOSED, "key", 1, cast("Any", stop)
    )
    return stage.log.text


@shows("has isthmus … and the driver …: install the same on both")
def _versions(stage: Stage) -> str:
    return executor_check.try_here(CLOSED, "key", "0.0.1")


@shows("cannot reach the driver at …", "Connection refused")
def _driver(stage: Stage) -> None:
    dial_control(CLOSED, "key", 10)


@shows("checkpoints …: Spark has no file system for …")
def _file_system(stage: Stage) -> str:
    java_error = 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3a"'
    return str(checkpoint_fault("s3a://bucket/checkpoints", java_error, "3.4.2"))
