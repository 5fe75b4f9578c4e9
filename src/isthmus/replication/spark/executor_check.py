"""The check, before any route starts, that executors can carry routes.

What it is: one small Spark job whose tasks each report their version of isthmus and connect to the control port. What it is not: a
guarantee; an executor that joins later is not checked, and the route that it fails reports what is missing.

Invariants:
    I1. A fault that only the operator can correct is reported in one sentence, and ends the run before a route has started.
    I2. The check waits without limit for a free task slot, and logs it; a stop request ends the wait.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import isthmus
from isthmus.bridge.host.control.client import dial_control
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.replication.spark.executor_fault import executor_fault
from isthmus.replication.spark.gone import calling_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_executors"]

log = logging.getLogger(__name__)

_GROUP = "isthmus-check"
DIAL_SECONDS = 10.0
WARN_SECONDS = 30.0
_STEP_SECONDS = 0.1


def check_executors(spark: SparkSession, address: str, token: str, slots: int, stop: threading.Event) -> None:
    """Check executors; blocks until as many tasks as the run needs have run on one.

    Args:
        spark: the session.
        address: address of the control port.
        token: the key of the run.
        slots: number of tasks to start; several may share an executor.
        stop: set when the run has to end.

    Raises:
        ConfigError: an executor cannot carry a route.
        SparkGoneError: Spark has ended.
    """
    context = spark.sparkContext
    found: list[str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with calling_spark():
                context.setJobGroup(_GROUP, "isthmus: can executors carry routes?", interruptOnCancel=True)
                tried = context.parallelize(range(slots), slots).mapPartitions(_trial(address, token))
                found.extend(tried.collect())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            failed.append(error)

    thread = threading.Thread(target=run, name="check-executors", daemon=True)
    thread.start()
    waited = 0.0
    while thread.is_alive():
        if stop.wait(_STEP_SECONDS):
            with calling_spark():
                context.cancelJobGroup(_GROUP)
            return
        waited += _STEP_SECONDS
        if waited >= WARN_SECONDS:
            waited = float("-inf")
            log.warning(
                "%s has started no task for %.0f s: it has no free cores or memory for this run, or none that fit spark.executor.cores "
                "and spark.executor.memory; waiting",
                context.master,
                WARN_SECONDS,
            )
    if failed:
        _raise(failed[0], str(context.pythonExec))
    faults = list(dict.fromkeys(each for each in found if each))
    if faults:
        raise ConfigError([Fault(each, "") for each in faults])


def _raise(error: BaseException, python: str) -> None:
    fault = executor_fault(str(error), isthmus.__version__, python)
    if not fault:
        raise error
    raise ConfigError([Fault(fault, "")]) from None


def _trial(address: str, token: str) -> Callable[[Iterable[int]], Iterator[str]]:
    version = isthmus.__version__

    def tried(_: Iterable[int]) -> Iterator[str]:
        yield try_here(address, token, version)

    return tried


def try_here(address: str, token: str, version: str) -> str:
    """The fault of this process, which an executor has started; empty if there is none."""
    where = f"the executor on {socket.gethostname()}"
    if isthmus.__version__ != version:
        return f"{where} has isthmus {isthmus.__version__} and the driver {version}: install the same on both"
    try:
        dial_control(address, token, DIAL_SECONDS).close()
    except IsthmusError as error:
        return f"{where}: {error.message}"
    return ""
