"""Spark's virtual machine, launched before the driver has imported the modules that use it.

What it is: PySpark's `launch_gateway` in two parts: the launch of Spark's script, which needs no import of PySpark, and the
connection to it. Between them the driver imports PySpark and the connectors, and checks its routes; the virtual machine takes
as long to start. What it is not: another way of starting Spark. In any unexpected case, PySpark launches the virtual machine itself.
Specification: PySpark, `java_gateway.launch_gateway` (the environment variables for a running virtual machine).

Invariants:
    I1. The virtual machine ends with this process, like one that PySpark launched: at the end of its standard input.
    I2. A virtual machine that was not attached is killed in the end.
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
# An ignored signal stays ignored in the program that replaces the shell.
_IGNORING_INTERRUPTS = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")


@contextlib.contextmanager
def launch_early(work_directory: Path, options: Mapping[str, str]) -> Iterator[EarlyJava | None]:
    """A virtual machine for the session that is created within the context; None if PySpark has to launch one.

    Args:
        work_directory: as for `create_spark_session`; created if absent.
        options: as for `create_spark_session`.
    """
    early = None
    if _PORT not in os.environ:
        # The creation of the session reports a fault, in order with all others.
        with contextlib.suppress(IsthmusError, OSError):
            early = EarlyJava(plan_launch("isthmus", slots=1, work_directory=work_directory, options=options))
    try:
        yield early
    finally:
        if early is not None:
            early.close()


class EarlyJava:
    """A starting virtual machine.

    Args:
        launch: the settings of the launch.

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
        """Waits for the virtual machine, and passes it to PySpark, unless that has one. Returns whether it was accepted.

        Called in the environment of the launch.
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
        except Exception as error:  # noqa: BLE001 - this release of PySpark may differ
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
        """Ends the virtual machine, unless PySpark has it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self) -> tuple[str, str] | None:
        """The port, and the secret for a connection to it; None if the virtual machine has ended."""
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
