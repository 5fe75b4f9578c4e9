"""`isthmus prepare`: makes Spark start in half the time on this machine."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("prepare")(run)


def run(
    again: Annotated[bool, typer.Option("--again", help="Write the archive even if there is one that fits.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write an archive of the classes that Spark loads, with which `isthmus run` starts in about half the time.

    It takes half a minute, is kept in the Python environment, and fits one Java and one PySpark: after an upgrade of either run it again.
    If there is one that fits, nothing is done.
    """
    from isthmus.extra import require

    require("spark", "isthmus prepare")
    from isthmus.replication.spark.class_archive import archive_of
    from isthmus.replication.spark.java import find_java

    archive = archive_of(find_java())
    began = time.monotonic()
    is_written = again or not archive.is_present
    if is_written:
        from isthmus.replication.spark.class_training import write_archive

        write_archive(archive)
    java, size = archive.java, archive.file.stat().st_size
    if as_json:
        answer = {"archive": str(archive.file), "bytes": size, "java": str(java.executable), "version": java.version}
        print(json.dumps({**answer, "written": is_written}))
        return
    took = f"written in {time.monotonic() - began:.0f} s" if is_written else "there already, and fits"
    print(f"{archive.file}: {size >> 20} MiB, {took}; Spark uses it with Java {java.version} ({java.executable})")
