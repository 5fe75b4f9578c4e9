"""Spark's virtual machine, launched before the driver has imported what it needs to use it.

What it is: what PySpark's `launch_gateway` does, in two parts: the launch of Spark's script, which imports nothing of PySpark, and the
connection to it. Between them the driver imports PySpark and the connectors, and tries what its routes need; the virtual machine takes
as long to start. What it is not: another way of starting Spark. Where anything is otherwise than expected, PySpark launches one itself.
Specification: PySpark, `java_gateway.launch_gateway` (the environment variables that tell of a virtual machine that runs already).

Invariants:
    I1. The virtual machine ends with this process, as one that PySpark launched: at the end of its standard input.
    I2. One that is not attached in the end is killed.
    I3. Ctrl-C does not reach it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from isthmus.errors import IsthmusError
from isthmus.replication.spark.launch import Launch, plan_launch

__all__ = ["EarlyJava", "launch_early"]

log = logging.getLogger(__name__)
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_LOOK_SECONDS = 0.01
_LENGTH = struct.Struct(">i")
# A signal that is ignored stays so in the program that takes the shell's place.
_IGNORING_INTERRUPTS = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")


@contextlib.contextmanager
def launch_early(work_directory: Path, options: Mapping[str, str]) -> Iterator[EarlyJava | None]:
    """A virtual machine for the session that is created while it lasts; None where it is left to PySpark to launch one.

    Args:
        work_directory: as for `create_spark_session`; made if absent.
        options: as for `create_spark_session`.
    """
    early = None
    if _PORT not in os.environ:
        # What is wrong is told by the one who creates the session, at its place among all faults.
        with contextlib.suppress(IsthmusError, OSError):
            early = EarlyJava(plan_launch("isthmus", slots=1, work_directory=work_directory, options=options))
    try:
        yield early
    finally:
        if early is not None:
            early.close()


class EarlyJava:
    """A virtual machine that is starting.

    Args:
        launch: how.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, launch: Launch) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="isthmus-"))
        self._answer = self._folder / "gateway"
        command = [*_IGNORING_INTERRUPTS, str(launch.spark_home / "bin" / "spark-submit")]
        for name, value in launch.settings.items():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        variables = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._answer)}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                env={**os.environ, **launch.environment, **variables},
            )
        except OSError:
            self.close()
            raise

    def attach(self) -> bool:
        """Waits for it, and gives it to PySpark, unless that has one. Whether it was taken.

        Called where the environment is that of the launch.
        """
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        address = self._address() if not SparkContext._gateway else None
        if address is None:
            self.close()
            return False
        os.environ[_PORT], os.environ[_SECRET] = address
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - whatever this release of PySpark has otherwise
            log.debug("PySpark launches a virtual machine itself: %s", error)
            self.close()
            return False
        finally:
            del os.environ[_PORT], os.environ[_SECRET]
        gateway.proc, self._process = self._process, None
        SparkContext._gateway = gateway
        SparkContext._jvm = gateway.jvm
        self.close()
        return True

    def close(self) -> None:
        """Ends it, unless PySpark has it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self) -> tuple[str, str] | None:
        """The port, and the secret that a connection to it begins with; None where the virtual machine has ended."""
        process = self._process
        while process is not None and not self._answer.exists():
            if process.poll() is not None:
                return None
            time.sleep(_LOOK_SECONDS)
        content = self._answer.read_bytes() if process is not None else b""
        if len(content) <= 2 * _LENGTH.size:
            return None
        [port] = _LENGTH.unpack_from(content)
        return str(port), content[2 * _LENGTH.size :].decode()
